"""Making pods and jobs, also if the server is away for a while; and patience with those that nobody schedules."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuyard.errors import GpuyardError, UserError
from gpuyard.kubernetes.api import Api, ApiError, Object, Unreachable, core, group
from gpuyard.kubernetes.experiment.following import JOBS, Follower
from gpuyard.kubernetes.experiment.story import PodStory
from gpuyard.units import format_duration

_AGAIN, _PATIENCE = 1.0, 300.0
"""Seconds from one try to submit something to the next, and in all, while the API server does not answer."""
_STALL = 120.0
"""Seconds without any news after which it is told who waits, and why."""


def submit(api: Api, namespace: str, body: Object, warn: Callable[[str], None]) -> Object:
    """Make a pod or a job."""
    path = group(JOBS, "jobs", namespace) if body["kind"] == "Job" else core("pods", namespace)
    name = body["metadata"].get("name") or body["metadata"].get("generateName", "")
    end, told = time.monotonic() + _PATIENCE, False
    while True:
        try:
            return api.post(path, body)
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.conflict and told:
                return api.get(f"{path}/{name}")  # the server had made it before it was away
            if isinstance(error, ApiError) and not error.later:
                raise UserError(f"{body['kind'].lower()} {name} was refused: {error}") from error
            if time.monotonic() > end:
                raise
            if not told:
                warn(f"{error}; {name} is submitted again until it is taken")
            told = True
            time.sleep(_AGAIN)


class Patience:
    """Tells once in a while who waits, and why, if nothing happens."""

    def __init__(self, api: Api, namespace: str, warn: Callable[[str], None]) -> None:
        self._api, self._namespace, self._warn = api, namespace, warn
        self._seen, self._since = (0, 0, 0), time.monotonic()

    def look(self, follower: Follower) -> None:
        """See whether something happened since."""
        pods = list(follower.pods.values())
        seen = len(pods), sum(pod.bound is not None for pod in pods), sum(pod.over for pod in pods)
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
            return
        waiting = [pod for pod in pods if pod.bound is None and not pod.over]
        if time.monotonic() - self._since < _STALL or not waiting:
            return
        self._since = time.monotonic()
        why = _why(self._api, self._namespace, waiting[0])
        self._warn(
            f"nothing has happened for {format_duration(_STALL)}, and {len(waiting)} pods wait: "
            + (f"{waiting[0].name}, {why}" if why else "no scheduler says why; does one run?")
        )


def _why(api: Api, namespace: str, pod: PodStory) -> str:
    """Why a pod has no node: what its scheduler last said of it, as a condition or an event; empty: nobody says."""
    if pod.waits:
        return pod.waits
    try:
        events = api.list(core("events", namespace), fieldSelector=f"involvedObject.name={pod.name}").items
    except GpuyardError:
        return ""  # whoever may not read events is not told, and that is all
    failed = [event for event in events if event.get("reason") == "FailedScheduling"]
    failed.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return str(failed[-1].get("message", "")) if failed else ""
