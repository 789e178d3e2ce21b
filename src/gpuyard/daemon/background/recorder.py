"""Records what GPUs do, in a thread of its own, fed by the threads that look at them.

Samples come through a queue that never blocks its producers. A GPU in use is recorded every `record_period`, an idle
one without changes every ten seconds. A failed write is logged once and tried again every minute; jobs go on meanwhile.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from gpuyard.config import Settings
from gpuyard.daemon.context import BackgroundThread, Context
from gpuyard.daemon.devices.measurements import Seen
from gpuyard.gpus.base import Device, Reading
from gpuyard.recordings.chunks import HOURS, LEVELS, MINUTES, QUIET, SAMPLES, Level
from gpuyard.recordings.database import KEPT_OF_GPUS, NAME, RecordingFile, Who, Writer, is_damaged
from gpuyard.recordings.queries import Told, Wanted, read

log = logging.getLogger("gpuyard")
_Found = TypeVar("_Found")
_EVERY = 5.0  # seconds from one writing to the next
_RETRY = 60.0  # seconds after a failure
_SWEEP = 3600.0  # seconds from one removal of what is old to the next
_BITE = 500  # chunks
_REST = 0.05  # seconds between bites
_MOST = 10_000  # looks that wait to be written
_EARLY = 0.2  # of a period by which a look may come too early
_STIR = 32 * 2**20  # bytes by which the memory of an idle GPU may differ and still be as it was


class _Glance(NamedTuple):
    at: float
    readings: Sequence[Reading]
    seen: Sequence[Seen]


class _Row(NamedTuple):
    at: float
    who: Who
    values: dict[str, float]


class Recorder(BackgroundThread):
    """Writes what GPUs do, and reads it. For any thread."""

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__("recorder")
        self._context, self._settings = context, settings
        self.path = settings.data_dir / NAME
        self.period = max(0.0, settings.record_period)
        self.failing = ""  # why nothing can be recorded now; empty if all is well
        self._queue: deque[_Glance] = deque(maxlen=_MOST)
        self._lock = threading.Lock()
        self._file: RecordingFile | None = None
        self._tape: Writer | None = None
        self._retry_at = 0.0
        self._pace = _Pace(self.period)
        self._sweep_at = time.monotonic() + _EVERY

    @property
    def apart(self) -> float:
        """Seconds without a sample that make a gap."""
        return 2.5 * max(QUIET, self.period)

    def start(self) -> None:
        """Start the thread, if `record` is set."""
        if self._settings.record:
            self._context.watchers.append(self.look)
            super().start()

    def look(self, at: float, readings: Sequence[Reading], seen: Sequence[Seen]) -> None:
        """Called by the thread that looked, which does not wait here."""
        self._queue.append(_Glance(at, readings, seen))

    def flush(self) -> None:
        with self._lock:
            if not self._settings.record or (self.failing and time.monotonic() < self._retry_at):
                self._queue.clear()
                return
            try:
                self._write()
            except (sqlite3.Error, OSError, ValueError) as error:
                self._fail(error)

    def read(self, wanted: Wanted) -> Told | None:
        """The recordings of a span of time; None if there are none, or they cannot be read."""
        self.flush()
        if not self.path.exists():
            return None
        try:
            return read(self.path, wanted)
        except (sqlite3.Error, ValueError) as error:
            log.warning("what was recorded in %s cannot be read: %s", self.path, error)
            if isinstance(error, sqlite3.Error) and is_damaged(error):
                with self._lock:  # who writes may not have noticed: it has most of it in memory
                    self._fail(error)
            return None

    def stop(self) -> None:
        super().stop()
        self.flush()
        with self._lock:
            self._close()

    def _step(self) -> float:
        self.flush()
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP
            self.sweep(time.time())
        return _EVERY

    def _write(self) -> None:
        if self._file is not None and not self._file.is_there():
            log.warning("%s was removed: recording begins anew", self.path)
            self._close()
        if self._tape is None:
            self._file = RecordingFile(self.path)
            self._tape = Writer(self._file)
            self._tape.finish(time.time())
            self._pace = _Pace(self.period)
        if self.failing:
            log.info("what GPUs do is recorded again")
            self.failing = ""
        devices, last = self._context.machine.gpus.devices, 0.0
        while self._queue:
            glance = self._queue.popleft()
            last = glance.at
            for at, who, values in self._pace.due(glance, devices):
                self._tape.add(who, round(at, 3), values)
        self._tape.write(max(last, time.time()))

    def _fail(self, error: Exception) -> None:
        """Stop writing for a while; a damaged file is set aside when it is opened again."""
        self._close()
        self._queue.clear()
        damaged = isinstance(error, sqlite3.Error) and is_damaged(error)
        if not self.failing and not damaged:  # a damaged file is logged when it is set aside
            log.warning("what GPUs do is not recorded: %s cannot be written: %s; jobs go on", self.path, error)
        self.failing = str(error)
        self._retry_at = time.monotonic() + (0.0 if damaged else _RETRY)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._tape = None

    # -- what is old ------------------------------------------------------------------------------

    def sweep(self, now: float) -> int:
        """Remove what is too old, in small steps; returns the number of chunks."""
        settings = self._settings
        kept = {SAMPLES: settings.keep_samples, MINUTES: settings.keep_minutes, HOURS: settings.keep_hours}
        removed = 0
        for level in LEVELS:
            if kept[level] > 0:
                for subject in self._some(RecordingFile.subjects) or []:
                    removed += self._in_bites(partial(_forget, level, subject, now - kept[level]))
        if removed:
            self._in_bites(lambda file: file.forget_subjects(_BITE))
        return removed

    def _in_bites(self, bite: Callable[[RecordingFile], int]) -> int:
        removed = 0
        while (count := self._some(bite)) and not self._over.wait(_REST):
            removed += count
            self._move()
        return removed + (count or 0)

    def _some(self, act: Callable[[RecordingFile], _Found]) -> _Found | None:
        """Do something to the file under the lock; None if that fails."""
        with self._lock:
            if self._file is None:
                return None
            try:
                return act(self._file)
            except sqlite3.Error as error:
                self._fail(error)
                return None


def _forget(level: Level, subject: int, before: float, file: RecordingFile) -> int:
    return file.forget(level, subject, before, _BITE)


class _Pace:
    """Which looks are written: of each GPU, and of each job on it."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._last: dict[int, tuple[float, Reading]] = {}
        self._jobs: dict[int, frozenset[tuple[str, int]]] = {}
        self._pending: dict[int, tuple[int, int]] = {}  # errors and throttling between what is written
        self._passed_over: dict[int, tuple[float, Reading, Sequence[Seen]]] = {}  # the latest, if it was not written

    def due(self, glance: _Glance, devices: Sequence[Device]) -> Iterator[_Row]:
        """The rows of a look, and of the one before if a job or its work began or ended since."""
        tenants: dict[int, list[Seen]] = {}
        for one in glance.seen:
            for gpu in one.gpus:
                tenants.setdefault(gpu, []).append(one)
        for device, reading in zip(devices, glance.readings, strict=False):
            gpu = device.index
            xid, throttle = self._pending.get(gpu, (0, 0))
            xid, throttle = reading.xid or xid, throttle | (reading.throttle or 0)
            self._pending[gpu] = xid, throttle
            there = tenants.get(gpu, ())
            jobs = frozenset((one.job, one.attempt) for one in there)
            news = jobs != self._jobs.get(gpu, frozenset())  # so that the shortest job has a first sample
            if not news and not self._is_due(glance.at, reading, bool(there) or bool(xid)):
                self._passed_over[gpu] = glance.at, reading, there
                continue
            self._last[gpu], self._jobs[gpu] = (glance.at, reading), jobs
            del self._pending[gpu]
            before = self._passed_over.pop(gpu, None)
            if before is not None and (news or bool(before[1].utilization) != bool(reading.utilization)):
                at, former, then = before  # what was until then does not fade into what is from now on
                yield from _rows(at, device, former, 0, former.throttle or 0, then)
            yield from _rows(glance.at, device, reading, xid, throttle, there)

    def _is_due(self, at: float, now: Reading, busy: bool) -> bool:
        if now.index not in self._last:
            return True
        then, before = self._last[now.index]
        passed = at - then
        busy = busy or bool(now.utilization) or bool(now.processes) or now.lost != before.lost
        busy = busy or abs(now.memory_used - before.memory_used) > _STIR or (now.utilization != before.utilization)
        period = self._period if busy else max(QUIET, self._period)
        return passed < 0 or passed >= period * (1 - _EARLY)


def _rows(
    at: float, device: Device, reading: Reading, xid: int, throttle: int, there: Sequence[Seen]
) -> Iterator[_Row]:
    yield _Row(at, who_of(device), values_of(reading, xid, throttle))
    for one in there:
        yield _Row(at, Who(device.index, device.uuid, job=one.job, attempt=one.attempt), _of_job(one, device.index))


def who_of(device: Device) -> Who:
    return Who(device.index, device.uuid, device.name, device.memory, device.simulated)


def values_of(reading: Reading, xid: int = 0, throttle: int = 0) -> dict[str, float]:
    """A reading as a row; NaN where a value is unknown."""
    if reading.lost:
        return dict.fromkeys(KEPT_OF_GPUS, math.nan) | {"xid": float(xid)}
    known: Mapping[str, float | None] = {
        "utilization": reading.utilization, "memory_used": reading.memory_used, "memcopy": reading.memcopy,
        "power": reading.power, "temperature": reading.temperature, "sm_clock": reading.sm_clock,
        "memory_clock": reading.memory_clock, "throttle": None if reading.throttle is None else throttle, "xid": xid,
    }  # fmt: skip
    return {name: math.nan if value is None else float(value) for name, value in known.items()}


def _of_job(one: Seen, gpu: int) -> dict[str, float]:
    size = None if one.uses is None else one.uses.get(gpu)
    return {
        "process_memory": math.nan if size is None else float(size),
        "process_utilization": math.nan if one.utilization is None else one.utilization,
    }
