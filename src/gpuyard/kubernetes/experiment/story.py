"""What became of a pod, step by step, by what the API server told of it; and of a job, by its pods.

Kubernetes writes times in whole seconds. What we watch live has happened just now, and our own clock is finer; only
what happened while nobody watched is taken from what the cluster wrote down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuyard.experiments.arrivals import Arrival
from gpuyard.experiments.model import JobResult
from gpuyard.kubernetes import names
from gpuyard.kubernetes.api import Object
from gpuyard.kubernetes.quantity import moment
from gpuyard.outofmemory import recognise

OVER = ("Succeeded", "Failed")


@dataclass(slots=True)
class PodStory:
    """One pod. Times are seconds since the epoch; None: not yet, or nobody knows."""

    name: str
    uid: str
    bound: float | None = None
    started: float | None = None
    """When its first container first ran."""
    restarted: float | None = None
    """When its last attempt began."""
    ended: float | None = None
    restarts: int = 0
    ooms: int = 0
    phase: str = "Pending"
    node: str = ""
    gpus: str = ""
    admitted_by: str = ""
    message: str = ""
    """What its container said at the end, or why the kubelet ended it."""
    gone: bool = False
    """Whether it was deleted."""
    waits: str = ""
    """Why it has no node, in its scheduler's words."""
    _counted: dict[str, int] = field(default_factory=dict)
    """By container: how often it had been started again when we looked last."""
    _begun: dict[str, int] = field(default_factory=dict)
    """By container: which of its attempts was seen to run."""
    _dead: set[str] = field(default_factory=set)
    """Containers whose last end was counted."""

    @property
    def over(self) -> bool:
        """Whether nothing more will become of it."""
        return self.gone or self.phase in OVER

    def see(self, pod: Object, at: float, *, live: bool = True) -> None:
        """Take in how it is now; `live`: it became so just now, else at some time before."""
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
        """It was deleted."""
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
    """Whether a container ended for want of memory, of the GPU's or of its own."""
    if terminated.get("reason") == "OOMKilled":
        return True
    return bool(terminated.get("exitCode")) and recognise(terminated.get("message", "").encode()) is not None


def job_result(arrival: Arrival, arrived: float, pods: Sequence[PodStory], begin: float, *, failed: bool) -> JobResult:
    """What became of a job, in seconds since `begin`; `failed`: whether the cluster gave it up."""
    pods = sorted(pods, key=lambda pod: (pod.bound is None, pod.bound or 0.0))
    started = [pod.started for pod in pods if pod.started is not None]
    ended = [pod.ended for pod in pods if pod.ended is not None]
    last = pods[-1] if pods else None
    return JobResult(
        arrival.name,
        arrival.workload.name,
        arrived=round(arrived - begin, 3),
        started=_since(begin, min(started, default=None)),
        ended=_since(begin, max(ended, default=None)),
        ran=round(last.ran, 3) if last else 0.0,
        restarts=sum(pod.restarts for pod in pods) + max(0, len(started) - 1),
        ooms=sum(pod.ooms for pod in pods),
        state=_state(pods, failed),
        admitted_by=pods[0].admitted_by if pods else "",
        bound=_since(begin, min((pod.bound for pod in pods if pod.bound is not None), default=None)),
        where=last.where if last else "",
    )


def _state(pods: Sequence[PodStory], failed: bool) -> str:
    """How it ended, in the words of all engines."""
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
    """Just now, or when the cluster says that it was, if that is known."""
    if live or not stamp:
        return at
    return min(at, moment(stamp) or at)


def _since(begin: float, at: float | None) -> float | None:
    return None if at is None else round(at - begin, 3)
