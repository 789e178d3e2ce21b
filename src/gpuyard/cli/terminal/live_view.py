"""A live view: a picture that is redrawn in place on a terminal, and a line for every change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from gpuyard.cli.terminal.output import say
from gpuyard.cli.terminal.styled_lines import Line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

State = TypeVar("State")
_STYLES = {"title": "bold", "head": "underline", "faint": "dim", "track": "dim"}
"""Styles of a line as rich writes them; all others are rich's own, as in `bold green`."""


class LiveView(Generic[State]):
    """Shows one state after another: `picture` draws it for a width, `changes` tells what is new in it."""

    def __init__(
        self,
        picture: Callable[[State, int], Sequence[Line]],
        changes: Callable[[State], Iterable[str]] = lambda state: (),
        *,
        to_stderr: bool = False,
        live: bool = True,
    ) -> None:
        self._picture, self._changes, self._to_stderr = picture, changes, to_stderr
        self._print: Callable[[str], None] = say if to_stderr else partial(print, flush=True)
        self.live = live and (sys.stderr if to_stderr else sys.stdout).isatty()
        self._screen: Live | None = None

    def __enter__(self) -> LiveView[State]:
        if self.live:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=self._to_stderr, highlight=False, markup=False, emoji=False)
            self._screen = Live(console=console, transient=True, auto_refresh=False)
            self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen is not None:
            self._screen.stop()

    def show(self, state: State) -> None:
        if self._screen is not None:
            self._screen.update(_text(self._picture(state, self._screen.console.width)), refresh=True)
            return
        for line in self._changes(state):
            self._print(line)


def _text(lines: Sequence[Line]) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True)
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for piece in line:
            text.append(piece.text, _STYLES.get(piece.style, piece.style))
    return text
