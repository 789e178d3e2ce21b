"""`gpuyard kubernetes top`: a cluster live on the terminal."""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import Json, option_groups
from gpuyard.cli.kubernetes.connection import USUAL, ClusterOptions, NoScheduler, ask, scheduler_at
from gpuyard.cli.terminal import output
from gpuyard.errors import GpuyardError, UserError
from gpuyard.units import format_duration, parse_duration

if TYPE_CHECKING:
    from rich.text import Text

    from gpuyard.cli.terminal.styled_lines import Line

Source = Callable[[], dict[str, Any]]
_SHORTEST = 0.2
_WIDE = 180
"""Columns where there is no terminal to fit into."""
_STYLES = {
    "title": "bold", "head": "underline", "good": "green", "bar": "green", "bad": "bold red", "warn": "magenta",
    "faint": "dim", "track": "dim", "alert": "bold reverse red",
}  # fmt: skip


@option_groups
def top(
    reaching: ClusterOptions,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", metavar="URL", help=f"The scheduler to ask ({USUAL}; without one, the API server)."
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None, typer.Option("--lease-namespace", metavar="NAME", help="Where the scheduler's lease is.")
    ] = None,
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="Look again so often.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Print it once as text, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch a cluster live: nodes with their GPUs, what is charged and used, who waits and why."""
    seconds = parse_duration(interval)
    if not _SHORTEST <= seconds < float("inf"):
        raise UserError(f"--interval must be {_SHORTEST:g}s or more, not {interval}")
    source = _source(scheduler, reaching, lease_namespace)
    if json:
        output.print_json(source())
    elif once or not sys.stdout.isatty():
        _print(source())
    else:
        _live(source, seconds)


def _source(scheduler: str | None, reaching: ClusterOptions, namespace: str | None) -> Source:
    """Who tells: the scheduler that is named; else the one of this machine, unless a cluster is named; else the API."""
    if scheduler is not None:
        url = scheduler_at(scheduler)
        return lambda: ask(url)
    named = reaching.kubeconfig or reaching.context
    if not named:
        with suppress(NoScheduler):
            ask(USUAL)
            return lambda: ask(USUAL)
    try:
        api = reaching.api()
    except UserError as error:
        if named:
            raise
        raise UserError(f"no scheduler answers at {USUAL} (--scheduler names another), and {error}") from None
    from gpuyard.kubernetes.cluster_snapshot import take_snapshot

    return lambda: take_snapshot(api, namespace).to_json()


def _print(view: dict[str, Any]) -> None:
    import shutil

    from gpuyard.cli.jobs.top.frames import text_of
    from gpuyard.cli.kubernetes.top_frames import ASCII_BARS, BARS, frame

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    utf = "utf" in (sys.stdout.encoding or "").lower()
    print("\n".join(text_of(line) for line in frame(view, width, None, bars=BARS if utf else ASCII_BARS)))


# -- live ---------------------------------------------------------------------------------------------


def _live(source: Source, seconds: float) -> None:
    """Show it until `q` or Ctrl-C; the terminal is as before when this returns."""
    from rich.console import Console
    from rich.live import Live

    for variable in ("LINES", "COLUMNS"):  # or rich would believe them, whatever size the terminal takes
        os.environ.pop(variable, None)
    console = Console(highlight=False, markup=False, emoji=False)
    news: queue.SimpleQueue[dict[str, Any] | str] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(source, seconds, news), daemon=True).start()
    shown = _Shown()
    with (
        suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as screen,
    ):
        while "q" not in pressed(0.1):
            while not news.empty():
                shown.take(news.get())
            if (drawn := shown.draw(*console.size)) is not None:
                screen.update(drawn, refresh=True)


def _follow(source: Source, seconds: float, news: queue.SimpleQueue[dict[str, Any] | str]) -> None:
    """Ask again and again, beside the screen, so that keys never wait for an answer."""
    while True:
        begun = time.monotonic()
        try:
            news.put(source())
        except GpuyardError as error:
            news.put(str(error))
        took = time.monotonic() - begun
        time.sleep(max(seconds - took, took))  # looking is not to be all that it does


class _Shown:
    """What is on the screen: the last answer, and since when there is none."""

    def __init__(self) -> None:
        self._view: dict[str, Any] | None = None
        self._problem, self._since = "", 0.0
        self._drawn: tuple[Any, ...] = ()
        self._news = 0

    def take(self, found: dict[str, Any] | str) -> None:
        """Take an answer, or why there is none."""
        self._news += 1
        if isinstance(found, dict):
            self._view, self._problem = found, ""
            return
        self._since = self._since if self._problem else time.monotonic()
        self._problem = found

    def draw(self, width: int, height: int) -> Text | None:
        """The screen, if it is to be another."""
        said = ""
        if self._problem:
            ago = format_duration(round(time.monotonic() - self._since))
            said = f"NO ANSWER for {ago}, this asks on: {self._problem}"
        key = (self._news, width, height, said)
        if key == self._drawn:
            return None
        self._drawn = key
        return _text(_lines(self._view, said, width, height))


def _lines(view: dict[str, Any] | None, said: str, width: int, height: int) -> list[Line]:
    from gpuyard.cli.kubernetes.top_frames import frame
    from gpuyard.cli.terminal.styled_lines import Piece, clip

    if view is None:
        lines = [clip([Piece(f" {said or 'looking at the cluster ...'}", "alert" if said else "faint")], width)]
    else:
        lines = frame(view, width, height - 1, problem=said)
    blank: list[Line] = [[] for _ in range(height - 1 - len(lines))]
    return [*lines, *blank, clip([Piece(" q", "title"), Piece(" quit")], width)]


def _text(lines: list[Line]) -> Text:
    from rich.text import Text

    found = Text(no_wrap=True, end="")
    for number, line in enumerate(lines):
        found.append("\n" if number else "")
        for piece in line:
            found.append(piece.text, _STYLES.get(piece.style, ""))
    return found


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Something that waits so many seconds for keys, and tells which were pressed; none where nobody can press any."""
    if not sys.stdin.isatty():
        yield _nothing
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield lambda wait: os.read(number, 99).decode("latin-1") if select.select([number], [], [], wait)[0] else ""
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _nothing(seconds: float) -> str:
    time.sleep(seconds)
    return ""
