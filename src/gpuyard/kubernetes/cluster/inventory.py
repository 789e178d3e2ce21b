"""Nodes and pods of a cluster, the jobs of the core that stand for the pods, and what survives a change of nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuyard.core.engine import Engine
from gpuyard.core.events import Promised, Recalled, RulesSet
from gpuyard.core.model import Cluster, Phase, Rules
from gpuyard.core.plan import Start
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.kubernetes.cluster.cluster_nodes import Node
from gpuyard.kubernetes.cluster.pods import Pod
from gpuyard.kubernetes.settings import Settings

SOME_CPU = 1e-12  # cores of a pod that asks for none: too few to matter, and enough for the core to keep it on one node
UNKNOWN = 1.0  # bytes of a GPU of unknown size: too few to share it


class Layout:
    def __init__(self, nodes: Iterable[Node], memory_of: Callable[[Node], float]) -> None:
        self.nodes = sorted((node for node in nodes if node.gpus > 0), key=lambda node: node.name)
        self.number = {node.name: n for n, node in enumerate(self.nodes)}
        sizes = [node.gpus for node in self.nodes]
        self.first: list[int] = [0, *np.cumsum(sizes).tolist()] if sizes else [0]
        self.memory = [memory_of(node) or UNKNOWN for node in self.nodes]

    def cluster(self) -> Cluster | None:
        """The cluster for the core; None without GPUs."""
        if not self.nodes:
            return None
        sizes = tuple(node.gpus for node in self.nodes)
        return Cluster(
            sizes,
            max(self.memory),
            tuple(max(node.cpus, SOME_CPU) for node in self.nodes),
            tuple(max(node.memory, 1.0) for node in self.nodes),
            gpu_memory=tuple(np.repeat(self.memory, sizes).tolist()),
        )

    def gpus(self, node: str, indices: Sequence[int]) -> tuple[int, ...] | None:
        """The numbers of GPUs of a node; None if it has no such GPUs."""
        n = self.number.get(node)
        if n is None or not indices or max(indices) >= self.nodes[n].gpus or min(indices) < 0:
            return None
        return tuple(self.first[n] + index for index in indices)

    def all_of(self, n: int) -> range:
        return range(self.first[n], self.first[n + 1])

    def where(self, gpu: int) -> tuple[int, int]:
        n = bisect_right(self.first, gpu) - 1
        return n, gpu - self.first[n]


@dataclass(frozen=True, slots=True)
class Assignment:
    pod: Pod
    node: str
    indices: tuple[int, ...]
    start: Start
    left: float  # free bytes of the fullest of these GPUs, or idle GPUs of the node
    charged: float  # bytes charged on each GPU; 0: whole GPUs


class Inventory:
    """Nodes and pods as the API reports them, and the core's engine with a job for each pod that wants GPUs."""

    def __init__(self, planner: OrderedPlanner, settings: Settings) -> None:
        self.planner, self.settings = planner, settings
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}  # pods that have not ended, by uid
        self.engine: Engine | None = None  # none where there are no GPUs
        self.layout = Layout((), lambda node: 0.0)
        self.assumed: dict[str, Assignment] = {}  # pods that were given GPUs and are not known to be bound yet
        self.measured: dict[str, float] = {}  # bytes of each GPU by its exporter, for nodes that do not declare it
        self.job_of: dict[str, str] = {}
        self.uid_of: dict[str, str] = {}

    @property
    def state(self) -> State | None:
        """The core's state; None where there are no GPUs."""
        return None if self.engine is None else self.engine.state

    def record(self, event: object) -> None:
        if self.engine is not None:
            self.engine.record(event)  # type: ignore[arg-type]

    def memory_of(self, node: Node) -> float:
        """Bytes of each GPU of a node; 0 if unknown."""
        return node.gpu_memory or self.measured.get(node.name, 0.0) or self.settings.gpu_memory

    def gpus_of(self, job: str) -> tuple[int, ...]:
        """The GPUs that a job has; none while it waits."""
        state = self.state
        known = state is not None and job in state.row_of
        return tuple(state.spot[state.row_of[job]].tolist()) if state is not None and known else ()

    def knows_gpus_of(self, pod: Pod) -> bool:
        return pod.uid in self.job_of and bool(self.gpus_of(self.job_of[pod.uid]))


Place = tuple[str, int]  # a node, and the index of a GPU there


@dataclass(frozen=True, slots=True)
class CarriedState:
    """Usage of namespaces, evictions in progress and promises; pods and nodes tell the rest."""

    state: State | None
    recalled: frozenset[str] = frozenset()  # pods that are being evicted
    promised: dict[str, list[Place]] = field(default_factory=dict)  # GPUs that are kept for pods

    @classmethod
    def of(cls, world: Inventory) -> CarriedState:
        state, uid_of, layout = world.state, world.uid_of, world.layout
        if state is None:
            return cls(None)
        promised = dict[str, list[Place]]()
        for row, gpus in state.promises.items():
            if (uid := uid_of.get(state.ids[row])) is not None:
                places = [layout.where(gpu) for gpu in gpus]
                promised[uid] = [(layout.nodes[n].name, index) for n, index in places]
        return cls(state, frozenset(uid_of.get(state.ids[row], "") for row in state.recalled), promised)

    def carry_over(self, state: State, rules: Rules, now: float) -> None:
        former = self.state
        if former is not None:
            state.user_of, state.used = former.user_of, former.used
            state.last_finish, state.group_of = former.last_finish, former.group_of
        apply(state, RulesSet(now, rules))
        if former is not None:
            state.ledger = former.ledger

    def renew(self, world: Inventory, now: float) -> None:
        """Once all pods are in the new state, record again evictions in progress and promises."""
        state = world.state
        if state is None:
            return
        for uid in self.recalled & set(world.job_of):
            job = world.job_of[uid]
            if world.gpus_of(job) and state.row_of[job] not in state.recalled:
                world.record(Recalled(now, job, state.attempt[state.row_of[job]], "preempted"))
        for uid, places in {**_nominated(world, state), **self.promised}.items():
            gpus = [world.layout.gpus(node, [index]) for node, index in places]
            job = world.job_of.get(uid, "")
            if job in state.row_of and state.phase[state.row_of[job]] is Phase.QUEUED and None not in gpus:
                world.record(Promised(now, job, tuple(gpu[0] for gpu in gpus if gpu)))


def _nominated(world: Inventory, state: State) -> dict[str, list[Place]]:
    waiting = [pod for pod in world.pods.values() if pod.nominated and pod.waits and pod.uid in world.job_of]
    found = dict[str, list[Place]]()
    for pod in sorted(waiting, key=lambda pod: (-pod.priority, pod.created)):
        n = world.layout.number.get(pod.nominated)
        ending = {i for one in world.pods.values() if one.deleting and one.node == pod.nominated for i in one.indices}
        if n is None or not ending:
            continue
        idle = {gpu - world.layout.first[n] for gpu in world.layout.all_of(n) if state.pool.tenants[gpu] == 0}
        taken = {index for places in found.values() for node, index in places if node == pod.nominated}
        left = [index for index in (*sorted(ending), *sorted(idle)) if index not in taken]
        if len(left) >= pod.gpus:
            found[pod.uid] = [(pod.nominated, index) for index in left[: pod.gpus]]
    return found
