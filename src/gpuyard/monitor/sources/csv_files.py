"""CSV files as a source: the output of `nvidia-smi --query-gpu`, and plain files of numbers."""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuyard.errors import UserError
from gpuyard.monitor.sources import checked_metrics, is_selected
from gpuyard.monitor.tracks import broken, gap_texts, in_order, in_spans, single, usual_period
from gpuyard.recordings.series import Floats, Recording, Series, Subject

FIELDS = {
    "utilization.gpu": "utilization",
    "utilization.memory": "memcopy",
    "memory.used": "memory_used",
    "memory.free": "memory_free",
    "memory.total": "memory_total",
    "power.draw": "power",
    "power.draw.instant": "power",
    "power.draw.average": "power",
    "temperature.gpu": "temperature",
    "clocks.sm": "sm_clock",
    "clocks.current.sm": "sm_clock",
    "clocks.mem": "memory_clock",
    "clocks.current.memory": "memory_clock",
    "clocks_throttle_reasons.active": "throttle",
    "clocks_event_reasons.active": "throttle",
}
"""Our metrics by nvidia-smi's names; whatever else a file has is left aside."""
_ABOUT = {
    "timestamp": "timestamp", "index": "index", "name": "name", "gpu_name": "name",
    "uuid": "uuid", "gpu_uuid": "uuid", "pci.bus_id": "bus", "gpu_bus_id": "bus",
}  # fmt: skip
_UNITS = {"": 1.0, "%": 1.0, "W": 1.0, "mW": 1e-3, "MHz": 1.0, "C": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_HEAD = re.compile(r"([a-z_][a-z0-9_.]*)\s*(?:\[(.*)\])?")
_VALUE = re.compile(r"(-?[0-9.]+(?:[eE][-+]?[0-9]+)?|0[xX][0-9a-fA-F]+)\s*(%|[A-Za-z]*)")
_STAMP = re.compile(r"(\d{4}[/-]\d\d?[/-]\d\d?[ T]\d\d:\d\d):([0-5]\d(?:\.\d{1,6})?)")
_LOST = 2.5  # periods without a line that are a gap
_MOST_TOLD = 5
_EXAMPLE = "nvidia-smi --query-gpu=timestamp,index,name,utilization.gpu,power.draw --format=csv -l 1"


class _Head(NamedTuple):
    about: dict[str, int]
    values: dict[str, tuple[int, float]]  # by metric: the column, and what a number without a unit is multiplied by
    columns: int


@dataclass(slots=True)
class _Gpu:
    index: int
    uuid: str = ""
    name: str = ""
    at: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)

    @property
    def subject(self) -> Subject:
        return Subject(self.index, self.uuid, self.name)

    def keep(self, at: float, found: dict[str, float]) -> None:
        """Add a sample; metrics that it lacks, as after another header, are NaN."""
        if found.keys() != self.values.keys():
            for metric in found.keys() - self.values.keys():
                self.values[metric] = [math.nan] * len(self.at)
            found = dict.fromkeys(self.values, math.nan) | found
        self.at.append(at)
        for metric, value in found.items():
            self.values[metric].append(value)


class SmiCsv:
    def __init__(self, path: Path, fields: Sequence[str] = ()) -> None:
        """`fields` are the columns of a file without a header."""
        self._path, self._fields = path, fields
        self._gpus: dict[str, _Gpu] | None = None
        self._told: list[str] = []
        self._bad = 0

    @property
    def name(self) -> str:
        return str(self._path)

    def read(
        self, metrics: Sequence[str], start: float = -math.inf, end: float = math.inf,
        *, gpus: Sequence[str] = (), job: str = "", step: float | None = None,
    ) -> Recording:  # fmt: skip
        """The samples of a span of time; all of them if it is endless."""
        wanted = checked_metrics(metrics)
        found = [gpu for gpu in self._content().values() if is_selected(gpu.subject, gpus)]
        series = [one for gpu in found for one in _series(gpu, wanted, start, end, step)]
        first, last = self.span()
        start, end = max(start, first) if math.isinf(start) else start, last if math.isinf(end) else end
        return Recording(start, end, series, [], [*self._warnings(), *self._missing(series, wanted, gpus, job),
                                                  *gap_texts(series, max(start, first), min(end, last))])  # fmt: skip

    def span(self) -> tuple[float, float]:
        """In seconds since the epoch."""
        times = [at for gpu in self._content().values() for at in gpu.at]
        return min(times), max(times)

    def _content(self) -> dict[str, _Gpu]:
        if self._gpus is None:
            parsed = self._parse(_lines(self._path))
            self._gpus = {key: gpu for key, gpu in parsed.items() if gpu.at}
            if not self._gpus:
                raise UserError(f"{self._path} has no line that tells anything; nvidia-smi writes some by {_EXAMPLE}")
            for number, gpu in enumerate(self._gpus.values()):
                if gpu.index < 0:
                    gpu.index = number
        return self._gpus

    def _parse(self, lines: Iterable[str]) -> dict[str, _Gpu]:
        gpus: dict[str, _Gpu] = {}
        head = _head(self._fields) if self._fields else None
        if self._fields and head is None:
            raise UserError(f"{', '.join(self._fields)} are no fields of nvidia-smi; name them as in {_EXAMPLE}")
        for number, (line, cells) in enumerate(_rows(lines), 1):
            if not cells:
                continue
            if (other := _head(cells)) is not None and (head is None or line.endswith(("\n", "\r"))):
                head = self._checked(other, number)
            elif head is None:
                raise UserError(
                    f"{self._path}, line {number}: '{line.strip()[:60]}' is no header of nvidia-smi; write it without "
                    f"noheader, or name its fields: {self._path}:timestamp,index,utilization.gpu"
                )
            elif (why := _take(gpus, head, cells, line)) is not None:
                self._complain(f"{self._path}, line {number}: {why}; it is left out")
        return gpus

    def _checked(self, head: _Head, number: int) -> _Head:
        if "timestamp" not in head.about:
            raise UserError(f"{self._path}, line {number}: no column is the timestamp; write it as by {_EXAMPLE}")
        return head

    def _complain(self, text: str) -> None:
        self._bad += 1
        if len(self._told) < _MOST_TOLD:
            self._told.append(text)

    def _warnings(self) -> list[str]:
        more = self._bad - len(self._told)
        return [*self._told, f"{self._path}: {more} more lines are left out"] if more else list(self._told)

    def _missing(self, series: Sequence[Series], wanted: Sequence[str], gpus: Sequence[str], job: str) -> Iterator[str]:
        if job:
            yield f"{self._path} knows no jobs: this is of the GPUs as a whole"
        known = {name for gpu in self._content().values() for name in (str(gpu.index), gpu.uuid)}
        yield from (f"{self._path} knows no GPU '{gpu}'" for gpu in gpus if gpu not in known)
        for metric in wanted:
            if series and not any(one.metric == metric for one in series):
                fields = " or ".join(name for name, meant in FIELDS.items() if meant == metric)
                yield f"{self._path} has no {metric}" + (f" (field {fields})" if fields else "")


def _lines(path: Path) -> list[str]:
    """The lines of a file, with their ends; PowerShell writes UTF-16."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, errors="replace").replace("\0", "").splitlines(keepends=True)


def _rows(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for line in lines:
        quoted = '"' in line  # which nvidia-smi does not write, but who has edited the file may have
        cells = next(csv.reader([line], skipinitialspace=True), []) if quoted else line.split(",")
        yield line, [cell.strip() for cell in cells] if line.strip() else []


def _head(cells: Sequence[str]) -> _Head | None:
    about: dict[str, int] = {}
    values: dict[str, tuple[int, float]] = {}
    for column, cell in enumerate(cells):
        match = _HEAD.fullmatch(cell)
        if match is None:
            return None
        if match[1] in _ABOUT:
            about.setdefault(_ABOUT[match[1]], column)
        elif (metric := FIELDS.get(match[1])) is not None:
            unit = match[2] or ("MiB" if metric.startswith("memory_") and metric != "memory_clock" else "")
            values.setdefault(metric, (column, _UNITS.get(unit, 1.0)))
    return _Head(about, values, len(cells)) if about or values else None


def _take(gpus: dict[str, _Gpu], head: _Head, cells: Sequence[str], line: str) -> str | None:
    """Keep the values of a line; returns what is wrong with it, if anything."""
    if len(cells) != head.columns:
        return f"'{line.strip()[:60]}' has {len(cells)} fields in place of {head.columns}"
    gpu = _gpu(gpus, head, cells)
    at = _instant(cells[head.about["timestamp"]], gpu.at[-1] if gpu.at else -math.inf)
    if at is None:
        return f"'{cells[head.about['timestamp']]}' is no time"
    if not line.endswith(("\n", "\r")) and not re.search(r"[%\]!]$|[0-9] [A-Za-z]+$", line):
        return "it ends in the middle"  # a number that is cut off is another number
    found: dict[str, float] = {}
    for metric, (column, factor) in head.values.items():
        value = _number(cells[column], factor)
        if value is None:
            return f"'{cells[column]}' is no value of {metric}"
        found[metric] = value
    gpu.keep(at, found)
    return None


def _gpu(gpus: dict[str, _Gpu], head: _Head, cells: Sequence[str]) -> _Gpu:
    """The GPU of a line: by its index, its UUID or its bus; the only one if there is none of these."""
    said = {name: cells[column] for name, column in head.about.items()}
    index = int(said["index"]) if said.get("index", "").isdigit() else -1
    key = str(index) if index >= 0 else said.get("uuid") or said.get("bus") or ""
    gpu = gpus.setdefault(key, _Gpu(index))
    gpu.uuid, gpu.name = said.get("uuid") or gpu.uuid, said.get("name") or gpu.name
    return gpu


def _instant(text: str, before: float) -> float | None:
    """A time of the local zone; of an hour that occurs twice, the one after the former line."""
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    try:
        minute, second = _minute(match[1], 0), float(match[2])
        at = minute + second
        return at if at >= before else max(at, _minute(match[1], 1) + second)
    except ValueError:
        return None


@functools.lru_cache(maxsize=4096)  # there is a line for each second and GPU, and asking for the zone takes long
def _minute(text: str, fold: int) -> float:
    year, month, day, hour, minute = map(int, re.split(r"[-/ T:]", text))
    return datetime(year, month, day, hour, minute, fold=fold).timestamp()


def _number(text: str, factor: float) -> float | None:
    """A value in our unit; NaN for what nvidia-smi does not know, None for what it does not write."""
    match = _VALUE.fullmatch(text)
    if match is None:
        return math.nan if text.startswith("[") or text in ("N/A", "ERR!", "") else None
    number, unit = match.groups()
    if unit not in _UNITS:
        return None
    try:
        value = float(int(number, 16)) if number[:2].lower() == "0x" else float(number)
    except ValueError:
        return None
    return value * (_UNITS[unit] if unit else factor)


def _series(gpu: _Gpu, wanted: Sequence[str], start: float, end: float, step: float | None) -> Iterator[Series]:
    at = np.array(gpu.at, dtype=np.float64)
    inside = (at >= start) & (at <= end)
    columns = {metric: np.array(values, dtype=np.float64) for metric, values in gpu.values.items()}
    if "memory_free" not in columns and {"memory_total", "memory_used"} <= columns.keys():
        columns["memory_free"] = columns["memory_total"] - columns["memory_used"]
    for metric in wanted:
        if metric not in columns or np.isnan(columns[metric][inside]).all():
            continue
        column = in_order([single(at[inside], columns[metric][inside])])
        period = usual_period(column.at, 1.0)
        if step is not None and step >= 2 * period:
            yield Series(gpu.subject, metric, *in_spans(column, step), period=step)
        else:
            yield Series(gpu.subject, metric, *broken(column, period, _LOST * period), period=period)


def read_plain(path: Path, metric: str) -> Series | None:
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rows = [_plain_numbers(line) for line in lines]
    if rows and rows[0] is None:
        rows = rows[1:]  # what the columns are called
    widths = {len(row) if row is not None else 0 for row in rows}
    if len(widths) != 1 or not widths <= {1, 2}:
        return None
    table = np.array(rows, dtype=np.float64)
    return _plain_series(table, metric, str(path))


def _plain_numbers(line: str) -> list[float] | None:
    """The numbers of a line, NaN for an empty cell; None if it has anything else."""
    found = []
    for part in line.replace(";", ",").replace("\t", ",").split(","):
        try:
            found.append(float(part) if part.strip() else math.nan)
        except ValueError:
            return None
    return found


def _plain_series(table: Floats, metric: str, name: str) -> Series:
    at = np.arange(len(table), dtype=np.float64) if table.shape[1] == 1 else table[:, 0]
    if not np.isfinite(at).all() or (np.diff(at) <= 0).any():
        raise UserError(f"{name}: the times in its first column do not rise; sort it by them")
    period = float(np.median(np.diff(at))) if len(at) > 1 else 1.0
    return Series(Subject(0, name=name), metric, at, table[:, -1], period=period)
