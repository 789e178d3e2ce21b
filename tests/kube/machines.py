"""GPUs that are made up, with what pods would do on them: memory grows until it does not fit, and then the one that
wanted more dies, as with CUDA. No clock and no API here; tests/kube/hollow.py has these.

What a pod does is said by its annotations, in seconds of its own (a hollow kubelet may let them pass more quickly):

    hollow.dev/run-seconds: "30"       how long it runs; without it, until somebody deletes it
    hollow.dev/gpu-memory: 6994Mi      what it really uses on each of its GPUs; without it, what it asks for
    hollow.dev/ramp-seconds: "5"       how long it takes to use that much
    hollow.dev/profile: "0:500,5:6994" instead of both: MiB by second, with straight lines between
    hollow.dev/utilization: "70"       per cent of each of its GPUs
    hollow.dev/contention: "0.5"       how much slower each other pod on its GPU makes it: 2 others, half as fast
    hollow.dev/exit-code: "1"          how it ends
    hollow.dev/stop-seconds: "2"       how long it takes to stop when it is deleted
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from gpuyard.kubernetes.cluster.quantity import amount
from gpuyard.kubernetes.names import GPU, GPU_MEMORY

MIB = 2.0**20
_PREFIX = "hollow.dev/"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a pod does once it runs."""

    run: float = math.inf
    memory: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    """Bytes on each GPU by second, the first at 0."""
    utilization: float = 50.0
    contention: float = 0.0
    exit_code: int = 0
    stop: float = 0.0

    def memory_at(self, second: float) -> float:
        """Bytes on each GPU after so many seconds."""
        for (start, low), (end, high) in pairwise(self.memory):
            if second < end:
                return low + (high - low) * (second - start) / (end - start)
        return self.memory[-1][1]


def behaviour(annotations: Mapping[str, str]) -> Behaviour:
    """What a pod's annotations say of it."""
    said = {key.removeprefix(_PREFIX): text for key, text in annotations.items() if key.startswith(_PREFIX)}
    if profile := said.get("profile"):
        points = (point.split(":") for point in profile.split(","))
        memory = tuple((float(second), float(size) * MIB) for second, size in points)
    else:
        size = amount(said.get("gpu-memory") or annotations.get(GPU_MEMORY) or "0")
        ramp = float(said.get("ramp-seconds", 0))
        memory = ((0.0, 0.0), (ramp, size)) if ramp > 0 else ((0.0, size),)
    return Behaviour(
        run=float(said.get("run-seconds", math.inf)),
        memory=memory,
        utilization=float(said.get("utilization", 50)),
        contention=float(said.get("contention", 0)),
        exit_code=int(said.get("exit-code", 0)),
        stop=float(said.get("stop-seconds", 0)),
    )


@dataclass(slots=True, eq=False)
class Task:
    """A pod on a machine; its containers run, or wait to be started again."""

    name: str
    """`namespace/name`"""
    behaviour: Behaviour
    whole: int = 0
    """How many GPUs it has for itself; 0: it shares."""
    requests: Mapping[str, float] = field(default_factory=dict)
    """What it wants of the node's `cpu`, `memory` and `pods`."""
    gpus: tuple[int, ...] = ()
    active: bool = False
    progress: float = 0.0
    """Seconds of its own that it has run."""
    held: float = 0.0
    """Bytes on each of its GPUs."""

    def start(self) -> None:
        """Begin, or begin again."""
        self.active, self.progress, self.held = True, 0.0, 0.0

    def end(self) -> None:
        """Let go of the memory, but not of the GPUs."""
        self.active, self.held = False, 0.0


class Ended(NamedTuple):
    """A task whose containers are over."""

    task: Task
    code: int
    message: str
    gpu: int | None = None
    """The one without enough memory, if it died of that."""


class Refused(Exception):
    """A node does not have what a pod on it wants."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass(slots=True)
class Machine:
    """A node with GPUs, and who is on them."""

    name: str
    gpus: int
    memory: float
    """Bytes of each GPU."""
    room: Mapping[str, float] = field(default_factory=dict)
    """`cpu`, `memory` and `pods`; what is not there is not limited."""
    model: str = "NVIDIA A100-SXM4-40GB"
    tasks: list[Task] = field(default_factory=list)
    """Those who came first are first."""
    peaks: dict[int, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def place(self, task: Task, indices: Sequence[int] | None) -> None:
        """Give a task GPUs: those that its scheduler chose, or any that are free, as the device plugin does."""
        self._admit(task)
        if indices is not None:
            task.gpus = tuple(indices)
        elif task.whole:
            task.gpus = self._free(task.whole)
        else:  # CUDA takes the first one that it sees, and it sees all of them
            task.gpus = (0,) if self.gpus and task.behaviour.memory_at(math.inf) else ()
        self._check(task)
        self.tasks.append(task)

    def _admit(self, task: Task) -> None:
        """Refuse what does not fit, as a kubelet does; a scheduler should have known."""
        for resource, room in self.room.items():
            used, wanted = (sum(one.requests.get(resource, 0.0) for one in some) for some in (self.tasks, [task]))
            if used + wanted > room * (1 + 1e-9):
                said = (
                    f"Node didn't have enough resource: {resource}, requested: {wanted}, used: {used}, capacity: {room}"
                )
                self.violations.append(f"{task.name} on {self.name}: {said}")
                raise Refused(f"OutOf{resource}", said)

    def _free(self, count: int) -> tuple[int, ...]:
        """GPUs that no pod has for itself; those that nobody shares either come first."""
        left = [gpu for gpu in range(self.gpus) if not any(other.whole for other in self.on(gpu))]
        if len(left) < count:
            said = f"Requested: {count}, Available: {len(left)}, which is unexpected"
            raise Refused("UnexpectedAdmissionError", f"Allocate failed due to no enough devices for {GPU}, {said}")
        return tuple(sorted(sorted(left, key=lambda gpu: len(self.on(gpu)))[:count]))

    def _check(self, task: Task) -> None:
        """Note what a scheduler should not have done."""
        said = f"{task.name} on {self.name}"
        if len(set(task.gpus)) != len(task.gpus) or not all(0 <= gpu < self.gpus for gpu in task.gpus):
            self.violations.append(f"{said} got GPUs {task.gpus} of {self.gpus}")
            task.gpus = tuple(sorted(gpu for gpu in set(task.gpus) if 0 <= gpu < self.gpus))
        if task.whole and len(task.gpus) != task.whole:
            self.violations.append(f"{said} wants {task.whole} GPUs, and got {task.gpus}")
        for gpu in task.gpus:
            others = [other.name for other in self.on(gpu) if task.whole or other.whole]
            if others:
                self.violations.append(f"{said} shares GPU {gpu}, which one has for itself, with {', '.join(others)}")

    def remove(self, task: Task) -> None:
        """A task is over, and its GPUs are free."""
        task.end()
        self.tasks.remove(task)

    def advance(self, seconds: float) -> list[Ended]:
        """Let time pass; who ended meanwhile, in the order of their start."""
        shared = {gpu: sum(task.active for task in self.on(gpu)) for gpu in range(self.gpus)}
        ended = []
        for task in self.tasks:
            if task.active and (end := self._advanced(task, seconds, shared)):
                task.end()
                ended.append(end)
        return ended

    def _advanced(self, task: Task, seconds: float, shared: Mapping[int, int]) -> Ended | None:
        others = max((shared[gpu] for gpu in task.gpus), default=1) - 1
        task.progress += seconds / (1 + task.behaviour.contention * others)
        wanted = task.behaviour.memory_at(min(task.progress, task.behaviour.run))
        for gpu in task.gpus:
            if wanted > task.held and self.used(gpu) - task.held + wanted > self.memory:
                return Ended(task, 1, "CUDA out of memory", gpu)
        task.held = wanted
        for gpu in task.gpus:
            self.peaks[gpu] = max(self.peaks.get(gpu, 0.0), self.used(gpu))
        if task.progress >= task.behaviour.run:
            return Ended(task, task.behaviour.exit_code, "")
        return None

    def on(self, gpu: int) -> list[Task]:
        """Who has a GPU, or a share of it."""
        return [task for task in self.tasks if gpu in task.gpus]

    def used(self, gpu: int) -> float:
        """Bytes that are used on a GPU."""
        return sum(task.held for task in self.on(gpu))

    def utilization(self, gpu: int) -> float:
        """Per cent."""
        return min(100.0, sum(task.behaviour.utilization for task in self.on(gpu) if task.active))
