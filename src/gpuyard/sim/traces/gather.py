"""Jobs of foreign formats: a reader adds values line by line; ranges are checked at the end, at once."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from gpuyard.errors import UserError
from gpuyard.sim.trace import Floats, Trace
from gpuyard.sim.traces.columns import RULES, Rule, name_of, refuse_duplicates
from gpuyard.sim.traces.source import Source, quoted

NO_GPUS = "no GPU"
NO_RUN_TIME = "run time 0 or unknown"
NEVER_RAN = "never ran"
Row = TypeVar("Row")
_NOTHING = frozenset({"", "None", "none", "NULL", "null", "Unknown", "N/A"})
_NO_GPUS_ALLOWED = Rule(low=0.0, high=RULES["gpus"].high)


def unknown(cell: str) -> bool:
    """Whether a cell says that nothing is known; `nan` does not, it is a mistake."""
    return cell in _NOTHING


def value(cell: str, label: str) -> float:
    try:
        found = float(cell)
        if found - found == 0.0 and "_" not in cell:  # neither nan nor inf, and not 1_000
            return found
    except ValueError:
        pass
    if not cell:
        raise UserError(f"{label} is missing")
    raise UserError(f"{label} must be a finite number, not {quoted(cell)}")


class Gathered:
    """The jobs so far. `columns` are the numbers that each job has, by our names, in the order in which they come."""

    def __init__(
        self,
        source: Source,
        format: str,
        columns: tuple[str, ...] = ("submit", "run", "gpus"),
        labels: tuple[str, ...] = (),
        called: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self.ids: list[str] = []
        self.dropped: dict[str, int] = {}
        self._format = format
        self._columns = columns
        self._called = called or {}  # what the file calls our columns, for messages
        self._users: list[str] = []
        self._types: list[str] = []
        self._lines = array("q")
        self._numbers = array("d")
        self._labels: dict[str, list[str]] = {name: [] for name in labels}
        self._texts = list(self._labels.values())
        self._names: dict[str, str] = {}

    def add(
        self,
        line: int,
        job: str,
        numbers: tuple[float, ...],
        labels: tuple[str, ...] = (),
        user: str = "",
        gpu_type: str = "",
    ) -> None:
        if not job or not job.isprintable():
            job = self._named(job)
            if not job:
                raise UserError(f"{self._called.get('job', 'job')} is missing")
        self.ids.append(job)
        self._lines.append(line)
        self._numbers.extend(numbers)
        names = self._names
        self._users.append((names.get(user) or self._named(user)) if user else "")
        self._types.append((names.get(gpu_type) or self._named(gpu_type)) if gpu_type else "")
        for texts, text in zip(self._texts, labels, strict=True):
            texts.append(names.get(text) or self._named(text))

    def extend(
        self, lines: Iterable[int], ids: Iterable[str], numbers: Floats, labels: tuple[Iterable[str], ...]
    ) -> None:
        """Add many jobs at once: a row of numbers for each, a column for each label; no users, no models."""
        columns = [[self._names.get(text) or self._named(text) for text in column] for column in labels]
        for texts, column in zip(self._texts, columns, strict=True):
            texts.extend(column)
        self._lines.extend(lines)
        self.ids.extend(ids)
        self._numbers.frombytes(np.ascontiguousarray(numbers).tobytes())
        self._users.extend([""] * len(numbers))
        self._types.extend([""] * len(numbers))

    def each(self, rows: Iterable[tuple[int, Row]], add: Callable[[int, Row], object]) -> None:
        """Add numbered rows; a mistake in one is reported with its line."""
        for line, row in rows:
            try:
                add(line, row)
            except UserError as error:
                raise self.source.error(line, str(error)) from None

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def trace(self, *, gpuless: bool = False, capacity: int | None = None) -> Trace:
        """The trace; `gpuless`: jobs may ask for no GPU."""
        refuse_duplicates(self.source, self._lines, self.ids)
        width = len(self._columns)
        table = np.frombuffer(self._numbers, dtype=np.float64).reshape(-1, width) if self.ids else np.empty((0, width))
        columns = {name: table[:, position].copy() for position, name in enumerate(self._columns)}
        for name, values in columns.items():
            self._check(name, values, _NO_GPUS_ALLOWED if gpuless and name == "gpus" else RULES[name])
        submit, run, gpus = (columns.pop(name) for name in ("submit", "run", "gpus"))
        return Trace.of(
            submit,
            run,
            gpus,
            ids=self.ids,
            users=self._users,
            gpu_types=self._types,
            labels={name: texts for name, texts in self._labels.items() if any(texts)},
            source=self.source.name,
            format=self._format,
            dropped=self.dropped,
            capacity=capacity,
            **columns,
        )

    def _named(self, text: str) -> str:
        """A name, checked and kept once for all the jobs that have it."""
        name = self._names[text] = sys.intern(name_of(text, "the name"))
        return name

    def _check(self, name: str, values: Floats, rule: Rule) -> None:
        good = ((values > rule.low) | ((values == rule.low) & (not rule.above))) & (values <= rule.high)
        if rule.neutral is not None:
            good |= (values == rule.neutral) | (np.isnan(values) & math.isnan(rule.neutral))
        label = self._called.get(name, name)
        whole = (values == np.floor(values)) | (name != "gpus")
        if (good & whole).all():
            return
        first = int(np.argmin(good & whole))
        try:
            rule.check(float(values[first]), label)
            raise UserError(f"{label} must be a whole number, not {values[first]:g}")
        except UserError as error:
            raise self.source.error(self._lines[first], str(error)) from None
