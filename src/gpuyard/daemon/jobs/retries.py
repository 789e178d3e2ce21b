"""How the jobs that others follow may have ended, in words."""

from __future__ import annotations

from typing import NamedTuple

from gpuyard.core.model import Phase
from gpuyard.core.state import State
from gpuyard.daemon.store.views import JobView
from gpuyard.spec.notation import AFTER
from gpuyard.spec.times import format_when
from gpuyard.spec.work import Work

ENDED = {
    Phase.SUCCEEDED: "succeeded",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "was cancelled",
    Phase.TIMEOUT: "ran out of time",
    Phase.OOM: "ran out of GPU memory",
    Phase.INTERRUPTED: "was interrupted",
}


_LONGEST = 3600.0
"""Seconds between two attempts, at most."""


class Retry(NamedTuple):
    """When a job may run again, and the message about it."""

    begin: float
    message: str


def retry_of(view: JobView, work: Work, code: int | None, at: float, why: str = "") -> Retry | None:
    """The retry of a job that ended by itself with this exit code; None: none. `why` says more than the code."""
    if (code == 0 and not why) or view.failures >= work.retries:
        return None
    begin = at + min(work.retry_delay * 2**view.failures, _LONGEST)
    how = why or ("failed, and its exit code is not known" if code is None else f"failed with exit code {code}")
    return Retry(begin, f"{how}; retry {view.failures + 1} of {work.retries} at {format_when(begin, at)}")


def doom_of(state: State, row: int) -> str:
    """Why a job can never start: which job it follows, and how that one ended."""
    how, _, job = state.doomed[row].partition(":")
    phase = state.phase[state.row_of[job]]
    return f"job {job}, which it was to follow ({AFTER[how]}), {ENDED.get(phase, str(phase))}"
