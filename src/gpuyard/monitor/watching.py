"""Watching GPUs while something lasts: look after look, into a recording, and a CSV that is always up to date."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

import numpy as np

from gpuyard.gpus.base import Device, Gpus, Reading
from gpuyard.monitor.csvout import Row, UsageCsv
from gpuyard.monitor.live import Live
from gpuyard.monitor.track import Track, broken
from gpuyard.monitor.trees import Tree
from gpuyard.recordings.series import OF_GPUS, OF_JOBS, Recording, Series, Subject

_OFTEN, _SELDOM, _SHARE = 0.1, 0.5, 0.02
"""Seconds between looks: as often as costs at most that share of a core. A row is written once a period, but what is
between two rows counts as well: a peak is not to be missed, nor is energy."""
_MOST_SPANS, _MOST_VALUES = 86_400, 1_000_000
_PAUSE = 5.0  # seconds that a look may be late, as in `Live`


class Watching:
    """Some GPUs, and the processes of somebody on them."""

    def __init__(
        self,
        gpus: Gpus,
        period: float,
        csv: UsageCsv | None = None,
        *,
        only: Collection[int] = (),
        tree: Tree | None = None,
        who: str = "",
    ) -> None:
        """`period` is seconds between rows; `only` are the GPUs that are told of, all if there are none; `who` is what
        the tree's processes are called."""
        self.every = period / math.ceil(period / _pause(gpus, tree))
        """Seconds between looks."""
        self._gpus, self._csv, self._period, self._tree, self._who = gpus, csv, period, tree, who
        self._chosen = [device.index for device in gpus.devices if not only or device.index in only]
        self._live = Live(gpus, OF_GPUS, self.every)
        columns = len(OF_JOBS) * len(gpus.devices)
        self._track = Track(columns, min(_MOST_SPANS, _MOST_VALUES // max(1, columns)))
        self._seen: set[int] = set()
        self._next_row = -math.inf
        self._began = time.time() - time.monotonic()  # so that time only goes forward, whoever sets the clock
        self._warnings: list[str] = []
        self.readings: Sequence[Reading] = ()
        """What the last look told of the chosen GPUs."""
        self.own: dict[int, int] = {}
        """Bytes that the tree had on each GPU at the last look."""

    @property
    def devices(self) -> list[Device]:
        """The GPUs that are told of."""
        return [self._gpus.devices[index] for index in self._chosen]

    @property
    def simulated(self) -> bool:
        """Whether they exist in a program only."""
        return self._gpus.simulated

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._began + time.monotonic()

    def look(self, row: bool = False) -> None:
        """Look at the GPUs; with `row` it is also a row of the CSV if it is not yet time for one."""
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
        """What was seen up to now."""
        found = self._live.recording()
        own = [series for index in sorted(self._seen) for series in self._series(index)]
        found.series = [one for one in found.series if one.subject.gpu in self._chosen] + own
        found.marks = [mark for mark in found.marks if mark.subject is None or mark.subject.gpu in self._chosen]
        found.warnings += self._warnings
        return found

    def _of_tree(self, reading: Reading, tree: Tree) -> tuple[float, float]:
        """What the tree's processes have of a GPU, and how busy they keep it."""
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
        except OSError as error:  # what is watched goes on, and so does what is kept in memory
            self._warnings.append(f"gpu_usage.csv ends early: {error.strerror or error}")
            self._csv = None


def _pause(gpus: Gpus, tree: Tree | None) -> float:
    """Seconds that are to be between two looks."""
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
