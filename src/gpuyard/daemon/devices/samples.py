"""Recent use of the GPUs: every sample of the last ten minutes, and the means of each minute of the last day.

One thread adds, others read; nothing is kept on disk. What is not known, as of a GPU that is lost, is NaN.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard.gpus.base import Reading

Span = Literal["fine", "coarse"]
Values = NDArray[np.float32]

COLUMNS = ("utilization", "memory_used", "temperature", "power")  # percent, bytes, degrees Celsius and watts
OFTEN, SELDOM = 0.5, 1.0  # seconds between looks while a user watches, and otherwise
MINUTE = 60.0
_WATCHED = 10.0  # seconds after a request in which a user counts as watching
_APART = 0.4  # seconds between samples at least: a look that a start needs may come at any time
_FINE, _COARSE = int(600 / _APART), 24 * 60
_MOST = 100_000  # samples times GPUs in one part


class Part(NamedTuple):
    period: float
    at: NDArray[np.float64]  # seconds since the epoch
    gpus: tuple[int, ...]
    values: Values  # by column, GPU and sample


class Samples:
    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.newest = 0.0  # when the latest sample was taken, in seconds since the epoch; 0 before the first
        self.newest_minute = 0.0  # when the latest minute began whose means are known
        self.listeners: list[Callable[[], None]] = []
        """Told that there is a new sample, by the thread that added it: they must be quick."""
        self._fine, self._coarse = _Ring(_FINE, gpus), _Ring(_COARSE, gpus)
        self._minute: list[Values] = []
        self._lock = threading.Lock()
        self._asked = -_WATCHED

    def watched(self) -> None:
        """A user looks at the samples: take them more often for a while."""
        self._asked = time.monotonic()

    @property
    def period(self) -> float:
        return OFTEN if time.monotonic() - self._asked < _WATCHED else SELDOM

    def add(self, at: float, readings: Iterable[Reading]) -> None:
        """Keep a look, unless the last one has only just been."""
        at = round(at, 3)
        if at < self.newest + _APART:
            return
        values = np.array([_values(reading) for reading in readings], dtype=np.float32).T
        with self._lock:
            self._close_minute(at)
            self._minute.append(values)
            self._fine.add(at, values)
            self.newest = at
        for listener in self.listeners:
            listener()

    def part(self, after: float, span: Span = "fine", gpus: Sequence[int] | None = None) -> Part:
        """The samples newer than an instant; of many GPUs only the latest."""
        chosen = tuple(range(self.gpus)) if gpus is None else tuple(gpus)
        ring, period = (self._fine, self.period) if span == "fine" else (self._coarse, MINUTE)
        with self._lock:
            at, values = ring.since(after, _MOST // max(1, len(chosen)), list(chosen))
        return Part(period, at, chosen, np.moveaxis(values, 0, -1))

    def _close_minute(self, at: float) -> None:
        began = self.newest // MINUTE * MINUTE
        if not self._minute or at < began + MINUTE:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a GPU that was lost all the time nothing is known
            means = np.nanmean(np.stack(self._minute), axis=0)
        self._coarse.add(began, means)
        self._minute, self.newest_minute = [], began


class _Ring:
    def __init__(self, size: int, gpus: int) -> None:
        self._at = np.zeros(size)
        self._values = np.zeros((size, len(COLUMNS), gpus), dtype=np.float32)
        self._count = 0

    def add(self, at: float, values: Values) -> None:
        place = self._count % len(self._at)
        self._at[place], self._values[place] = at, values
        self._count += 1

    def since(self, after: float, most: int, gpus: list[int]) -> tuple[NDArray[np.float64], Values]:
        size = len(self._at)
        places = np.arange(max(0, self._count - min(size, most)), self._count) % size
        places = places[self._at[places] > after]
        return self._at[places], self._values[places][:, :, gpus]


def _values(reading: Reading) -> tuple[float | None, ...]:
    """The columns of a sample; numpy makes NaN of None."""
    if reading.lost:
        return (None,) * len(COLUMNS)
    return reading.utilization, reading.memory_used, reading.temperature, reading.power
