"""Messages and progress bars on stderr, JSON on stdout, and numbers as people read them."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuyard.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from gpuyard.sim.parallel import Watch
    from gpuyard.sim.replay import Progress


_ACTING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # C1 and bidi controls


def console() -> Console:
    """For tables on stdout; wide where it is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 180, highlight=False, markup=False, emoji=False)


def say(message: str) -> None:
    """Print a message to stderr, without control characters: it may hold text of others."""
    if not message.isprintable():
        message = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in message)
    print(message, file=sys.stderr)


def say_rejected(examples: Sequence[tuple[str, str]], count: int) -> None:
    for job, reason in examples:
        say(f"rejected: job {job} {reason}")
    if count > len(examples):
        say(f"rejected: {count - len(examples):,} more")


def print_json(value: Any) -> None:
    """Print a JSON document; NaN and infinities become null."""
    print(json_text(plain(value), indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which nothing can act on a terminal: controls, also of writing direction, are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isascii() and "\x7f" not in text else _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_either(as_json: bool, document: Any, show: Callable[[], None]) -> None:
    """Print a JSON document, or show the same to people."""
    if as_json:
        print_json(document)
    else:
        show()


def plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def many(number: int, noun: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def where(metrics: dict[str, Any]) -> str:
    """`8 simulated GPUs`, or `120 simulated GPUs in 14 pools`."""
    pools = f" in {many(len(metrics['pools']), 'pool')}" if metrics.get("pools") else ""
    return many(metrics["gpus"], "simulated GPU") + pools


def duration(value: float | None) -> str:
    return "-" if value is None else format_duration(value)


def size(value: float | None) -> str:
    return "-" if value is None else format_size(value)


def signal_name(code: int) -> str | None:
    """`SIGKILL` for -9, as subprocess reports it; None if the process ended by itself."""
    if code >= 0:
        return None
    import signal

    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1e5:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


@contextmanager
def progress_bar(title: str, steps: Sequence[str] = ("",)) -> Iterator[dict[str, Progress]]:
    """A bar over several runs after another; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield {}
        return
    with _counting(title) as update:

        def updater(position: int, step: str) -> Progress:
            return lambda done, total: update(position * total + done, len(steps) * total, f"{title} {step}".strip())

        yield {step: updater(position, step) for position, step in enumerate(steps)}


@contextmanager
def step_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with a text for every step; elsewhere than on a terminal, lines for the first and the last."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: say(f"{title} {done}/{total}: {what}") if done in (1, total) else None
        return
    with _counting(title) as update:
        yield lambda done, total, what: update(done, total, f"{title}, {what}")


@contextmanager
def _counting(title: str) -> Iterator[Callable[[int, int, str], None]]:
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, what: bar.update(task, description=what, completed=done, total=total)


@contextmanager
def run_bar(title: str) -> Iterator[Watch | None]:
    """A bar over many runs at once; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TaskProgressColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    bar = rich_progress.Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=None)

    def update(done: float, total: int) -> None:
        bar.start()  # not before the first report: processes are forked by then, and the bar has a thread
        bar.update(task, description=f"{title} {int(done)} of {total} runs", completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()
