"""What a kubelet says of pods: bodies for their status."""

from __future__ import annotations

from datetime import UTC, datetime

from gpuyard.kubernetes.api_client import Object


def now() -> str:
    """This instant, as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, holds: bool) -> Object:
    """One of the conditions of a node or pod."""
    return {"type": kind, "status": "True" if holds else "False", "lastTransitionTime": now()}


def running(pod: Object, restarts: int, last: Object | None) -> Object:
    """Its containers run."""
    told: Object = {} if restarts else {"startTime": now()}
    return told | {
        "phase": "Running", "conditions": _conditions(True),
        "containerStatuses": _containers(pod, {"running": {"startedAt": now()}}, restarts, last, ready=True),
    }  # fmt: skip


def waiting(pod: Object, restarts: int, last: Object) -> Object:
    """Its containers ended, and will be started again; the phase stays."""
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
    return {"conditions": _conditions(False), "containerStatuses": _containers(pod, state, restarts, last)}


def over(pod: Object, restarts: int, last: Object) -> Object:
    """Its containers ended for good."""
    phase = "Failed" if last["exitCode"] else "Succeeded"
    return {
        "phase": phase, "conditions": _conditions(False),
        "containerStatuses": _containers(pod, {"terminated": last}, restarts),
    }  # fmt: skip


def refused(reason: str, message: str) -> Object:
    """The kubelet does not take it."""
    return {"phase": "Failed", "reason": reason, "message": f"Pod {message}"}


def terminated(code: int, message: str) -> Object:
    """How a container ended just now."""
    told = {"message": message} if message else {}
    return {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now(), **told}


def _conditions(ready: bool) -> list[Object]:
    return [condition("PodScheduled", True), condition("Initialized", True), condition("ContainersReady", ready),
            condition("Ready", ready)]  # fmt: skip


def _containers(
    pod: Object, state: Object, restarts: int, last: Object | None = None, ready: bool = False
) -> list[Object]:
    return [
        {
            "name": one["name"], "image": one["image"], "imageID": "", "ready": ready, "restartCount": restarts,
            "state": state, "lastState": {"terminated": last} if last else {},
        }
        for one in pod["spec"]["containers"]
    ]  # fmt: skip
