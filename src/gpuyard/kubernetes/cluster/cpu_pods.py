"""Placement of pods without GPUs: on free CPUs, away from GPUs if possible."""

from __future__ import annotations

from gpuyard.core.plan import Start
from gpuyard.kubernetes.cluster.cluster_state import Assignment, ClusterState
from gpuyard.kubernetes.cluster.pod_requests import refused
from gpuyard.kubernetes.cluster.pods import Pod

_AT_ONCE = 16


def assignments(world: ClusterState) -> list[Assignment]:
    """Nodes for some of those that wait, the most urgent first."""
    waiting = [pod for pod in world.plain.values() if pod.uid not in world.assumed]
    waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.key))
    found = []
    for pod in waiting[:_AT_ONCE]:
        if (node := best_node(world, pod)) is not None:
            assignment = Assignment(pod, node, (), Start("", ()), 0.0, 0.0)
            world.assumed[pod.uid] = assignment
            world.hosts.touch(node)
            found.append(assignment)
    return found


def why_not(world: ClusterState, pod: Pod, name: str) -> str:
    """Why a pod without GPUs cannot go on a node; empty if it can."""
    node = world.nodes[name]
    if closed := world.hosts.is_closed(node):
        return closed
    if refusal := refused(pod.wish, node):
        return refusal
    cpus, memory = world.hosts.free_on(name)
    if pod.cpus > cpus + 1e-9:
        return "insufficient cpu"
    return "insufficient memory" if pod.memory > memory else ""


def best_node(world: ClusterState, pod: Pod) -> str | None:
    """The node with the most CPUs left, one without GPUs if any will do."""
    fits = [name for name in world.nodes if not why_not(world, pod, name)]
    return max(fits, key=lambda name: (not world.nodes[name].gpus, world.hosts.free_on(name)[0], name), default=None)
