"""Explanations for people:

why a pod waits, node by node, why it is where it is, and what a shadow scheduler would have done.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gpuyard.core.loops.pool import BYTE, SLACK, Flags, Floats
from gpuyard.core.state import State
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_writes import LATER, ApiWriter, pod_reference
from gpuyard.kubernetes.cluster.cluster_state import ClusterState
from gpuyard.kubernetes.cluster.inventory import UNKNOWN, Assignment
from gpuyard.kubernetes.cluster.node_state import FOREIGN, UNSIZED
from gpuyard.kubernetes.cluster.pods import Pod
from gpuyard.units import format_size


class Verdict(NamedTuple):
    by_node: dict[str, str]  # the reason of each node; empty: it has room
    nearest: str  # the place with most of what the pod lacks

    @property
    def roomy(self) -> list[str]:
        return [name for name, reason in self.by_node.items() if not reason]

    def message(self, reserved: str = "") -> str:
        """In kube-scheduler's form; `reserved` says why the pod does not get a node with room."""
        counts = Counter(reason or reserved or "have room" for reason in self.by_node.values())
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda x: (-x[1], x[0])))
        nearest = f"; {self.nearest}" if self.nearest and not self.roomy else ""
        return f"0/{len(self.by_node)} nodes available: {told or 'there are none'}{nearest}"


def verdict(world: ClusterState, pod: Pod) -> Verdict:
    if not pod.gpus:
        return Verdict({name: world.hosts.refusal(pod, name) for name in sorted(world.nodes)}, "")
    found = dict[str, str]()
    state, layout = world.state, world.layout
    enough, memory = _usable(world, pod, state) if state is not None else (np.empty(0), np.empty(0))
    for name in sorted(world.nodes):
        n = layout.number.get(name)
        found[name] = "without GPUs" if n is None or state is None else _reason(world, pod, n, int(enough[n]), state)
    return Verdict(found, _nearest(world, pod, found, memory))


def _usable(world: ClusterState, pod: Pod, state: State) -> tuple[Floats, Floats]:
    """Number of GPUs of each node with room for a pod, and bytes left on each GPU for sharing."""
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


def _reason(world: ClusterState, pod: Pod, n: int, enough: int, state: State) -> str:
    node = world.nodes[world.layout.nodes[n].name]
    if refused := world.hosts.is_closed(node) or node.refusal(pod.wish):
        return refused
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


def _nearest(world: ClusterState, pod: Pod, reasons: dict[str, str], left: Floats) -> str:
    if not pod.shares or "insufficient GPU memory" not in reasons.values():
        return ""
    lacking = [world.layout.number[name] for name, why in reasons.items() if why == "insufficient GPU memory"]
    # with several GPUs on a node, the smallest of the best counts
    best = {n: np.sort(left[slice(*world.layout.first[n : n + 2])])[-pod.gpus] for n in lacking}
    n = max(best, key=lambda n: float(best[n]))
    most, node = format_size(max(0.0, float(best[n]))), world.layout.nodes[n].name
    if pod.gpus > 1:
        wide = f"on each of {pod.gpus} GPUs"
        return f"wants {format_size(pod.gpu_memory)} {wide}, at most {most} are left {wide} (node {node})"
    index = int(left[slice(*world.layout.first[n : n + 2])].argmax())
    return f"wants {format_size(pod.gpu_memory)}, at most {most} are left (node {node}, GPU {index})"


def over_quota(world: ClusterState, pod: Pod) -> str:
    """Usage and quota of the namespace, if the quota is why its pod waits; else empty."""
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


log = logging.getLogger("gpuyard.kubernetes")


@dataclass(frozen=True, slots=True)
class _Decision:
    node: str
    at: float
    created: float


class Shadow:
    """Compares decisions that were not carried out with what the other scheduler does."""

    def __init__(self) -> None:
        self._decided: dict[str, _Decision] = {}
        self.counts: Counter[str] = Counter()
        self.ahead = 0.0  # seconds by which we were earlier, over all pods that the other has bound; below 0: later

    def decided(self, assignment: Assignment, message: str, now: float) -> None:
        pod = assignment.pod
        if pod.uid not in self._decided:
            self._decided[pod.uid] = _Decision(assignment.node, now, pod.created)
            self.counts["decided"] += 1
            log.info("would have: %s", message)

    def evicted(self, pod: Pod, why: str) -> None:
        self.counts["evicted"] += 1
        log.info("would have: pod %s %s", pod.key, why)

    def heard(self, pod: Pod, waited: bool, now: float) -> None:
        """A pod changed: perhaps the other scheduler bound it."""
        if not pod.node:
            return
        decision = self._decided.pop(pod.uid, None)
        if decision is None:
            if waited:
                self.counts["undecided"] += 1
                log.info("pod %s: %s took %s; we would have let it wait", pod.key, pod.scheduler, pod.node)
            return
        same = decision.node == pod.node
        self.counts["agreed" if same else "differed"] += 1
        self.ahead += now - decision.at
        other = f"{pod.scheduler} took {pod.node}" if not same else f"{pod.scheduler} did the same"
        log.info("pod %s: %s, %.1f s after us", pod.key, other, now - decision.at)


_EVERY = 1.0  # seconds between two rounds
_BUDGET = 20  # reasons that are posted in one round
_FRESH = 0.3  # seconds without a post: most pods are bound by then
_ANOTHER = 30.0  # seconds after which another reason is posted
_AGAIN = 300.0  # seconds after which the same reason is posted again


@dataclass(slots=True)
class _Message:
    message: str
    at: float
    event: dict[str, Any] = field(default_factory=dict)
    count: int = 1


class PodMessages:
    """Posts the reasons of waiting pods in rounds of limited size: ten thousand may wait."""

    def __init__(self, world: ClusterState, writer: ApiWriter, namespace: str) -> None:
        self._world, self._writer, self._namespace = world, writer, namespace
        self._posted: dict[str, _Message] = {}
        self._due = 0.0
        self._outage = ""
        self._namespaces: dict[str, str] = {}

    def forget(self, uid: str) -> None:
        self._posted.pop(uid, None)

    def reason(self, pod: Pod, known: dict[Any, str] | None = None) -> str:
        world = self._world
        aside = world.aside.get(pod.uid, "")
        if pod.gated:
            return "has scheduling gates"
        if pod.trouble or (aside.startswith("gang ") and " members" in aside):
            return pod.trouble or f"waits: {aside}"
        key = (pod.gpus, pod.gpu_memory, pod.whole, pod.cpus, pod.memory, pod.wish, pod.namespace, aside)
        if known is not None and key in known:
            return known[key]
        found = verdict(world, pod)
        reserved = over_quota(world, pod) or self._reserved(pod)
        message = found.message(reserved)
        redundant = aside in ("no node will do", "no node has GPUs") or UNSIZED in found.by_node.values()
        if aside and not redundant and not found.roomy:
            message += f" (it {aside})"
        if known is not None:
            known[key] = message
        return message

    def _reserved(self, pod: Pod) -> str:
        """For which job the nodes with room are reserved: the head of the queue, if it has none."""
        world = self._world
        state = world.state
        job = world.job_of.get(pod.uid)
        if pod.gang is not None and world.gangs.knows(pod.uid):
            return "too little room for the whole gang"
        if state is None or job is None or not len(state.waiting):
            return "have room"
        rows = state.waiting.array
        head = state.ids[int(rows[world.planner.policy.rank(state, rows, time.time()).argmin()])]
        return "have room, and it is about to start" if head == job else f"reserved for {head}"

    def post_reasons(self, now: float) -> None:
        """Post the reasons of some waiting pods: first those without any, then the oldest."""
        if now < self._due:
            return
        self._due = now + _EVERY
        self._post_gangs(now)
        world, left, known = self._world, _BUDGET, dict[Any, str]()
        waiting = [
            pod for pod in world.pods.values()
            if pod.waits and (world.is_ours(pod) or pod.uid in world.plain) and now - pod.created > _FRESH
        ]  # fmt: skip
        for pod in sorted(waiting, key=lambda pod: posted.at if (posted := self._posted.get(pod.uid)) else 0.0):
            if left == 0:
                return
            if pod.uid not in world.assumed:
                left -= self._post_one(pod, now, known)

    def _post_gangs(self, now: float) -> None:
        world, writer = self._world, self._writer
        for unit in world.gangs.waiting.values():
            if not unit.job and not unit.reported and now - unit.since > unit.timeout:
                unit.reported = True
                for member in unit.ordered(world.pods):
                    why = f"gang {unit.name} has been incomplete for {unit.timeout:.0f} s"
                    writer.post(writer.event(pod_reference(member), "GangIncomplete", why, "Warning"), LATER)

    def _post_one(self, pod: Pod, now: float, known: dict[Any, str]) -> int:
        posted = self._posted.get(pod.uid)
        if posted is not None and now - posted.at < _ANOTHER:
            return 0
        message = self.reason(pod, known)
        if posted is not None and posted.message == message and now - posted.at < _AGAIN:
            return 0
        self.failed(pod, message, now)
        return 1

    def failed(self, pod: Pod, message: str, now: float) -> None:
        writer, posted = self._writer, self._posted.get(pod.uid)
        if posted is not None and posted.message == message:
            posted.at, posted.count = now, posted.count + 1
            writer.repeat(posted.event, posted.count)
            return
        event = writer.event(pod_reference(pod), "FailedScheduling", message, "Warning")
        self._posted[pod.uid] = _Message(message, now, event)
        writer.post(event, LATER)
        writer.condition(pod, message)

    def cluster(self, reason: str, message: str, now: float, kind: str = "Warning") -> None:
        """Post what concerns no single pod, as an event of the lease."""
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": names.LEASE}
        self._writer.post(self._writer.event({**lease, "namespace": self._namespace}, reason, message, kind))

    def namespace(self, name: str, message: str, now: float) -> None:
        """Post that a namespace's annotations make no sense."""
        if self._namespaces.get(name) != message:
            self._namespaces[name] = message
            where = {"apiVersion": "v1", "kind": "Namespace", "name": name, "namespace": name}
            self._writer.post(self._writer.event(where, "BadShare", message, "Warning"))

    def outage(self, trouble: str, now: float) -> None:
        if bool(trouble) == bool(self._outage):
            return
        self._outage = trouble
        if trouble:
            self.cluster("PrometheusUnavailable", f"only what pods ask for counts until it is back: {trouble}", now)
        else:
            self.cluster("PrometheusAvailable", "Prometheus answers again: usage counts", now, "Normal")


def assignment_message(assignment: Assignment) -> str:
    """The message of a scheduled pod: node, GPUs, rule and numbers."""
    pod, start = assignment.pod, assignment.start
    if not pod.gpus:
        return f"Successfully assigned {pod.key} to {assignment.node}"
    which = ",".join(map(str, assignment.indices))
    where = f"Successfully assigned {pod.key} to {assignment.node} (GPU {which})"
    decision = start.admission
    if decision is not None and decision.admitted:
        name = decision.by.upper() if decision.by in ("cbp", "pp") else decision.by
        return f"{where} by {name}: {decision.why}"
    if pod.whole:
        wanted = f"{pod.gpus} GPU{'s' if pod.gpus > 1 else ''} asked for"
        return f"{where} by fit: {wanted}, {assignment.left:.0f} idle on the node"
    return f"{where} by fit: {format_size(pod.gpu_memory)} asked for, {format_size(assignment.left)} left"


def annotations_of(assignment: Assignment) -> Mapping[str, str]:
    pod, start = assignment.pod, assignment.start
    if not pod.gpus:
        return {}
    found = {names.INDICES: ",".join(map(str, assignment.indices))}
    if pod.shares:
        found[names.CHARGED] = f"{assignment.charged:.0f}"
    found[names.ADMITTED] = start.admission.by if start.admission is not None and start.admission.by else "fit"
    return found
