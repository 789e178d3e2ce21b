"""The scheduling loop of a cluster: take changes, let the core plan, bind and evict, and explain."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpuyard.core.engine import validate
from gpuyard.core.events import Unpromised
from gpuyard.core.limits.withdrawal import split_promised, standing_promises
from gpuyard.core.model import Quota, Rules
from gpuyard.core.plan import Plan, Snapshot, Start
from gpuyard.core.planner import OrderedPlanner
from gpuyard.errors import UserError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Api, Changed, Gone, Object, Reflector, Relisted, core
from gpuyard.kubernetes.api_writes import ApiWriter, Bound, Evicted, Evictions, NotEvicted, Unbound, pod_reference
from gpuyard.kubernetes.cluster.cluster_nodes import declared, node_of
from gpuyard.kubernetes.cluster.cluster_state import ClusterState
from gpuyard.kubernetes.cluster.inventory import Assignment
from gpuyard.kubernetes.cluster.pods import pod_of
from gpuyard.kubernetes.cluster.quantity import amount
from gpuyard.kubernetes.cluster_view import ClusterView, cluster_view
from gpuyard.kubernetes.explanations import PodMessages, Shadow, annotations_of, assignment_message
from gpuyard.kubernetes.gpu_samples import Outage, Samples
from gpuyard.kubernetes.gpu_usage import GpuUsage
from gpuyard.kubernetes.leader_election import Election
from gpuyard.kubernetes.settings import Settings
from gpuyard.kubernetes.workload_history import write
from gpuyard.monitor.sources.prometheus_client import shown
from gpuyard.policies.resolver import make_planner

log = logging.getLogger("gpuyard.kubernetes")
MOST = 64  # pods that are started in one plan
_IN_FLIGHT = 256  # bindings that are on their way; with more the server is the bottleneck, and plans can wait
_MOST_MESSAGES = 2000  # messages that are processed before a plan
_REST_RATIO = 2.0  # pause after a plan, relative to its duration, for other threads
_SAVE_EVERY = 10.0  # seconds between two writes of the workload history
_FALLBACK = "fcfs@skip@pack"
_KINDS = ("pods", "nodes", "namespaces")


class Scheduler:
    def __init__(
        self, api: Api, settings: Settings, planner: OrderedPlanner, observed: GpuUsage, *, identity: str
    ) -> None:
        self.api, self.settings, self.identity = api, settings, identity
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.observed = observed
        self.world = ClusterState(planner, settings, observed.estimate)
        observed.world = self.world
        self.election: Election | None = None
        if settings.elect and not settings.silent:
            self.election = Election(
                api, identity, settings.namespace, settings.lease, annotations=_advertised(settings, planner),
                changed=lambda: self.inbox.put(None),
            )  # fmt: skip
        self.writer = ApiWriter(
            api, self.inbox.put, identity=identity, may_write=lambda: self.leads, silent=settings.silent
        )
        self.messages = PodMessages(self.world, self.writer, settings.namespace)
        self.shadow = Shadow() if settings.silent else None
        self.evictions = Evictions(
            self.world, self.writer, leads=lambda: self.leads, observer=self.shadow.evicted if self.shadow else None
        )
        self.counts: Counter[str] = Counter()
        self.plan_seconds = 0.0
        self.heard_at = time.time()
        self._synced: set[str] = set()
        self._namespaces: dict[str, Object] = {}
        self._planned = -1
        self._led = False
        self._wake_at = self._quiet_until = self._saved_at = 0.0
        self._stopped = threading.Event()
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self.reflectors = [
            Reflector(api, kind, core(kind), read, self.inbox.put, settings.resync)
            for kind, read in (("pods", pod_of), ("nodes", node_of), ("namespaces", dict))
        ]

    # -- life ---------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.election is None or self.election.holds

    @property
    def ready(self) -> bool:
        return len(self._synced) == len(_KINDS)

    def start(self) -> None:
        for reflector in self.reflectors:
            reflector.start()
        if self.election is not None:
            self.election.start()
        self.observed.start(self.inbox.put)

    def run(self) -> None:
        while not self._stopped.is_set():
            self.turn(self._pause())

    def stop(self) -> None:
        """End, from any thread."""
        self._stopped.set()
        self.inbox.put(None)

    def close(self) -> None:
        for reflector in self.reflectors:
            reflector.stop()
        self.observed.stop()
        self.writer.stop()
        if self.election is not None:
            self.election.stop()
        self.api.close()

    def ask(self, question: Callable[[], Any], seconds: float = 5.0) -> Any:
        """Have the scheduler's thread compute something, from another thread."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked.put((question, answer))
        self.inbox.put(None)
        return answer.get(timeout=seconds)

    def view(self) -> ClusterView:
        """The cluster as it is now; for the scheduler's thread."""
        known = dict[Any, str]()
        leader = self.election.leader if self.election is not None else self.identity
        return cluster_view(
            self.world, self.observed, lambda pod: self.messages.reason(pod, known),
            server=self.api.connection.server, leader=leader,
            counts={f"{name}_total": count for name, count in self.counts.items()},
        )  # fmt: skip

    # -- a turn -------------------------------------------------------------------------------------

    def turn(self, pause: float) -> None:
        try:
            first = self.inbox.get(timeout=pause)
        except queue.Empty:
            first = None
        now = time.time()
        for message in self._messages(first):
            self.take_in(message, now)
        self.heard_at = now
        if self.ready:
            led, self._led = self._led, self.leads
            self.world.stale = self.world.stale or (self._led and not led)  # a former leader's promises are on the pods
            self.world.settle(now)
        while not self._asked.empty():  # after that: a node may have gone
            question, answer = self._asked.get()
            answer.put(question())
        if not self.ready:
            return
        if not self._led:
            return
        self.evictions.end_spared(now)
        if self._is_due(now):
            self._plan(now)
        for assignment in self.world.start_plain() if self.world.plain else ():
            self._bind(assignment, now)
        self.messages.post_reasons(now)
        self._save_history(now)

    def _save_history(self, now: float) -> None:
        learned = self.observed.learned
        if learned.changed and now >= self._saved_at + _SAVE_EVERY and not self.settings.silent:
            learned.changed, self._saved_at = False, now
            data, namespace = learned.to_data(), self.settings.namespace
            self.writer.later(lambda: write(self.api, namespace, data))

    def _messages(self, first: Any) -> list[Any]:
        found = [first]
        while len(found) < _MOST_MESSAGES:
            try:
                found.append(self.inbox.get_nowait())
            except queue.Empty:
                break
        return [message for message in found if message is not None]

    def _pause(self) -> float:
        """Seconds until something is due, if no message arrives."""
        state = self.world.state
        if state is None or not self.ready or not self.leads or self._is_busy:
            return 1.0
        due = self._wake_at if state.version == self._planned else self._quiet_until
        return min(max(due - time.time(), 0.001), 1.0)

    @property
    def _is_busy(self) -> bool:
        return len(self.world.assumed) >= _IN_FLIGHT and not self.settings.silent

    def _is_due(self, now: float) -> bool:
        state = self.world.state
        if state is None or now < self._quiet_until or self._is_busy:
            return False
        return state.version != self._planned or now >= self._wake_at or self.observed.is_due(now)

    # -- what was said ------------------------------------------------------------------------------

    def take_in(self, message: Any, now: float) -> None:
        if isinstance(message, Changed):
            self._changed(message.kind, message.object, now)
        elif isinstance(message, Gone):
            self._gone(message.kind, message.object, now)
        elif isinstance(message, Relisted):
            self._relisted(message, now)
        elif isinstance(message, Bound):
            self.counts["bound"] += 1
            self.messages.forget(message.uid)
        elif isinstance(message, Unbound):
            self._unbound(message, now)
        elif isinstance(message, Evicted):
            self.counts["evicted"] += 1
        elif isinstance(message, NotEvicted):
            self.counts["evictions_refused"] += 1
            log.warning("pod %s could not be evicted: %s", self._named(message.uid), message.why)
            self.evictions.refused(message.uid, now)
        elif isinstance(message, Samples | Outage):
            self.observed.heard(message, now)
            self.messages.outage(self.observed.trouble, now)
            crowded, self.observed.crowded = self.observed.crowded, []
            for pod, why in crowded:
                self.evictions.relieve(pod, why, now)

    def _changed(self, kind: str, object: Any, now: float) -> None:
        if kind == "pods":
            if self.shadow is not None:
                former = self.world.pods.get(object.uid)
                waited = former is not None and former.waits and self.world.is_ours(former)
                self.shadow.heard(object, waited, now)
            self.observed.saw(object, now)
            self.world.put_pod(object, now)
        elif kind == "nodes":
            self.world.put_node(object, now)
        else:
            self._namespaces[object["metadata"]["name"]] = object
            if self.ready:
                self._set_rules(now)

    def _gone(self, kind: str, object: Any, now: float) -> None:
        if kind == "pods":
            self.observed.gone(object, now)
            self.world.drop_pod(object, now)
            self.messages.forget(object.uid)
            self.evictions.forget(object.uid)
        elif kind == "nodes":
            self.world.drop_node(object.name)
        else:
            self._namespaces.pop(object["metadata"]["name"], None)
            self._set_rules(now)

    def _relisted(self, message: Relisted, now: float) -> None:
        """All objects of a kind: others are gone."""
        if message.kind == "pods":
            there = {pod.uid for pod in message.objects}
            for pod in [pod for uid, pod in self.world.pods.items() if uid not in there]:
                self._gone("pods", pod, now)
        elif message.kind == "nodes":
            names_there = {node.name for node in message.objects}
            for name in [name for name in self.world.nodes if name not in names_there]:
                self.world.drop_node(name)
        else:
            self._namespaces = {}
        for object in message.objects:
            self._changed(message.kind, object, now)
        self._synced.add(message.kind)
        if message.kind == "namespaces":
            self._set_rules(now)

    def _set_rules(self, now: float) -> None:
        """How namespaces share the GPUs: by the settings, and by their own annotations."""
        shares, quotas = dict(self.settings.shares), dict(self.settings.quotas)
        for name, namespace in self._namespaces.items():
            try:
                share, quota = _rules_of(namespace)
            except (ValueError, UserError) as error:
                self.messages.namespace(name, f"its share or quota makes no sense and is ignored: {error}", now)
                continue
            shares |= {} if share is None else {name: share}
            quotas |= {} if quota is None else {name: quota}
        rules = Rules(
            self.settings.half_life, tuple(sorted(shares.items())), tuple(sorted(quotas.items())),
            self.settings.preemption, for_shares=False,
        )  # fmt: skip
        self.world.set_rules(rules, now)

    def _unbound(self, message: Unbound, now: float) -> None:
        self.counts["conflicts" if message.conflict else "bind_failures"] += 1
        log.warning("pod %s could not be bound: %s", self._named(message.uid), message.why)
        pod = self.world.pods.get(message.uid)
        if pod is not None and not message.conflict:
            self.messages.failed(pod, f"could not be bound: {message.why}", now)
        self.world.give_back(message.uid, now, now + 1.0)

    def _named(self, uid: str) -> str:
        pod = self.world.pods.get(uid)
        return pod.key if pod is not None else uid

    # -- planning -----------------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        engine = self.world.engine
        assert engine is not None
        began = time.perf_counter()
        self.observed.charge(now)
        state = engine.state
        due, broken = standing_promises(state)
        for row in broken:
            self.world.record(Unpromised(now, state.ids[row]))
        for row in due:
            self._start(Start(state.ids[row], state.promises[row]), now)
        plan = self._valid_plan(now)
        self.plan_seconds = time.perf_counter() - began
        self.counts["plans"] += 1
        self._wake_at = max(plan.wake_at, now + 0.01)
        starts, later = split_promised(state, plan)
        self.evictions.evict(plan, later, now)
        for start in starts:
            self._start(start, now)
        self._planned = -1 if len(plan.starts) >= MOST else state.version
        self._quiet_until = time.time() + (0.0 if plan.starts else _REST_RATIO * self.plan_seconds)

    def _valid_plan(self, now: float) -> Plan:
        """A valid plan; a policy that fails is replaced, since scheduling must continue."""
        engine = self.world.engine
        assert engine is not None
        try:
            plan = engine.planner.plan(Snapshot(engine.state, now, usage=self.observed.usage(now), most=MOST))
            validate(engine.state, plan)
        except Exception as error:  # a policy may be a user's own code: anything may come out of it
            if self.world.planner.text == _FALLBACK:
                raise
            log.exception("policy %s failed; going on with %s", self.world.planner.text, _FALLBACK)
            self.messages.cluster("PolicyFailed", f"policy {self.world.planner.text} failed: {error}", now)
            self.world.planner = engine.planner = make_planner(_FALLBACK)
            return self._valid_plan(now)
        return plan

    def _start(self, start: Start, now: float) -> None:
        for assignment in self.world.start(start, now):
            self.observed.placed(assignment.pod, assignment, now)
            self._bind(assignment, now)

    def _bind(self, assignment: Assignment, now: float) -> None:
        message = assignment_message(assignment)
        if self.shadow is not None:
            self.shadow.decided(assignment, message, now)
            return
        log.info("%s", message)
        event = self.writer.event(pod_reference(assignment.pod), "Scheduled", message)
        self.writer.bind(assignment, annotations_of(assignment), event)


def _rules_of(namespace: Object) -> tuple[float | None, Quota | None]:
    meta = namespace["metadata"]
    share, quota = declared(meta, names.SHARE), declared(meta, names.QUOTA)
    if share is not None and not 0 < amount(share) < math.inf:
        raise UserError(f"a share is a number above 0, not {share}")
    return None if share is None else amount(share), None if quota is None else Quota(int(quota))


def _advertised(settings: Settings, planner: OrderedPlanner) -> dict[str, str]:
    known = {
        "policy": planner.text, "admission": settings.admission, "scheduler": settings.scheduler,
        "prometheus": shown(settings.prometheus) if settings.prometheus else "",
        "default-duration": f"{settings.default_duration:g}",
        "gpu-memory": f"{settings.gpu_memory:.0f}", "gpu-buffer": f"{settings.buffer:.0f}",
    }  # fmt: skip
    return {f"{names.DOMAIN}/{key}": value for key, value in known.items() if value}
