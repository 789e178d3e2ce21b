"""Parameters of a sweep: their combinations, and the texts with `{name}` that they fill."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuyard.batches.tables import Line, at, each, read_lines
from gpuyard.errors import UserError, suggest

Parameters = Mapping[str, str]
MOST = 100_000
"""Combinations of one sweep."""


class Filling:
    """Puts the values of parameters where their names stand: `{lr}`; `{{lr}}` stays `{lr}`, and so does `${lr}`."""

    def __init__(self, names: Iterable[str]) -> None:
        self.unused = dict.fromkeys(names)
        """Names that nothing has asked for."""
        either = "|".join(map(re.escape, sorted(self.unused, key=len, reverse=True)))
        self._places = re.compile(rf"\{{\{{({either})\}}\}}|(?<!\$)\{{({either})\}}") if either else None

    def fill(self, text: str, values: Parameters) -> str:
        """The text with the values in it."""
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
    """All combinations of values, those of the last name changing first."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def together(lists: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """The first value of each, the second of each, and so on."""
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))


def merged(kinds: Sequence[Sequence[Parameters]]) -> list[dict[str, str]]:
    """Each choice of each kind with each of the others; a later kind goes before an earlier one."""
    return [{name: v for one in chosen for name, v in one.items()} for chosen in itertools.product(*kinds)]


class Choice(NamedTuple):
    """The values of all parameters for one job."""

    where: str
    """The line that they stand in."""
    values: dict[str, str]


def read_parameters(path: str) -> list[Choice]:
    """The rows of a CSV file whose first line names the columns."""
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
