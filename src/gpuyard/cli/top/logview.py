"""A job's output on the screen: lines, which of them are seen, and what is looked for in them."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from dataclasses import dataclass, field
from typing import Any

from gpuyard.cli.table import columns, visible

PIECE = 2**18
"""Bytes that are read at a time."""
MOST = 2**22
"""Bytes that are read at once where the beginning is wanted."""
_KEPT = 200_000
"""Lines that are kept."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def _decoder() -> Any:
    return getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True)
class LogView:
    """The output of one job, as far as it was read."""

    id: str
    name: str
    state: str = ""
    lines: list[str] = field(default_factory=list)
    start: int = 0
    """Bytes before what was read."""
    bottom: int | None = None
    """The line after the last that is seen; None: the end, whatever comes."""
    found: str = ""
    """What was looked for last."""
    loading: bool = False
    home: int = 0
    """Lines of the screen, if the user wants to be at the beginning, also of what is still to be read."""
    _rest: str = ""
    """The line that is not at its end yet."""
    _decode: Any = field(default_factory=_decoder)

    @property
    def all_lines(self) -> list[str]:
        """All lines, the one that is being written included."""
        return [*self.lines, clean(self._rest)] if self._rest else self.lines

    def count(self) -> int:
        """How many lines there are."""
        return len(self.lines) + bool(self._rest)

    def append(self, data: bytes) -> None:
        """More output."""
        *lines, self._rest = (self._rest + self._decode.decode(data)).replace("\r\n", "\n").split("\n")
        self._rest = self._rest[-PIECE:]
        self.lines += map(clean, lines)
        if (surplus := len(self.lines) - _KEPT) > 0:
            del self.lines[:surplus]
            self.bottom = None if self.bottom is None else max(self.bottom - surplus, 1)

    def prepend(self, data: bytes, start: int) -> None:
        """Output from before what was read; what is seen stays where it is."""
        self.start, self.loading = start, False
        if not data:
            return
        text = data.decode(errors="replace").replace("\r\n", "\n").split("\n")
        first = self.lines.pop(0) if self.lines else ""
        text[-1] += first
        self.lines[:0] = map(clean, text)
        added = len(text) - 1
        if self.bottom is not None:
            self.bottom = min(self.home, self.count()) if self.home else self.bottom + added

    def restart(self) -> None:
        """The job runs once more: its output begins anew."""
        self.lines, self._rest, self.start, self.bottom, self._decode = [], "", 0, None, _decoder()

    def scroll(self, lines: int, height: int) -> None:
        """Look further down, or up."""
        count = self.count()
        bottom = (count if self.bottom is None else self.bottom) + lines
        self.bottom = None if bottom >= count else max(bottom, min(height, count))

    def search(self, text: str, step: int) -> bool:
        """Show the nearest line that has a text, above (-1) or below; whether there is one."""
        self.found = text
        lines, wanted = self.all_lines, text.casefold()
        at = (len(lines) if self.bottom is None else self.bottom) - 1
        if step < 0 and self.bottom is None:
            at += 1
        while 0 <= (at := at + step) < len(lines):
            if wanted in lines[at].casefold():
                self.bottom = at + 1
                return True
        return False

    def seen(self, width: int, height: int) -> list[str]:
        """What is on the screen: the last lines up to the bottom, folded to the width."""
        lines = self.all_lines
        rows: list[str] = []
        at = len(lines) if self.bottom is None else self.bottom
        while at > 0 and len(rows) < height:
            at -= 1
            rows[:0] = fold(lines[at], width)
        return rows[-height:]


def clean(line: str) -> str:
    """A line as a terminal would show it in the end: what a carriage return let be overwritten is gone."""
    text = line.rstrip("\r").rpartition("\r")[2]
    if text.isprintable():
        return text
    return visible(_ESCAPE.sub("", text).expandtabs(8))


def fold(line: str, width: int) -> list[str]:
    """A line in pieces that are no wider than the screen."""
    if line.isascii():
        return [line[at : at + width] for at in range(0, len(line), width)] or [""]
    pieces, taken = [""], 0
    for letter in line:
        size = columns(letter)
        if taken + size > width and pieces[-1]:
            pieces.append("")
            taken = 0
        pieces[-1] += letter
        taken += size
    return pieces
