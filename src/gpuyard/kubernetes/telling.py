"""What people are told: why pods are where they are, why others wait, and what is wrong with the scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuyard.kubernetes import names
from gpuyard.kubernetes.calls import LATER, about
from gpuyard.kubernetes.hosts import UNSIZED
from gpuyard.kubernetes.pods import Pod
from gpuyard.kubernetes.why import over_quota, verdict
from gpuyard.kubernetes.world import Assignment
from gpuyard.units import format_size

if TYPE_CHECKING:
    from gpuyard.kubernetes.scheduler import Scheduler

_EVERY = 1.0  # seconds between two rounds
_BUDGET = 20  # pods that are told in one round why they wait
_FRESH = 0.3  # seconds for which nobody is told: most pods are bound by then
_ANOTHER = 30.0  # seconds after which another reason is told
_AGAIN = 300.0  # seconds after which the same reason is told again


@dataclass(slots=True)
class _Told:
    message: str
    at: float
    event: dict[str, Any] = field(default_factory=dict)
    count: int = 1


class Telling:
    """Rounds in which pods that wait are told why, not too many at once: ten thousand may wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._told: dict[str, _Told] = {}
        self._due = 0.0
        self._outage = ""
        self._namespaces: dict[str, str] = {}

    def forget(self, uid: str) -> None:
        """A pod waits no longer."""
        self._told.pop(uid, None)

    def reason(self, pod: Pod, known: dict[Any, str] | None = None) -> str:
        """Why a pod waits, in a sentence."""
        world = self._scheduler.world
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
        told = aside in ("no node will do", "no node has GPUs") or UNSIZED in found.by_node.values()
        if aside and not told and not found.roomy:
            message += f" (it {aside})"
        if known is not None:
            known[key] = message
        return message

    def _reserved(self, pod: Pod) -> str:
        """For whom nodes are kept that have room: whoever goes first and finds none."""
        world = self._scheduler.world
        state = world.state
        job = world.job_of.get(pod.uid)
        if pod.gang is not None and world.gangs.knows(pod.uid):
            return "too little room for the whole gang"
        if state is None or job is None or not len(state.waiting):
            return "have room"
        rows = state.waiting.array
        head = state.ids[int(rows[world.planner.policy.rank(state, rows, time.time()).argmin()])]
        return "have room, and it is about to start" if head == job else f"reserved for {head}"

    def tell(self, now: float) -> None:
        """Tell some of those who wait, first those who were never told, then those who were told longest ago."""
        if now < self._due:
            return
        self._due = now + _EVERY
        self._tell_gangs(now)
        world, left, known = self._scheduler.world, _BUDGET, dict[Any, str]()
        waiting = [
            pod for pod in world.pods.values()
            if pod.waits and (world.is_ours(pod) or pod.uid in world.plain) and now - pod.created > _FRESH
        ]  # fmt: skip
        for pod in sorted(waiting, key=lambda pod: told.at if (told := self._told.get(pod.uid)) else 0.0):
            if left == 0:
                return
            if pod.uid not in world.assumed:
                left -= self._tell_one(pod, now, known)

    def _tell_gangs(self, now: float) -> None:
        """Tell the members of gangs that have been incomplete for long."""
        world = self._scheduler.world
        for unit in world.gangs.waiting.values():
            if not unit.job and not unit.told and now - unit.since > unit.timeout:
                unit.told = True
                for member in unit.ordered(world.pods):
                    why = f"gang {unit.name} has been incomplete for {unit.timeout:.0f} s"
                    self._post(member, "GangIncomplete", why)

    def _tell_one(self, pod: Pod, now: float, known: dict[Any, str]) -> int:
        told = self._told.get(pod.uid)
        if told is not None and now - told.at < _ANOTHER:
            return 0
        message = self.reason(pod, known)
        if told is not None and told.message == message and now - told.at < _AGAIN:
            return 0
        self.failed(pod, message, now)
        return 1

    def failed(self, pod: Pod, message: str, now: float) -> None:
        """Say that a pod was not scheduled."""
        calls, told = self._scheduler.calls, self._told.get(pod.uid)
        if told is not None and told.message == message:
            told.at, told.count = now, told.count + 1
            calls.repeat(told.event, told.count)
            return
        event = calls.event(about(pod), "FailedScheduling", message, "Warning")
        self._told[pod.uid] = _Told(message, now, event)
        calls.tell(event, LATER)
        calls.condition(pod, message)

    def _post(self, pod: Pod, reason: str, message: str) -> None:
        calls = self._scheduler.calls
        calls.tell(calls.event(about(pod), reason, message, "Warning"), LATER)

    def cluster(self, reason: str, message: str, now: float, kind: str = "Warning") -> None:
        """Say something that concerns no pod in particular: an event of the lease."""
        calls, namespace = self._scheduler.calls, self._scheduler.settings.namespace
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": names.LEASE, "namespace": namespace}
        calls.tell(calls.event(lease, reason, message, kind))

    def namespace(self, name: str, message: str, now: float) -> None:
        """Say that what a namespace says of itself makes no sense."""
        if self._namespaces.get(name) != message:
            self._namespaces[name] = message
            calls = self._scheduler.calls
            where = {"apiVersion": "v1", "kind": "Namespace", "name": name, "namespace": name}
            calls.tell(calls.event(where, "BadShare", message, "Warning"))

    def outage(self, trouble: str, now: float) -> None:
        """Say that Prometheus is away, or back."""
        if bool(trouble) == bool(self._outage):
            return
        self._outage = trouble
        if trouble:
            self.cluster("PrometheusUnavailable", f"only what pods ask for counts until it is back: {trouble}", now)
        else:
            self.cluster("PrometheusAvailable", "Prometheus answers again: usage counts", now, "Normal")


def scheduled(assignment: Assignment) -> str:
    """The message of a pod that was given GPUs: where, by what rule, and the numbers."""
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
    """What a pod is told of its GPUs."""
    pod, start = assignment.pod, assignment.start
    if not pod.gpus:
        return {}
    found = {names.INDICES: ",".join(map(str, assignment.indices))}
    if pod.shares:
        found[names.CHARGED] = f"{assignment.charged:.0f}"
    found[names.ADMITTED] = start.admission.by if start.admission is not None and start.admission.by else "fit"
    return found
