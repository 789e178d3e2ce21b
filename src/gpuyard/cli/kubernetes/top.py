"""`gpuyard kubernetes top`: a cluster live on the terminal.

`frame` is a pure function of the scheduler's answer.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

from gpuyard.cli.common_options import Json, option, option_groups
from gpuyard.cli.kubernetes.connection import USUAL, ClusterOptions, NoScheduler, ask, scheduler_at
from gpuyard.cli.terminal import output
from gpuyard.cli.terminal.output import many
from gpuyard.cli.terminal.styled_lines import BARS, Cell, Column, Line, Piece, bars_for, clip, headed, table, text_of
from gpuyard.cli.terminal.text_table import columns, indices, share, span, visible
from gpuyard.errors import GpuyardError, UserError
from gpuyard.units import format_duration, format_size, parse_duration

Source = Callable[[], dict[str, Any]]
Answer = dict[str, Any] | str  # A snapshot of the cluster, or why there is none
_SHORTEST = 0.2
_WIDE = 180  # columns where there is no terminal to fit into
Facts = Mapping[str, Any]
_WAITING = ("waiting", "gated")
_STYLES = {"free": "good", "ours": "", "foreign": "warn", "closed": "faint"}
_TOLERANCE = 2**26  # bytes more than is charged that do not matter
_LEAST = 3  # least lines of a list
_HIGH = 18  # lines of a screen from which on the head may take more than one


@option_groups
def top(
    cluster: ClusterOptions,
    scheduler: Annotated[
        str | None, option("--scheduler", "URL", f"The scheduler to ask ({USUAL}; without one, the API server).")
    ] = None,
    lease_namespace: Annotated[
        str | None, option("--lease-namespace", "NAME", "Where the scheduler's lease is.")
    ] = None,
    interval: Annotated[str, option("--interval", "TIME", "Look again so often.")] = "2s",
    once: Annotated[bool, option("--once", "Print it once as text, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch a cluster live: nodes with their GPUs, what is charged and used, who waits and why."""
    seconds = parse_duration(interval)
    if not _SHORTEST <= seconds < float("inf"):
        raise UserError(f"--interval must be {_SHORTEST:g}s or more, not {interval}")
    source = _source(scheduler, cluster, lease_namespace)
    if json:
        output.print_json(source())
    elif once or not sys.stdout.isatty():
        _print(source())
    else:
        _live(source, seconds)


def _source(scheduler: str | None, cluster: ClusterOptions, namespace: str | None) -> Source:
    """The scheduler that is named; else that of this machine, unless a cluster is named; else the API server."""
    if scheduler is not None:
        url = scheduler_at(scheduler)
        return lambda: ask(url)
    named = cluster.kubeconfig or cluster.context
    if not named:
        with suppress(NoScheduler):
            ask(USUAL)
            return lambda: ask(USUAL)
    try:
        api = cluster.api()
    except UserError as error:
        if named:
            raise
        raise UserError(f"no scheduler answers at {USUAL} (--scheduler names another), and {error}") from None
    from gpuyard.kubernetes.cluster_snapshot import take_snapshot

    return lambda: take_snapshot(api, namespace).to_json()


def _print(view: dict[str, Any]) -> None:
    import shutil

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    print("\n".join(text_of(line) for line in frame(view, width, None, bars=bars_for(sys.stdout.encoding))))


def _live(source: Source, seconds: float) -> None:
    from gpuyard.cli.terminal.full_screen import full_screen

    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(source, seconds, answers), daemon=True).start()
    shown = _Shown()
    with full_screen("--once") as screen:
        key = ""
        while key not in ("q", "interrupt"):
            while not answers.empty():
                shown.take(answers.get())
            if (lines := shown.lines(*screen.size, screen.bars)) is not None or key:
                screen.draw(lines if lines is not None else shown.last)
            key = screen.key()


def _follow(source: Source, seconds: float, answers: queue.SimpleQueue[Answer]) -> None:
    """Ask again and again, in a thread: keys never wait for an answer."""
    while True:
        begun = time.monotonic()
        try:
            answers.put(source())
        except GpuyardError as error:
            answers.put(str(error))
        took = time.monotonic() - begun
        time.sleep(max(seconds - took, took))  # it spends at most half of the time on asking


class _Shown:
    """The last answer, and since when there is none."""

    def __init__(self) -> None:
        self._view: dict[str, Any] | None = None
        self._problem, self._since = "", 0.0
        self._drawn: tuple[Any, ...] = ()
        self._answers = 0
        self.last: list[Line] = []

    def take(self, found: Answer) -> None:
        self._answers += 1
        if isinstance(found, dict):
            self._view, self._problem = found, ""
            return
        self._since = self._since if self._problem else time.monotonic()
        self._problem = found

    def lines(self, width: int, height: int, bars: str) -> list[Line] | None:
        """The screen; None if nothing of it has changed."""
        problem = ""
        if self._problem:
            ago = format_duration(round(time.monotonic() - self._since))
            problem = f"NO ANSWER for {ago}, this asks on: {self._problem}"
        key = (self._answers, width, height, problem)
        if key == self._drawn:
            return None
        self._drawn, self.last = key, _screen_lines(self._view, problem, width, height, bars)
        return self.last


def _screen_lines(view: dict[str, Any] | None, problem: str, width: int, height: int, bars: str) -> list[Line]:
    if view is None:
        style = "alert" if problem else "faint"
        lines = [clip([Piece(f" {problem or 'looking at the cluster ...'}", style)], width)]
    else:
        lines = frame(view, width, height - 1, problem=problem, bars=bars)
    blank: list[Line] = [[] for _ in range(height - 1 - len(lines))]
    return [*lines, *blank, clip([Piece(" q", "title"), Piece(" quit")], width)]


class Room(NamedTuple):
    """Rows of each list, headings not counted."""

    nodes: int
    queue: int
    running: int


def frame(view: Facts, width: int, height: int | None, *, problem: str = "", bars: str = BARS) -> list[Line]:
    """The cluster in `height` lines; None: as many as show what matters."""
    gpus = [(node, gpu) for node in view["nodes"] for gpu in node["gpus"]]
    waiting = [pod for pod in view["pods"] if pod["phase"] in _WAITING]
    waiting.sort(key=lambda pod: (pod["position"] or float("inf"), pod["created_at"]))
    running = [pod for pod in view["pods"] if pod["phase"] not in _WAITING]
    running.sort(key=lambda pod: -float(pod["started_at"] or pod["created_at"]))
    fold = width if height is None or height >= _HIGH else None
    head = [[Piece(f" {problem}", "alert")]] if problem else _folded(["gpuyard", *_facts(view)], fold, "title")
    head += [*_folded(_counts(view, gpus), fold), []]
    room = shared_out(height - len(head) if height else None, len(gpus), len(view["nodes"]), len(waiting), len(running))
    lines = [*head, *_nodes(view, gpus, room.nodes, width, bars), []]
    lines += _list(f"WAITING {len(waiting):,}", waiting, room.queue, _queue_columns(waiting, view), width, bars)
    if room.running:
        ran = _running_columns(running, view)
        lines += [[], *_list(f"PLACED {len(running):,}", running, room.running, ran, width, bars)]
    shown = [clip(line, width) for line in lines]
    return shown if height is None else shown[:height]


def shared_out(height: int | None, gpus: int, nodes: int, waiting: int, running: int) -> Room:
    """Divide the lines: a third for the queue, the rest for GPUs; what is left over for placed pods."""
    if height is None:
        return Room(40, min(max(waiting, 1), 40), min(running, 40))
    left = max(height - 3, 2)  # headings of the nodes and the queue, and a blank between them
    queue = min(max(waiting, 1), max(left // 3, 1))
    wanted = gpus if gpus <= left - queue else nodes
    shown = max(min(wanted, left - queue), 1)
    queue = min(max(waiting, 1), left - shown)
    spare = left - shown - queue - 2
    return Room(shown, max(queue, 0), min(running, spare) if spare >= _LEAST else 0)


def _folded(facts: Sequence[str], width: int | None, style: str = "") -> list[Line]:
    """Facts in as many lines as fit into a width; None: in one line."""
    lines = [""]
    for fact in facts:
        further = f"{lines[-1]} · {fact}" if lines[-1] else fact
        fits = not lines[-1] or width is None or columns(visible(further)) < width
        lines[-1:] = [further] if fits else [lines[-1], fact]
    return [[Piece(f" {line}", style)] for line in lines]


def _facts(view: Facts) -> list[str]:
    usage = {"ok": "Prometheus ok", "off": "no Prometheus"}.get(view["prometheus"], f"PROMETHEUS {view['prometheus']}")
    leader = f"{view['leader']} decides" if view["leader"] else "NOBODY IS ELECTED"
    facts = [view["server"], view["policy"], f"admission by {view['admission']}", leader, usage]
    return [fact for fact in facts if fact]


def _counts(view: Facts, gpus: Sequence[tuple[Facts, Facts]]) -> list[str]:
    nodes = view["nodes"]
    unready, cordoned = sum(not node["ready"] for node in nodes), sum(node["cordoned"] for node in nodes)
    shut = [f"{count:,} {word}" for count, word in ((unready, "not ready"), (cordoned, "cordoned")) if count]
    states = Counter(gpu["state"] for _, gpu in gpus)
    foreign = f", {states['foreign']:,} foreign" if states["foreign"] else ""
    phases = Counter(pod["phase"] for pod in view["pods"])
    words = {"running": "run", "bound": "start", "ending": "end", "waiting": "wait", "gated": "gated"}
    pods = [f"{phases[phase]:,} {word}" for phase, word in words.items() if phases[phase]]
    return [
        many(len(nodes), "node") + (f" ({', '.join(shut)})" if shut else ""),
        f"{many(len(gpus), 'GPU')}: {states['free']:,} free{foreign}",
        f"memory {_memory([gpu for _, gpu in gpus])}",
        f"pods: {', '.join(pods) or 'none'}",
    ]


def _memory(gpus: Sequence[Facts]) -> str:
    """`61% charged, 40% used`."""
    total = sum(gpu["memory_total"] for gpu in gpus)
    if not total:
        return "unknown"
    charged = f"{sum(gpu['memory_charged'] for gpu in gpus) / total:.0%} charged"
    used = [gpu["memory_used"] for gpu in gpus if gpu["memory_used"] is not None]
    return f"{charged}, {sum(used) / total:.0%} used" if used else charged


def _nodes(view: Facts, gpus: Sequence[tuple[Facts, Facts]], rows: int, width: int, bars: str) -> list[Line]:
    if not gpus:
        return [[Piece(" NODE", "head")], [Piece(" the cluster has no node with GPUs", "faint")]]
    if len(gpus) <= rows:
        return _table(_gpu_columns(gpus), width, bars)
    nodes = view["nodes"]
    if len(nodes) <= rows:
        return _table(_node_columns(nodes), width, bars)
    ranked = sorted(nodes, key=_interest)
    rest = ranked[max(rows - 1, 0) :]
    left = [gpu for node in rest for gpu in node["gpus"]]
    busy = sum(gpu["state"] in ("ours", "foreign") for gpu in left)
    more = f" and {many(len(rest), 'more node')}: {busy:,} of {many(len(left), 'GPU')} in use, memory {_memory(left)}"
    shown = ranked[: max(rows - 1, 0)]
    return [*(_table(_node_columns(shown), width, bars) if shown else []), [Piece(more, "faint")]]


def _interest(node: Facts) -> tuple[int, float, str]:
    """Sort key: what is wrong first, then what is full."""
    wrong = not node["ready"] or any(map(is_over, node["gpus"]))
    return -int(wrong), -_share(node["gpus"]), node["name"]


def is_over(gpu: Facts) -> bool:
    used = gpu["memory_used"]
    return bool(used is not None and gpu["pods"] and used > gpu["memory_charged"] + _TOLERANCE)


def _share(gpus: Sequence[Facts]) -> float:
    total = sum(gpu["memory_total"] for gpu in gpus)
    if not total:
        return sum(bool(gpu["pods"]) for gpu in gpus) / max(len(gpus), 1)
    return float(sum(gpu["memory_charged"] for gpu in gpus) / total)


def _gpu_columns(gpus: Sequence[tuple[Facts, Facts]]) -> list[Column]:
    names = [Cell(node["name"] if gpu is node["gpus"][0] else "", _node_style(node)) for node, gpu in gpus]
    one = [gpu for _, gpu in gpus]
    return [
        Column("NODE", names, 10, 9, most=30),
        Column("GPU", [Cell(str(gpu["index"])) for gpu in one], 3, 8, right=True),
        Column("STATE", [_state(node, gpu) for node, gpu in gpus], 7, 7),
        Column("CHARGED", [_charged(gpu) for gpu in one], 9, 6, bar=10),
        Column("USED", [_used(gpu) for gpu in one], 5, 5, bar=6),
        Column("UTIL", [Cell("-" if gpu["utilization"] is None else f"{gpu['utilization']:.0f}%") for gpu in one], 4, 3,
               right=True),
        Column("PODS", [Cell(", ".join(gpu["pods"]) or "-", "" if gpu["pods"] else "faint") for gpu in one], 16, 7,
               most=200, grows=True),
    ]  # fmt: skip


def _state(node: Facts, gpu: Facts) -> Cell:
    if is_over(gpu):
        return Cell("over", "bad")
    if gpu["state"] == "closed":
        return Cell(_shut(node), "bad" if not node["ready"] else "faint")
    return Cell(gpu["state"], _STYLES.get(gpu["state"], ""))


def _shut(node: Facts) -> str:
    return "not ready" if not node["ready"] else "cordoned" if node["cordoned"] else "ready"


def _node_style(node: Facts) -> str:
    return "bad" if not node["ready"] else "faint" if node["cordoned"] else ""


def _charged(gpu: Facts) -> Cell:
    total = gpu["memory_total"]
    if not total:
        return Cell("-")
    return Cell(f"{format_size(gpu['memory_charged'])}/{format_size(total)}", "bar", gpu["memory_charged"] / total)


def _used(gpu: Facts) -> Cell:
    used, total = gpu["memory_used"], gpu["memory_total"]
    if used is None:
        return Cell("-", "faint")
    return Cell(format_size(used), "bad" if is_over(gpu) else "bar", used / total if total else None)


def _node_columns(nodes: Sequence[Facts]) -> list[Column]:
    pods = [len({name for gpu in node["gpus"] for name in gpu["pods"]}) for node in nodes]
    return [
        Column("NODE", [Cell(node["name"], _node_style(node)) for node in nodes], 10, 9, most=40),
        Column("STATE", [_node_state(node) for node in nodes], 8, 7),
        Column("GPUS", [Cell(_taken(node)) for node in nodes], 4, 8, right=True),
        Column("CHARGED", [_of_all(node, "memory_charged") for node in nodes], 9, 6, bar=10),
        Column("USED", [_of_all(node, "memory_used") for node in nodes], 5, 5, bar=6),
        Column("PODS", [Cell(f"{count:,}") for count in pods], 4, 5, right=True),
        Column("MODEL", [Cell(node["model"]) for node in nodes], 8, 2, most=60, grows=True),
    ]


def _node_state(node: Facts) -> Cell:
    if node["ready"] and not node["cordoned"] and any(map(is_over, node["gpus"])):
        return Cell("over", "bad")
    if any(gpu["state"] == "foreign" for gpu in node["gpus"]) and _shut(node) == "ready":
        return Cell("foreign", "warn")
    return Cell(_shut(node), _node_style(node))


def _taken(node: Facts) -> str:
    """`5/8` GPUs in use."""
    return f"{sum(gpu['state'] in ('ours', 'foreign') for gpu in node['gpus'])}/{len(node['gpus'])}"


def _of_all(node: Facts, what: str) -> Cell:
    total = sum(gpu["memory_total"] for gpu in node["gpus"])
    known = [gpu[what] for gpu in node["gpus"] if gpu[what] is not None]
    if not total or not known:
        return Cell("-", "faint")
    return Cell(f"{sum(known) / total:.0%}", "bar", sum(known) / total)


def _list(title: str, pods: Sequence[Facts], rows: int, rest: Sequence[Column], width: int, bars: str) -> list[Line]:
    """A list of pods; if not all fit, the last line says how many more there are."""
    if not pods:
        return [[Piece(f" {title}", "head")], [Piece(" no pod", "faint")]]
    shown = len(pods) if len(pods) <= rows else max(rows - 1, 0)
    names = Column(title, [Cell(f"{pod['namespace']}/{pod['name']}") for pod in pods], 16, 9, most=50)
    some = [column._replace(cells=column.cells[:shown]) for column in (names, *rest)]
    lines = _table(some, width, bars) if shown else [[Piece(f" {title}", "head")]]
    return lines if shown == len(pods) else [*lines, [Piece(f" and {len(pods) - shown:,} more", "faint")]]


def _queue_columns(pods: Sequence[Facts], view: Facts) -> list[Column]:
    why = [Cell("gated" if pod["phase"] == "gated" and not pod["reason"] else pod["reason"]) for pod in pods]
    return [
        Column("GPUS", [Cell(share(pod["gpu_count"], pod["gpu_memory"] or None)) for pod in pods], 4, 5, most=12),
        Column("PRIO", [Cell(f"{pod['priority']:.12g}") for pod in pods], 4, 3, right=True),
        Column("WAITED", [Cell(span(pod["created_at"], view["at"])) for pod in pods], 7, 5, right=True),
        Column("WHY IT WAITS", why, 12, 7, most=200, grows=True),
    ]


def _running_columns(pods: Sequence[Facts], view: Facts) -> list[Column]:
    memory = [format_size(pod["charged"]) if pod["charged"] else "all" for pod in pods]
    return [
        Column("NODE", [Cell(pod["node"]) for pod in pods], 10, 7, most=30),
        Column("GPU", [Cell(indices(pod["gpus"])) for pod in pods], 3, 6, most=16),
        Column("MEMORY", [Cell(text) for text in memory], 6, 4, right=True),
        Column("RAN", [Cell(span(pod["started_at"], view["at"])) for pod in pods], 7, 5, right=True),
        Column("LET IN BY", [Cell(_by(pod, view)) for pod in pods], 9, 3, most=40, grows=True),
    ]


def _by(pod: Facts, view: Facts) -> str:
    if pod["phase"] in ("bound", "ending"):
        return {"bound": "about to start", "ending": "ending"}[pod["phase"]]
    return str(pod["admitted_by"]) if pod["scheduler"] == view["scheduler"] else f"({pod['scheduler']})"


def _table(given: Sequence[Column], width: int, bars: str) -> list[Line]:
    head, rows = table(given, width - 2, bars)
    return headed(f" {head}", rows)
