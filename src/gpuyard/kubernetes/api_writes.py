"""Writes to the cluster: threads that bind, evict and record events, urgent ones first; and which pods are evicted."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gpuyard.core.events import Edited, Promised, Recalled, Spared, Unpromised
from gpuyard.core.model import Phase
from gpuyard.core.plan import Plan, Start
from gpuyard.errors import GpuyardError
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import STRATEGIC, Api, ApiError, core
from gpuyard.kubernetes.cluster.cluster_state import ClusterState
from gpuyard.kubernetes.cluster.inventory import Assignment
from gpuyard.kubernetes.cluster.pods import Pod

log = logging.getLogger("gpuyard.kubernetes")
URGENT, SOON, LATER = 0, 1, 2
_THREADS = 6
_TRIES = 4
_PAUSE = 0.25  # seconds before what the server could not do is tried again, twice as long each time


class Bound(NamedTuple):
    uid: str
    seconds: float


class Unbound(NamedTuple):
    uid: str
    conflict: bool  # whether the pod was bound by another scheduler, or is gone
    why: str


class Evicted(NamedTuple):
    """The server accepted an eviction, or the pod was gone already."""

    uid: str


class NotEvicted(NamedTuple):
    """The server refused an eviction, for example because of a disruption budget."""

    uid: str
    why: str


class ApiWriter:
    """A queue of calls, and the threads that make them."""

    def __init__(
        self, api: Api, tell: Callable[[Any], None], *, identity: str, may_write: Callable[[], bool], silent: bool
    ) -> None:
        self._api, self._tell, self._identity, self._may_write = api, tell, identity, may_write
        self._silent = silent
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._eviction = ""
        self._threads = [
            threading.Thread(target=self._work, name=f"call {n}", daemon=True) for n in range(0 if silent else _THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return self._queue.qsize()

    def stop(self, seconds: float = 5.0) -> None:
        for _ in self._threads:
            self._queue.put((SOON, next(self._numbers), None))
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _put(self, priority: int, call: Callable[[], None]) -> None:
        if not self._silent:
            self._queue.put((priority, next(self._numbers), call))

    def _work(self) -> None:
        while True:
            _, _, call = self._queue.get()
            if call is None:
                return
            try:
                call()
            except GpuyardError as error:
                log.warning("%s", error)

    # -- binding and eviction -----------------------------------------------------------------------

    def bind(self, assignment: Assignment, annotations: Mapping[str, str], event: Mapping[str, Any]) -> None:
        self._put(URGENT, lambda: self._bind(assignment, annotations, event))

    def _bind(self, assignment: Assignment, annotations: Mapping[str, str], event: Mapping[str, Any]) -> None:
        pod = assignment.pod
        path = core("pods", pod.namespace, pod.name, "binding")
        meta = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": annotations}
        target = {"apiVersion": "v1", "kind": "Node", "name": assignment.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        pause, began = _PAUSE, time.monotonic()
        for last in [False] * (_TRIES - 1) + [True]:
            if not self._may_write():
                self._tell(Unbound(pod.uid, False, "another replica leads now"))
                return
            try:
                self._api.post(path, body)
            except ApiError as error:
                if not error.later or last:
                    self._tell(Unbound(pod.uid, error.conflict or error.missing, error.message))
                    return
            except GpuyardError as error:  # the binding may have succeeded; the watch will tell
                if last:
                    self._tell(Unbound(pod.uid, False, str(error)))
                    return
            else:
                self._tell(Bound(pod.uid, time.monotonic() - began))
                self._put(SOON, lambda: self._post_event(event))
                return
            time.sleep(pause)
            pause *= 2

    def evict(self, pod: Pod, event: Mapping[str, Any]) -> None:
        self._put(URGENT, lambda: self._evict(pod, event))

    def _evict(self, pod: Pod, event: Mapping[str, Any]) -> None:
        if not self._may_write():
            self._tell(NotEvicted(pod.uid, "another replica leads now"))
            return
        body = {"kind": "Eviction", "metadata": {"name": pod.name, "namespace": pod.namespace}}
        body["deleteOptions"] = {"preconditions": {"uid": pod.uid}}
        try:
            body["apiVersion"] = self._eviction_version()
            self._api.post(core("pods", pod.namespace, pod.name, "eviction"), body)
        except ApiError as error:
            if error.missing or error.conflict:
                self._tell(Evicted(pod.uid))
            else:
                self._tell(NotEvicted(pod.uid, error.message))
        except GpuyardError as error:
            self._tell(NotEvicted(pod.uid, str(error)))
        else:
            self._tell(Evicted(pod.uid))
            self._post_event(event)

    def _eviction_version(self) -> str:
        if not self._eviction:
            found = self._api.get("/apis/policy").get("versions") or []
            known = [one.get("groupVersion") for one in found]
            self._eviction = "policy/v1" if "policy/v1" in known and self._has_v1() else "policy/v1beta1"
        return self._eviction

    def _has_v1(self) -> bool:
        """Whether evictions are of policy/v1; budgets may be before evictions are."""
        found = self._api.get("/api/v1").get("resources") or []
        return any(one.get("name") == "pods/eviction" and one.get("version") == "v1" for one in found)

    # -- telling ------------------------------------------------------------------------------------

    def post(self, event: Mapping[str, Any], priority: int = SOON) -> None:
        self._put(priority, lambda: self._post_event(event))

    def repeat(self, event: Mapping[str, Any], count: int) -> None:
        meta = event["metadata"]
        body = {"count": count, "lastTimestamp": timestamp(time.time()), "message": event["message"]}
        self._put(LATER, lambda: self._again(core("events", meta["namespace"], meta["name"]), event, body))

    def later(self, call: Callable[[], None]) -> None:
        self._put(LATER, call)

    def condition(self, pod: Pod, message: str) -> None:
        """Write to a pod's status why it is not scheduled, for autoscalers."""
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": timestamp(time.time()),
        }  # fmt: skip
        self._put(LATER, lambda: self._patch_status(pod, {"conditions": [condition]}))

    def nominate(self, pod: Pod, node: str) -> None:
        self._put(SOON, lambda: self._patch_status(pod, {"nominatedNodeName": node}))

    def _patch_status(self, pod: Pod, status: Mapping[str, Any]) -> None:
        if self._may_write():
            path, body = core("pods", pod.namespace, pod.name, "status"), {"status": status}
            self._forgiving(lambda: self._api.patch(path, body, STRATEGIC))

    def _post_event(self, event: Mapping[str, Any]) -> None:
        if self._may_write():
            self._forgiving(lambda: self._api.post(core("events", event["metadata"]["namespace"]), event))

    def _again(self, path: str, event: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        try:
            self._api.patch(path, body)
        except ApiError as error:
            if not error.missing:  # events are forgotten after an hour
                raise
            self._post_event(event)

    def _forgiving(self, call: Callable[[], object]) -> None:
        """Make a call that may fail because the pod or the namespace is gone."""
        try:
            call()
        except ApiError as error:
            if not (error.missing or error.conflict or (error.status == 403 and "terminat" in error.message)):
                raise

    def event(self, about: Mapping[str, Any], reason: str, message: str, kind: str = "Normal") -> dict[str, Any]:
        now = time.time()
        at, namespace = timestamp(now), about.get("namespace") or "default"
        return {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": f"{about['name']}.{time.time_ns():x}", "namespace": namespace},
            "involvedObject": dict(about), "reason": reason, "message": message[:1000], "type": kind,
            "source": {"component": names.SCHEDULER}, "firstTimestamp": at, "lastTimestamp": at, "count": 1,
            "reportingComponent": names.SCHEDULER, "reportingInstance": self._identity,
        }  # fmt: skip


def pod_reference(pod: Pod) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def timestamp(at: float, digits: int = 0) -> str:
    text = datetime.fromtimestamp(at, UTC)
    return text.strftime("%Y-%m-%dT%H:%M:%S") + (f".{text.microsecond:06d}" if digits else "") + "Z"


_SPARED = 60.0  # seconds for which a pod that could not be evicted is left alone


class Evictions:
    def __init__(
        self,
        world: ClusterState,
        writer: ApiWriter,
        *,
        leads: Callable[[], bool],
        observer: Callable[[Pod, str], None] | None = None,
    ) -> None:
        self._world, self._writer, self._leads, self._observer = world, writer, leads, observer
        self._heirs: dict[str, str] = {}  # pods that are being evicted, and for which job
        self._spared: dict[str, float] = {}  # pods that are left alone, and until when

    def forget(self, uid: str) -> None:
        self._heirs.pop(uid, None)

    def evict(self, plan: Plan, later: list[Start], now: float) -> None:
        """Evict the pods that a plan stops, and promise their GPUs to the jobs that follow."""
        world = self._world
        state = world.state
        assert state is not None
        for start in later:
            world.record(Promised(now, start.job, start.gpus))
        for job in plan.stops:
            pod, row = world.pods.get(world.uid_of.get(job, "")), state.row_of[job]
            if pod is None or state.phase[row] is not Phase.RUNNING:
                continue
            spot = set(state.spot[row].tolist())
            heir = next((start.job for start in later if not spot.isdisjoint(start.gpus)), "")
            world.record(Recalled(now, job, state.attempt[row], "preempted"))
            self._begin_eviction(pod, f"evicted for {heir or 'others'}", heir)
            if (waiting := world.pods.get(world.uid_of.get(heir, ""))) is not None:
                self._writer.nominate(waiting, pod.node)

    def relieve(self, pod: Pod, why: str, now: float) -> None:
        world = self._world
        state, job = world.state, world.job_of.get(pod.uid)
        if state is None or job is None or state.row_of[job] in state.recalled or not self._leads():
            return
        world.record(Recalled(now, job, state.attempt[state.row_of[job]], "crowded"))
        self._begin_eviction(pod, why)

    def _begin_eviction(self, pod: Pod, why: str, heir: str = "") -> None:
        self._heirs[pod.uid] = heir
        log.info("pod %s is %s", pod.key, why)
        if self._observer is not None:
            self._observer(pod, why)
        self._writer.evict(pod, self._writer.event(pod_reference(pod), "Preempted", f"Preempted: {why}"))

    def refused(self, uid: str, now: float) -> None:
        """A pod stays: it is spared for a time, and the job that was promised its GPUs waits like all others."""
        world, heir = self._world, self._heirs.pop(uid, "")
        state, job = world.state, world.job_of.get(uid)
        if state is None or job is None:
            return
        row = state.row_of[job]
        if row in state.recalled:
            world.record(Spared(now, job, state.attempt[row]))
        world.protected.add(uid)
        self._spared[uid] = now + _SPARED
        self._update_core(uid, now)
        if heir in state.row_of and state.row_of[heir] in state.promises:
            world.record(Unpromised(now, heir))

    def end_spared(self, now: float) -> None:
        for uid in [uid for uid, until in self._spared.items() if until <= now]:
            del self._spared[uid]
            self._world.protected.discard(uid)
            self._update_core(uid, now)

    def _update_core(self, uid: str, now: float) -> None:
        world = self._world
        request = world.request_of(uid)
        if request is not None:
            world.record(Edited(now, world.job_of[uid], request))
