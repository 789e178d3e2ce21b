"""The whole terminal: curses paints lines of styled text and names the keys. Both `top` commands run on it."""

from __future__ import annotations

import curses
import locale
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gpuyard.cli.terminal.styled_lines import ASCII_BARS, Line, bars_for, to_ascii
from gpuyard.errors import UserError

_KEY_WAIT = 50  # milliseconds
_NAMES = {
    curses.KEY_UP: "up", curses.KEY_DOWN: "down", curses.KEY_PPAGE: "pageup", curses.KEY_NPAGE: "pagedown",
    curses.KEY_HOME: "home", curses.KEY_END: "end", curses.KEY_BACKSPACE: "backspace", curses.KEY_ENTER: "enter",
    curses.KEY_BTAB: "backtab", curses.KEY_LEFT: "left", curses.KEY_DC: "delete", curses.KEY_RESIZE: "redraw",
    "\n": "enter", "\r": "enter", "\t": "tab", "\x1b": "escape", "\x7f": "backspace", "\b": "backspace",
    "\x03": "interrupt", "\x0c": "redraw", "\x15": "clear",
}  # fmt: skip
_PLAIN = {
    "title": curses.A_BOLD, "head": curses.A_UNDERLINE, "focus": curses.A_BOLD | curses.A_UNDERLINE,
    "selected": curses.A_REVERSE, "alert": curses.A_BOLD | curses.A_REVERSE, "key": curses.A_BOLD,
    "busy": curses.A_BOLD, "bad": curses.A_BOLD, "warn": curses.A_BOLD, "faint": curses.A_DIM, "track": curses.A_DIM,
}  # fmt: skip
_COLOURS = {"good": curses.COLOR_GREEN, "bar": curses.COLOR_GREEN, "focus": curses.COLOR_GREEN, "bad": curses.COLOR_RED,
            "alert": curses.COLOR_RED, "warn": curses.COLOR_MAGENTA}  # fmt: skip
"""Colours that can be read on dark and on light; the background stays the terminal's own."""


class FullScreen:
    def __init__(self, window: curses.window) -> None:
        self._window, self._styles = window, _styles()
        self.bars = bars_for(locale.getencoding())

    @property
    def size(self) -> tuple[int, int]:
        height, width = self._window.getmaxyx()
        return width, height

    def key(self) -> str:
        """The name of a key (`up`), or the letter that it writes; after a short wait "" if none is pressed."""
        if not sys.stdin.isatty():
            time.sleep(_KEY_WAIT / 1000)
        try:
            found = self._window.get_wch()
        except curses.error:
            return ""
        except KeyboardInterrupt:
            return "interrupt"
        name = _NAMES.get(found, found if isinstance(found, str) else "other")
        if name == "redraw":
            curses.update_lines_cols()
            self._window.clear()
        return name

    def draw(self, lines: Sequence[Line]) -> None:
        self._window.erase()
        for y, line in enumerate(to_ascii(lines) if self.bars == ASCII_BARS else lines):
            self._paint(y, line)
        self._window.refresh()

    def _paint(self, y: int, line: Line) -> None:
        x = 0
        for piece in line:
            try:
                self._window.addstr(y, x, piece.text, self._styles.get(piece.style, 0))
            except curses.error:
                return  # the last place of the screen, after which the cursor cannot stand; or it has just shrunk
            x = self._window.getyx()[1]


@contextmanager
def full_screen(instead: str) -> Iterator[FullScreen]:
    """Take the terminal, and leave it as it was; Ctrl-C ends the block. `instead`: what works without a terminal.

    Not curses' own wrapper: that sets colours whether wanted or not.
    """
    locale.setlocale(locale.LC_ALL, "")
    for variable in ("LINES", "COLUMNS"):  # or curses would believe them, whatever size the terminal takes
        os.environ.pop(variable, None)
    curses.set_escdelay(25)
    signal.signal(signal.SIGTERM, _end)
    try:
        window = curses.initscr()
    except curses.error as error:
        raise UserError(f"this terminal cannot be drawn on ({error}); set TERM, or use {instead}") from error
    try:
        with suppress(curses.error):  # where there is no keyboard
            curses.noecho()
            curses.cbreak()
        window.keypad(True)
        window.timeout(_KEY_WAIT)
        with suppress(curses.error):  # some terminals cannot hide the cursor
            curses.curs_set(0)
        with suppress(KeyboardInterrupt):
            yield FullScreen(window)
    finally:
        window.keypad(False)
        with suppress(curses.error):
            curses.echo()
            curses.nocbreak()
        curses.endwin()


def _end(*_: Any) -> None:
    raise SystemExit(143)


def _styles() -> dict[str, int]:
    styles = dict(_PLAIN)
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return styles
    curses.start_color()
    curses.use_default_colors()
    for number, (name, colour) in enumerate(_COLOURS.items(), 1):
        curses.init_pair(number, colour, -1)
        styles[name] = curses.color_pair(number) | _PLAIN.get(name, 0)
    return styles
