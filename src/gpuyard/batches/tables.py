"""Tables that people write: CSV from any editor or spreadsheet, and where in it something stands."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from gpuyard.errors import Mistakes, UserError

_SEPARATORS = ",;\t"
_MOST = 2**26
_MOST_CELL = 2**20
_TOLD = 20
"""Mistakes that are told one by one."""
T = TypeVar("T")
R = TypeVar("R")


class Line(NamedTuple):
    """A line of a table."""

    number: int
    """Where it begins in the file, from 1 on."""
    cells: list[str]


def read_lines(path: str) -> list[Line]:
    """The lines of a file that say something: no blank ones, and no comments (`#`)."""
    with open(path, "rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise UserError(f"{path} has more than {_MOST // 2**20} MiB; split it into several files")
    return list(_lines(path, _text(path, data)))


def _text(path: str, data: bytes) -> str:
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: a letter here is not UTF-8; save the file as CSV in UTF-8") from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UserError(f"{path}:{line}: there is a NUL character here, so this is no CSV; save it as plain CSV")
    return text


def _lines(path: str, text: str) -> Iterator[Line]:
    csv.field_size_limit(_MOST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text), skipinitialspace=True, strict=True)
    begins = 1
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells) and not cells[0].startswith("#"):
                yield Line(begins, cells)
            begins = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{begins}: this line cannot be read ({error}); check its quotes") from error


def _separator(text: str) -> str:
    """What stands between cells, by the first line that says something; spreadsheets of some countries write `;`."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return max(_SEPARATORS, key=first.count)


def at(path: str, line: int, column: int, name: str = "") -> str:
    """Where a cell stands; columns are counted from 1 on."""
    return f"{path}:{line}, column {column}" + (f" ({name})" if name else "")


def each(items: Iterable[T], read: Callable[[T], R]) -> list[R]:
    """What is made of each; whatever is wrong with any of them is told at once."""
    found, wrong = [], dict[str, None]()  # what concerns all of them is told once
    for item in items:
        try:
            found.append(read(item))
        except UserError as error:
            wrong[str(error)] = None
    if wrong:
        more = [f"... and {len(wrong) - _TOLD} more such mistakes"] if len(wrong) > _TOLD else []
        raise Mistakes("\n".join([*list(wrong)[:_TOLD], *more]))
    return found
