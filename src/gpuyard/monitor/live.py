"""GPUs as they are now, look by look: a recording that grows, in bounded memory, and that needs no daemon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuyard.errors import UserError, suggest
from gpuyard.gpus.base import Device, Gpus, Reading
from gpuyard.monitor.track import Track, broken
from gpuyard.recordings.series import OF_GPUS, Mark, Recording, Series, Subject, names_of
from gpuyard.times import format_when

_MOST_SPANS = 86_400  # a day at one look each second
_MOST_VALUES = 1_000_000  # of all series together
_MOST_MARKS, _MOST_ABSENCES = 1000, 100
_PAUSE = 5.0  # periods, and seconds, that a look may be late; after more, what was between is not known


@dataclass(slots=True)
class _Absence:
    """A time in which a GPU did not answer."""

    index: int
    since: float
    problem: str
    until: float | None = None


class Live:
    """Looks at GPUs when it is told to, and keeps what it saw."""

    def __init__(self, gpus: Gpus, metrics: Sequence[str] = OF_GPUS, period: float = 1.0) -> None:
        """`period` is how many seconds are to be between two looks."""
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
        """Look at all GPUs at an instant, in seconds since the epoch; what they said."""
        at = self._forward(at)
        readings = self._gpus.read()
        for reading in readings:
            self._note(reading, at)
        rows = [_values(self._metrics, reading, self._gpus.devices[reading.index]) for reading in readings]
        self._track.add(at, np.array([value for row in rows for value in row], dtype=np.float64))
        self._last = at
        return readings

    def recording(self) -> Recording:
        """What was seen up to now; it does not change when there are more looks."""
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
        """The instant of a look, later than the one before, whatever the clock does."""
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
        """Keep what is worth a line: errors, and that a GPU does not answer."""
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
    """What a reading says, in the order of some metrics; NaN where it says nothing."""
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
