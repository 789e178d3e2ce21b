"""Follows pods and jobs with a label in a thread of its own; the history and result of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuyard.experiments.design import Arrival, JobResult
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api_client import Api, ApiError, Listed, Object, Unreachable, Watch, core, group
from gpuyard.kubernetes.cluster.quantity import moment
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT, JOB
from gpuyard.predict.oom import recognise

OVER = ("Succeeded", "Failed")


@dataclass(slots=True)
class PodHistory:
    """One pod. Times are seconds since the epoch; None: not yet, or not known."""

    name: str
    uid: str
    bound: float | None = None
    started: float | None = None  # when its first container first ran
    restarted: float | None = None  # when its last attempt began
    ended: float | None = None
    restarts: int = 0
    ooms: int = 0
    phase: str = "Pending"
    node: str = ""
    gpus: str = ""
    admitted_by: str = ""
    message: str = ""  # its termination message, or why the kubelet ended it
    gone: bool = False  # it was deleted
    waits: str = ""  # why it has no node, in its scheduler's words
    _counted: dict[str, int] = field(default_factory=dict)
    """By container: how often it had been started again when we looked last."""
    _begun: dict[str, int] = field(default_factory=dict)  # by container: which of its attempts was seen to run
    _dead: set[str] = field(default_factory=set)  # containers whose last end was counted

    @property
    def over(self) -> bool:
        return self.gone or self.phase in OVER

    def see(self, pod: Object, at: float, *, live: bool = True) -> None:
        """Take in its state; `live`: it changed just now, else at some time before."""
        meta, status = pod["metadata"], pod.get("status", {})
        said = meta.get("annotations") or {}
        self.node = pod["spec"].get("nodeName") or self.node
        self.gpus, self.admitted_by = said.get(names.INDICES, self.gpus), said.get(names.ADMITTED, self.admitted_by)
        scheduled = _condition(status, "PodScheduled")
        if self.node and self.bound is None:
            self.bound, self.waits = _when(at, scheduled.get("lastTransitionTime"), live), ""
        elif not self.node:
            self.waits = scheduled.get("message", "")
        for container in status.get("containerStatuses") or ():
            self._see_container(container, at, live)
        self.phase = status.get("phase", self.phase)
        if self.phase in OVER and self.ended is None:
            last = [one["state"]["terminated"] for one in status.get("containerStatuses") or () if _died(one)]
            stamps = [one["finishedAt"] for one in last if one.get("finishedAt")]
            self.ended = _when(at, max(stamps, default=None), live)
            self.message = self.message or status.get("message", "") or status.get("reason", "")

    def _see_container(self, container: Object, at: float, live: bool) -> None:
        name, state, count = container["name"], container.get("state") or {}, container.get("restartCount", 0)
        before = self._counted.get(name, 0)
        if count > before:
            self._counted[name] = count
            ending = (container.get("lastState") or {}).get("terminated") or state.get("terminated") or {}
            self.restarts += count - before
            self.ooms += (count - before) * ran_out(ending) - (name in self._dead and ran_out(ending))
            self._dead.discard(name)
        began = state.get("running") or state.get("terminated")
        if began is not None and self._begun.get(name) != count:
            self._begun[name] = count
            instant = _when(at, began.get("startedAt"), live and "running" in state)
            self.started = instant if self.started is None else self.started
            self.restarted = instant
        if _died(container) and name not in self._dead:
            self._dead.add(name)
            self.ooms += ran_out(state["terminated"])
            self.message = state["terminated"].get("message", "") or self.message

    def leave(self, at: float) -> None:
        self.gone = True
        if self.ended is None:
            self.ended = at

    @property
    def ran(self) -> float:
        """Seconds of its last attempt."""
        return max(0.0, self.ended - self.restarted) if self.ended is not None and self.restarted is not None else 0.0

    @property
    def where(self) -> str:
        """`node:0,2`."""
        return f"{self.node}:{self.gpus}" if self.gpus else self.node


def ran_out(terminated: Object) -> bool:
    if terminated.get("reason") == "OOMKilled":
        return True
    return bool(terminated.get("exitCode")) and recognise(terminated.get("message", "").encode()) is not None


def job_result(
    arrival: Arrival, arrived: float, pods: Sequence[PodHistory], begin: float, *, failed: bool
) -> JobResult:
    """The course of a job, in seconds since `begin`; `failed`: whether the cluster gave it up."""
    pods = sorted(pods, key=lambda pod: (pod.bound is None, pod.bound or 0.0))
    started = [pod.started for pod in pods if pod.started is not None]
    last = pods[-1] if pods else None
    return JobResult.since(
        begin,
        arrival,
        arrived=arrived,
        started=min(started, default=None),
        ended=max((pod.ended for pod in pods if pod.ended is not None), default=None),
        bound=min((pod.bound for pod in pods if pod.bound is not None), default=None),
        ran=round(last.ran, 3) if last else 0.0,
        restarts=sum(pod.restarts for pod in pods) + max(0, len(started) - 1),
        ooms=sum(pod.ooms for pod in pods),
        state=_state(pods, failed),
        admitted_by=pods[0].admitted_by if pods else "",
        where=last.where if last else "",
    )


def _state(pods: Sequence[PodHistory], failed: bool) -> str:
    if not failed and any(pod.phase == "Succeeded" for pod in pods):
        return "succeeded"
    last = pods[-1] if pods else None
    if last is None or (last.gone and last.phase not in OVER):
        return "cancelled"
    if not last.over:
        return "interrupted"
    return "oom" if last.ooms else "failed"


def _died(container: Object) -> bool:
    return bool((container.get("state") or {}).get("terminated"))


def _condition(status: Object, kind: str) -> Object:
    found: Iterable[Object] = status.get("conditions") or ()
    return next((one for one in found if one.get("type") == kind), {})


def _when(at: float, stamp: str | None, live: bool) -> float:
    if live or not stamp:
        return at
    return min(at, moment(stamp) or at)


JOBS = "batch/v1"
_PAUSE, _LONGEST = 0.2, 5.0  # seconds from one try to the next, while the API server does not answer


class JobEnd(NamedTuple):
    failed: bool
    why: str = ""


class Follower:
    """Follows the pods of one run, and its Job objects, if it has any; `news` is notified of changes."""

    def __init__(self, api: Api, namespace: str, run: str, *, jobs: bool, warn: Callable[[str], None]) -> None:
        self._api, self._namespace, self._warn = api, namespace, warn
        self._selector = f"{EXPERIMENT}={run}"
        self._by_jobs = jobs
        self.news = threading.Condition()
        self.pods: dict[str, PodHistory] = {}  # by UID
        self._by_job: dict[str, list[PodHistory]] = {}
        self.over: dict[str, JobEnd] = {}  # the Job objects that are over, by their label `JOB`
        self._ended = threading.Event()
        self._watches: dict[str, Watch] = {}
        kinds = {"pods": core("pods", namespace), **({"jobs": group(JOBS, "jobs", namespace)} if jobs else {})}
        self._threads = [
            threading.Thread(target=self._follow, args=(kind, path), name=f"follow-{kind}", daemon=True)
            for kind, path in kinds.items()
        ]

    def __enter__(self) -> Follower:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for watch in list(self._watches.values()):
            watch.close()
        for thread in self._threads:
            thread.join(_LONGEST)

    def of(self, job: str) -> list[PodHistory]:
        return self._by_job.get(job, [])

    def is_over(self, job: str, *, by_job: bool | None = None) -> bool:
        """Whether a submitted job is over; `by_job`: it is a Job object, not a pod."""
        if self._by_jobs if by_job is None else by_job:
            return job in self.over
        pods = self.of(job)
        return bool(pods) and all(pod.over for pod in pods)

    def _follow(self, kind: str, path: str) -> None:
        pause, live, complaint = _PAUSE, True, ""
        while not self._ended.is_set():
            try:
                listed = self._api.list(path, labelSelector=self._selector)
                self._take_all(kind, listed, live)
                if complaint:
                    self._warn(f"the API server answers again, and {kind} are followed on")
                pause, live, complaint = _PAUSE, False, ""  # changes in the next list happened while there was no watch
                self._watch(kind, path, listed.version)
            except (ApiError, Unreachable) as error:
                if self._ended.is_set() or (isinstance(error, ApiError) and error.gone):
                    continue
                if str(error) != complaint:
                    complaint = str(error)
                    self._warn(f"{kind} cannot be followed: {complaint}; it is tried again")
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST)

    def _watch(self, kind: str, path: str, version: str) -> None:
        while not self._ended.is_set():
            watch = self._watches[kind] = self._api.watch(path, version, labelSelector=self._selector)
            for change in watch:
                version = change.object["metadata"]["resourceVersion"]
                if change.kind != "BOOKMARK":
                    self._take(kind, change.object, time.time(), live=True, gone=change.kind == "DELETED")

    def _take_all(self, kind: str, listed: Listed, live: bool) -> None:
        now = time.time()
        for found in listed.items:
            self._take(kind, found, now, live=live)
        if kind == "pods":
            there = {found["metadata"]["uid"] for found in listed.items}
            with self.news:
                for uid, history in self.pods.items():
                    if uid not in there and not history.gone:
                        history.leave(now)
                self.news.notify_all()

    def _take(self, kind: str, found: Object, at: float, *, live: bool, gone: bool = False) -> None:
        meta = found["metadata"]
        job = meta.get("labels", {}).get(JOB, meta["name"])
        with self.news:
            if kind == "pods":
                history = self.pods.get(meta["uid"])
                if history is None:
                    history = self.pods[meta["uid"]] = PodHistory(meta["name"], meta["uid"])
                    self._by_job.setdefault(job, []).append(history)
                history.see(found, at, live=live)
                if gone:
                    history.leave(at)
            elif gone:
                self.over.setdefault(job, JobEnd(True, "it was deleted"))
            else:
                self._take_job(job, found)
            self.news.notify_all()

    def _take_job(self, job: str, found: Object) -> None:
        for condition in found.get("status", {}).get("conditions") or ():
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                self.over[job] = JobEnd(condition["type"] == "Failed", condition.get("message", ""))
