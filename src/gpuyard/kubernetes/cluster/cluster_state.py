"""Pods and nodes of the API become jobs and GPUs of the core's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from gpuyard.core.engine import Engine
from gpuyard.core.events import (
    Cancelled,
    Charged,
    Edited,
    Exited,
    Placed,
    Recalled,
    Requeued,
    RulesSet,
    Started,
    Submitted,
)
from gpuyard.core.model import Phase, Request, Rules
from gpuyard.core.plan import Start
from gpuyard.core.planner import OrderedPlanner
from gpuyard.kubernetes.cluster.cluster_nodes import Node
from gpuyard.kubernetes.cluster.inventory import Assignment, CarriedState, Inventory, Layout
from gpuyard.kubernetes.cluster.node_state import NodeState
from gpuyard.kubernetes.cluster.pod_requests import Gangs, Requests, WaitingGang
from gpuyard.kubernetes.cluster.pods import Pod
from gpuyard.kubernetes.settings import Settings

_CPU_PODS = 16  # pods without GPUs that are assigned in one turn
_ROWS = 20_000  # rows of jobs that are over, from which on they are forgotten


class ClusterState(Inventory):
    def __init__(self, planner: OrderedPlanner, settings: Settings, estimate: Callable[[Pod], float]) -> None:
        super().__init__(planner, settings)
        self.expected = estimate
        self.rules = Rules()
        self.hosts = NodeState(self)
        self.gangs = Gangs()
        self.aside: dict[str, str] = {}  # why pods that wait are not in the queue, by uid
        self.plain: dict[str, Pod] = {}  # pods of ours that wait and want no GPU
        self.protected: set[str] = set()  # pods that could not be evicted, and are left alone for a time
        self._requests: Requests | None = None
        self.stale = True
        self._names = 0

    # -- what the API tells -------------------------------------------------------------------------

    def put_node(self, node: Node, now: float) -> None:
        former, self.nodes[node.name] = self.nodes.get(node.name), node
        if former is None or former.shape != node.shape:
            self.stale = self.stale or node.gpus > 0 or (former is not None and former.gpus > 0)
        self.hosts.touch(node.name)

    def drop_node(self, name: str) -> None:
        """A node is gone; its pods soon will be."""
        former = self.nodes.pop(name, None)
        self.stale = self.stale or (former is not None and former.gpus > 0)

    def put_pod(self, pod: Pod, now: float) -> None:
        former = self.pods.get(pod.uid)
        if pod.over:
            self.drop_pod(pod, now)
            return
        self.pods[pod.uid] = pod
        self.hosts.count(pod, former)
        self.plain.pop(pod.uid, None)
        if not self.is_ours(pod) and not self._says_where(pod):
            return
        if pod.node:
            self._bound(pod, now)
        elif pod.uid in self.assumed:
            return
        elif pod.gpus or pod.gated or pod.trouble:
            self._waiting(pod, former, now)
        else:
            self._put_plain(pod, now)

    def drop_pod(self, pod: Pod, now: float) -> None:
        """A pod has ended or is gone: what it held is free."""
        former = self.pods.pop(pod.uid, None)
        self.assumed.pop(pod.uid, None)
        self.aside.pop(pod.uid, None)
        self.plain.pop(pod.uid, None)
        self.protected.discard(pod.uid)
        if former is not None:
            self.hosts.discount(former)
        self._leave(pod, now)

    def is_ours(self, pod: Pod) -> bool:
        return pod.scheduler == self.settings.scheduler

    def _put_plain(self, pod: Pod, now: float) -> None:
        """A pod of ours without GPUs came, or changed."""
        self._leave(pod, now)
        self.aside.pop(pod.uid, None)
        if pod.waits:
            self.plain[pod.uid] = pod

    def _says_where(self, pod: Pod) -> bool:
        return bool(pod.gpus and pod.node and pod.indices)

    def _leave(self, pod: Pod, now: float) -> None:
        """A pod is not to run any more, neither in its gang nor as a job of its own."""
        if (unit := self.gangs.leave(pod.uid)) is not None:
            self._regroup(unit, now)
        self._end(pod, now)

    def _end(self, pod: Pod, now: float) -> None:
        job = self.job_of.pop(pod.uid, None)
        if job is None:
            return
        self.uid_of.pop(job, None)
        state = self.state
        if state is None or job not in state.row_of:
            return
        row = state.row_of[job]
        if state.phase[row] in (Phase.QUEUED, Phase.HELD):
            self.record(Cancelled(now, job))
        elif not state.phase[row].over:
            cause = "" if pod.phase in ("Succeeded", "Failed") else "cancelled"
            code = 0 if pod.phase == "Succeeded" else 1
            self.record(Exited(now, job, state.attempt[row], code, cause))

    # -- pods that wait -----------------------------------------------------------------------------

    def _waiting(self, pod: Pod, former: Pod | None, now: float) -> None:
        if not pod.waits or pod.gated or pod.trouble:
            self._put_aside(pod, "gated" if pod.gated else pod.trouble, now)
            return
        if pod.gang is not None and self.gangs.needs_others(pod):
            self._regroup(self.gangs.join(pod), now)
            return
        if self.engine is None:
            self.aside[pod.uid] = "no node has GPUs"
            return
        request = self._request([pod])
        if isinstance(request, str):
            self._put_aside(pod, request, now)
            return
        self.aside.pop(pod.uid, None)
        job = self.job_of.get(pod.uid)
        if job is None:
            self._submit(self._named(pod), request, pod.created, [pod.uid])
        elif former is None or self._differs(job, request):
            self.record(Edited(now, job, request))

    def _put_aside(self, pod: Pod, reason: str, now: float) -> None:
        if pod.waits:
            self.aside[pod.uid] = reason
        self._leave(pod, now)

    def _differs(self, job: str, request: Request) -> bool:
        state = self.state
        if state is None or job not in state.row_of:
            return False
        row, table = state.row_of[job], state.table
        return bool(
            (table.gpus[row], table.memory[row], table.priority[row], table.estimate[row])
            != (request.gpus, request.memory, request.priority, request.estimate)
        )

    def _submit(self, job: str, request: Request, at: float, uids: Iterable[str]) -> None:
        self.record(Submitted(at, job, request))
        for uid in uids:
            self.job_of[uid], self.uid_of[job] = job, uid

    def _named(self, pod: Pod) -> str:
        """A name for a pod's job that no other job has had."""
        if self.state is not None and pod.key in self.state.row_of:
            self._names += 1
            return f"{pod.key}~{self._names}"
        return pod.key

    def _request(self, pods: list[Pod]) -> Request | str:
        assert self._requests is not None
        request = self._requests.of(pods, max(self.expected(pod) for pod in pods))
        safe = any(pod.uid in self.protected or not self.is_ours(pod) for pod in pods)
        if isinstance(request, Request) and safe:
            return replace(request, preemptible=False)
        return request

    def request_of(self, uid: str) -> Request | None:
        """The request of a pod that is queued or has GPUs; else None."""
        pod, job = self.pods.get(uid), self.job_of.get(uid)
        if pod is None or job is None or self._requests is None:
            return None
        request = self._request([pod])
        return None if isinstance(request, str) else request

    def _regroup(self, unit: WaitingGang, now: float) -> None:
        """The members of a gang changed: it is one job if there are enough of them, else none."""
        state = self.state
        if unit.job and state is not None and unit.job in state.row_of:
            if state.phase[state.row_of[unit.job]] is Phase.QUEUED:
                self.record(Cancelled(now, unit.job))
            unit.job = ""
        members = unit.ordered(self.pods)
        if not members:
            return
        short = unit.size - self.gangs.running(unit) - len(members)
        if short > 0:
            for pod in members:
                self.aside[pod.uid] = f"gang {unit.name} has {unit.size - short} of {unit.size} members"
            return
        request = self._request(members) if self.engine is not None else "no node has GPUs"
        mixed = len({(pod.whole, pod.shares) for pod in members}) > 1
        if mixed or isinstance(request, str):
            reason = "a gang shares GPUs, or has whole ones" if mixed else f"gang {unit.name}: {request}"
            self.aside.update((pod.uid, reason) for pod in members)
            return
        assert isinstance(request, Request)
        self._names += 1
        unit.job = f"gang {unit.namespace}/{unit.name}~{self._names}"
        for pod in members:
            self.aside.pop(pod.uid, None)
        request = replace(request, begin=unit.begin)
        self.record(Submitted(min(pod.created for pod in members), unit.job, request))

    # -- pods that have GPUs ------------------------------------------------------------------------

    def _bound(self, pod: Pod, now: float) -> None:
        """A pod has a node, chosen by us or not."""
        self.assumed.pop(pod.uid, None)
        self.aside.pop(pod.uid, None)
        if self.gangs.knows(pod.uid) and (unit := self.gangs.leave(pod.uid)) is not None:
            self._regroup(unit, now)
        self.gangs.bound(pod)
        if self.engine is None or self.state is None:
            return
        gpus = self.layout.gpus(pod.node, pod.indices)
        job = self.job_of.get(pod.uid)
        if job is not None and self.gpus_of(job) == gpus:
            self._begun(job, pod, now)
            return
        self._end(pod, now)  # it waits here still, or is elsewhere than we thought
        if gpus is not None and len(gpus) == pod.gpus:
            self._occupy(pod, gpus, now)
        else:
            self.hosts.touch(pod.node)  # its GPUs are unknown

    def _occupy(self, pod: Pod, gpus: tuple[int, ...], now: float) -> None:
        """Record in the core the GPUs that a pod already has."""
        request = self._request([pod])
        if isinstance(request, str):  # its node no longer matches, but it runs there
            request = Request(
                gpus=pod.gpus, memory=pod.gpu_memory, compute=100.0 if pod.whole else 0.0, user=pod.namespace,
                estimate=self.expected(pod), priority=pod.priority, cpus=max(pod.cpus, 1e-12),
                host_memory=pod.memory, preemptible=False,
            )  # fmt: skip
        job = self._named(pod)
        self._submit(job, request, pod.created, [pod.uid])
        by = pod.admitted_by if pod.admitted_by in ("history", "cbp", "pp") else ""
        if pod.shares and pod.charged is not None and pod.charged < request.memory:
            self.record(Charged(now, job, pod.charged, by))
        self.record(Placed(now, job, 1, gpus, by))
        self._begun(job, pod, now)

    def _begun(self, job: str, pod: Pod, now: float) -> None:
        state = self.state
        assert state is not None
        row = state.row_of[job]
        if pod.phase == "Running" and state.phase[row] is Phase.PLACED:
            self.record(Started(min(pod.started or now, now), job, state.attempt[row]))
        if pod.deleting and row not in state.recalled:
            self.record(Recalled(now, job, state.attempt[row], "cancelled"))

    # -- what a plan does ---------------------------------------------------------------------------

    def start(self, start: Start, now: float) -> list[Assignment]:
        """Assign the GPUs of a plan to a pod, or to the members of a gang; none where nodes are full of pods."""
        assert self.engine is not None
        unit = self.gangs.by_job(start.job)
        if not self._takes(start, unit):
            return []
        if unit is None:
            pod = self.pods[self.uid_of[start.job]]
            found = self._assigned(pod, start)
            self.engine.place(now, start)
            self.assumed[pod.uid] = found
            self.hosts.touch(found.node)
            return [found]
        members, at, found_all = unit.ordered(self.pods), 0, list[Assignment]()
        self.record(Cancelled(now, start.job))
        unit.job = ""
        for pod in members:
            part = replace(start, job=self._named(pod), gpus=start.gpus[at : at + pod.gpus])
            at += pod.gpus
            request = self._request([pod])
            assert isinstance(request, Request)
            self._submit(part.job, request, pod.created, [pod.uid])
            assigned = self._assigned(pod, part)
            self.engine.place(now, part)
            self.gangs.leave(pod.uid)
            self.gangs.bound(pod)
            self.assumed[pod.uid] = assigned
            self.hosts.touch(assigned.node)
            found_all.append(assigned)
        return found_all

    def start_plain(self) -> list[Assignment]:
        """Assign nodes to some of the waiting pods without GPUs, highest priority first."""
        waiting = [pod for pod in self.plain.values() if pod.uid not in self.assumed]
        waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.key))
        found = []
        for pod in waiting[:_CPU_PODS]:
            if (node := self.hosts.best_for(pod)) is not None:
                assignment = Assignment(pod, node, (), Start("", ()), 0.0, 0.0)
                self.assumed[pod.uid] = assignment
                self.hosts.touch(node)
                found.append(assignment)
        return found

    def _takes(self, start: Start, unit: WaitingGang | None) -> bool:
        """Whether nodes may have that many more pods, a limit which the core does not know."""
        where, nodes = self.layout.where, self.layout.nodes
        if unit is None:
            return self.hosts.takes(nodes[where(start.gpus[0])[0]].name)
        firsts = np.cumsum([0, *(pod.gpus for pod in unit.ordered(self.pods)[:-1])])
        wanted = Counter(where(start.gpus[first])[0] for first in firsts)
        return all(self.hosts.takes(nodes[n].name, count) for n, count in wanted.items())

    def _assigned(self, pod: Pod, start: Start) -> Assignment:
        state = self.state
        assert state is not None
        n, _ = self.layout.where(start.gpus[0])
        indices = tuple(gpu - self.layout.first[n] for gpu in start.gpus)
        pool = state.pool
        left = float(pool.idle[n]) if pod.whole else float(pool.memory[np.array(start.gpus)].min())
        charged = float(state.table.footprint[state.row_of[start.job]]) if start.charge is None else start.charge
        return Assignment(pod, self.layout.nodes[n].name, indices, start, left, charged)

    def give_back(self, uid: str, now: float, begin: float = 0.0) -> None:
        """A pod could not be bound: it waits again, not before `begin`, unless it has a node after all."""
        self.assumed.pop(uid, None)
        pod, job = self.pods.get(uid), self.job_of.get(uid)
        if pod is None or pod.node or job is None or not self.gpus_of(job):
            return
        assert self.state is not None
        self.record(Requeued(now, job, self.state.attempt[self.state.row_of[job]], begin))
        self.gangs.unbound(pod)
        self.hosts.touch("")
        if pod.gang is not None and self.gangs.needs_others(pod):  # it waits with others of its gang again
            self._put_aside(pod, "could not be bound", now)
            unit = self.gangs.join(pod)
            unit.begin = max(unit.begin, begin)
            self._regroup(unit, now)

    # -- the state ----------------------------------------------------------------------------------

    def set_rules(self, rules: Rules, now: float) -> None:
        if rules != self.rules:
            self.rules = rules
            self.record(RulesSet(now, rules))

    @property
    def is_long(self) -> bool:
        return self.state is not None and len(self.state.ids) > _ROWS + 2 * len(self.job_of)

    def settle(self, now: float) -> None:
        """Bring the core's state up to date, before a plan."""
        if self.stale or self.is_long:
            self.rebuild(now)
        self.hosts.settle(now)

    def rebuild(self, now: float) -> None:
        former, held, self.stale = CarriedState.of(self), dict(self.assumed), False
        self.layout = Layout(self.nodes.values(), self.memory_of)
        cluster = self.layout.cluster()
        self.engine = None if cluster is None else Engine(cluster, self.planner)
        self.job_of, self.uid_of, self.aside, self.gangs = {}, {}, {}, Gangs()
        self._requests = None
        if self.engine is not None:
            former.carry_over(self.engine.state, self.rules, now)
            self._requests = Requests(self.layout, self.settings, self.planner, self.engine.state)
        self.hosts.check_all()
        ours = [pod for pod in self.pods.values() if self.is_ours(pod) or self._says_where(pod)]
        ours = [pod for pod in ours if pod.uid not in self.plain and (pod.gpus or not pod.node)]
        for pod in sorted(ours, key=lambda pod: (pod.created, pod.key)):
            self._readmit(pod, held.get(pod.uid), now)
        former.renew(self, now)

    def _readmit(self, pod: Pod, assumed: Assignment | None, now: float) -> None:
        if pod.node:
            self._bound(pod, now)
        elif assumed is not None and (gpus := self.layout.gpus(assumed.node, assumed.indices)) is not None:
            self.gangs.bound(pod)
            charged = replace(pod, charged=assumed.charged or None, admitted_by=assumed.start.by)
            self._occupy(charged, gpus, now)
        elif pod.gpus or assumed is None:
            self.assumed.pop(pod.uid, None)
            self._waiting(pod, None, now)
