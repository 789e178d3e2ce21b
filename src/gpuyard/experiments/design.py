"""An experiment and its results as types, and the arrivals of its jobs, which are the same for every scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

Sharing = Literal["exclusive", "requests", "usage"]
"""A GPU for each job; by what jobs ask for; by what they really use (`core.admission`)."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A job's use of a GPU, for simulated devices: measured once, and fitted."""

    seconds: float  # run time alone on a GPU
    together: Mapping[int, float] = field(default_factory=dict)
    """Run time by the number of such jobs on one GPU; interpolated between the points, extrapolated beyond them."""
    overhead: float = 0.0
    """Seconds from the start to the first work, and from the last to the end, in all: images, imports, exits."""
    memory: float = 0.0  # bytes that it really uses; 0: what it asks for before over-provisioning
    ramp: float = 10.0  # seconds in which its memory rises to that
    utilization: float = 80.0  # percent of a GPU that it keeps busy alone
    utilization_together: Mapping[int, float] = field(default_factory=dict)
    """Percent of a GPU kept busy, by the number of such jobs on it; empty: each as much as alone, 100 at most."""
    power: Mapping[float, float] = field(default_factory=dict)
    """Watts of a GPU that it is on, by the percentage that the GPU is busy; empty: those of a large GPU."""
    seconds_by_percent: Mapping[float, float] = field(default_factory=dict)
    """Run time alone by over-provisioning, where an experiment measured that it differs; else `seconds`."""


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    replicas: int = 1
    command: tuple[str, ...] = ()  # empty where it is only simulated
    gpus: int = 1
    gpu_memory: float = 0.0  # bytes that a job asks for, before over-provisioning; 0: whole GPUs
    priority: float = 0.0
    estimate: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    behaviour: Behaviour | None = None
    image: str = ""  # for clusters that run containers
    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    """What its pods are on a cluster (`kubernetes.experiment.settings`); other engines ignore it."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrival process; seconds between two jobs."""

    process: Literal["uniform", "exponential", "fixed", "at-once"] = "at-once"
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    seed: int = 0
    shuffle: bool = False  # whether jobs of several workloads come in an order drawn by the seed


@dataclass(frozen=True, slots=True)
class Scheduler:
    name: str
    sharing: Sharing = "requests"
    policy: str = "fcfs"
    engine: str = "local"
    """Where it can run: `local`, this machine, and whatever else reads the file; `kubernetes`, a cluster alone."""
    options: Mapping[str, Any] = field(default_factory=dict)  # what only the engine `local` understands
    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    """How pods ask for GPUs, and whom; other engines ignore it."""


METRICS = ("utilization", "memory_used", "power", "temperature")  # plotted by default
LAYOUTS = ("overlay", "stacked")  # how that is drawn over time: all schedulers in one panel, and above each other
MORE_LAYOUTS = (*LAYOUTS, "each", "beside")  # also each run by itself, and all over-provisionings side by side


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    workloads: tuple[Workload, ...]
    schedulers: tuple[Scheduler, ...]
    arrivals: Arrivals = Arrivals()
    over_provisioning: tuple[float, ...] = (0.0,)  # percent by which jobs ask for more than they need
    gpus: str = ""  # simulated GPUs to run on, as in `1x32510M`; empty: those of the machine
    metrics: tuple[str, ...] = METRICS
    repeat: int = 1
    period: float = 1.0  # seconds between samples
    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    """What only a cluster understands; other engines ignore it."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The course of one job, in seconds since the run began."""

    name: str
    workload: str
    arrived: float
    started: float | None  # when its first attempt began
    ended: float | None
    ran: float  # seconds of its last attempt
    restarts: int = 0
    ooms: int = 0  # how many of the restarts were for want of memory
    state: str = "succeeded"
    admitted_by: str = ""  # `fit`, `history`, `cbp` or `pp`, where that is known
    reported: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the job told of itself, such as p90 and p99 of its latencies, in seconds."""
    bound: float | None = None  # when a cluster's scheduler had chosen a node for it
    where: str = ""  # `node:0,2`: the node and its GPUs, on a cluster

    @staticmethod
    def since(
        begin: float, arrival: Arrival, *, arrived: float, started: float | None, ended: float | None, **more: Any
    ) -> JobResult:
        """The result of a job whose times are in seconds since the epoch."""
        times = {"arrived": arrived, "started": started, "ended": ended, "bound": more.pop("bound", None)}
        seconds = {name: None if at is None else round(at - begin, 3) for name, at in times.items()}
        return JobResult(arrival.name, arrival.workload.name, **seconds, **more)  # type: ignore[arg-type]


@dataclass(slots=True)
class RunResult:
    """One scheduler at one over-provisioning, once."""

    scheduler: str
    percent: float
    turn: int  # which repetition, from 1
    duration: float  # seconds from the first arrival to the last end
    jobs: list[JobResult]
    utilization: float | None = None
    memory_used: float | None = None
    power: float | None = None  # means over the run and its GPUs, in percent, bytes and watts
    energy: float | None = None  # watt-hours
    simulated: bool = False


MIB = 2**20


class Arrival(NamedTuple):
    at: float  # seconds since the first one
    name: str  # `ssd-07`: the workload's, and which of its replicas
    workload: Workload


def arrivals(experiment: Experiment, turn: int = 1) -> list[Arrival]:
    """The jobs of a run in the order of arrival; a repetition draws other times, by the next seed."""
    given = experiment.arrivals
    random = Random(given.seed + turn - 1)
    named = [
        (f"{one.name}-{number:0{len(str(one.replicas))}d}", one)
        for one in experiment.workloads
        for number in range(1, one.replicas + 1)
    ]
    delays = [_delay(given, random) for _ in named[1:]]
    if given.shuffle:
        _shuffle(named, random)
    at, found = 0.0, []
    for (name, workload), delay in zip(named, [0.0, *delays], strict=True):
        at += delay
        found.append(Arrival(at, name, workload))
    return found


def asked(workload: Workload, percent: float, capacity: float = math.inf) -> float:
    """Bytes that a job asks for with over-provisioning: whole MiB, rounded down, at most what a GPU has."""
    if not workload.gpu_memory:
        return 0.0
    more = math.floor(round(workload.gpu_memory / MIB * (100 + percent) / 100, 6))  # 1.1 x 10 is not 10.99999
    return min(float(more * MIB), capacity)


def _delay(given: Arrivals, random: Random) -> float:
    if given.process == "uniform":
        return given.low + (given.high - given.low) * random.random()
    if given.process == "exponential":
        return -given.mean * math.log(1.0 - random.random())
    return given.mean if given.process == "fixed" else 0.0


def _shuffle(named: list[tuple[str, Workload]], random: Random) -> None:
    """Fisher-Yates, by `random.random` alone, so that orders are the same on every Python."""
    for last in range(len(named) - 1, 0, -1):
        other = int(random.random() * (last + 1))
        named[last], named[other] = named[other], named[last]
