"""Lines of styled text, and tables of them that fit a given width: what both `top` commands draw with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.cli.terminal.text_table import columns, cut, visible

_GAP = 2
_SHORTEST, _LONGEST = 3, 30
"""How long bars are."""


class Piece(NamedTuple):
    """Some text in one style; the names of styles are `screen`'s."""

    text: str
    style: str = ""


Line = list[Piece]


class Cell(NamedTuple):
    """What stands in one place of a table: a text, and before it a bar if a share is given."""

    text: str
    style: str = ""
    share: float | None = None


class Column(NamedTuple):
    """A column of a table."""

    head: str
    cells: Sequence[Cell]
    least: int
    """The columns of the screen that it needs."""
    keep: int
    """How much it matters: where there is no room, the lowest goes first."""
    right: bool = False
    grows: bool = False
    """Whether it takes what room is left over."""
    most: int = 40
    bar: int = 0
    """The width of its bar."""
    beside: int = 0
    """The width of the same column in other tables, so that they stand below each other."""


def table(given: Sequence[Column], width: int, bars: str = "━─") -> tuple[str, list[Line]]:
    """The head and the lines of a table; columns that do not fit are left out."""
    shown = list(given)
    while len(shown) > 1 and _needed(shown, least=True) > width:
        shown.remove(min(shown, key=lambda column: column.keep))
    sizes = _sizes(shown, width)
    gap = " " * _GAP
    head = gap.join(_fit(column.head, size, column.right) for column, size in zip(shown, sizes, strict=True))
    lines: list[Line] = []
    for cells in zip(*(column.cells for column in shown), strict=True):
        line: Line = []
        for cell, column, size in zip(cells, shown, sizes, strict=True):
            line += [*_pieces(cell, size, column, bars), Piece(gap)]
        lines.append(line[:-1])
    return cut(head, width), lines


def _needed(shown: Sequence[Column], least: bool) -> int:
    return sum(_least(column) if least else _wanted(column) for column in shown) + _GAP * (len(shown) - 1)


def _least(column: Column) -> int:
    return min(column.least, _wanted(column))


def _wanted(column: Column) -> int:
    text = max((columns(visible(cell.text)) for cell in column.cells), default=0)
    bar = column.bar + 1 if any(cell.share is not None for cell in column.cells) else 0
    return max(columns(column.head), min(max(text + bar, column.beside), column.most))


def _sizes(shown: Sequence[Column], width: int) -> list[int]:
    """Each has what it needs; what is left goes to those that want a little more, and at last to those that grow."""
    sizes = [_least(column) for column in shown]
    left = width - sum(sizes) - _GAP * (len(shown) - 1)
    missing = [_wanted(column) - size for column, size in zip(shown, sizes, strict=True)]
    for position in sorted(range(len(shown)), key=lambda n: (shown[n].grows, missing[n])):
        more = max(min(missing[position], left), 0)
        sizes[position] += more
        left -= more
    for position, column in enumerate(shown):
        if column.grows and left > 0:
            sizes[position] += left
            left = 0
    if len(shown) == 1:
        sizes[0] = min(sizes[0], width)
    return sizes


def _fit(text: str, size: int, right: bool = False) -> str:
    text = cut(visible(text), size) if size > 0 else ""
    blank = " " * (size - columns(text))
    return blank + text if right else text + blank


def _pieces(cell: Cell, size: int, column: Column, bars: str) -> Line:
    text = (
        max(columns(other.text) for other in column.cells if other.share is not None) if cell.share is not None else 0
    )
    long = min(size - text - 1, _LONGEST)
    if cell.share is None or long < _SHORTEST:
        return [Piece(_fit(cell.text, size, column.right), "" if cell.share is not None else cell.style)]
    full = round(long * min(max(cell.share, 0.0), 1.0))
    told = f" {_fit(cell.text, text, right=True)}"
    return [Piece(bars[0] * full, cell.style), Piece(bars[1] * (long - full), "track"), Piece(_fit(told, size - long))]


def clip(line: Line, width: int) -> Line:
    """As much of a line as fits, and nothing in it that a terminal would obey."""
    clipped: Line = []
    for piece in line:
        text = cut(visible(piece.text), width)
        clipped.append(Piece(text, piece.style))
        width -= columns(text)
        if width <= 0:
            break
    return clipped
