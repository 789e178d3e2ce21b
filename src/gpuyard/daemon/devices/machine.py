"""The machine's GPUs, and what foreign processes use of them: jobs that share a GPU cannot have that.

Pure: what a look told goes in, with the time of the look, and what counts comes out. A job may not find less than it
was promised, so what others use counts as soon as it is known to be theirs. What nobody can be named for must last
a moment first: memory and processes are not read at one instant. What they give back counts after a while, and all
of it in steps, so that a GPU whose use trembles does not fill the log.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpuyard.core.events import GpusRestored, GpusWithdrawn, MemoryTaken
from gpuyard.core.limits.withdrawal import SHARED
from gpuyard.core.model import Cluster
from gpuyard.core.state import State
from gpuyard.daemon.devices.samples import SELDOM, Samples
from gpuyard.engines.base import Engine
from gpuyard.gpus.base import Device, Gpus, Reading
from gpuyard.gpus.ownership import FreeRule, Identity, Sampler, Verdict, identify
from gpuyard.units import format_size

STEP = 64 * 2**20  # bytes that it is rounded up to
LITTLE = 50 * 2**20  # drivers take less than this of an unused GPU; the buffer covers it
_SETTLES = 2.0  # seconds for which unknown processes must have used memory before it counts
_LASTS = 5.0  # seconds for which it counts when it is used no more


class ForeignUse(NamedTuple):
    """Bytes of a GPU in use by foreign processes."""

    known: float  # by processes that are seen, or by our jobs beyond what they were promised
    unknown: float  # by unknown processes

    @property
    def all(self) -> float:
        return self.known + self.unknown


def used_by_others(
    used: float, processes: Iterable[tuple[str | None, int]], promised: Mapping[str, float]
) -> ForeignUse | None:
    """Foreign use of a GPU with `used` bytes in use; None if unknown.

    `processes` are those on it, by job and bytes (0: not known); `promised` is what our jobs may use of it. A job that
    has no place on it is one of the others, and what a job uses beyond its promise is nobody's to give.
    """
    uses: dict[str, int] = {}
    foreign, known, foreign_known = 0, True, True
    for job, memory in processes:
        if job is not None and job in promised:
            uses[job] = uses.get(job, 0) + memory
            known = known and memory > 0
        else:
            foreign += memory
            foreign_known = foreign_known and memory > 0
    if not known:  # the rest may be ours or not
        return ForeignUse(float(foreign), 0.0) if foreign_known else None
    excess = sum(max(0.0, use - promised[job]) for job, use in uses.items())
    rest = used - foreign - sum(uses.values())
    return ForeignUse(float(foreign) + excess, max(0.0, rest))


class ForeignTally:
    def __init__(self) -> None:
        self.counted = 0  # bytes; whole steps
        self._seen: list[tuple[float, ForeignUse]] = []

    def add(self, at: float, use: ForeignUse) -> int:
        """Add a look, at a time that only goes forward; returns the bytes that count now."""
        self._seen = [(when, one) for when, one in self._seen if when > at - _LASTS] + [(at, use)]
        lasting = min(one.unknown for when, one in self._seen if when > at - _SETTLES)
        now = _steps(use.known + lasting)
        if now >= self.counted:
            self.counted = now
        else:
            lately = max(one.all for _, one in self._seen)
            calm = _steps(lately + STEP / 2 if lately >= LITTLE else 0.0)  # half a step more: no to and fro at its edge
            self.counted = min(self.counted, max(now, calm))
        return self.counted


def _steps(size: float) -> int:
    return 0 if size < LITTLE else math.ceil(size / STEP) * STEP


_REST = 10  # times as long as a look took passes before the next, however eagerly people watch; a second at most
_AT_ONCE = 0.1  # seconds between looks while jobs begin
_FRESH = 0.25  # seconds for which a look is good enough to start a job by
OFTEN = 0.25  # seconds between looks while jobs share GPUs: what one of them takes too much, others lack


class OwnerOn(Protocol):
    """Maps a process on a GPU to the job that it belongs to; None: a foreign process."""

    def __call__(self, pid: int, gpu: int) -> tuple[str, int] | None: ...


class Occupant(NamedTuple):
    pid: int
    memory: int  # bytes on this GPU; 0 where that is not known
    who: Identity | None  # None if it was gone already
    job: str | None  # None: it is of no job of ours; empty: it is ours, but of no job (MPS)
    graphics: bool = False  # whether it only draws, as a desktop does
    utilization: int | None = None  # recent use of the GPU in percent, where that is known


class Look(NamedTuple):
    device: Device
    reading: Reading
    verdict: Verdict
    occupants: tuple[Occupant, ...]


class Machine:
    """The GPUs, and the processes on them."""

    def __init__(
        self,
        gpus: Gpus,
        engine: Engine,
        rule: FreeRule | None = None,
        owner_on: OwnerOn | None = None,
        *,
        buffer: float = 0.0,
        beside: bool = False,
    ) -> None:
        self.gpus = gpus
        self.buffer = buffer  # bytes of each GPU that no share may have
        self._beside = beside  # whether shares may start where others are
        self._others = [ForeignTally() for _ in gpus.devices]
        self.node = engine.nodes()[0].name
        self._owner_on = owner_on or (lambda pid, gpu: engine.owner(pid))
        self._sampler = Sampler(gpus, rule)
        self._left: dict[int, float] = {}
        self._seen = -math.inf
        self._cost = 0.0  # seconds that the last look took
        self._pretended: Sequence[Reading] = ()
        self._shared = self._news = False
        self.often = OFTEN  # seconds between looks while jobs share GPUs
        self.looks = 0  # how often real GPUs were looked at
        self.xids: Counter[tuple[int, int]] = Counter()  # errors by GPU and number since the daemon began
        self.uses: Mapping[str, Mapping[int, int]] = {}
        """Bytes that jobs take of each simulated GPU, where they say what they use; replaced as a whole."""
        self._occupants: list[tuple[Occupant, ...]] = [()] * len(gpus.devices)
        self._known: dict[int, Identity | None] = {}
        self.verdicts: list[Verdict] = [Verdict("unknown", "not looked at yet") for _ in gpus.devices]
        self.samples = Samples(len(gpus.devices))

    @property
    def cluster(self) -> Cluster:
        sizes = tuple(float(device.memory) or 1.0 for device in self.gpus.devices)
        alike = len(set(sizes)) == 1
        return Cluster((len(sizes),), max(sizes), gpu_memory=() if alike else sizes)

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(device.uuid for device in self.gpus.devices)

    def least_memory(self, gpus: Iterable[int]) -> float:
        return float(min((self.gpus.devices[gpu].memory for gpu in gpus), default=0))

    def due(self) -> float:
        """When the next look is due, on the monotonic clock. Simulated GPUs need none."""
        if self.gpus.simulated and self._seen > 0:
            return math.inf
        period = self.often if self._shared else self.samples.period
        if self._news:
            period = min(period, _AT_ONCE)
        return self._seen + max(period, min(SELDOM, _REST * self._cost))

    def is_stale(self) -> bool:
        return not self.gpus.simulated and time.monotonic() - self._seen > _FRESH

    def began(self) -> None:
        """A job has just begun: look soon, so that a short one is seen too."""
        self._news = True

    def left(self, gpus: Iterable[int]) -> None:
        self._left |= dict.fromkeys(gpus, time.monotonic())

    def readings(self) -> Iterator[Look]:
        """The last look. For any thread: values are replaced as a whole."""
        seen = (
            self._pretended
            or self._sampler.readings
            or [Reading(device.index, lost=True, problem="not looked at yet") for device in self.gpus.devices]
        )
        return map(Look, self.gpus.devices, seen, self.verdicts, self._occupants)

    def pretend(self, at: float, readings: Sequence[Reading], uses: Mapping[str, Mapping[int, int]]) -> None:
        """Set the load of simulated GPUs, and what jobs use of them; it decides nothing."""
        self._pretended, self.uses = readings, uses
        self.samples.add(at, readings)

    def age(self) -> float:
        """Seconds since the last look; 0 for simulated GPUs."""
        return 0.0 if self.gpus.simulated else time.monotonic() - self._seen

    def in_use(self, gpu: int, seconds: float) -> bool | None:
        """Whether any process is on a GPU that was given away some seconds ago; None if unknown."""
        if self.gpus.simulated or math.isinf(self._seen):
            return None
        state = self._sampler.verdict(gpu, lambda pid: None, placed=False, since_left=seconds).state
        return None if state == "unknown" else state != "free"

    def changes(self, state: State, now: float) -> Iterator[tuple[GpusWithdrawn | GpusRestored | MemoryTaken, str]]:
        """Look, if it is time to; events of GPUs that became unusable, usable, or fuller, with the reason."""
        ticks = time.monotonic()
        rows = state.running.array
        self._shared = bool(rows.size) and bool((state.table.compute[rows] < 100.0).any())
        if ticks < self.due() and not self.is_stale():
            if not state.taken:  # what was said of it may be lost, if it could not be written
                yield from self._taken(state, now)
            return
        self._seen, self._news = ticks, False
        placed = {gpu for row in state.running.array for gpu in state.spot[row].tolist()} | state.lent.keys()
        self._sampler.fresh(_FRESH)
        self._occupants = owners = self._attributed()
        for gpu, verdict in enumerate(self._verdicts(owners, placed, ticks)):
            self.verdicts[gpu] = verdict
            bad: str | None = verdict.state if verdict.state in ("foreign", "unknown") else None
            if bad != "unknown" and not self.gpus.simulated and (bad is None or self._beside):
                use = self._use(gpu, state, ticks)
                self._others[gpu].add(ticks, use or ForeignUse(0.0, 0.0))
                bad = SHARED if bad and use else bad
            if bad and state.withdrawn.get(gpu) != bad:
                yield GpusWithdrawn(now, (gpu,), bad), verdict.why
            elif not bad and gpu in state.withdrawn:
                yield GpusRestored(now, (gpu,)), verdict.why
        yield from self._taken(state, now)
        self._cost = time.monotonic() - ticks
        if not self.gpus.simulated:
            self.looks += 1
            self.xids.update((reading.index, reading.xid) for reading in self._sampler.readings if reading.xid)
            self.samples.add(now, self._sampler.readings)  # last: its listeners look at all of it

    def _use(self, gpu: int, state: State, ticks: float) -> ForeignUse | None:
        """Foreign use of a GPU by the latest look; None if unknown."""
        table, promised = state.table, dict[str, float]()
        for row in state.running.array.tolist():
            if gpu in state.spot[row] or state.lent.get(gpu) == state.ids[row]:
                promised[state.ids[row]] = math.inf if table.compute[row] >= 100 else float(table.memory[row])
        there = [(occupant.job, occupant.memory) for occupant in self._occupants[gpu]]
        use = used_by_others(self._sampler.readings[gpu].memory_used, there, promised)
        if use is not None and ticks - self._left.get(gpu, -math.inf) < self._sampler.rule.settle:
            return ForeignUse(use.known, 0.0)  # what our job had may take that long to be given back
        return use

    def _taken(self, state: State, now: float) -> Iterator[tuple[MemoryTaken, str]]:
        others = [tally.counted for tally in self._others]
        taken = tuple(self.buffer + other for other in others)
        if taken == state.taken or (not any(taken) and not state.taken):
            return
        used = [f"{format_size(other)} of GPU {gpu}" for gpu, other in enumerate(others) if other]
        why = f"others use {', '.join(used)}" if used else "nobody else uses any"
        yield MemoryTaken(now, taken, self.buffer), f"{format_size(self.buffer)} of each are kept free; {why}"

    def _verdicts(self, occupants: list[tuple[Occupant, ...]], placed: set[int], ticks: float) -> Iterator[Verdict]:
        for gpu, there in enumerate(occupants):
            left = self._left.get(gpu)
            owners = {occupant.pid: occupant.job for occupant in there}
            since = None if left is None else ticks - left
            yield self._sampler.verdict(gpu, owners.get, placed=gpu in placed, since_left=since)

    def _attributed(self) -> list[tuple[Occupant, ...]]:
        """The processes on each GPU by the latest look. The job of a process does not change."""
        known, self._known = self._known, {}
        found = []
        for reading in self._sampler.readings:
            there = []
            for process in reading.processes:
                pid = process.pid
                self._known[pid] = known[pid] if known.get(pid) else identify(pid)
                owner = self._owner_on(pid, reading.index)
                job = owner[0] if owner else None
                there.append(
                    Occupant(pid, process.memory, self._known[pid], job, process.graphics, process.utilization)
                )
            found.append(tuple(there))
        return found
