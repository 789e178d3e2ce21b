"""Lines of styled text, and tables that fit any width: what live views and both `top` commands draw."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gpuyard.cli.terminal.text_table import columns, cut, visible

BARS, ASCII_BARS = "━─", "#."
_LETTERS = {"·": "-", "…": "~", "↑": "^", "↓": "v"}
_GAP = 2
_SHORTEST, _LONGEST = 3, 30  # lengths of bars


class Piece(NamedTuple):
    """Some text in one style; `full_screen` and `live_view` say what the names of styles mean."""

    text: str
    style: str = ""


Line = list[Piece]


class Cell(NamedTuple):
    """A text, and before it a bar if a share is given."""

    text: str
    style: str = ""
    share: float | None = None


class Column(NamedTuple):
    head: str
    cells: Sequence[Cell]
    least: int  # its least width
    keep: int  # how much it matters: where there is no room, the column with the lowest goes first
    right: bool = False
    grows: bool = False  # whether it takes the room that is left over
    most: int = 40
    bar: int = 0  # width of its bars
    beside: int = 0  # the width of the same column in other tables, so that they stand below each other


def text_columns(heads: Mapping[str, int], rows: Sequence[Sequence[str]], soft: Collection[str] = ()) -> list[Column]:
    """Columns of plain text; `heads` says how much each matters, and only the `soft` ones may be cut."""
    cells = zip(*rows, strict=True) if rows else ((),) * len(heads)
    return [
        Column(head, [Cell(text) for text in texts], 8 if head in soft else 100, keep, most=100)
        for (head, keep), texts in zip(heads.items(), cells, strict=True)
    ]


def table(given: Sequence[Column], width: int, bars: str = BARS) -> tuple[str, list[Line]]:
    """The head and the lines of a table; columns that do not fit are left out."""
    shown = list(given)
    while len(shown) > 1 and sum(map(_least, shown)) + _GAP * (len(shown) - 1) > width:
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


def _least(column: Column) -> int:
    return min(column.least, _wanted(column))


def _wanted(column: Column) -> int:
    text = max((columns(visible(cell.text)) for cell in column.cells), default=0)
    bar = column.bar + 1 if any(cell.share is not None for cell in column.cells) else 0
    return max(columns(column.head), min(max(text + bar, column.beside), column.most))


def _sizes(shown: Sequence[Column], width: int) -> list[int]:
    """Each gets its least; the rest goes to those that lack little, and at last to those that grow."""
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
    label = f" {_fit(cell.text, text, right=True)}"
    return [Piece(bars[0] * full, cell.style), Piece(bars[1] * (long - full), "track"), Piece(_fit(label, size - long))]


def clip(line: Line, width: int) -> Line:
    """As much of a line as fits, without control characters."""
    clipped: Line = []
    for piece in line:
        text = cut(visible(piece.text), width)
        clipped.append(Piece(text, piece.style))
        width -= columns(text)
        if width <= 0:
            break
    return clipped


def headed(head: str, rows: Sequence[Line], style: str = "head") -> list[Line]:
    return [[Piece(head, style)], *([Piece(" "), *row] for row in rows)]


def text_of(line: Line) -> str:
    return "".join(piece.text for piece in line).rstrip()


def bars_for(encoding: str | None) -> str:
    return BARS if "utf" in (encoding or "").lower() else ASCII_BARS


def to_ascii(lines: Sequence[Line]) -> list[Line]:
    """The lines for a terminal that knows no other letters, with the same widths."""
    return [[Piece(_ascii(piece.text), piece.style) for piece in line] for line in lines]


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    return "".join(_LETTERS.get(letter, "?" * columns(letter)) if letter > "~" else letter for letter in text)


def fill(text: str, width: int) -> str:
    text = cut(text, width)
    return text + " " * (width - columns(text))
