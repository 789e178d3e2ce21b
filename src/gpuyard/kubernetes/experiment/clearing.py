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
    asked, complaint = False, ""
    while True:
        try:
            if not asked:
                _delete(api, namespace, selector)
                asked = True
            left = _left(api, namespace, selector)
            if not left:
                return True
            complaint = f"{len(left)} of its pods are still ending"
        except GpuyardError as error:
            complaint = str(error)
        if waits.is_set() or time.monotonic() > end:
            do = f"kubectl delete jobs,pods -n {namespace} -l {selector}"
            warn(f"{complaint}; {do} deletes what is left")
            return False
        waits.wait(_LOOK)


def _delete(api: Api, namespace: str, selector: str) -> None:
    """Tell the server to delete them; where nobody may delete many at once, one by one."""
    for path in (group(JOBS, "jobs", namespace), core("pods", namespace)):
        try:
            api.delete(path, labelSelector=selector, propagationPolicy="Background")
        except ApiError as error:
            if error.status != 403:
                raise
            for found in _listed(api, path, selector):
                try:
                    api.delete(f"{path}/{found['metadata']['name']}", propagationPolicy="Background")
                except ApiError as refusal:
                    if not refusal.missing:
                        raise


def _left(api: Api, namespace: str, selector: str) -> list[Object]:
    return _listed(api, core("pods", namespace), selector)


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
