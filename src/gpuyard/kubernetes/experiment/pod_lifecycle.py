"""Creates pods and jobs with retries, warns of unscheduled ones, and deletes all by label, also after an interrupt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuyard.errors import GpuyardError, UserError
from gpuyard.experiments.design import Arrival
from gpuyard.experiments.private_daemon import interruptible
from gpuyard.kubernetes.api_client import Api, ApiError, Object, Unreachable, core, group
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT
from gpuyard.kubernetes.experiment.pod_follower import JOBS, Follower, PodHistory
from gpuyard.units import format_duration

_AGAIN, _RETRY_FOR = 1.0, 300.0
"""Seconds between two tries to submit, and of all tries, while the API server does not answer."""
_STALL = 120.0  # seconds without any news after which a warning says which pods wait, and why


def submit(api: Api, namespace: str, body: Object, warn: Callable[[str], None]) -> Object:
    """Create a pod or a Job; tried again while the server does not answer."""
    path = group(JOBS, "jobs", namespace) if body["kind"] == "Job" else core("pods", namespace)
    name = body["metadata"].get("name") or body["metadata"].get("generateName", "")
    end, warned = time.monotonic() + _RETRY_FOR, False
    while True:
        try:
            return api.post(path, body)
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.conflict and warned:
                return api.get(f"{path}/{name}")  # the server had created it before it went away
            if isinstance(error, ApiError) and not error.later:
                raise UserError(f"{body['kind'].lower()} {name} was refused: {error}") from error
            if time.monotonic() > end:
                raise
            if not warned:
                warn(f"{error}; {name} is submitted again until it is taken")
            warned = True
            time.sleep(_AGAIN)


class StallWarnings:
    def __init__(self, api: Api, namespace: str, warn: Callable[[str], None]) -> None:
        self._api, self._namespace, self._warn = api, namespace, warn
        self._seen, self._since = (0, 0, 0), time.monotonic()

    def look(self, follower: Follower) -> None:
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
    """Why a pod has no node, as its scheduler last said in a condition or an event; empty: not known."""
    if pod.waits:
        return pod.waits
    try:
        events = api.list(core("events", namespace), fieldSelector=f"involvedObject.name={pod.name}").items
    except GpuyardError:
        return ""  # reading events may be forbidden
    failed = [event for event in events if event.get("reason") == "FailedScheduling"]
    failed.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return str(failed[-1].get("message", "")) if failed else ""


class PodSubmissions:
    def __init__(
        self,
        api: Api,
        namespace: str,
        follower: Follower,
        object_of: Callable[[Arrival], Object],
        warn: Callable[[str], None],
    ) -> None:
        self._api, self._namespace, self._follower = api, namespace, follower
        self._object_of, self._warn = object_of, warn
        self._stalls = StallWarnings(api, namespace, warn)
        self._by_job: dict[str, bool] = {}
        self._ended = 0
        self.arrived: dict[str, float] = {}  # when each job was created, in seconds since the epoch

    def submit(self, arrival: Arrival) -> None:
        body = self._object_of(arrival)
        submit(self._api, self._namespace, body, self._warn)
        self._by_job[arrival.name] = body["kind"] == "Job"
        self.arrived[arrival.name] = time.time()

    def ended(self) -> int:
        with self._follower.news:
            self._ended = self._count()
        return self._ended

    def wait(self, timeout: float) -> None:
        with self._follower.news:
            if self._count() == self._ended:  # else one ended since `ended` looked, and was notified already
                self._follower.news.wait(timeout)
        self._stalls.look(self._follower)

    def _count(self) -> int:
        return sum(self._follower.is_over(name, by_job=by_job) for name, by_job in self._by_job.items())


PATIENCE = 120.0
"""Seconds for pods to be gone after they were deleted: they have a grace period, and machines may be slow."""
_LOOK = 0.2


@contextmanager
def cleared(
    api: Api, namespace: str, run: str, warn: Callable[[str], None], done: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Delete everything with the label of a run at the end, and call `done` when it is gone.

    Signals that end a program are heard like Ctrl-C; one more while pods are ending stops the wait for them.
    """
    impatient = threading.Event()
    with interruptible() as handle:
        try:
            yield
        finally:
            handle(lambda number, frame: impatient.set())
            if clear(api, namespace, run, warn, impatient):
                done()


def clear(
    api: Api, namespace: str, run: str, warn: Callable[[str], None], impatient: threading.Event | None = None
) -> bool:
    """Delete jobs and pods with a label, and wait until they are gone; False if `impatient` is set before that."""
    waits, selector = impatient or threading.Event(), f"{EXPERIMENT}={run}"
    end = time.monotonic() + PATIENCE
    while True:
        try:
            _delete(api, namespace, selector)
            left = len(allowed(api, core("pods", namespace), labelSelector=selector) or ())
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
    """Delete them, jobs first, which would create other pods.

    One by one: servers up to 1.20 that delete many at once give all the grace period of the first, which is none for a
    pod without a node, and containers of the others would run on unseen.
    """
    for path in (group(JOBS, "jobs", namespace), core("pods", namespace)):
        for found in allowed(api, path, labelSelector=selector) or ():  # without that right we have created none
            if "deletionTimestamp" in found["metadata"]:
                continue
            try:
                api.delete(f"{path}/{found['metadata']['name']}", propagationPolicy="Background")
            except ApiError as error:
                if not error.missing:
                    raise


def allowed(api: Api, path: str, **params: str) -> list[Object] | None:
    """The objects; None if listing them is forbidden."""
    try:
        return api.list(path, **params).items
    except ApiError as error:
        if error.status != 403:
            raise
        return None
