"""Comma-separated lines: a header, then one job a line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import cast

from gpuyard.errors import UserError, suggest
from gpuyard.sim.traces.source import Source, quoted


def split(line: str) -> list[str]:
    """The cells of a line, stripped; quotes work as in any CSV file, within the line."""
    if '"' not in line:
        return list(map(str.strip, line.split(",")))
    try:
        return [cell.strip() for cell in next(csv.reader([line.strip()], strict=True, skipinitialspace=True))]
    except csv.Error:
        raise UserError("a quotation mark is out of place or not closed") from None


def rows(source: Source) -> Iterator[tuple[int, list[str]]]:
    width = 0
    for line, text in source.lines():
        text = text.strip()
        if not text or text[0] == "#":
            continue
        try:
            cells = split(text)
        except UserError as error:
            raise source.error(line, str(error)) from None
        if width and len(cells) != width:
            raise source.error(line, f"the header has {width} columns, this line has {len(cells)}")
        width = len(cells)
        yield line, cells


def header(
    source: Source,
    found: Iterator[tuple[int, list[str]]],
    required: tuple[str, ...],
    known: tuple[str, ...] | None = None,
    free: str = "",
) -> list[str]:
    """The first row, checked: no column twice, none unknown, none of the required ones missing.

    All columns whose names begin with `free` are known.
    """
    line, names = next(found, (0, []))
    if not names:
        raise UserError(f"{source.name} holds no jobs, not even a header")
    refuse_twice(source, line, names)
    for name in names:
        # Before the missing ones: an unknown column is most often one of those, misspelt.
        if known is not None and name not in known and not (free and name.startswith(free) and name != free):
            kept = f"; call it {free}{name} to keep it, or leave it out" if free else ""
            raise source.error(line, f"unknown column {quoted(name)}{suggest(name, known) or kept}")
    for name in required:
        if name not in names:
            raise source.error(line, f"the column '{name}' is missing")
    return names


def refuse_twice(source: Source, line: int, names: list[str]) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise source.error(line, f"the column {quoted(name)} is there twice")


def picker(names: list[str], wanted: tuple[str, ...]) -> Callable[[list[str]], tuple[str, ...]]:
    """A function that takes the wanted cells (two or more) out of a row; a missing column gives empty text."""
    get = cast(
        Callable[[list[str]], tuple[str, ...]],
        itemgetter(*(names.index(name) if name in names else -1 for name in wanted)),
    )
    return get if set(wanted) <= set(names) else lambda row: get([*row, ""])


def has_columns(line: str, wanted: tuple[str, ...], least: int) -> bool:
    """Whether a line is a header with at least `least` of these columns."""
    try:
        return len(set(split(line)) & set(wanted)) >= least
    except UserError:
        return False
