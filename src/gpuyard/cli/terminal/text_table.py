"""Plain tables: fast for ten thousand rows, with control characters made visible."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from gpuyard.cli.terminal.output import json_text, say
from gpuyard.units import format_duration, format_size

if TYPE_CHECKING:
    from gpuyard.api.types import Gpu, Job, Progress

_ROOM, _INDENT = 20, 4  # columns: the narrowest last cell, and where it begins on a line of its own
_NARROWEST = 12  # columns that are left of the widest cells, such as names
Item = TypeVar("Item", bound=Mapping[str, Any])


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], wide: bool = False) -> None:
    """Print aligned columns; the last is wrapped, so that no line is longer than the terminal, unless it may be."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and not wide else None
    print("\n".join(lines(heads, rows, width)))


def lines(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int | None) -> list[str]:
    aligned = [_aligned(column) for column in zip(heads, *rows, strict=True)]
    found = ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    if width is None or all(columns(line) <= width for line in found):
        return found
    *first, last = aligned
    first = _narrowed(first, width)
    while len(first) > 1 and sum(columns(column[0]) + 2 for column in first) - 2 > width:  # it goes below, too
        last = [f"{cell.rstrip()}  {text}" for cell, text in zip(first.pop(), last, strict=True)]
    before = ["  ".join(row) for row in zip(*first, strict=True)]
    return [line for cells in zip(before, last, strict=True) for line in _wrapped(*cells, width)]


def _narrowed(first: list[list[str]], width: int) -> list[list[str]]:
    """All columns but the last, with the widest one cut, where this makes room for the last, or at least for them."""
    sizes = [columns(column[0]) for column in first]
    widest = max(sizes, default=0)
    left = width + widest - sum(sizes) - 2 * len(sizes)
    if sum(sizes) + 2 * len(sizes) + _ROOM <= width or left + 2 < _NARROWEST:
        return first
    at, size = sizes.index(widest), left - _ROOM if left - _ROOM >= _NARROWEST else min(left + 2, widest)
    return [*first[:at], [pad(cut(cell.rstrip(), size), size) for cell in first[at]], *first[at + 1 :]]


def _wrapped(before: str, text: str, width: int) -> list[str]:
    """A row whose last cell is wrapped; below the others, where these leave too little room."""
    at = columns(before) + 2
    if width - at < _ROOM:
        below = wrap(text.rstrip(), width - _INDENT, indented=False) if text.strip() else []
        return [cut(before.rstrip(), width), *(" " * _INDENT + part for part in below)]
    head, *more = wrap(text.rstrip(), width - at, indented=False)
    return [f"{before}  {head}".rstrip(), *(" " * at + part for part in more)]


def _aligned(column: Sequence[str]) -> list[str]:
    together = "".join(column)
    if together.isascii() and together.isprintable():  # nearly always, and then it is quick
        size = max(map(len, column))
        return [cell.ljust(size) for cell in column]
    seen = [visible(cell) for cell in column]
    size = max(map(columns, seen))
    return [pad(cell, size) for cell in seen]


def visible(text: str) -> str:
    """The text on one line, without control characters."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def columns(text: str) -> int:
    """Columns of a terminal that a text takes: two for wide letters, none for combining marks."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def pad(text: str, size: int) -> str:
    return text + " " * (size - columns(text))


def cut(text: str, width: int) -> str:
    """The text, shortened with … if it is wider than `width`."""
    if columns(text) <= width:
        return text
    taken = 0
    for position, letter in enumerate(text):
        taken += _columns(letter)
        if taken > width - 1:
            return f"{text[:position]}…"
    return text


def _columns(letter: str) -> int:
    import unicodedata

    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def fold(line: str, width: int) -> list[str]:
    """The line in pieces that are no wider than the screen."""
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


def wrap(line: str, width: int, indented: bool = True) -> list[str]:
    if columns(line) <= width:
        return [line]
    import textwrap

    indent = " " * min(8, width // 4) if indented else ""
    folded = textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True)
    return [piece for part in folded for piece in fold(part, width)]  # letters that take two columns


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a JSON list with one object a line: readable for people and for grep."""
    print("[" + ",\n ".join(json_text(row) for row in rows) + "]")


def print_list(
    found: Sequence[Item],
    json: bool,
    heads: Sequence[str],
    row: Callable[[Item], Sequence[str]],
    empty: str,
    heads_if_empty: bool = False,
) -> None:
    """Print a table with a row for each, or JSON; `empty` is the message if there is nothing."""
    if json:
        print_rows(found)
        return
    if found or heads_if_empty:
        print_table(heads, map(row, found))
    if not found:
        say(empty)


def indices(gpus: Sequence[int]) -> str:
    """GPUs in a cell: `0,2`."""
    return ",".join(map(str, gpus)) or "-"


def share(gpus: int, memory: float | None) -> str:
    """GPUs of a job, and memory of each if it shares them: `2 x 6G`."""
    return str(gpus) if memory is None else f"{gpus} x {format_size(memory)}"


_LEFT = {"progress": "{} left", "limit": "{} left at most"}


def how_far(progress: Progress | None, left: float | None = None, by: str | None = None) -> str:
    """`37%, 21s left`: progress, and the seconds that are left, `by` what is known."""
    done = [] if progress is None else [f"{100 * progress['fraction']:.0f}%"]
    if left is not None and by:
        done.append(_LEFT.get(by, "about {} left").format(_duration(max(round(left), 0))))
    elif by == "overdue":
        done.append("longer than expected")
    return ", ".join(done)


def far_of(job: Job) -> str:
    """How far a running job is."""
    end = job["expected_end_at"]
    return how_far(job["progress"], (instant(end) - now()).total_seconds() if end else None, job["expected_by"])


def now() -> datetime:
    return datetime.now(UTC)


def span(begin: float | None, end: float) -> str:
    """Time between two instants in seconds since the epoch."""
    return "-" if begin is None else _duration(max(round(end - begin), 0))


def ran(job: Job, now: datetime) -> str:
    """How long a job ran, with earlier attempts whose work it went on with."""
    if job["started_at"] is None:
        return "-"
    last = instant(job["ended_at"]) if job["ended_at"] else now
    seconds = (last - instant(job["started_at"])).total_seconds()
    return _duration(max(round(seconds + job.get("ran_before", 0.0)), 0))


@lru_cache(maxsize=1024)
def _duration(seconds: int) -> str:
    return format_duration(seconds)


def clock(text: str | None, seconds: bool = False) -> str:
    """Local time: `2026-11-03 14:05`."""
    return format(instant(text).astimezone(), "%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M") if text else "-"


def instant(text: str) -> datetime:
    """Parse ISO-8601; without a zone it is local time."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.astimezone()


def gpu_notes(gpu: Gpu) -> str:
    """Why a GPU cannot be used: who has taken it, and that it is drained or reserved."""
    notes = [] if gpu["state"] in ("free", "ours") else [gpu["why"] or ""]
    if gpu.get("drained") and gpu["state"] != "drained":
        notes.append("drained")
    if gpu.get("memory_others") and gpu["state"] in ("free", "ours"):
        notes.append(f"{format_size(gpu['memory_others'])} used by others")
    if gpu.get("reservation"):
        notes.append(f"reserved: {gpu['reservation']}, {_booked(gpu)}")
    return "; ".join(filter(None, notes))


def _booked(gpu: Gpu) -> str:
    begin, end = gpu["reserved_from"], gpu["reserved_until"]
    begun = begin is None or instant(begin) <= now()
    return f"until {clock(end)}" if begun else f"from {clock(begin)} to {clock(end)}"
