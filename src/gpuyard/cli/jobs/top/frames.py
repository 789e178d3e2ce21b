"""A frame as lines of styled text: a pure function of the view's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuyard.api.types import OVER
from gpuyard.cli.jobs.top.view_state import MESSAGE_TIME, Layout, LogView, Model, Row, lay_out
from gpuyard.cli.terminal.output import many
from gpuyard.cli.terminal.styled_lines import (
    ASCII_BARS,
    BARS,
    Cell,
    Column,
    Line,
    Piece,
    clip,
    fill,
    headed,
    table,
    to_ascii,
)
from gpuyard.cli.terminal.text_table import columns as columns_of
from gpuyard.cli.terminal.text_table import gpu_notes, how_far, indices, instant, share, span, visible, wrap
from gpuyard.units import format_duration, format_size

if TYPE_CHECKING:
    from gpuyard.api.types import Gpu


STATES = {
    "free": "good", "ours": "busy", "foreign": "bad", "unknown": "bad", "succeeded": "good", "failed": "bad",
    "cancelled": "faint", "timeout": "bad", "oom": "bad", "interrupted": "bad", "held": "faint",
}  # fmt: skip
"""Styles of states."""
_UNKNOWN = Row("", "…", "", "", "", (), 0, None, 0.0, None, None, 0.0, None)  # A row that is not loaded yet


def gpu_table(model: Model, gpus: Sequence[Gpu], bars: str) -> tuple[str, list[Line]]:
    running = model.part("everyone").rows
    names = {row.id: row.name for row in running}
    columns = [
        Column("GPU", [Cell(str(gpu["index"])) for gpu in gpus], 3, 9, right=True),
        Column("NAME", [Cell(gpu["name"]) for gpu in gpus], 8, 3, most=24),
        Column("STATE", [Cell(gpu["state"], STATES.get(gpu["state"], "")) for gpu in gpus], 7, 8),
        Column("MEMORY", [_memory(gpu, running) for gpu in gpus], 7, 6, bar=10),
        Column("UTIL", [_utilization(gpu) for gpu in gpus], 4, 5, right=True),
        Column("JOBS", [_jobs_on(gpu, names) for gpu in gpus], 14, 7, most=200, grows=True),
    ]
    return table(columns, model.width - 2, bars)


def _memory(gpu: Gpu, running: Sequence[Row]) -> Cell:
    """Used memory; what its jobs asked for where that is not measured."""
    total, used = gpu["memory_total"], gpu["memory_used"]
    if not total:
        return Cell("-")
    if used is None:
        used = sum(row.gpu_memory or total for row in running if gpu["index"] in row.gpus)
    return Cell(f"{format_size(used)}/{format_size(total)}", "bar", used / total)


def _utilization(gpu: Gpu) -> Cell:
    value = gpu["utilization"]
    return Cell("-" if value is None else f"{value:.0f}%")


def _jobs_on(gpu: Gpu, names: dict[str, str]) -> Cell:
    notes = gpu_notes(gpu)
    if not gpu["jobs"] and gpu["state"] not in ("free", "ours"):
        return Cell(notes, "bad")
    tenants = [f"{id} {names[id]}" if names.get(id, "-") != "-" else id for id in gpu["jobs"]]
    jobs = ", ".join(tenants)
    if notes:
        return Cell(f"{jobs} ({notes})" if jobs else notes, "warn")
    return Cell(jobs or "-", "" if tenants else "faint")


def job_table(model: Model, name: str, rows: Sequence[Row | None], title: str, bars: str) -> tuple[str, list[Line]]:
    known = [row or _UNKNOWN for row in rows]
    make = {"running": _running, "waiting": _waiting, "ended": _ended}[name]
    ids, names, users = _widths(model)
    columns = [
        Column("ID", [Cell(row.id) for row in known], 4, 9, right=True, beside=ids),
        Column(title, [Cell(row.name) for row in known], 12, 8, most=min(max(model.width // 4, 16), 40), beside=names),
        Column("USER", [Cell(row.user) for row in known], 8, 2, most=12, beside=users),
        *make(known, model.now),
    ]
    return table(columns, model.width - 2, bars)


def _widths(model: Model) -> tuple[int, int, int]:
    shown = lay_out(model).lists
    seen = [model.part(name).get(model.places[name].top + n) for name, rows in shown.items() for n in range(rows)]
    texts = [(row.id, row.name, row.user) for row in seen if row is not None]
    texts.append(("", f"WAITING {model.part('waiting').total:,}", ""))
    ids, names, users = (max(columns_of(visible(text)) for text in column) for column in zip(*texts, strict=True))
    return ids, names, users


def _running(rows: Sequence[Row], now: float) -> list[Column]:
    return [
        Column("GPU", [Cell(indices(row.gpus)) for row in rows], 3, 5, most=12),
        Column("RAN", [Cell(_ran(row, now)) for row in rows], 7, 6, right=True),
        Column("LEFT", [Cell(_left(row, now)) for row in rows], 7, 4, right=True),
        Column("PROGRESS", list(map(_progress, rows)), 14, 7, bar=20, grows=True),
    ]


def _left(row: Row, now: float) -> str:
    return "-" if row.end is None else f"{'<' * (row.by == 'limit')}{span(now, row.end)}"


def _ran(row: Row, now: float) -> str:
    return span(row.started and row.started - row.ran_before, row.ended or now)


def _progress(row: Row) -> Cell:
    if row.reason:
        return Cell(row.reason, "warn")
    if row.progress is None:
        return Cell("-", "faint")
    return Cell(f"{100 * row.progress['fraction']:.0f}%", "bar", row.progress["fraction"])


def _waiting(rows: Sequence[Row], now: float) -> list[Column]:
    why = [Cell("held" if row.state == "held" else row.reason, STATES.get(row.state, "")) for row in rows]
    return [
        Column("GPUS", [Cell(share(row.gpu_count, row.gpu_memory)) for row in rows], 4, 4, most=9),
        Column("PRIO", [Cell(f"{row.priority:.12g}") for row in rows], 4, 3, right=True),
        Column("WAITED", [Cell(span(row.since, now)) for row in rows], 7, 5, right=True),
        Column("WHY IT WAITS", why, 12, 7, most=120, grows=True),
    ]


def _ended(rows: Sequence[Row], now: float) -> list[Column]:
    return [
        Column("STATE", [Cell(row.state, STATES.get(row.state, "")) for row in rows], 9, 7),
        Column("RAN", [Cell(_ran(row, now)) for row in rows], 7, 4, right=True),
        Column("AGO", [Cell(span(row.ended, now)) for row in rows], 7, 5, right=True),
        Column("HOW IT ENDED", [Cell(row.reason) for row in rows], 12, 6, most=120, grows=True),
    ]


_NOTHING = {"running": "nothing runs", "waiting": "nothing waits", "ended": "nothing has ended yet"}
_KEYS = (
    ("Enter", "log"), ("e", "explain"), ("c", "cancel"), ("h", "hold"), ("+-", "priority"), ("/", "filter"),
    ("u", "mine"), ("Tab", "next list"),
)  # fmt: skip
_ALWAYS = (("?", "help"), ("q", "quit"))
_LOG_KEYS = (("↑↓ PgUp PgDn", "scroll"), ("End", "follow"), ("/", "search"), ("n N", "next, previous"))
HELP = """\
Up Down j k PgUp PgDn Home End   move
Tab                              to the next list: running, waiting, ended
Enter l                          the job's output, as it comes
e                                why it waits, and what has to end first
c                                cancel it (asks first)
h                                hold it, or release it
+ -                              more or less priority: higher runs first
/                                only jobs with a text in them; Esc: all again
u                                only mine
q Ctrl-C                         quit; nothing happens to the jobs

In the output: / searches, n and N go on, End follows, q or Esc goes back."""


def frame(model: Model, bars: str = BARS, *, keys: bool = True) -> list[Line]:
    if model.mode in ("log", "search") and model.log is not None:
        lines = _log(model, model.log)
    else:
        lines = [_title(model), *_body(model, bars)]
    room = model.height - 1 if keys and model.height > 1 else model.height
    lines = [clip(line, model.width) for line in lines[:room]]
    lines += [[] for _ in range(room - len(lines))]
    lines += [clip(_footer(model), model.width)] if keys and model.height > 1 else []
    return to_ascii(lines) if bars == ASCII_BARS else lines


# -- the lists ------------------------------------------------------------------------------------


def _title(model: Model) -> Line:
    problem = ""
    if model.unreachable:
        since = format_duration(round(max(model.ticks - model.unreachable_since, 0.0)))
        problem = f" NO DAEMON for {since}: start one with gpuyard up, and this goes on by itself"
    elif model.snapshot is not None and (failing := model.snapshot.status.get("store", {}).get("problem")):
        problem = f" STORE FAILING: {failing}"
    if problem:
        return [Piece(fill(visible(problem), model.width), "alert")]
    return [Piece(fill(" gpuyard  " + " · ".join(_facts(model)), model.width), "title")]


def _facts(model: Model) -> list[str]:
    if model.snapshot is None:
        return []
    status = model.snapshot.status
    jobs = status.get("jobs", {})
    facts = []
    if model.filter or model.mine:
        only = [f"'{visible(model.filter)}'"] * bool(model.filter) + ["mine"] * model.mine
        facts.append(f"ONLY {', '.join(only)}")
    facts += [many(len(model.snapshot.gpus), "SIMULATED GPU")] if model.snapshot.simulated else []
    facts += [f"{jobs.get('running', 0):,} running", f"{jobs.get('queued', 0):,} queued"]
    facts += [f"{jobs['held']:,} held"] if jobs.get("held") else []
    facts.append(str(status.get("policy", "")))
    if status.get("since"):
        facts.append(f"daemon up {span(instant(status['since']).timestamp(), model.now)}")
    return facts


def _body(model: Model, bars: str) -> list[Line]:
    if model.panel is not None:
        return _panel(model)
    if model.snapshot is None:
        text = visible(model.unreachable) or "asking the daemon ..."
        return [[], *([Piece(f" {part}")] for part in wrap(text, max(model.width - 2, 1)))]
    layout = lay_out(model)
    lines = _gpus(model, layout, bars)
    for name, rows in layout.lists.items():
        lines += _list(model, name, rows, bars)
    return lines


def _gpus(model: Model, layout: Layout, bars: str) -> list[Line]:
    if not layout.gpus or model.snapshot is None:
        return []
    gpus = model.snapshot.gpus
    shown = gpus if len(gpus) <= layout.gpus else gpus[: layout.gpus - 1]
    head, rows = gpu_table(model, shown, bars)
    lines = headed(fill(f" {head}", model.width), rows)
    if len(shown) < len(gpus):
        rest = gpus[len(shown) :]
        free = sum(gpu["state"] == "free" for gpu in rest)
        lines.append([Piece(f" … and {many(len(rest), 'more GPU')}, {free} free", "faint")])
    return lines


def _list(model: Model, name: str, rows: int, bars: str) -> list[Line]:
    part, place, focused = model.part(name), model.places[name], name == model.focus
    seen = range(place.top, min(place.top + rows, part.total))
    title = f"{name.upper()} {part.total:,}"
    if focused and part.total > rows > 0:
        title = f"{name.upper()} {place.index + 1:,}/{part.total:,}"
    head, lines = job_table(model, name, [part.get(index) for index in seen], title, bars)
    found: list[Line] = [[Piece(fill(f" {head}", model.width), "focus" if focused else "head")]]
    for index, line in zip(seen, lines, strict=True):
        if focused and index == place.index:
            found.append([Piece(fill(" " + "".join(piece.text for piece in line), model.width), "selected")])
        else:
            found.append([Piece(" "), *line])
    if not part.total and rows:
        none = "no job that is meant" if model.filter or model.mine else _NOTHING[name]
        found.append([Piece(f" {none}", "faint")])
    return found


def _panel(model: Model) -> list[Line]:
    assert model.panel is not None
    width = max(model.width - 2, 1)
    lines = [piece for line in model.panel.lines for piece in wrap(visible(line), width)]
    room = max(model.height - 3, 1)
    model.panel.top = max(0, min(model.panel.top, len(lines) - room))
    seen = lines[model.panel.top : model.panel.top + room]
    head: Line = [Piece(fill(f" {visible(model.panel.title)}", model.width), "focus")]
    return [head, *([Piece(f" {line}")] for line in seen)]


# -- a job's output -------------------------------------------------------------------------------


def _log(model: Model, log: LogView) -> list[Line]:
    row = next((row for row in model.part("running").rows if row.id == log.id), None)
    facts = [f"job {log.id}", *([visible(log.name)] if log.name != "-" else []), log.state or "..."]
    if row is not None and row.progress is not None:
        facts.append(how_far(row.progress, None if row.end is None else row.end - model.now, "progress"))
    if log.bottom is not None:
        facts.append(f"line {log.bottom:,} of {log.count():,}" + ("" if log.start == 0 else " that were read"))
    elif log.state not in OVER:
        facts.append("following")
    if model.unreachable:
        facts.append("NO DAEMON")
    title: Line = [Piece(fill(" " + " · ".join(facts), model.width), "alert" if model.unreachable else "title")]
    seen = log.seen(max(model.width, 1), max(model.height - 2, 0))
    if not log.count():
        return [title, [Piece(_no_output(log), "faint")]]
    return [title, *(_marked(line, log.found) for line in seen)]


def _no_output(log: LogView) -> str:
    if log.state in ("queued", "held"):
        return " it has not started yet; what it prints appears here"
    return " it has not printed anything" if log.state else " ..."


def _marked(line: str, wanted: str) -> Line:
    at = line.casefold().find(wanted.casefold()) if wanted else -1
    if at < 0 or len(line.casefold()) != len(line):
        return [Piece(line)]
    end = at + len(wanted)
    return [Piece(line[:at]), Piece(line[at:end], "selected"), Piece(line[end:])]


# -- the last line --------------------------------------------------------------------------------


def _footer(model: Model) -> Line:
    if model.mode == "confirm" and model.to_cancel is not None:
        name = f" ({visible(model.to_cancel.name)})" if model.to_cancel.name != "-" else ""
        return [Piece(fill(f" Cancel job {model.to_cancel.id}{name}?  y: yes   n: no", model.width), "alert")]
    if model.mode in ("filter", "search"):
        return [Piece(f" {model.mode.capitalize()}: {visible(model.typed)}"), Piece(" ", "selected")]
    if model.message and model.ticks - model.message_at < MESSAGE_TIME:
        return [Piece(f" {visible(model.message)}", "warn")]
    if model.mode == "panel":
        return _hints((), (("↑↓", "scroll"), ("q", "back")), model.width)
    if model.mode == "log":
        return _hints(_LOG_KEYS, (("q", "back"),), model.width)
    return _hints(_KEYS, _ALWAYS, model.width)


def _hints(some: tuple[tuple[str, str], ...], always: tuple[tuple[str, str], ...], width: int) -> Line:
    """Keys in the last line: `always` in any case, of the others as many as fit."""
    room = width - 1 - sum(columns_of(f"{key} {what}  ") for key, what in always)
    line: Line = [Piece(" ")]
    shown = []
    for key, what in some:
        room -= columns_of(f"{key} {what}  ")
        if room < 0:
            break
        shown.append((key, what))
    for key, what in (*shown, *always):
        line += [Piece(key, "key"), Piece(f" {what}  ")]
    return line
