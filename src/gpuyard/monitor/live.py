"""GPUs as they are now, sample by sample:

a recording that grows in bounded memory, and the loop of `gpuyard monitor`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gpuyard.errors import UserError, suggest
from gpuyard.gpus.base import Device, Gpus, Reading
from gpuyard.monitor.monitored_command import ProcessTree
from gpuyard.monitor.output_folder import Row, UsageCsv
from gpuyard.monitor.tracks import Track, broken
from gpuyard.recordings.series import OF_GPUS, OF_JOBS, Mark, Recording, Series, Subject, names_of
from gpuyard.spec.times import format_when

_MOST_SPANS = 86_400  # a day at one sample each second
_MOST_VALUES = 1_000_000  # of all series together
_MOST_MARKS, _MOST_ABSENCES = 1000, 100
_PAUSE = 5.0  # periods, and seconds, that a sample may be late; a longer pause is a gap


@dataclass(slots=True)
class _Absence:
    index: int
    since: float
    problem: str
    until: float | None = None


class Live:
    def __init__(self, gpus: Gpus, metrics: Sequence[str] = OF_GPUS, period: float = 1.0) -> None:
        """`period` is the time between two samples, in seconds."""
        if strange := [name for name in metrics if name not in OF_GPUS]:
            raise UserError(f"'{strange[0]}' is no metric of GPUs{suggest(strange[0], OF_GPUS)}")
        self._gpus, self._period = gpus, period
        self._metrics = names_of(metrics)
        columns = len(self._metrics) * len(gpus.devices)
        self._track = Track(
            columns,
            min(_MOST_SPANS, _MOST_VALUES // max(1, columns)),
            self._columns_of("throttle"),
            self._columns_of("xid"),
        )
        self._first, self._last, self._shift = math.nan, -math.inf, 0.0
        self._marks: list[Mark] = []
        self._absences: list[_Absence] = []
        self._missing: dict[int, _Absence] = {}
        self._warnings: list[str] = []

    def look(self, at: float) -> list[Reading]:
        """Sample all GPUs at an instant, in seconds since the epoch; returns the readings."""
        at = self._forward(at)
        readings = self._gpus.read()
        for reading in readings:
            self._note(reading, at)
        rows = [_values(self._metrics, reading, self._gpus.devices[reading.index]) for reading in readings]
        self._track.add(at, np.array([value for row in rows for value in row], dtype=np.float64))
        self._last = at
        return readings

    def recording(self) -> Recording:
        """All samples up to now; later ones do not change it."""
        if math.isnan(self._first):
            return Recording(0.0, 0.0, warnings=["nobody has looked at the GPUs yet"], simulated=self._gpus.simulated)
        series, period = [], self._period * self._track.width
        longest = period + _PAUSE * max(1.0, self._period)
        for number, device in enumerate(self._gpus.devices):
            subject = _subject(device)
            for offset, metric in enumerate(self._metrics):
                column = self._track.column(number * len(self._metrics) + offset)
                series.append(Series(subject, metric, *broken(column, period, longest), period=period))
        warnings = [*self._warnings, *(self._told(absence) for absence in self._absences)]
        return Recording(self._first, self._last, series, list(self._marks), warnings, self._gpus.simulated)

    def _columns_of(self, metric: str) -> list[int]:
        if metric not in self._metrics:
            return []
        offset, width = self._metrics.index(metric), len(self._metrics)
        return [number * width + offset for number in range(len(self._gpus.devices))]

    def _forward(self, at: float) -> float:
        """The instant of a sample, later than the one before, even if the clock was set back."""
        at += self._shift
        if math.isnan(self._first):
            self._first = at
        elif at <= self._last:
            self._shift += self._last + self._period - at
            self._warnings.append(
                f"the clock went back by {self._last - at:.1f} s; what was seen after that is shown as if it had not"
            )
            at = self._last + self._period
        return at

    def _note(self, reading: Reading, at: float) -> None:
        """Keep errors, and the times in which a GPU does not answer."""
        if reading.xid and len(self._marks) < _MOST_MARKS:
            subject = _subject(self._gpus.devices[reading.index])
            self._marks.append(Mark(at, f"XID {reading.xid}", subject=subject))
        absent = self._missing.get(reading.index)
        if reading.lost and absent is None and len(self._absences) < _MOST_ABSENCES:
            absence = _Absence(reading.index, at, reading.problem)
            self._missing[reading.index] = absence
            self._absences.append(absence)
        elif not reading.lost and absent is not None:
            self._missing.pop(reading.index).until = at

    def _told(self, absence: _Absence) -> str:
        why = f": {absence.problem}" if absence.problem else ""
        since = format_when(absence.since, self._last)
        until = "" if absence.until is None else f" to {format_when(absence.until, self._last)}"
        return f"GPU {absence.index} did not answer from {since}{until}{why}"


def _subject(device: Device) -> Subject:
    return Subject(device.index, device.uuid, device.name)


def _values(metrics: Sequence[str], reading: Reading, device: Device) -> list[float]:
    """The values of a reading in the order of the metrics; NaN where it has none."""
    if reading.lost:
        return [math.nan] * len(metrics)
    found = []
    for metric in metrics:
        if metric == "memory_free":
            value: float | None = device.memory - reading.memory_used if device.memory else None
        else:
            value = getattr(reading, metric)
        found.append(math.nan if value is None else float(value))
    return found


_OFTEN, _SELDOM, _SHARE = 0.1, 0.5, 0.02
"""Seconds between samples: as often as costs at most that share of a core. A row is written once a period, but peaks
and energy between two rows count as well."""


class GpuWatch:
    def __init__(
        self,
        gpus: Gpus,
        period: float,
        csv: UsageCsv | None = None,
        *,
        only: Collection[int] = (),
        tree: ProcessTree | None = None,
        who: str = "",
    ) -> None:
        """`period` is seconds between rows; `only` are the chosen GPUs, none: all; `who` names the tree's processes."""
        self.every = period / math.ceil(period / _pause(gpus, tree))  # seconds between samples
        self._gpus, self._csv, self._period, self._tree, self._who = gpus, csv, period, tree, who
        self._chosen = [device.index for device in gpus.devices if not only or device.index in only]
        self._live = Live(gpus, OF_GPUS, self.every)
        columns = len(OF_JOBS) * len(gpus.devices)
        self._track = Track(columns, min(_MOST_SPANS, _MOST_VALUES // max(1, columns)))
        self._seen: set[int] = set()
        self._next_row = -math.inf
        self._began = time.time() - time.monotonic()  # so that time only goes forward, even if the clock is set
        self._warnings: list[str] = []
        self.readings: Sequence[Reading] = ()  # the last ones of the chosen GPUs
        self.own: dict[int, int] = {}  # bytes of the tree on each GPU, at the last sample

    @property
    def devices(self) -> list[Device]:
        return [self._gpus.devices[index] for index in self._chosen]

    @property
    def simulated(self) -> bool:
        return self._gpus.simulated

    def now(self) -> float:
        return self._began + time.monotonic()

    def look(self, row: bool = False) -> None:
        """Sample the GPUs; with `row` it is also a row of the CSV, even if none is due."""
        at = self.now()
        readings = self._live.look(at)
        self.readings = [readings[index] for index in self._chosen]
        if self._tree is not None:
            self._tree.look()
            self._track.add(at, np.array([value for one in readings for value in self._of_tree(one, self._tree)]))
        due = self._next_row
        if row or at >= due - self.every / 2:
            self._write(at)
            self._next_row = (due if at - due < self._period else at) + self._period

    def recording(self) -> Recording:
        found = self._live.recording()
        own = [series for index in sorted(self._seen) for series in self._series(index)]
        found.series = [one for one in found.series if one.subject.gpu in self._chosen] + own
        found.marks = [mark for mark in found.marks if mark.subject is None or mark.subject.gpu in self._chosen]
        found.warnings += self._warnings
        return found

    def _of_tree(self, reading: Reading, tree: ProcessTree) -> tuple[float, float]:
        if reading.lost:
            return math.nan, math.nan
        mine = [process for process in reading.processes if tree.has(process.pid)]
        if mine and reading.index in self._chosen:
            self._seen.add(reading.index)
        self.own[reading.index] = memory = sum(process.memory for process in mine)
        busy = [process.utilization for process in mine if process.utilization is not None]
        return memory, (min(100.0, sum(busy)) if busy or not mine else math.nan)

    def _series(self, index: int) -> list[Series]:
        device, found = self._gpus.devices[index], []
        period = self.every * self._track.width
        for offset, metric in enumerate(OF_JOBS):
            column = broken(self._track.column(len(OF_JOBS) * index + offset), period, period + _PAUSE)
            subject = Subject(index, device.uuid, device.name, job=self._who)
            found.append(Series(subject, metric, *column, period=period))
        return found

    def _write(self, at: float) -> None:
        if self._csv is None:
            return
        try:
            self._csv.add(_row(at, self._gpus.devices[one.index], one) for one in self.readings)
        except OSError as error:  # the command goes on, and so do samples in memory
            self._warnings.append(f"gpu_usage.csv ends early: {error.strerror or error}")
            self._csv = None


def _pause(gpus: Gpus, tree: ProcessTree | None) -> float:
    gpus.read()  # the first one takes longer than those that follow
    begun = time.thread_time()
    gpus.read()
    if tree is not None:
        tree.look()
    return min(_SELDOM, max(_OFTEN, (time.thread_time() - begun) / _SHARE))


def _row(at: float, device: Device, reading: Reading) -> Row:
    if reading.lost:
        return Row(at, device.index, device.name)
    return Row(at, device.index, device.name, reading.utilization, reading.memcopy, reading.power)
