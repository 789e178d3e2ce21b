"""Pods and gangs as requests of the core: GPUs, run time and priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.core.model import Request
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.kubernetes.cluster.cluster_nodes import NodeConstraints
from gpuyard.kubernetes.cluster.inventory import SOME_CPU, Layout
from gpuyard.kubernetes.cluster.pods import Pod
from gpuyard.kubernetes.settings import Settings

Key = tuple[str, str]


@dataclass(slots=True)
class WaitingGang:
    namespace: str
    name: str
    size: int = 1
    timeout: float = 0.0
    since: float = 0.0  # when the first of them came
    members: dict[str, None] = field(default_factory=dict)
    job: str = ""  # the core's job for all of them; empty: there are too few
    begin: float = 0.0  # not before this: some could not be bound
    reported: bool = False  # whether an event says that it has been incomplete for long

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    def ordered(self, pods: Mapping[str, Pod]) -> list[Pod]:
        found = [pods[uid] for uid in self.members if uid in pods]
        return sorted(found, key=lambda pod: (-pod.gpus, pod.created, pod.name))


class Gangs:
    def __init__(self) -> None:
        self.waiting: dict[Key, WaitingGang] = {}
        self._unit_of: dict[str, WaitingGang] = {}
        self._bound: dict[Key, set[str]] = {}

    def needs_others(self, pod: Pod) -> bool:
        """Whether a pod may not start by itself: too few of its gang have a node."""
        assert pod.gang is not None
        return len(self._bound.get((pod.namespace, pod.gang.name), ())) < pod.gang.size

    def join(self, pod: Pod) -> WaitingGang:
        assert pod.gang is not None
        key = pod.namespace, pod.gang.name
        unit = self.waiting.setdefault(key, WaitingGang(*key, since=pod.created))
        unit.size, unit.timeout = max(unit.size, pod.gang.size), pod.gang.timeout
        unit.since = min(unit.since, pod.created)
        unit.members[pod.uid] = None
        self._unit_of[pod.uid] = unit
        return unit

    def leave(self, uid: str) -> WaitingGang | None:
        """A member waits no longer; returns its gang."""
        for bound in self._bound.values():
            bound.discard(uid)
        unit = self._unit_of.pop(uid, None)
        if unit is not None:
            unit.members.pop(uid, None)
            if not unit.members:
                self.waiting.pop(unit.key, None)
        return unit

    def knows(self, uid: str) -> bool:
        return uid in self._unit_of

    def bound(self, pod: Pod) -> None:
        if pod.gang is not None:
            self._bound.setdefault((pod.namespace, pod.gang.name), set()).add(pod.uid)

    def unbound(self, pod: Pod) -> None:
        if pod.gang is not None:
            self._bound.get((pod.namespace, pod.gang.name), set()).discard(pod.uid)

    def running(self, unit: WaitingGang) -> int:
        return len(self._bound.get(unit.key, ()))

    def by_job(self, job: str) -> WaitingGang | None:
        """The gang of a job of the core; None for the job of a single pod."""
        if not job.startswith("gang "):
            return None
        return next((unit for unit in self.waiting.values() if unit.job == job), None)


class Requests:
    def __init__(self, layout: Layout, settings: Settings, planner: OrderedPlanner, state: State) -> None:
        self._layout, self._settings, self._planner, self._state = layout, settings, planner, state
        self._scopes: dict[NodeConstraints, tuple[int, ...] | None] = {}
        self._common: dict[frozenset[NodeConstraints], tuple[int, ...] | None] = {}
        self._known: dict[tuple[object, ...], Request] = {}
        self._widest = max((node.gpus for node in layout.nodes), default=0)
        self._most = max((size - settings.buffer for size in layout.memory), default=0.0)

    def scope(self, wish: NodeConstraints) -> tuple[int, ...] | None:
        """GPUs of all nodes that the constraints allow; empty: any; None: no node."""
        if wish not in self._scopes:
            allowed = [n for n, node in enumerate(self._layout.nodes) if not node.refusal(wish)]
            everywhere = len(allowed) == len(self._layout.nodes)
            gpus = () if everywhere else tuple(gpu for n in allowed for gpu in self._layout.all_of(n))
            self._scopes[wish] = gpus if allowed else None
        return self._scopes[wish]

    def of(self, pods: Sequence[Pod], estimate: float) -> Request | str:
        """The request of a pod or of a gang; or why no node could ever meet it."""
        head = pods[0]
        scope = self._common_scope(pods)
        if scope is None:
            return "no node will do"
        if (wide := max(p.gpus for p in pods)) > self._widest:  # the core would spread it: pods are on one node
            return f"wants {wide} GPUs of one node, and none has more than {self._widest}"
        key = (
            tuple((p.gpus, p.cpus, p.memory) for p in pods), head.gpu_memory, head.whole, head.namespace,
            max(p.priority for p in pods), self._may_be_stopped(pods), any(p.patient for p in pods), id(scope),
            estimate, head.limit, head.signature if len(pods) == 1 else "",
        )  # fmt: skip
        if key not in self._known:
            self._known[key] = self._made(pods, estimate, scope)
        request = self._known[key]
        return self._planner.refuses(self._state, request) or request

    def _common_scope(self, pods: Sequence[Pod]) -> tuple[int, ...] | None:
        if len(pods) == 1:
            return self.scope(pods[0].wish)
        wishes = frozenset(pod.wish for pod in pods)
        if wishes not in self._common:
            scopes = [self.scope(wish) for wish in wishes]
            some = [set(scope) for scope in scopes if scope]
            common = tuple(sorted(set.intersection(*some))) if some else ()
            self._common[wishes] = None if None in scopes or (some and not common) else common
        return self._common[wishes]

    def _may_be_stopped(self, pods: Sequence[Pod]) -> bool:
        """Whether pods may be evicted for others: by priority unless they refuse, else only if they agree."""
        if self._planner.policy.preemptive:
            return all(pod.preemptible is True for pod in pods)
        return self._settings.preemption and all(pod.preemptible is not False for pod in pods)

    def _made(self, pods: Sequence[Pod], estimate: float, scope: tuple[int, ...]) -> Request:
        head = pods[0]
        gpus = sum(pod.gpus for pod in pods)
        # The core counts CPUs and memory for each GPU: where members differ, as the one that wants most for each.
        cpus = max(pod.cpus / pod.gpus for pod in pods) * gpus
        host = max(pod.memory / pod.gpus for pod in pods) * gpus
        size = max(pod.gpu_memory for pod in pods)
        if not head.whole:  # a request for all of the largest GPU counts as all of it that can be shared
            size = min(size, self._most) if size <= max(self._layout.memory) else size
        return Request(
            gpus=gpus, estimate=min(estimate, head.limit), memory=size, compute=100.0 if head.whole else 0.0,
            priority=max(pod.priority for pod in pods), user=head.namespace, scope=scope, limit=head.limit,
            preemptible=self._may_be_stopped(pods), cpus=max(cpus, SOME_CPU), host_memory=host,
            kind=head.signature if len(pods) == 1 else "", patient=any(pod.patient for pod in pods),
            parts=tuple(pod.gpus for pod in pods) if len(pods) > 1 else (),
        )  # fmt: skip
