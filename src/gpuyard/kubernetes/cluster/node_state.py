"""Capacity that is not available:

CPUs, memory and GPUs of other pods, closed nodes; and what survives a change of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuyard.core.events import GpusRestored, GpusWithdrawn, HostTaken, MemoryTaken, Promised, Recalled, RulesSet
from gpuyard.core.model import Phase, Rules
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.kubernetes.cluster.cluster_nodes import Node
from gpuyard.kubernetes.cluster.pod_requests import UNKNOWN
from gpuyard.kubernetes.cluster.pods import Pod

if TYPE_CHECKING:
    from gpuyard.kubernetes.cluster.cluster_state import ClusterState


FOREIGN = "foreign"
CORDONED = "cordoned"
NOT_READY = "not ready"
FULL = "has as many pods as it may"
UNSIZED = "GPU memory unknown"


class NodeState:
    """Who else is on the nodes."""

    def __init__(self, world: ClusterState) -> None:
        self._world = world
        self._on: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        self._touched: set[str] = set()
        self._taken: tuple[float, ...] = ()

    def count(self, pod: Pod, former: Pod | None) -> None:
        """A pod is on a node, perhaps for some time already."""
        if former is not None and former.node and former.node != pod.node:
            self.discount(former)
        if pod.node:
            known = self._on[pod.node].get(pod.uid)
            self._on[pod.node][pod.uid] = pod
            if known is None or (known.cpus, known.memory, known.gpus) != (pod.cpus, pod.memory, pod.gpus):
                self._touched.add(pod.node)

    def discount(self, pod: Pod) -> None:
        """A pod has left its node."""
        if pod.node and self._on[pod.node].pop(pod.uid, None) is not None:
            self._touched.add(pod.node)

    def touch(self, node: str) -> None:
        """Something about a node may be otherwise than it was."""
        self._touched.add(node)

    def anew(self) -> None:
        """The state is another one: tell all again."""
        self._touched = {node.name for node in self._world.layout.nodes}
        self._taken = ()

    def foreign(self, name: str) -> int:
        """GPUs of a node that pods have of which nobody knows which."""
        return sum(pod.gpus for pod in self._on[name].values() if pod.gpus and not self._is_known(pod))

    def _is_known(self, pod: Pod) -> bool:
        return self._world.knows_gpus_of(pod)

    def is_closed(self, node: Node) -> str:
        """Why nothing may start on a node; empty if it may."""
        if node.cordoned:
            return CORDONED
        if not node.ready:
            return NOT_READY
        return "" if self.takes(node.name) else FULL

    def takes(self, name: str, count: int = 1) -> bool:
        """Whether a node may have so many pods more."""
        left, assumed = self._world.nodes[name].pods - len(self._on[name]) - count, self._world.assumed
        return left >= len(assumed) or left >= sum(1 for one in assumed.values() if one.node == name)

    def _assumed_on(self, name: str) -> list[Pod]:
        """Pods that are being bound to a node."""
        there = self._on[name]
        return [one.pod for uid, one in self._world.assumed.items() if one.node == name and uid not in there]

    def free_on(self, name: str) -> tuple[float, float]:
        """CPU cores and bytes that pods leave of a node."""
        node, pods = self._world.nodes[name], [*self._on[name].values(), *self._assumed_on(name)]
        return node.cpus - sum(pod.cpus for pod in pods), node.memory - sum(pod.memory for pod in pods)

    def settle(self, now: float) -> None:
        """Let the core know."""
        state, layout = self._world.state, self._world.layout
        touched, self._touched = self._touched, set()
        if state is None or not touched:
            return
        taken = list(self._taken) or [0.0] * state.cluster.gpus
        for name in touched:
            if (n := layout.number.get(name)) is not None:
                self._settle_host(state, n, name, now)
                self._settle_gpus(state, n, name, taken, now)
        if tuple(taken) != self._taken:
            self._taken = tuple(taken)
            self._world.record(MemoryTaken(now, self._taken, self._world.settings.buffer))

    def _settle_host(self, state: State, n: int, name: str, now: float) -> None:
        others = [pod for pod in self._on[name].values() if not self._is_known(pod)]
        others += [pod for pod in self._assumed_on(name) if not pod.gpus]
        cpus, memory = sum(pod.cpus for pod in others), sum(pod.memory for pod in others)
        if state.hosted.get(n, (0.0, 0.0)) != (cpus, memory):
            self._world.record(HostTaken(now, n, cpus, memory))

    def _settle_gpus(self, state: State, n: int, name: str, taken: list[float], now: float) -> None:
        node, gpus = self._world.layout.nodes[n], self._world.layout.all_of(n)
        node = self._world.nodes.get(name, node)
        cause, foreign = self.is_closed(node), self.foreign(name)
        wanted = dict.fromkeys(gpus, cause) if cause else {}
        if not cause and foreign:
            ours = {gpu for gpu in gpus if state.pool.tenants[gpu] - (gpu in state.withdrawn) > 0}
            wanted = dict.fromkeys([gpu for gpu in reversed(gpus) if gpu not in ours][:foreign], FOREIGN)
        back = tuple(gpu for gpu in gpus if gpu in state.withdrawn and state.withdrawn[gpu] != wanted.get(gpu))
        if back:
            self._world.record(GpusRestored(now, back))
        for reason in sorted(set(wanted.values())):
            new = tuple(gpu for gpu, why in wanted.items() if why == reason and gpu not in state.withdrawn)
            if new:
                self._world.record(GpusWithdrawn(now, new, reason))
        size = self._world.layout.memory[n]
        shared = not foreign and size > UNKNOWN
        for gpu in gpus:
            taken[gpu] = min(self._world.settings.buffer, size) if shared else size


Place = tuple[str, int]
"""A node, and the index of a GPU there."""


@dataclass(frozen=True, slots=True)
class CarriedState:
    """What namespaces have had, who is being evicted, and what is kept for whom; pods and nodes tell the rest."""

    state: State | None
    recalled: frozenset[str] = frozenset()
    """Pods that are being evicted."""
    promised: dict[str, list[Place]] = field(default_factory=dict)
    """GPUs that are kept for pods."""

    @classmethod
    def of(cls, world: ClusterState) -> CarriedState:
        """What is to be carried over."""
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
        """Let a new state know what namespaces have had."""
        former = self.state
        if former is not None:
            state.user_of, state.used = former.user_of, former.used
            state.last_finish, state.group_of = former.last_finish, former.group_of
        apply(state, RulesSet(now, rules))
        if former is not None:
            state.ledger = former.ledger

    def renew(self, world: ClusterState, now: float) -> None:
        """Once all pods are in the new state: remember who is being evicted, and promise again what was promised."""
        state = world.state
        if state is None:
            return
        for uid in self.recalled & set(world.job_of):
            job = world.job_of[uid]
            if world.holds(job) and state.row_of[job] not in state.recalled:
                world.record(Recalled(now, job, state.attempt[state.row_of[job]], "preempted"))
        for uid, places in {**_nominated(world, state), **self.promised}.items():
            gpus = [world.layout.gpus(node, [index]) for node, index in places]
            job = world.job_of.get(uid, "")
            if job in state.row_of and state.phase[state.row_of[job]] is Phase.QUEUED and None not in gpus:
                world.record(Promised(now, job, tuple(gpu[0] for gpu in gpus if gpu)))


def _nominated(world: ClusterState, state: State) -> dict[str, list[Place]]:
    """GPUs that others are leaving for pods, as a leader before us wrote on those: nobody else need be evicted."""
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
