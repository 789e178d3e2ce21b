"""What is scheduled, and on what: requests, clusters, and the phases of a job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import filterfalse

from gpuyard.errors import UserError

GIB = float(2**30)
DEFAULT_GPU_MEMORY = 16 * GIB
MOST_GPUS = 1_000_000


class Phase(StrEnum):
    """Where a job stands. The transition table in `transitions` says how it moves on."""

    QUEUED = "queued"
    HELD = "held"
    PLACED = "placed"  # GPUs are taken, the process is not known to run yet
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    OOM = "oom"
    INTERRUPTED = "interrupted"  # the machine, or what ran the job, went down under it
    REJECTED = "rejected"

    @property
    def over(self) -> bool:
        return self not in _OPEN


_OPEN = (Phase.QUEUED, Phase.HELD, Phase.PLACED, Phase.RUNNING)
_AFTER = re.compile(r"(ok|notok|any|begun):.")


def suits(gpu_types: str, models: list[str]) -> list[bool]:
    """Which of the models (in lower case) a text like `V100|A100` allows."""
    wanted = {name.strip().casefold() for name in gpu_types.split("|")} - {""}
    return [not wanted or model in wanted for model in models]


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for, and what a policy may know of it. Never its true run time."""

    gpus: int = 1
    estimate: float = math.inf  # seconds it is expected to run
    memory: float = 0.0  # bytes on each GPU; 0: whole GPUs, unless `compute` says otherwise
    compute: float = 100.0  # percent of each GPU; 100: alone on it; 0: a share by memory only
    priority: float = 0.0
    user: str = ""
    weight: float = 1.0
    tickets: float = 1.0
    deadline: float = math.inf
    preemptible: bool = True
    scope: tuple[int, ...] = ()  # only these GPUs; empty: any
    cpus: float = 0.0  # CPU cores in all; they count on clusters that say how many they have
    host_memory: float = 0.0  # bytes of the machine's own memory in all; they count like CPUs
    gpu_types: str = ""  # suitable GPU models, with | between them; empty: any
    group: str = ""
    """The user's groups, with commas between them: first the one for shares, or nothing; quotas count them all."""
    begin: float = 0.0  # not before this time
    limit: float = math.inf  # seconds after which it is sure to have ended
    notice: float = 0.0  # if it is preemptible: seconds that it may take to stop
    after: tuple[str, ...] = ()
    """Open jobs that must end first: `ok:12` (succeeded), `notok:12` (not so), `any:12`; or begin: `begun:12`."""
    array: str = ""  # the array that it is a task of; empty: none
    at_most: int = 0  # how many tasks of its array may run at once; 0: any number
    kind: str = ""  # jobs of one kind behave alike; empty: not known
    parts: tuple[int, ...] = ()
    """GPUs of each of its parts, the largest first: each is on one node, and all start together; empty: no matter."""
    patient: bool = False  # whether no job is ever stopped for it

    def __post_init__(self) -> None:
        problem = (
            (self.gpus < 1 and f"a job needs at least 1 GPU, not {self.gpus}")
            or (math.isnan(self.estimate) and "the estimated run time is not a number")
            or (self.estimate <= 0 and f"an estimated run time must be above 0, not {self.estimate:g}")
            or (not self.memory >= 0 and f"GPU memory must be 0 or more, not {self.memory:g}")
            or (not 0 <= self.compute <= 100 and f"compute is a percentage, 0 to 100, not {self.compute:g}")
            or (self.compute == 0 and self.memory == 0 and "a share needs memory, compute, or both")
            or (not self.weight > 0 and f"a weight must be above 0, not {self.weight:g}")
            or (not self.tickets > 0 and f"tickets must be above 0, not {self.tickets:g}")
            or (not 0 <= self.cpus < math.inf and f"CPUs must be 0 or more, not {self.cpus:g}")
            or (not 0 <= self.host_memory < math.inf and f"host memory must be 0 or more, not {self.host_memory:g}")
            or (len(set(self.scope)) < len(self.scope) and "a scope names each GPU once")
            or (not self.limit > 0 and f"a time limit must be above 0, not {self.limit:g}")
            or (self.at_most < 0 and f"an array runs at most so many tasks at once, 1 or more, not {self.at_most}")
            or (bool(self.parts) and sum(self.parts) != self.gpus and "the parts of a job must have all of its GPUs")
            or (list(self.parts) != sorted(self.parts, reverse=True) and "the parts of a job go by size, largest first")
            or next((f"'{a}' is not ok:, notok:, any: or begun:JOB" for a in filterfalse(_AFTER.match, self.after)), "")
        )
        if problem:
            raise UserError(problem)

    @property
    def whole(self) -> bool:
        return self.compute >= 100


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of GPUs, numbered through: GPU 9 of 2 x 8 is `1:1`."""

    nodes: tuple[int, ...]
    memory: float = DEFAULT_GPU_MEMORY
    cpus: tuple[float, ...] = ()  # CPU cores of each node; 0, or an empty tuple: not counted
    host_memory: tuple[float, ...] = ()  # bytes of each node's own memory; 0, or an empty tuple: not counted
    models: tuple[str, ...] = ()  # GPU model of each node; an empty tuple: models do not matter
    gpu_memory: tuple[float, ...] = ()  # bytes of each GPU, where they differ; an empty tuple: all have `memory`

    def __post_init__(self) -> None:
        if not self.nodes or min(self.nodes) < 1:
            raise UserError("a cluster needs at least one node with at least one GPU")
        if sum(self.nodes) > MOST_GPUS:
            raise UserError(f"a cluster has at most {MOST_GPUS:,} GPUs, not {sum(self.nodes):,}")
        if not 0 < self.memory < math.inf:
            raise UserError(f"a GPU's memory must be above 0, not {self.memory:g}")
        for name in ("cpus", "host_memory", "models"):
            if len(getattr(self, name)) not in (0, len(self.nodes)):
                raise UserError(f"a cluster of {len(self.nodes)} nodes needs {name} for each of them, or for none")
        if len(self.gpu_memory) not in (0, self.gpus):
            raise UserError(f"a cluster of {self.gpus} GPUs needs the memory of each of them, or of none")
        if not all(0 <= amount < math.inf for amount in (*self.cpus, *self.host_memory)):
            raise UserError("CPUs and host memory of a node must be 0 or more")

    @property
    def gpus(self) -> int:
        return sum(self.nodes)

    @property
    def most_memory(self) -> float:
        return max(self.gpu_memory, default=self.memory)

    @classmethod
    def parse(cls, text: str, memory: float = DEFAULT_GPU_MEMORY) -> Cluster:
        """`4x8` is 4 nodes of 8 GPUs; `4x8,2x4` adds two smaller ones; `4` is one node of 4 GPUs."""
        nodes: list[int] = []
        for part in text.replace(",", " ").split():
            count, _, size = (part if "x" in part.lower() else f"1x{part}").lower().partition("x")
            if not (count.isdecimal() and size.isdecimal()) or int(count) < 1 or int(size) < 1:
                raise UserError(f"'{text}' is not a cluster; write for example 4x8 for 4 nodes of 8 GPUs")
            if int(count) * int(size) > MOST_GPUS:
                raise UserError(f"'{text}' has more than {MOST_GPUS:,} GPUs, which is more than can be simulated")
            nodes += [int(size)] * int(count)
        return cls(tuple(nodes), memory)

    def label(self, gpu: int) -> str:
        for node, size in enumerate(self.nodes):
            if gpu < size:
                return f"{node}:{gpu}"
            gpu -= size
        raise IndexError("no such GPU")

    def labels(self) -> list[str]:
        return [f"{node}:{index}" for node, size in enumerate(self.nodes) for index in range(size)]


@dataclass(frozen=True, slots=True)
class Quota:
    """What one user, or one group, may have."""

    gpus: int = 0  # GPUs at once; 0: any number
    gpu_hours: float = 0.0  # GPU-hours in any seven days; 0: any number
    queued: int = 0  # jobs that wait or are held; 0: as many as usual

    def __post_init__(self) -> None:
        if self.gpus < 0 or not 0 <= self.gpu_hours < math.inf or self.queued < 0:
            raise UserError("a quota is a number of GPUs, GPU-hours or queued jobs, 0 or more (0: no quota)")


@dataclass(frozen=True, slots=True)
class Rules:
    """How people share the GPUs. Groups are written with an @ before their name; `*` is everybody without an entry."""

    half_life: float = math.inf  # seconds after which a user's GPU time counts half
    weights: tuple[tuple[str, float], ...] = ()  # what share each deserves, relative to the others' 1
    quotas: tuple[tuple[str, Quota], ...] = ()
    preempts: bool = True
    """Whether preemptible jobs are stopped for jobs of higher priority, or of users who have less than their share."""
    for_shares: bool = True  # whether that is done for shares as well; else for priority alone

    def __post_init__(self) -> None:
        if not self.half_life > 0:
            raise UserError(f"a half-life must be above 0, not {self.half_life:g}")
        if bad := next((name for name, weight in self.weights if not 0 < weight < math.inf), None):
            raise UserError(f"the share of {bad} must be above 0")


@dataclass(frozen=True, slots=True)
class Booking:
    """A reservation: GPUs that only some may use for a time."""

    name: str
    gpus: tuple[int, ...]
    begin: float
    end: float
    users: tuple[str, ...] = ()  # users who may use them then; empty: none

    def __post_init__(self) -> None:
        if not self.gpus:
            raise UserError("a reservation needs GPUs")
        if not self.begin < self.end:
            raise UserError("a reservation must end after it begins")
