"""What becomes of jobs: what the engine saw of them becomes events, and what follows from those."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuyard.core.events import Cancelled, Exited, Placed, Requeued, Started
from gpuyard.core.model import Phase
from gpuyard.daemon.clock import Times
from gpuyard.daemon.retries import Retry, doom_of, retry_of
from gpuyard.daemon.stops import PREEMPTED, Stops
from gpuyard.daemon.views import Work
from gpuyard.engines.base import Abandoned, Ended, NeverBegan, Report, Running

if TYPE_CHECKING:
    from gpuyard.daemon.yard import Yard


class Outcomes:
    """How attempts begin and end, and whether there is to be another one."""

    def __init__(self, yard: Yard, stops: Stops, times: Times, work_of: Callable[[str], Work]) -> None:
        self._yard, self._stops, self._times, self._work_of = yard, stops, times, work_of

    def note(self, report: Report, now: float) -> None:
        """What the engine saw becomes events."""
        state = self._yard.state
        row = state.row_of.get(report.job, -1)
        if isinstance(report, Abandoned):
            if row >= 0 and state.phase[row] in (Phase.QUEUED, Phase.HELD):
                self._yard.record(Cancelled(now, report.job), message=report.message)
            return
        if row < 0 or state.attempt[row] != report.attempt:
            return  # an attempt that is over
        phase = state.phase[row]
        if phase not in (Phase.PLACED, Phase.RUNNING):
            return
        if isinstance(report, NeverBegan):
            self._never_began(row, report, now)
            return
        if phase is Phase.PLACED:
            seen = report.at if isinstance(report, Running) else report.began or report.at
            handle = {"handle": report.handle} if isinstance(report, Running) else {}
            self._yard.record(Started(self._times.began(report.job, seen, now), report.job, report.attempt), **handle)
            self._stops.watch_limit(row)
        if isinstance(report, Ended):
            self._ended(row, report, now)

    def _never_began(self, row: int, report: NeverBegan, now: float) -> None:
        """It waits again; unless it was told to end, which it was before it began."""
        cause = self._yard.state.recalled.get(row)
        if cause in (None, PREEMPTED):
            self._yard.record(Requeued(now, report.job, report.attempt), message=report.message)
        else:
            self._yard.record(Exited(now, report.job, report.attempt, None, cause), message="ended before it began")

    def _ended(self, row: int, report: Ended, now: float) -> None:
        state = self._yard.state
        at = self._times.ended(report.job, report.at, now)
        self._yard.machine.left(state.spot[row].tolist())
        cause = state.recalled.get(row, "interrupted" if report.interrupted else "")
        if cause == PREEMPTED:
            if report.asked or report.interrupted:
                self._stops.preempted(row, report, at)
                return
            cause = ""  # it had come to its end before anybody asked it to
        if cause == "interrupted" and self._work_of(report.job).requeue:
            self._yard.record(Requeued(at, report.job, report.attempt), message="interrupted, and waits again")
            return
        retry = None if cause else self._retry(report, at)
        if retry is not None:
            begin, message = retry
            self._yard.record(Requeued(at, report.job, report.attempt, begin), failed=True, message=message)
            return
        details = {"message": report.message} if report.message else {}
        self._yard.record(Exited(at, report.job, report.attempt, report.code, cause), **details)

    def _retry(self, report: Ended, at: float) -> Retry | None:
        return retry_of(self._yard.store.open[report.job], self._work_of(report.job), report.code, at)

    def refused(self, placed: Placed, message: str, now: float) -> None:
        """A job that can never be launched: it is over."""
        self._yard.record(Exited(now, placed.job, placed.attempt, None), message=message)

    def postponed(self, placed: Placed, message: str, now: float) -> None:
        """A job that cannot be launched now: it waits again."""
        self._yard.record(Requeued(now, placed.job, placed.attempt), message=message)

    def end_lease(self, job: str, now: float, message: str, **details: Any) -> None:
        """Its holder does not need a lease any more, or whoever waits for it does not."""
        state = self._yard.state
        row = state.row_of[job]
        attempt = state.attempt[row]
        if state.phase[row] in (Phase.PLACED, Phase.RUNNING):
            self.note(Ended(job, attempt, now, 0, message=message), now)
        else:
            self._yard.record(Cancelled(now, job), message=message, **details)
        self._stops.ask(job, attempt, 0.0)  # so that its process is not watched any more

    def give_up_doomed(self, now: float) -> None:
        """Cancel who was to follow jobs that ended otherwise, and who was to follow those, and so on."""
        state = self._yard.state
        while state.doomed:
            for row in list(state.doomed):
                self._yard.record(Cancelled(now, state.ids[row]), message=doom_of(state, row))
