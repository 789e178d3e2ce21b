"""Why a pod waits, node by node, in the words that people know from kube-scheduler."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from gpuyard.core.pool import BYTE, SLACK, Flags, Floats
from gpuyard.core.state import State
from gpuyard.kubernetes.hosts import FOREIGN, UNSIZED
from gpuyard.kubernetes.plain import why_not
from gpuyard.kubernetes.pods import Pod
from gpuyard.kubernetes.requests import UNKNOWN, refused
from gpuyard.kubernetes.world import World
from gpuyard.units import format_size


class Verdict(NamedTuple):
    """What keeps a pod from each node."""

    by_node: dict[str, str]
    """The reason of each node; empty: it has room."""
    nearest: str
    """Where there is most of what it lacks."""

    @property
    def roomy(self) -> list[str]:
        """Nodes that have room for it now."""
        return [name for name, reason in self.by_node.items() if not reason]

    def message(self, reserved: str = "") -> str:
        """As kube-scheduler says it; nodes with room are not given to it because of what `reserved` says."""
        counts = Counter(reason or reserved or "have room" for reason in self.by_node.values())
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda x: (-x[1], x[0])))
        nearest = f"; {self.nearest}" if self.nearest and not self.roomy else ""
        return f"0/{len(self.by_node)} nodes available: {told or 'there are none'}{nearest}"


def verdict(world: World, pod: Pod) -> Verdict:
    """What keeps a pod from each node now."""
    if not pod.gpus:
        return Verdict({name: why_not(world, pod, name) for name in sorted(world.nodes)}, "")
    found = dict[str, str]()
    state, layout = world.state, world.layout
    enough, memory = _usable(world, pod, state) if state is not None else (np.empty(0), np.empty(0))
    for name in sorted(world.nodes):
        n = layout.number.get(name)
        found[name] = "without GPUs" if n is None or state is None else _reason(world, pod, n, int(enough[n]), state)
    return Verdict(found, _nearest(world, pod, found, memory))


def _usable(world: World, pod: Pod, state: State) -> tuple[Floats, Floats]:
    """How many GPUs of each node have room for a pod, and what is left of each GPU for those who share."""
    pool, job = state.pool, world.job_of.get(pod.uid)
    wanted = pod.gpu_memory
    if job is not None and job in state.row_of and pod.shares:
        wanted = float(state.table.footprint[state.row_of[job]])
    usable: Flags
    if pod.whole:
        usable = (pool.tenants == 0) & (np.array(state.cluster.gpu_memory) >= wanted)
    else:
        usable = (pool.compute >= -SLACK) & (pool.kind <= 0) & (pool.memory >= wanted - BYTE)
    left = np.where((pool.compute >= -SLACK) & (pool.kind <= 0), pool.memory, 0.0)
    return np.bincount(pool.node[usable], minlength=len(world.layout.nodes)).astype(np.float64), left


def _reason(world: World, pod: Pod, n: int, enough: int, state: State) -> str:
    node = world.nodes[world.layout.nodes[n].name]
    if closed := world.hosts.is_closed(node):
        return closed
    if refusal := refused(pod.wish, node):
        return refusal
    if enough < pod.gpus:
        if node.gpus < pod.gpus:
            return f"with fewer than {pod.gpus} GPUs"
        if world.hosts.foreign(node.name):
            return FOREIGN
        if pod.shares:
            return UNSIZED if world.layout.memory[n] <= UNKNOWN else "insufficient GPU memory"
        return "insufficient GPUs"
    if state.pool.cpus[n] < pod.cpus - SLACK:
        return "insufficient cpu"
    return "insufficient memory" if state.pool.host[n] < pod.memory - BYTE else ""


def _nearest(world: World, pod: Pod, reasons: dict[str, str], left: Floats) -> str:
    """What is left of the GPUs with the most memory left, where that is what a pod lacks."""
    if not pod.shares or "insufficient GPU memory" not in reasons.values():
        return ""
    lacking = [world.layout.number[name] for name, why in reasons.items() if why == "insufficient GPU memory"]
    # of a pod with several GPUs on a node, the one that has the least of the best counts
    best = {n: np.sort(left[slice(*world.layout.first[n : n + 2])])[-pod.gpus] for n in lacking}
    n = max(best, key=lambda n: float(best[n]))
    most, node = format_size(max(0.0, float(best[n]))), world.layout.nodes[n].name
    if pod.gpus > 1:
        wide = f"on each of {pod.gpus} GPUs"
        return f"wants {format_size(pod.gpu_memory)} {wide}, at most {most} are left {wide} (node {node})"
    index = int(left[slice(*world.layout.first[n : n + 2])].argmax())
    return f"wants {format_size(pod.gpu_memory)}, at most {most} are left (node {node}, GPU {index})"


def over_quota(world: World, pod: Pod) -> str:
    """What a namespace has of what it may have, if that is why its pod waits; else empty."""
    state = world.state
    quotas = dict(world.rules.quotas)
    quota = quotas.get(pod.namespace) or quotas.get("*")
    if state is None or quota is None or not quota.gpus or pod.namespace not in state.user_of:
        return ""
    rows = state.running.array
    user = state.user_of[pod.namespace]
    has = int(state.table.gpus[rows][state.table.user[rows] == user].sum())
    if has + pod.gpus <= quota.gpus:
        return ""
    return f"over the quota of namespace {pod.namespace} (has {has} of {quota.gpus} GPUs)"
