"""Back end on a virtual clock: the core's engine and planner on modelled GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gpuyard.core.engine import Engine
from gpuyard.core.events import Exited, Started
from gpuyard.core.model import Cluster, Request
from gpuyard.core.plan import Start
from gpuyard.core.usage.admission import USUAL, Peak, Statistics, Usage, Window, statistics_of
from gpuyard.core.usage.overcommit import hopeful
from gpuyard.errors import Bug, UserError
from gpuyard.experiments.design import Arrival, Behaviour, Experiment, JobResult, RunResult, Scheduler, arrivals, asked
from gpuyard.experiments.device_model import Devices, Floats, Gpu, Stay, looks, steps, warmth
from gpuyard.experiments.private_daemon import clear_remains
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.experiments.runner import Progress
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.policies.resolver import make_planner
from gpuyard.recordings.series import Mark, Recording, Series, Subject
from gpuyard.units import format_duration, format_size

LOOK = 1.0  # seconds from one sample to the next
LONGEST = 300  # samples of a window at most
MARGIN = 0.05  # what is expected beyond the highest use that was seen, as a part of it: the daemon's `memory_margin`


@dataclass(slots=True)
class Observer:
    """Samples GPUs once a second, and remembers the memory that kinds of jobs used."""

    devices: Devices
    kinds: Mapping[str, str]  # what each job is of
    guarded: bool = True
    """Whether it tells what kinds of jobs came to; else only what the samples of the last minutes say."""
    ended: dict[str, float] = field(default_factory=dict)  # the most that whole runs of a kind used

    def done(self, stay: Stay) -> None:
        kind = self.kinds[stay.job]
        self.ended[kind] = max(self.ended.get(kind, 0.0), stay.memory)

    def expected(self, waiting: list[str]) -> Usage:
        now, seen = self.devices.now, dict(self.ended)
        if not self.guarded:
            return Usage(guarded=False)
        for stay in self.devices.here:
            if now >= settles(stay):
                kind = self.kinds[stay.job]
                seen[kind] = max(seen.get(kind, 0.0), stay.holds(now))
        jobs = [*waiting, *(stay.job for stay in self.devices.here)]
        return Usage(
            peaks={job: _peak(seen[self.kinds[job]], self.kinds[job]) for job in jobs if self.kinds[job] in seen}
        )

    def statistics(self) -> dict[int, Statistics]:
        seen = ((index, seen_of(gpu, self.devices.now)) for index, gpu in enumerate(self.devices.gpus))
        return {index: found for index, found in seen if found is not None}

    def next_news(self) -> float:
        """When the next job settles; infinity: never."""
        later = (settles(stay) for stay in self.devices.here)
        return min((time for time in later if time > self.devices.now), default=math.inf)


def settles(stay: Stay) -> float:
    """When its memory will not have risen for as many samples as a window needs."""
    return math.ceil((stay.works_from + stay.behaviour.ramp) / LOOK + USUAL.samples) * LOOK


def seen_of(gpu: Gpu, now: float) -> Statistics | None:
    """Statistics of the samples since the last start on a GPU; None while they are too few."""
    since = gpu.stays[-1].began if gpu.stays else 0.0
    first, last = math.ceil(since / LOOK), math.floor(now / LOOK)
    if last - first + 1 < USUAL.samples:
        return None
    at = np.arange(max(first, last - LONGEST + 1), last + 1, dtype=np.float64) * LOOK
    used = gpu.used(at)
    return statistics_of(Window(gpu.memory, used, gpu.memory - used))


def _peak(memory: float, kind: str) -> Peak:
    evidence = f"{kind} used {format_size(memory)}, and {100 * MARGIN:.0f} % more"
    return Peak(memory * (1.0 + MARGIN), memory, evidence)


ALWAYS = ("utilization", "memory_used", "power")  # what every result tells the means of
_MOST_LOOKS = 250_000  # at a GPU: of a second each, some days


def recorded(experiment: Experiment, devices: Devices, names: Sequence[str], end: float) -> Recording:
    """The recording of a run from second 0 to its end, with marks for jobs."""
    wanted = dict.fromkeys((*experiment.metrics, *ALWAYS))
    recording = Recording(0.0, end, simulated=True)
    period = experiment.period * max(1, math.ceil(end / experiment.period / _MOST_LOOKS))
    at = looks(0.0, end, period)
    if period > experiment.period:
        recording.warnings.append(f"the run is so long that GPUs are told of every {format_duration(period)} only")
    for index, (gpu, name) in enumerate(zip(devices.gpus, names, strict=True)):
        subject = Subject(index, f"SIMULATED-{index}", name)
        values = _values(gpu, at, period)
        recording.series += [
            Series(subject, metric, at, values[metric], period=period) for metric in wanted if metric in values
        ]
        recording.marks += [
            Mark(stay.began, stay.job, min(stay.ended, end), Subject(index, subject.uuid, name, stay.job))
            for stay in gpu.stays
        ]
    if missing := [metric for metric in experiment.metrics if metric not in values]:
        recording.warnings.append(f"simulated GPUs have no {', '.join(missing)}")
    return recording


def _values(gpu: Gpu, at: Floats, period: float) -> dict[str, Floats]:
    used, power = gpu.used(at), steps(gpu, gpu.power, at)
    return {
        "utilization": steps(gpu, gpu.busy, at),
        "memory_used": used,
        "memory_free": gpu.memory - used,
        "power": power,
        "temperature": warmth(power, period),
    }


def outcome(run: Run, jobs: list[JobResult], recording: Recording) -> RunResult:
    return RunResult(
        run.scheduler.name, run.percent, run.turn, recording.end, jobs,
        _mean(recording, "utilization"), _mean(recording, "memory_used"), _mean(recording, "power"),
        sum(_watt_hours(series) for series in recording.of("power")), simulated=True,
    )  # fmt: skip


def _mean(recording: Recording, metric: str) -> float:
    """Over the run and its GPUs; a series' last value stands for no time."""
    return float(np.mean([series.mean[:-1].mean() if len(series.mean) > 1 else 0.0 for series in recording.of(metric)]))


def _watt_hours(power: Series) -> float:
    return float((power.mean[:-1] * np.diff(power.at)).sum()) / 3600


PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""Seconds before a job that died begins again; doubled each time, up to the second number."""
MOST_RESTARTS = 20  # then the job fails


class SimulatedBackend:
    """Runs on a virtual clock."""

    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        """Nothing: a run that cannot be simulated says so at once."""

    def clear(self, results: Results) -> None:
        clear_remains(results.yard)

    def run(
        self, experiment: Experiment, run: Run, results: Results, on_progress: Progress
    ) -> tuple[RunResult, Recording]:
        driver = _Driver(experiment, run.scheduler, run.percent, run.turn, on_progress)
        driver.run()
        jobs = [job.result() for job in driver.jobs.values()]
        recording = recorded(experiment, driver.devices, driver.names, driver.devices.now)
        return outcome(run, jobs, recording), recording


@dataclass(slots=True)
class _Job:
    arrival: Arrival
    behaviour: Behaviour
    memory: float
    stay: Stay | None = None
    started: float | None = None
    ended: float | None = None
    ran: float = 0.0
    ooms: int = 0
    state: str = "queued"
    admitted_by: str = ""

    def result(self) -> JobResult:
        return JobResult(
            self.arrival.name, self.arrival.workload.name, self.arrival.at, self.started, self.ended, self.ran,
            self.ooms, self.ooms, self.state, self.admitted_by,
        )  # fmt: skip


@dataclass(slots=True)
class _Driver:
    experiment: Experiment
    scheduler: Scheduler
    percent: float
    turn: int
    on_progress: Progress
    devices: Devices = field(init=False)
    engine: Engine = field(init=False)
    jobs: dict[str, _Job] = field(init=False)
    names: list[str] = field(init=False)
    observer: Observer = field(init=False)
    wake_at: float = math.inf
    over: int = 0

    def __post_init__(self) -> None:
        if not self.experiment.gpus:
            raise UserError("the experiment does not say which GPUs to simulate; write for example gpus: 1x32G")
        found = SimulatedGpus.parse(self.experiment.gpus).devices
        memories = tuple(float(device.memory) for device in found)
        self.names = [device.name for device in found]
        self.devices = Devices(memories)
        cluster = Cluster((len(memories),), max(memories), gpu_memory=memories if len(set(memories)) > 1 else ())
        self.engine = Engine(cluster, make_planner(self.scheduler.policy))
        come = arrivals(self.experiment, self.turn)
        self.jobs = {one.name: _Job(one, _behaviour(one), _memory(one)) for one in come}
        kinds = {one.name: one.workload.name for one in come}
        self.observer = Observer(self.devices, kinds, _guarded(self.scheduler))

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        coming = iter(self.jobs.values())
        following = next(coming, None)
        while self.over < len(self.jobs):
            arrival = following.arrival.at if following else math.inf
            due, short = self.devices.due(), self.devices.overflow()
            now = min(arrival, due, short, self.wake_at)
            if now == math.inf:
                raise Bug(f"the simulation came to a halt with {len(self.jobs) - self.over} jobs left")
            for stay in self.devices.advance(now):
                self._leave(stay, "succeeded")
            if self.devices.overflow() <= now:
                self._die(self.devices.victim())
            while following and following.arrival.at <= now:
                self._arrive(following)
                following = next(coming, None)
            self._plan()

    def _plan(self) -> None:
        state, usage = self.engine.state, None
        if self.scheduler.sharing == "usage" and len(state.waiting):
            usage = self.observer.expected([state.ids[row] for row in state.waiting.array])
            self.engine.settle(self.devices.now, usage)
            usage = replace(usage, statistics=self.observer.statistics())
        plan = self.engine.plan(self.devices.now, usage)
        for start in plan.starts:
            self._start(start)
        planned = plan.wake_at if plan.wake_at > self.devices.now else math.inf
        self.wake_at = min(planned, self._next_look(usage))

    def _next_look(self, usage: Usage | None) -> float:
        state = self.engine.state
        if usage is None or not len(state.waiting):
            return math.inf
        looks = (self.devices.now // LOOK + 1.0) * LOOK if hopeful(state, usage) else math.inf
        return min(looks, self.observer.next_news())

    # -- what happens -----------------------------------------------------------------------------

    def _arrive(self, job: _Job) -> None:
        reason = self.engine.submit(self.devices.now, job.arrival.name, self._request(job))
        if reason is not None:
            raise UserError(f"job {job.arrival.name} can never run here: it {reason}")

    def _request(self, job: _Job) -> Request:
        workload = job.arrival.workload
        largest = sorted((gpu.memory for gpu in self.devices.gpus), reverse=True)
        capacity = largest[min(workload.gpus, len(largest)) - 1]  # there must be as many that have as much
        memory = 0.0 if self.scheduler.sharing == "exclusive" else asked(workload, self.percent, capacity)
        return Request(
            gpus=workload.gpus, estimate=workload.estimate or math.inf, memory=memory,
            compute=0.0 if memory else 100.0, priority=workload.priority, preemptible=False, kind=workload.name,
        )  # fmt: skip

    def _start(self, start: Start) -> None:
        now, job = self.devices.now, self.jobs[start.job]
        placed = self.engine.place(now, start)
        self.engine.record(Started(now, start.job, placed.attempt))
        job.stay = self.devices.begin(start.job, start.gpus, job.behaviour, job.memory, self.percent)
        job.started, job.state = now, "running"
        job.admitted_by = start.admission.by if start.admission else ""

    def _die(self, stay: Stay) -> None:
        """Out of memory: the job begins again in its place, after a pause."""
        job = self.jobs[stay.job]
        if job.ooms == MOST_RESTARTS:
            self._leave(stay, "oom")
            return
        pause = min(LONGEST_PAUSE, PAUSE * 2.0**job.ooms)
        job.ooms += 1
        self.devices.leave(stay)
        job.stay = self.devices.begin(stay.job, stay.gpus, job.behaviour, job.memory, self.percent, pause)

    def _leave(self, stay: Stay, state: str) -> None:
        now, job = self.devices.now, self.jobs[stay.job]
        if state == "succeeded":
            self.observer.done(stay)
        self.devices.leave(stay)
        job.ended, job.ran, job.state, job.stay = now, now - stay.began, state, None
        self.engine.record(Exited(now, stay.job, 1, cause="" if state == "succeeded" else state))
        self.over += 1
        self.on_progress(self.over, len(self.jobs))


def _guarded(scheduler: Scheduler) -> bool:
    found = scheduler.options.get("guard", True)
    if not isinstance(found, bool):
        raise UserError(f"options of scheduler {scheduler.name}: guard is true or false, not {found!r}")
    return found


def _behaviour(arrival: Arrival) -> Behaviour:
    behaviour = arrival.workload.behaviour
    if behaviour is None:
        raise UserError(
            f"workload {arrival.workload.name} does not say how it behaves, so it cannot be simulated; "
            "write for example behaviour: {seconds: 120, memory: 6G}"
        )
    return behaviour


def _memory(arrival: Arrival) -> float:
    return _behaviour(arrival).memory or arrival.workload.gpu_memory
