"""Files of commands: `Directory, Executable, Filename, Epochs, Priority`, a row for each job; lower ones first."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.batches.tables import Line, at, each, read_lines
from gpuyard.errors import UserError, suggest

COLUMNS = ("Directory", "Executable", "Filename", "Epochs", "Priority")
_KEYS = {name.lower(): place for place, name in enumerate(COLUMNS)}
_EXAMPLE = "models,-1,train.py,5,1"
_MOST = 10**9
"""Of epochs, and of a priority in either direction."""
THIS_PYTHON = "-1"
"""What stands for the Python that runs gpuyard."""


class Row(NamedTuple):
    """A row of such a file."""

    number: int
    """Which row it is, from 1 on."""
    line: int
    """Where it stands in the file."""
    directory: str
    executable: str
    filename: str
    epochs: int
    priority: float
    places: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Where its cells stand in the line, from 0 on."""

    def where(self, path: str, name: str) -> str:
        """Where one of its cells stands."""
        return at(path, self.line, self.places[COLUMNS.index(name)] + 1, name)

    def command(self, python: str) -> list[str]:
        """What it runs; `{id}` stands for the job's own id."""
        program = python if self.executable == THIS_PYTHON else self.executable
        return [program, self.filename, f"--epochs={self.epochs}", "--id={id}"]


def read_commands(path: str, header: str = "auto") -> list[Row]:
    """The rows of a file; `header` is `auto`, `none`, or the number of the line with the names, 0 for the first."""
    lines = read_lines(path)
    if not lines:
        raise UserError(f"{path} is empty; write a line for each job, as in: {_EXAMPLE}")
    places, rows = _split(path, lines, header)
    if not rows:
        raise UserError(f"{path} has a header and no rows; write a line for each job below it, as in: {_EXAMPLE}")
    return each(enumerate(rows, 1), lambda row: _row(path, row[0], row[1], places))


def _split(path: str, lines: list[Line], header: str) -> tuple[Sequence[int], list[Line]]:
    """Where each column stands in a line, and the lines that are rows."""
    if header.lower() == "none":
        return range(len(COLUMNS)), lines
    if header.lower() != "auto":
        if not header.isdecimal() or int(header) >= len(lines):
            raise UserError(
                f"--header {header}: write none, or the number of the line with the names, counted from 0; "
                f"{path} has {len(lines)} that are not empty"
            )
        place = int(header)
        return _places(path, lines[place]), lines[place + 1 :]
    first = lines[0]
    if any(_key(cell) in _KEYS for cell in first.cells):
        return _places(path, first), lines[1:]
    return range(len(COLUMNS)), lines


def _key(cell: str) -> str:
    return re.sub(r"[\s_-]", "", cell).lower()


def _places(path: str, line: Line) -> list[int]:
    names = [_key(cell) for cell in line.cells]
    for name in _KEYS:
        if names.count(name) > 1:
            second = names.index(name, names.index(name) + 1) + 1
            raise UserError(f"{at(path, line.number, second)}: the column {COLUMNS[_KEYS[name]]} is there twice")
    for name, place in _KEYS.items():
        if name not in names:
            raise UserError(
                f"{path}:{line.number}: there is no column {COLUMNS[place]}{_near(COLUMNS[place], line.cells)}; the "
                f"header is {','.join(COLUMNS)} (--header none if there is none)"
            )
    return [names.index(name) for name in _KEYS]


def _near(name: str, cells: list[str]) -> str:
    hint = suggest(name, cells)
    return hint.replace("did you mean", "is it") if hint else ""


def _row(path: str, number: int, line: Line, places: Sequence[int]) -> Row:
    cells = line.cells
    most = max(places) + 1
    if len(cells) < most:
        there = "is 1 column" if len(cells) == 1 else f"are {len(cells)} columns"
        raise UserError(
            f"{path}:{line.number}: there {there} here, not {most}; write {', '.join(COLUMNS)}, as in: {_EXAMPLE} "
            "(a table of parameters is for --param-file)"
        )
    if isinstance(places, range) and any(cells[most:]):
        raise UserError(f"{at(path, line.number, most + 1)}: there are {most} columns; quote a cell that holds a comma")
    found = [cells[place] for place in places]
    for name, cell, place in zip(COLUMNS, found, places, strict=True):
        if not cell:
            raise UserError(f"{at(path, line.number, place + 1, name)} is empty; write {_WRITE[name]}")
    directory, executable, filename, epochs, priority = found
    where = [at(path, line.number, place + 1, name) for name, place in zip(COLUMNS, places, strict=True)]
    return Row(
        number, line.number, directory, executable, filename, _epochs(where[3], epochs), _priority(where[4], priority),
        tuple(places),
    )  # fmt: skip


_WRITE = {
    "Directory": "where to run it, as in models; . for the directory that you are in",
    "Executable": "what runs the file, as in python3; -1 for the Python that runs gpuyard",
    "Filename": "the script, as in train.py",
    "Epochs": "a number, as in 5",
    "Priority": "a number; lower ones start first",
}


def _epochs(where: str, cell: str) -> int:
    number = _number(cell)
    if number is None or number < 1 or number != int(number):
        raise UserError(f"{where}: '{cell}' is no number of epochs; write a whole number of 1 or more, as in 5")
    if number > _MOST:
        raise UserError(f"{where}: {cell} are too many epochs; write a number up to {_MOST:,}")
    return int(number)


def _priority(where: str, cell: str) -> float:
    number = _number(cell)
    if number is None:
        raise UserError(f"{where}: '{cell}' is no priority; write a number, lower ones start first, as in 1")
    if abs(number) > _MOST:
        raise UserError(f"{where}: {cell} is too far from 0; write a number from -{_MOST:,} to {_MOST:,}")
    return number


def _number(cell: str) -> float | None:
    if not re.fullmatch(r"[-+]?(\d+(\.\d*)?|\.\d+)", cell, re.ASCII):
        return None
    found = float(cell)
    return found if math.isfinite(found) else None
