"""Deleting what was made, by its label, whatever happens: also after Ctrl-C, SIGTERM or an error."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes.api import Api, ApiError, Object, core, group
from gpuyard.kubernetes.experiment.following import JOBS
from gpuyard.kubernetes.experiment.manifests import EXPERIMENT

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
