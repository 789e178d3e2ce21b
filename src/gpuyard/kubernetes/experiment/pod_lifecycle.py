"""Creates pods and jobs with retries, warns of unscheduled ones, and deletes all by label, also after an interrupt."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gpuyard.errors import GpuyardError, UserError
from gpuyard.kubernetes.api_client import Api, ApiError, Object, Unreachable, core, group
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT
from gpuyard.kubernetes.experiment.pod_follower import JOBS, Follower, PodHistory
from gpuyard.units import format_duration

_AGAIN, _RETRY_FOR = 1.0, 300.0
"""Seconds from one try to submit something to the next, and in all, while the API server does not answer."""
_STALL = 120.0
"""Seconds without any news after which it is told who waits, and why."""


def submit(api: Api, namespace: str, body: Object, warn: Callable[[str], None]) -> Object:
    """Make a pod or a job."""
    path = group(JOBS, "jobs", namespace) if body["kind"] == "Job" else core("pods", namespace)
    name = body["metadata"].get("name") or body["metadata"].get("generateName", "")
    end, told = time.monotonic() + _RETRY_FOR, False
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


class StallWarnings:
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


def _why(api: Api, namespace: str, pod: PodHistory) -> str:
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


PATIENCE = 120.0
"""Seconds for pods to be gone after they were deleted: they have a grace period, and machines may be slow."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK = 0.2


@contextmanager
def cleared(
    api: Api, namespace: str, run: str, warn: Callable[[str], None], done: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Delete everything with the label of a run in the end, and call `done` when it is gone.

    Signals that end a program are heard like Ctrl-C before; one more while it is waited for pods ends the waiting.
    """
    before = _heard(signal.default_int_handler)
    impatient = threading.Event()
    try:
        yield
    finally:
        _heard(lambda number, frame: impatient.set(), before)
        try:
            if clear(api, namespace, run, warn, impatient):
                done()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def clear(
    api: Api, namespace: str, run: str, warn: Callable[[str], None], impatient: threading.Event | None = None
) -> bool:
    """Delete jobs and pods with a label, and wait until they are gone, or nobody wants to wait any longer; if so."""
    waits, selector = impatient or threading.Event(), f"{EXPERIMENT}={run}"
    end = time.monotonic() + PATIENCE
    while True:
        try:
            _delete(api, namespace, selector)
            left = len(_listed(api, core("pods", namespace), selector))
            if not left:
                return True
            complaint = f"{left} of its pods {'is' if left == 1 else 'are'} still ending"
        except GpuyardError as error:
            complaint = str(error)
        if waits.is_set() or time.monotonic() > end:
            do = f"kubectl delete jobs,pods -n {namespace} -l {selector}"
            warn(f"{complaint}; {do} deletes what is left")
            return False
        waits.wait(_LOOK)


def _delete(api: Api, namespace: str, selector: str) -> None:
    """Tell the server to delete them, jobs first, which would make other pods.

    One by one: servers up to 1.20 that delete many at once give all the grace period of the first, which is none for a
    pod without a node, and containers of the others would run on unseen.
    """
    for path in (group(JOBS, "jobs", namespace), core("pods", namespace)):
        for found in _listed(api, path, selector):
            if "deletionTimestamp" in found["metadata"]:
                continue
            try:
                api.delete(f"{path}/{found['metadata']['name']}", propagationPolicy="Background")
            except ApiError as error:
                if not error.missing:
                    raise


def _listed(api: Api, path: str, selector: str) -> list[Object]:
    try:
        return api.list(path, labelSelector=selector).items
    except ApiError as error:
        if error.status == 403:  # who may not even see jobs has made none
            return []
        raise


def _heard(handler: Callable[[int, FrameType | None], Any], numbers: dict[int, Any] | None = None) -> dict[int, Any]:
    """Let signals that end a program be handled so; what was before. Only the main thread hears any."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    known = (
        [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN] if numbers is None else numbers
    )
    return {number: signal.signal(number, handler) for number in known}
