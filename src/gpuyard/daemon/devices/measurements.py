"""GPU memory that running attempts use: measured at every look at the GPUs, kept until the attempts have ended.

The loop's thread measures real GPUs, the thread of `simulation` simulated ones: bytes of each attempt on each GPU, all
its processes together. The result is small and is kept in a file as well, so that a job's peak survives a killed
daemon. The file is no part of the store: losing it loses no job.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.core.state import State
from gpuyard.daemon.devices.machine import Look, Occupant
from gpuyard.daemon.store.views import LONGEST_GAP, JobView, gpu_part, split_power
from gpuyard.files import write_atomically

log = logging.getLogger("gpuyard")
_APART = 1.0  # seconds from one writing to the next, at least
_SELDOM = 10.0  # the same where no peak has grown
_RISE = 1.02  # times as much is a higher peak, and not only a bit of noise
_NOTHING = 50 * 2**20  # bytes that a driver may keep of an unused GPU


class Seen(NamedTuple):
    job: str
    attempt: int
    began: float  # when the attempt did, in seconds since the epoch
    uses: Mapping[int, int] | None  # bytes on each of its GPUs; None where that cannot be known
    utilization: float | None = None  # percent of its GPUs that it keeps busy, on average; None where that is not known
    alone: bool = True  # whether no other job of ours is on its GPUs
    gpus: tuple[int, ...] = ()  # those that it has
    watts: float | None = None  # what its GPUs draw, as far as that is its own part; None if unknown


class Measure(NamedTuple):
    attempt: int
    peak: int | None  # bytes on one GPU at most; None where nothing was seen
    mean: float | None
    samples: int
    period: float  # seconds from one look to the next, on average
    seconds: float  # for how long it ran, as of the last look, or of its end
    utilization: float | None
    alone: bool
    settled: float  # for how many of the seconds its peak has not risen any more
    current: Mapping[int, int]  # bytes on each GPU, as of the last look
    energy_wh: float | None = None  # watt-hours that its GPUs drew for it; None if unknown

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if name not in ("attempt", "current")}


@dataclass(slots=True)
class _Tally:
    attempt: int
    began: float
    first: float = 0.0
    last: float = 0.0
    samples: int = 0
    peak: int | None = None
    total: float = 0.0
    busy: float = 0.0
    busy_samples: int = 0
    alone: bool = True
    level: int = 0
    rose: float = 0.0
    current: dict[int, int] = field(default_factory=dict)
    joules: float | None = None
    watts: float | None = None
    drawn: float = 0.0  # until when the energy is counted

    def date(self, began: float) -> None:
        """The attempt began then, by the daemon's clock: where that has changed, the time of day was set."""
        if by := began - self.began:
            self.began = began
            self.first, self.last, self.rose, self.drawn = (
                at and at + by for at in (self.first, self.last, self.rose, self.drawn)
            )

    def draw(self, at: float, watts: float | None) -> None:
        """Add the energy since the last look with power, or since the start."""
        if watts is None:
            return
        since, before = (self.began, watts) if self.joules is None else (self.drawn, self.watts or 0.0)
        passed = max(0.0, at - since)
        self.joules = (self.joules or 0.0) + ((before + watts) / 2 * passed if passed <= LONGEST_GAP else 0.0)
        self.watts, self.drawn = watts, max(at, since)

    def add(self, at: float, seen: Seen) -> bool:
        """Add a look; returns whether it raised the peak."""
        self.alone = self.alone and seen.alone
        self.draw(at, seen.watts)
        if seen.utilization is not None:
            self.busy += seen.utilization
            self.busy_samples += 1
        if seen.uses is None:
            return False
        self.current = dict(seen.uses)
        most = max(seen.uses.values(), default=0)
        self.first = self.first if self.samples else at
        self.last = at
        self.samples += 1
        self.total += most
        if most > self.level * _RISE:
            self.level, self.rose = most, at
        grew = self.peak is None or most > self.peak
        self.peak = max(most, self.peak or 0)
        return grew

    def measure(self, at: float) -> Measure:
        after = (self.watts or 0.0) * max(0.0, self.drawn - at)  # joules: the last look may come after the end
        return Measure(
            self.attempt,
            self.peak,
            round(self.total / self.samples, 1) if self.samples else None,
            self.samples,
            round((self.last - self.first) / (self.samples - 1), 3) if self.samples > 1 else 0.0,
            round(max(0.0, at - self.began), 3),
            round(self.busy / self.busy_samples, 1) if self.busy_samples else None,
            self.alone,
            round(max(0.0, at - max(self.rose, self.began)), 3),
            self.current,
            None if self.joules is None else round(max(0.0, self.joules - after) / 3600, 6),
        )


_NAMES = tuple(one.name for one in fields(_Tally))


class Measures:
    """What every running attempt uses. For any thread."""

    def __init__(self, path: Path) -> None:
        self.listeners: list[Callable[[], None]] = []
        """Told that there was a look, by the thread that looked: they must be quick."""
        self.gpu_memory = 0.0  # bytes of the largest GPU: what shares are shares of
        self._path = path
        self._lock = threading.Lock()
        self._tallies = _read(path)
        self._write_at = 0.0
        self._grown = self._changed = self._failed = False

    def note(self, at: float, seen: Iterable[Seen], lives: Callable[[str, int], bool]) -> None:
        """Add a look at all running attempts; what is known of others is dropped."""
        with self._lock:
            for one in seen:
                self._grown |= self._tally(one).add(at, one)
                self._changed = True
            for job in [job for job, tally in self._tallies.items() if not lives(job, tally.attempt)]:
                del self._tallies[job]
                self._changed = True
            self._write()
        for listener in self.listeners:
            listener()

    def of(self, job: str) -> Measure | None:
        """What a job's attempt used so far; None if it was not looked at yet, or is over."""
        with self._lock:
            tally = self._tallies.get(job)
            if tally is None:
                return None
            return tally.measure(max(tally.last, tally.drawn, tally.began))

    def busy(self, job: str) -> tuple[float, int] | None:
        """Percent that a job kept its GPUs busy, summed over looks, and the number of looks."""
        with self._lock:
            tally = self._tallies.get(job)
            return (tally.busy, tally.busy_samples) if tally is not None and tally.busy_samples else None

    def live(self, view: JobView) -> dict[str, Any] | None:
        """What a running job uses, for listings; `current` is its use of one GPU, at most, now."""
        found = self.of(view.id) if view.state == "running" else None
        if found is None or found.attempt != view.attempt:
            return None
        current = max(found.current.values(), default=0) if found.samples else None
        took = self.gpu_seconds(view.work, len(view.gpus), found.seconds)
        return {**found.to_json(), "gpu_seconds": took, "current": current}

    def gpu_seconds(self, work: Mapping[str, Any], gpus: int, seconds: float) -> float:
        """Seconds of whole GPUs, or of the job's share of them."""
        return round(gpus * seconds * gpu_part(work, self.gpu_memory), 3)

    def latest(self) -> dict[str, int]:
        with self._lock:
            return {job: max(tally.current.values(), default=0) for job, tally in self._tallies.items()}

    def take(self, job: str, attempt: int, began: float, ended: float, last: Seen | None = None) -> dict[str, Any]:
        """What an attempt used that has ended, to be recorded; `last` is what is known of its last instant.

        It is kept until the attempt is known to be over, since what is recorded may yet fail to be written.
        """
        with self._lock:
            tally = self._tallies.get(job)
            if tally is None or tally.attempt != attempt:
                tally = _Tally(attempt, began)
            tally.date(began)
            if last is not None and ended > tally.last:
                tally.add(ended, last)
                self._tallies[job] = tally
            tally.draw(ended, tally.watts)
            return tally.measure(ended).to_json()

    def close(self) -> None:
        with self._lock:
            self._write_at = 0.0
            self._grown = self._changed
            self._write()

    def _tally(self, seen: Seen) -> _Tally:
        tally = self._tallies.get(seen.job)
        if tally is None or tally.attempt != seen.attempt:
            tally = self._tallies[seen.job] = _Tally(seen.attempt, seen.began)
        tally.date(seen.began)
        return tally

    def _write(self) -> None:
        now = time.monotonic()
        if not self._changed or now < self._write_at + (0.0 if self._grown else _SELDOM - _APART):
            return
        kept = {job: {name: getattr(tally, name) for name in _NAMES} for job, tally in self._tallies.items()}
        try:
            write_atomically(self._path, json.dumps(kept).encode())
        except OSError as error:
            if not self._failed:
                log.warning("what jobs use cannot be written to %s: %s", self._path, error.strerror or error)
            self._failed = True
        else:
            self._failed = False
        self._write_at = now + _APART
        self._grown = self._changed = False


def _read(path: Path) -> dict[str, _Tally]:
    """The file of an earlier daemon; empty if it cannot be read."""
    try:
        found = {job: _Tally(**tally) for job, tally in json.loads(path.read_text()).items()}
        for tally in found.values():
            tally.current = {int(gpu): size for gpu, size in tally.current.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("what jobs used before is lost: %s cannot be read: %s", path, error)
        return {}
    return found


def seen_on(looks: Iterable[Look], state: State) -> list[Seen]:
    by_gpu = {look.device.index: look for look in looks}
    rows: list[int] = state.running.array.tolist()
    spots = {row: state.spot[row].tolist() for row in rows if not math.isinf(float(state.table.started[row]))}
    crowd = Counter(gpu for row in rows for gpu in state.spot[row].tolist())
    busy: dict[int, dict[str, float | None]] = {}
    for row, spot in spots.items():
        alone = all(crowd[gpu] == 1 for gpu in spot)
        for gpu in spot:
            busy.setdefault(gpu, {})[state.ids[row]] = _busy_of(state.ids[row], by_gpu[gpu], alone)
    watts = split_power({gpu: None if look.reading.lost else look.reading.power for gpu, look in by_gpu.items()}, busy)
    found = []
    for row, spot in spots.items():
        job, began = state.ids[row], float(state.table.started[row])
        alone = all(crowd[gpu] == 1 for gpu in spot)
        sizes = {gpu: _bytes_of(job, by_gpu[gpu]) for gpu in spot}
        known = {gpu: size for gpu, size in sizes.items() if size is not None}
        whole = [percent for gpu in spot if (percent := busy[gpu][job]) is not None]
        mean = sum(whole) / len(whole) if whole and len(whole) == len(spot) else None
        uses = known if len(known) == len(sizes) else None
        found.append(Seen(job, state.attempt[row], began, uses, mean, alone, tuple(spot), watts.get(job)))
    return found


def _bytes_of(job: str, look: Look) -> int | None:
    """Bytes of a GPU that all processes of a job use; None where the driver does not tell, which is not 0."""
    if look.reading.lost:
        return None
    sizes = [one.memory for one in look.occupants if one.job == job]
    if sizes:
        return sum(sizes) or None
    unseen = not look.occupants and look.reading.memory_used > _NOTHING  # in a container, say, processes are hidden
    return None if unseen else 0


def _busy_of(job: str, look: Look, alone: bool) -> float | None:
    """Percent of a GPU that a job keeps busy: by its processes; by the GPU, if it is alone there."""
    if look.reading.lost:
        return None
    parts = [one.utilization for one in look.occupants if one.job == job]
    known = [part for part in parts if part is not None]
    if known and len(known) == len(parts) and not any(map(_is_mps, look.occupants)):
        return float(min(100, sum(known)))
    strangers = any(one.job != job and not _is_mps(one) for one in look.occupants)
    return None if strangers or not alone or look.reading.utilization is None else float(look.reading.utilization)


def _is_mps(one: Occupant) -> bool:
    """Whether a process is an MPS server, which does the work of its clients: they seem idle beside it."""
    return one.who is not None and one.who.name.startswith("nvidia-cuda-mps")
