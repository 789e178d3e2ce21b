"""Batch files: CSV tables of commands, parameters of sweeps, and the waves in which rows start."""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gpuyard.errors import Mistakes, UserError, suggest

_SEPARATORS = ",;\t"
_MOST_BYTES = 2**26
_MOST_CELL = 2**20
_TOLD = 20
"""Errors that are listed one by one."""
T = TypeVar("T")
R = TypeVar("R")


class Line(NamedTuple):
    number: int
    """Where it begins in the file, from 1 on."""
    cells: list[str]


def read_lines(path: str) -> list[Line]:
    """The lines of a file that say something: no blank ones, and no comments (`#`)."""
    with open(path, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UserError(f"{path} has more than {_MOST_BYTES // 2**20} MiB; split it into several files")
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
    """The results; all errors are raised together."""
    found, wrong = [], dict[str, None]()  # an error common to several items is kept once
    for item in items:
        try:
            found.append(read(item))
        except UserError as error:
            wrong[str(error)] = None
    if wrong:
        more = [f"... and {len(wrong) - _TOLD} more such mistakes"] if len(wrong) > _TOLD else []
        raise Mistakes("\n".join([*list(wrong)[:_TOLD], *more]))
    return found


COLUMNS = ("Directory", "Executable", "Filename", "Epochs", "Priority")
_KEYS = {name.lower(): place for place, name in enumerate(COLUMNS)}
_EXAMPLE = "models,-1,train.py,5,1"
_MOST = 10**9
"""Of epochs, and of a priority in either direction."""
THIS_PYTHON = "-1"
"""What stands for the Python that runs gpuyard."""


class Row(NamedTuple):
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


Parameters = Mapping[str, str]
MOST = 100_000
"""Combinations of one sweep."""


class Filling:
    """Puts the values of parameters where their names stand: `{lr}`; `{{lr}}` stays `{lr}`, and so does `${lr}`."""

    def __init__(self, names: Iterable[str]) -> None:
        self.unused = dict.fromkeys(names)
        either = "|".join(map(re.escape, sorted(self.unused, key=len, reverse=True)))
        self._places = re.compile(rf"\{{\{{({either})\}}\}}|(?<!\$)\{{({either})\}}") if either else None

    def fill(self, text: str, values: Parameters) -> str:
        if self._places is None or "{" not in text:
            return text

        def value(match: re.Match[str]) -> str:
            if match[1] is not None:
                return "{" + match[1] + "}"
            self.unused.pop(match[2], None)
            return values[match[2]]

        return self._places.sub(value, text)

    def check(self, where: str, texts: Iterable[str]) -> None:
        """Refuse parameters that nothing asks for: a name is misspelt somewhere."""
        if not self.unused:
            return
        name = next(iter(self.unused))
        asked = [found for text in texts for found in re.findall(r"(?<!\$)\{([^{}\s]+)\}", text)]
        near = suggest(name, asked).replace("; did you mean '", ", but there is {").replace("'?", "}")
        raise UserError(f"{where}: nothing has the parameter {name} in it{near}; write {{{name}}}")


def combinations(grid: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def together(lists: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))


def merged(kinds: Sequence[Sequence[Parameters]]) -> list[dict[str, str]]:
    """Each choice of each kind with each of the others; a later kind goes before an earlier one."""
    return [{name: v for one in chosen for name, v in one.items()} for chosen in itertools.product(*kinds)]


class Choice(NamedTuple):
    where: str
    """The line that they stand in."""
    values: dict[str, str]


def read_parameters(path: str) -> list[Choice]:
    lines = read_lines(path)
    if len(lines) < 2:
        raise UserError(f"{path} needs a line with the names of its columns, and a line of values for each job")
    names = lines[0].cells
    for column, name in enumerate(names, 1):
        if not name or names.index(name) + 1 < column:
            why = f"the name {name} is there twice" if name else "a name is missing"
            raise UserError(f"{at(path, lines[0].number, column)}: {why}; name each column once, as in lr,seed")
        if "{" in name or "}" in name:
            raise UserError(
                f"{at(path, lines[0].number, column)}: a name has no braces; write lr, and {{lr}} where it goes"
            )
    return each(lines[1:], lambda line: _choice(path, names, line))


def _choice(path: str, names: list[str], line: Line) -> Choice:
    if len(line.cells) < len(names) or any(line.cells[len(names) :]):
        there = "is 1 value" if len(line.cells) == 1 else f"are {len(line.cells)} values"
        raise UserError(
            f"{path}:{line.number}: there {there} here, and {len(names)} columns; write a value for each, "
            "and quote one that holds a comma"
        )
    return Choice(f"{path}:{line.number}", dict(zip(names, line.cells, strict=False)))


USUAL = 20
"""Default number of rows in a wave."""


class Turn(NamedTuple):
    place: int
    """Which of the rows it is, from 0 on."""
    wave: int
    """From 1 on."""


def turns(urgency: Sequence[float], size: int) -> list[Turn]:
    """The rows in the order in which they start; the higher the urgency the sooner, but only inside a wave.

    A size of 0 makes one wave of all.
    """
    found = [Turn(place, place // size + 1 if size else 1) for place in range(len(urgency))]
    return sorted(found, key=lambda turn: (turn.wave, -urgency[turn.place], turn.place))


def urgencies(priorities: Sequence[float]) -> list[float]:
    """Priorities of which lower ones go first, as the queue has them: higher first, and none above the usual 0."""
    first = min(priorities, default=0.0)
    return [first - priority for priority in priorities]
