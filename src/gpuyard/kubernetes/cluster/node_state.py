"""Capacity of nodes that is not available: closed nodes, and CPUs, memory and GPUs of other pods."""

from __future__ import annotations

from collections import defaultdict

from gpuyard.core.events import GpusRestored, GpusWithdrawn, HostTaken, MemoryTaken
from gpuyard.core.state import State
from gpuyard.kubernetes.cluster.cluster_nodes import Node
from gpuyard.kubernetes.cluster.inventory import UNKNOWN, Inventory
from gpuyard.kubernetes.cluster.pods import Pod

FOREIGN = "foreign"
CORDONED = "cordoned"
NOT_READY = "not ready"
FULL = "has as many pods as it may"
UNSIZED = "GPU memory unknown"


class NodeState:
    def __init__(self, world: Inventory) -> None:
        self._world = world
        self._on: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        self._touched: set[str] = set()
        self._taken: tuple[float, ...] = ()

    def count(self, pod: Pod, former: Pod | None) -> None:
        if former is not None and former.node and former.node != pod.node:
            self.discount(former)
        if pod.node:
            known = self._on[pod.node].get(pod.uid)
            self._on[pod.node][pod.uid] = pod
            if known is None or (known.cpus, known.memory, known.gpus) != (pod.cpus, pod.memory, pod.gpus):
                self._touched.add(pod.node)

    def discount(self, pod: Pod) -> None:
        if pod.node and self._on[pod.node].pop(pod.uid, None) is not None:
            self._touched.add(pod.node)

    def touch(self, node: str) -> None:
        """Check a node again at the next `settle`."""
        self._touched.add(node)

    def check_all(self) -> None:
        """The state was rebuilt: check all nodes again."""
        self._touched = {node.name for node in self._world.layout.nodes}
        self._taken = ()

    def foreign(self, name: str) -> int:
        """Number of GPUs of a node whose pods do not declare which."""
        return sum(pod.gpus for pod in self._on[name].values() if pod.gpus and not self._world.knows_gpus_of(pod))

    def is_closed(self, node: Node) -> str:
        """Why nothing may start on a node; empty if it may."""
        if node.cordoned:
            return CORDONED
        if not node.ready:
            return NOT_READY
        return "" if self.takes(node.name) else FULL

    def takes(self, name: str, count: int = 1) -> bool:
        left, assumed = self._world.nodes[name].pods - len(self._on[name]) - count, self._world.assumed
        return left >= len(assumed) or left >= sum(1 for one in assumed.values() if one.node == name)

    def _assumed_on(self, name: str) -> list[Pod]:
        there = self._on[name]
        return [one.pod for uid, one in self._world.assumed.items() if one.node == name and uid not in there]

    def free_on(self, name: str) -> tuple[float, float]:
        """CPU cores and bytes that pods leave of a node."""
        node, pods = self._world.nodes[name], [*self._on[name].values(), *self._assumed_on(name)]
        return node.cpus - sum(pod.cpus for pod in pods), node.memory - sum(pod.memory for pod in pods)

    def refusal(self, pod: Pod, name: str) -> str:
        """Why a pod without GPUs cannot run on a node; empty if it can."""
        node = self._world.nodes[name]
        if refused := self.is_closed(node) or node.refusal(pod.wish):
            return refused
        cpus, memory = self.free_on(name)
        if pod.cpus > cpus + 1e-9:
            return "insufficient cpu"
        return "insufficient memory" if pod.memory > memory else ""

    def best_for(self, pod: Pod) -> str | None:
        """The node for a pod without GPUs: the most CPUs free, preferably without GPUs."""
        nodes = self._world.nodes
        fits = [name for name in nodes if not self.refusal(pod, name)]
        return max(fits, key=lambda name: (not nodes[name].gpus, self.free_on(name)[0], name), default=None)

    def settle(self, now: float) -> None:
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
        others = [pod for pod in self._on[name].values() if not self._world.knows_gpus_of(pod)]
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
