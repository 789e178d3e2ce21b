"""What a job's values may be, in any file format, and the columns they are collected in."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces.source import Source, quoted
from gpuyard.units import format_number, parse_duration, parse_size

MOST_SECONDS = 1e12  # about 31,700 years: beyond it a double no longer tells milliseconds apart
MOST_GPUS = 1e9
_LONGEST_NUMBER = 64
_FLAGS = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def number(text: str) -> float:
    """The number in a text, nan if there is none; unlike float(), `1_000` is none."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def parse_number(text: str) -> float:
    value = number(text)
    if math.isnan(value):
        raise UserError(f"{quoted(text)} is not a number")
    return value


def parse_flag(text: str) -> float:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise UserError(f"write true or false, not {quoted(text)}") from None


@dataclass(frozen=True, slots=True)
class Rule:
    """The values a column takes, and the neutral one of a cell left empty (None: required)."""

    parse: Callable[[str], float] = parse_number
    neutral: float | None = None
    low: float = -sys.float_info.max
    above: bool = False  # `low` itself is not allowed
    high: float = sys.float_info.max
    plain: bool = True  # A bare number is a value as it stands

    def read(self, value: object, label: str) -> float:
        """The value of a cell (text) or of a JSON value; `label` names the column in messages."""
        quick = math.nan
        if isinstance(value, str):
            quick = number(value)
        elif isinstance(value, float | int) and not isinstance(value, bool):
            quick = value
        # Most values are a number in range, and need no closer look.
        if self.plain and self.low < quick <= self.high:
            return float(quick)
        if isinstance(value, str):
            return self.check(self._parsed(value, label), label)
        if not self.plain:
            return self._parsed(str(value), label)  # True and 1 are written as such
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{label} must be a number or text, not {quoted(str(value))}")
        try:
            return self.check(float(value), label)
        except OverflowError:
            raise UserError(f"{label} is too large a number") from None

    def take(self, value: object, label: str) -> float:
        """The same of a cell that may be empty: then it is the neutral value, if there is one."""
        if value is not None and value != "":
            return self.read(value, label)
        if self.neutral is None:
            raise UserError(f"{label} is missing")
        return self.neutral

    def check(self, value: float, label: str) -> float:
        if (value > self.low or (value == self.low and not self.above)) and value <= self.high:
            return value
        if not math.isfinite(value):
            raise UserError(f"{label} must be a finite number, not {value}")
        low = f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        wanted = f"at most {self.high:g}" if value > self.high else low
        raise UserError(f"{label} must be {wanted}, not {format_number(value)}")

    def _parsed(self, text: str, label: str) -> float:
        if len(text) > _LONGEST_NUMBER:
            raise UserError(f"{label} is not a number: {quoted(text)}")
        if self.plain and not math.isnan(value := number(text)):
            return value
        try:
            return self.parse(text)  # the column's own notation, such as 90m
        except UserError as error:
            raise UserError(f"{label}: {error}") from None


_ANY, _POSITIVE = Rule(neutral=0.0), Rule(neutral=1.0, low=0.0, above=True)
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "submit": Rule(parse_duration, low=0.0, high=MOST_SECONDS),
        "run": Rule(parse_duration, low=0.0, above=True, high=MOST_SECONDS),
        "gpus": Rule(low=0.0, above=True, high=MOST_GPUS),
        "requested": Rule(parse_duration, neutral=math.nan, low=0.0, above=True, high=MOST_SECONDS),
        "priority": _ANY,
        "weight": _POSITIVE,
        "tickets": _POSITIVE,
        "memory": Rule(parse_size, neutral=0.0, low=0.0),
        "compute": Rule(neutral=math.nan, low=0.0, above=True, high=100.0),
        "deadline": Rule(parse_duration, neutral=math.inf, low=0.0, high=MOST_SECONDS),
        "preemptible": Rule(parse_flag, neutral=1.0, plain=False),
        "cpus": Rule(neutral=0.0, low=0.0),
        "host_memory": Rule(parse_size, neutral=0.0, low=0.0),
    }
)
LABEL = "label_"  # what a column's name starts with in gpuyard's own files where the column is a label to select by


def name_of(value: object, label: str) -> str:
    """A job's or user's name: text without control characters, or a number written out."""
    if isinstance(value, str):
        name = value.strip()
    elif value is None:
        name = ""
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{label} must be text or a number, not {quoted(str(value))}")
    elif not math.isfinite(value):
        raise UserError(f"{label} must be text or a finite number, not {value}")
    else:
        name = str(value) if isinstance(value, int) else format_number(value)
    if not name.isprintable() and _UNFIT.search(name):
        raise UserError(f"{label} {quoted(name)} has a control character in it")
    return name


def refuse_duplicates(source: Source, lines: Iterable[int], ids: list[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: dict[str, int] = {}
    for line, job in zip(lines, ids, strict=True):
        if job in seen:
            raise source.error(line, f"job {quoted(job)} is already on line {seen[job]}")
        seen[job] = line


class Jobs:
    """The jobs of one source that were read so far. `labels`: our column -> its name in the file."""

    def __init__(self, source: Source, labels: Mapping[str, str]) -> None:
        self.source = source
        self.ids: list[str] = []
        self.users: list[str] = []
        self.lines = array("q")
        self.columns = {name: array("d") for name in RULES if name in labels}
        self._labels = {"job": "job", "user": "user", "compute": "compute", **labels}
        self.texts: dict[str, list[str]] = {name: [] for name in labels if name == "gpu_type" or name.startswith(LABEL)}
        self._has_users = "user" in labels
        self._plan = [(self._labels[name], RULES[name], self.columns[name]) for name in self.columns]
        # A fraction of a GPU turns into compute, so that column is always there.
        self._compute = self.columns.setdefault("compute", array("d"))
        self._shares = "compute" in labels

    def add(self, line: int, record: Mapping[str, object]) -> None:
        """Check one record and add it; a UserError names the source and the line."""
        try:
            self._take(record)
        except UserError as error:
            raise self.source.error(line, str(error)) from None
        self.lines.append(line)

    def add_label(self, name: str) -> None:
        """From here on records may have this label; the jobs before have none."""
        self._labels[name] = name
        self.texts[name] = [""] * len(self.ids)

    def _take(self, record: Mapping[str, object]) -> None:
        job = name_of(record.get(self._labels["job"]), self._labels["job"])
        if not job:
            raise UserError(f"{self._labels['job']} is missing")
        self.ids.append(job)
        if self._has_users:
            self.users.append(name_of(record.get(self._labels["user"]), self._labels["user"]))
        for name, texts in self.texts.items():
            texts.append(sys.intern(name_of(record.get(self._labels[name]), self._labels[name])))
        for label, rule, column in self._plan:
            column.append(rule.take(record.get(label), label))
        self._split_fraction()

    def _split_fraction(self) -> None:
        if not self._shares:
            self._compute.append(math.nan)
        gpus = self.columns["gpus"][-1]
        if gpus.is_integer():
            return
        label = self._labels["gpus"]
        if gpus > 1:
            raise UserError(f"{label} must be whole, or a fraction below 1, not {format_number(gpus)}")
        if not math.isnan(self._compute[-1]):
            raise UserError(f"{label} is a fraction, {format_number(gpus)}, and compute is given too")
        self.columns["gpus"][-1] = 1.0
        # 100 * 0.07 is 7.000000000000001: undo that.
        self._compute[-1] = round(100.0 * gpus, 9) or 100.0 * gpus

    def trace(self, format: str, dropped: dict[str, int] | None = None, capacity: int | None = None) -> Trace:
        refuse_duplicates(self.source, self.lines, self.ids)
        filled = {name: column for name, column in self.columns.items() if len(column) == len(self.ids)}
        columns = {name: np.array(column, dtype=np.float64) for name, column in filled.items()}
        submit, run, gpus = (columns.pop(name) for name in ("submit", "run", "gpus"))
        return Trace.of(
            submit,
            run,
            gpus,
            ids=self.ids,
            users=self.users or None,
            gpu_types=self.texts.get("gpu_type"),
            labels={name.removeprefix(LABEL): texts for name, texts in self.texts.items() if name != "gpu_type"},
            source=self.source.name,
            format=format,
            dropped=dropped,
            capacity=capacity,
            **columns,
        )
