"""The load of simulated GPUs: what their jobs declare to use, and a model of how busy that keeps them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpuyard.core.events import Exited, Granted, Preempted, Requeued, Returned, Started
from gpuyard.core.limits.loans import loans
from gpuyard.daemon.context import BackgroundThread, Clock, Context
from gpuyard.daemon.devices.measurements import Seen
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.views import JobView, split_power
from gpuyard.engines.local.processes import read_proc, variable_of
from gpuyard.engines.local.stored_attempts import processes_below
from gpuyard.errors import UserError
from gpuyard.gpus.base import Device, Reading
from gpuyard.gpus.load_model import DeviceModel, Load, Tenant, share_of
from gpuyard.gpus.simulated import VARIABLE, Demand, Use, parse_use, run_out, use_of

log = logging.getLogger("gpuyard")
_YOUNG = 5.0  # seconds after its beginning, or ours, in which a job's processes are looked at


class Declared:
    """What jobs declare to use. One thread looks, others may ask."""

    def __init__(self, jobs: Path) -> None:
        self._jobs = jobs
        self._began = time.time()
        self._found: dict[tuple[str, int], Use | None] = {}

    def of(self, view: JobView, attempt: int) -> Use | None:
        """What an attempt uses over time; None if it declares nothing."""
        text = view.work.get("simulate_use")
        if not text:
            return self._found.get((view.id, attempt))
        try:
            return parse_use(text)
        except UserError:  # what one version took, another may not
            return None

    def look(self, running: Iterable[JobView], now: float) -> bool:
        """Read what processes of young jobs declare; returns whether to look again soon."""
        known, self._found = self._found, {}
        young = False
        for view in running:
            key = (view.id, view.attempt)
            if view.kind != "job" or view.work.get("simulate_use") or view.started is None:
                continue
            if key in known:
                self._found[key] = known[key]
            elif now - max(view.started, self._began) < _YOUNG:
                young = True
                if (text := self._said_by(*key)) is not None:
                    self._found[key] = _parsed(text, view.id)
        return young

    def _said_by(self, job: str, attempt: int) -> str | None:
        for pid in reversed(processes_below(self._jobs, job, attempt)):
            if text := variable_of(pid, VARIABLE):
                words = (read_proc(pid, "cmdline") or b"").rstrip(b"\0").split(b"\0")
                if use := use_of(text, [os.fsdecode(word) for word in words]):
                    return use
        return None


def _parsed(text: str, job: str) -> Use | None:
    try:
        return parse_use(text)
    except UserError as error:
        log.warning("job %s: %s: %s", job, VARIABLE, error)
        return None


_AT_MOST = 0.05  # seconds between beats, however many jobs begin
_REST = 20.0  # times what a beat took that is left until the next: with many jobs that is longer
_MOVES = Started | Exited | Preempted | Requeued | Granted | Returned
_JUST = 0.001  # seconds before a job came or went
_TELL_AGAIN = 5.0  # seconds after which a job that should be dead is reported again: the store may have failed


class SimulatedJob(NamedTuple):
    view: JobView
    use: Use | None  # None: it declares nothing, so it uses what it asked for
    wanted: int = 0
    grew_at: float = 0.0
    dead: bool = False  # whether it ran out of memory, and is about to end
    lent: tuple[int, ...] = ()  # GPUs that it has on loan

    def taken(self, device: Device) -> int:
        """Bytes that it takes of a GPU. A dead job frees them at once, so that it harms no other."""
        if self.use is None:
            return promised(self.view, device)
        return 0 if self.dead else self.wanted


class Death(NamedTuple):
    """A job that does not get what it wants of a GPU."""

    view: JobView
    gpu: int
    wanted: int


class SimulatedLoad(BackgroundThread):
    retry = 1.0

    def __init__(self, context: Context, declared: Declared, ran_out: Callable[[str, int, int, int], None]) -> None:
        super().__init__("simulated-load")
        self._context, self._declared, self._ran_out = context, declared, ran_out
        self._store, self._machine = context.store, context.machine
        self._devices = self._machine.gpus.devices
        self._clock = Clock()
        self._model = DeviceModel(len(self._devices))
        self._views: list[JobView] = []
        self._last = -1
        self._changed_at: float | None = None  # when the first came or went since the last beat, as far as was heard
        self._residents: list[SimulatedJob] = []
        self._at = 0.0  # of the last beat
        self._often = False
        self._wants: dict[tuple[str, int], tuple[int, float]] = {}
        """How much each attempt wants, and since when it does."""
        self._dead: dict[tuple[str, int], float] = {}
        """When attempts that ran out of memory were reported to the loop, on the monotonic clock."""

    def start(self) -> None:
        """Start the thread, if GPUs are simulated."""
        if self._machine.gpus.simulated:
            self._context.listeners.append(self._heard)
            super().start()

    def sample(self) -> None:
        """Take one sample of all GPUs; if jobs came or went, also one of just before."""
        former, at = _who(self._views), self._clock.now()  # before the jobs: who begins meanwhile begins later
        if self._store.last != self._last:  # only then can a job have moved
            self._last = self._store.last
            self._views = [view for view in list(self._store.open.values()) if view.state == "running"]
        at = max([at, *(view.started or at for view in self._views)])
        changed_at, self._changed_at = self._changed_at, None
        if former != _who(self._views):
            came = [view for view in self._views if not _who([view]) <= former]
            # Who has GPUs may have begun before that is known, at any time since the last beat: then nobody looks back.
            begun = [self._at if view.started is None else view.started for view in came]
            self._look_back(min(at, changed_at or at, *begun) - _JUST)
        young = self._declared.look(self._views, at)
        self._forget_the_gone()
        residents = [self._resident(view, at) for view in self._views]
        self._often = young or any(one.use for one in residents)
        deaths = who_dies(self._devices, [one for one in residents if one.use is None or one.view.started is not None])
        dying = {death.view.id for death in deaths}
        after = [one._replace(dead=one.dead or one.view.id in dying) for one in residents]
        tenants, memory = taken_of(self._devices, after)
        readings = readings_of(memory, self._model.step(at, tenants))
        self._machine.pretend(at, readings, self._uses(after))
        # as they were: what a job dies of was its use, too
        seen = list(seen_of(residents, tenants, at, [reading.power for reading in readings]))
        self._context.measures.note(at, seen, self._store.runs)
        for watcher in self._context.watchers:
            watcher(at, readings, seen)
        for death in deaths:
            self._tell(death)
        self._at, self._residents = at, after

    def _look_back(self, at: float) -> None:
        """Report the load up to an instant: of simulated GPUs it is certain."""
        if at <= self._at or not self._at:
            return
        tenants, memory = taken_of(self._devices, self._residents)
        readings = readings_of(memory, self._model.step(at, tenants))
        seen = list(seen_of(self._residents, tenants, at, [reading.power for reading in readings]))
        for watcher in self._context.watchers:
            watcher(at, readings, seen)

    def _step(self) -> float:
        began = time.monotonic()
        self.sample()
        period = self._machine.often if self._often else self._machine.samples.period
        rest = min(period, max(_AT_MOST, _REST * (time.monotonic() - began)))
        self._over.wait(rest)
        return period - rest

    def _heard(self, records: list[Record]) -> None:
        """Look at once at jobs that begin, so that short ones are seen too, and at GPUs that jobs left."""
        times = [one.event.at for one in records if isinstance(one.event, _MOVES)]
        if times:
            known = self._changed_at  # which the other thread may forget at any time
            self._changed_at = min(times) if known is None else min(known, *times)
            self._wake.set()

    def _resident(self, view: JobView, at: float) -> SimulatedJob:
        use, key = self._declared.of(view, view.attempt), (view.id, view.attempt)
        lent = tuple(loans(self._context.state, view.id))
        if use is None or view.started is None:
            return SimulatedJob(view, use, 0 if use is None else use.at(0.0), lent=lent)
        wanted = use.at(at - view.started)
        before, since = self._wants.get(key, (0, view.started))
        self._wants[key] = wanted, at if wanted > before else since
        return SimulatedJob(view, use, *self._wants[key], key in self._dead or view.recalled == "oom", lent)

    def _uses(self, residents: Iterable[SimulatedJob]) -> dict[str, dict[int, int]]:
        return {
            one.view.id: {gpu: one.taken(self._devices[gpu]) for gpu in (*one.view.gpus, *one.lent)}
            for one in residents
            if one.use
        }

    def _forget_the_gone(self) -> None:
        present = {(view.id, view.attempt) for view in self._views}
        again = time.monotonic() - _TELL_AGAIN
        self._wants = {key: value for key, value in self._wants.items() if key in present}
        self._dead = {key: told for key, told in self._dead.items() if key in present and told > again}

    def _tell(self, death: Death) -> None:
        view, gpu, wanted = death
        self._dead[view.id, view.attempt] = time.monotonic()
        self._context.ask(lambda: self._ran_out(view.id, view.attempt, gpu, wanted))


def _who(views: Iterable[JobView]) -> set[tuple[str, int, tuple[int, ...]]]:
    return {(view.id, view.attempt, tuple(view.gpus)) for view in views}


def promised(view: JobView, device: Device) -> int:
    """Bytes of a GPU that a job may use: its share, or all of it."""
    return device.memory if view.work.get("alone") else int(view.work.get("gpu_memory") or device.memory)


def memory_of(view: JobView, device: Device, uses: Mapping[str, Mapping[int, int]]) -> int:
    """Bytes of a simulated GPU that a job takes: what it declares, else what it asked for."""
    if view.id in uses:
        return uses[view.id].get(device.index, 0)
    return 0 if view.work.get("simulate_use") else promised(view, device)


def who_dies(devices: Sequence[Device], residents: Sequence[SimulatedJob]) -> list[Death]:
    """Jobs that do not get what they declare; the others take what they asked for."""
    found: dict[str, Death] = {}
    for device in devices:
        there = [one for one in residents if device.index in one.view.gpus and one.view.id not in found]
        left = device.memory - sum(one.taken(device) for one in there if one.use is None)
        by_job = {one.view.id: one for one in there if one.use and not one.dead}
        demands = [
            Demand(job, one.wanted, promised(one.view, device), one.grew_at, bool(one.view.work.get("cap")))
            for job, one in by_job.items()
        ]
        for demand in run_out(left, demands):
            found[demand.job] = Death(by_job[demand.job].view, device.index, demand.wanted)
    return list(found.values())


def taken_of(devices: Sequence[Device], residents: Iterable[SimulatedJob]) -> tuple[list[list[Tenant]], list[int]]:
    """The tenants of each GPU, and its bytes in use."""
    tenants: list[list[Tenant]] = [[] for _ in devices]
    memory = [0] * len(devices)
    for one in residents:
        for gpu in (*one.view.gpus, *one.lent):
            device = devices[gpu]
            share = promised(one.view, device) / device.memory if device.memory else 1.0
            tenants[gpu].append(Tenant(one.view.id, share, one.use.utilization if one.use else None))
            memory[gpu] += one.taken(device)
    return tenants, memory


def readings_of(memory: Sequence[int], load: Load) -> list[Reading]:
    return [
        Reading(
            index, memory_used=size, utilization=int(busy), temperature=int(degrees), power=float(watts),
            memcopy=int(copying), sm_clock=int(clock), memory_clock=int(memory_clock), throttle=0,
        )
        for index, (size, busy, degrees, watts, copying, clock, memory_clock) in enumerate(
            zip(memory, *load, strict=True)
        )
    ]  # fmt: skip


def seen_of(
    residents: Iterable[SimulatedJob],
    tenants: Sequence[Sequence[Tenant]],
    at: float,
    power: Sequence[float | None] = (),
) -> Iterator[Seen]:
    """The measurements: bytes and utilization of jobs that declare them; of all, whether they are alone."""
    busy: dict[int, dict[str, float | None]] = {
        gpu: {tenant.job: share_of(tenant.job, at, some) for tenant in some} for gpu, some in enumerate(tenants)
    }
    watts = split_power(dict(enumerate(power)), busy)
    for one in residents:
        view = one.view
        if view.started is None or one.dead:
            continue
        alone = all(len(tenants[gpu]) == 1 for gpu in view.gpus)
        uses = utilization = None
        if one.use is not None:
            shares = [share_of(view.id, at, tenants[gpu]) for gpu in view.gpus]
            uses, utilization = dict.fromkeys(view.gpus, one.wanted), sum(shares) / max(1, len(shares))
        drawn = watts.get(view.id)
        yield Seen(view.id, view.attempt, view.started, uses, utilization, alone, view.gpus, drawn)
