"""Why and how attempts are told to end: time limits, preemption, cancellation.

Time limits go by the monotonic clock: a correction of the time of day ends no job.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpuyard.core.events import WAIT_AGAIN, Preempted, Promised, Recalled, Unpromised
from gpuyard.core.limits.reservations import until_taken
from gpuyard.core.limits.withdrawal import in_place_of, split_promised, standing_promises
from gpuyard.core.model import Phase
from gpuyard.core.plan import Plan, Start
from gpuyard.daemon.context import Context
from gpuyard.engines.base import Ended, Engine
from gpuyard.files import point


class TimeLimits:
    def __init__(self) -> None:
        self._ends: list[tuple[float, str, int]] = []
        self._end_of: dict[tuple[str, int], float] = {}

    def watch(self, job: str, attempt: int, left: float) -> None:
        """The attempt may run for `left` seconds more, whatever was set before."""
        end = self._end_of[job, attempt] = time.monotonic() + left
        heapq.heappush(self._ends, (end, job, attempt))

    def forget(self, job: str, attempt: int) -> None:
        self._end_of.pop((job, attempt), None)

    def due(self) -> float:
        """When the next attempt runs out of time, on the monotonic clock."""
        return self._ends[0][0] if self._ends else math.inf

    def over(self) -> Iterator[tuple[str, int]]:
        """Attempts that ran out of time, each once; some may have ended long ago."""
        while self.due() <= time.monotonic():
            end, job, attempt = heapq.heappop(self._ends)
            if self._end_of.get((job, attempt)) == end:
                del self._end_of[job, attempt]
                yield job, attempt


PREEMPTED = "preempted"
REQUEUED = "requeued"  # its user wants it to wait again
OOM = "oom"
CROWDED = "crowded"  # the cause of a stop: the job was given memory that others asked for, and they want it now
OOM_GRACE = 2.0  # seconds from SIGTERM to SIGKILL for a job that takes memory that others were promised


_ENDING = ("HUP", "INT", "QUIT")  # these end a job also when it is cancelled or out of time; others are notices


class Stop(NamedTuple):
    job: str
    attempt: int
    grace: float
    signal: str = "TERM"


class Stops:
    def __init__(self, context: Context) -> None:
        self._context, self._work_of = context, context.work_of
        self._pending: list[Stop] = []
        self._limits, self._warnings = TimeLimits(), TimeLimits()

    def __len__(self) -> int:
        return len(self._pending)

    def forget(self) -> None:
        """Keep only what is written."""
        self._pending = []

    def recall(self, job: str, cause: str, now: float, grace: float | None = None, **details: Any) -> None:
        state = self._context.state
        row = state.row_of[job]
        before = state.recalled.get(row, PREEMPTED)
        if self._work_of(job).adaptive:
            details["grace"] = self._grace(job, cause, grace)
        if row not in state.recalled or (before in WAIT_AGAIN and cause not in WAIT_AGAIN):
            self._context.record(Recalled(now, job, state.attempt[row], cause), **details)
        self.again(row, grace)

    def again(self, row: int, grace: float | None = None) -> None:
        state = self._context.state
        job, attempt, cause = state.ids[row], state.attempt[row], state.recalled[row]
        signal = self._work_of(job).signal
        if signal not in _ENDING and (cause != PREEMPTED or grace is not None):
            signal = "TERM"
        self.ask(job, attempt, self._grace(job, cause, grace), signal)

    def _grace(self, job: str, cause: str, given: float | None) -> float:
        """Seconds that a job has to end, by cause."""
        work = self._work_of(job)
        if cause in (OOM, CROWDED):
            return min(work.grace, OOM_GRACE if given is None else given)
        return given if given is not None else (work.notice or work.grace) if cause == PREEMPTED else work.grace

    def ask(self, job: str, attempt: int, grace: float, signal: str = "TERM") -> None:
        """Ask an attempt to end, once everything is written."""
        self._pending.append(Stop(job, attempt, grace, signal))

    def carry_out(self, engine: Engine) -> None:
        pending, self._pending = self._pending, []
        for stop in pending:
            point("yard:before-stop")
            engine.stop(*stop)
            point("yard:stopped")

    # -- time limits ----------------------------------------------------------------------------------

    def watch_limit(self, row: int) -> None:
        """Watch a running job's time limit, and its notice before it."""
        state = self._context.state
        started, job, attempt = float(state.table.started[row]), state.ids[row], state.attempt[row]
        work = self._work_of(job)
        if work.time_limit is not None and started < math.inf:
            left = started + work.time_limit - self._context.clock.now()
            self._limits.watch(job, attempt, left)
            if work.notice:
                self._warnings.watch(job, attempt, left - work.notice)

    def watch_limits(self) -> None:
        self._limits = TimeLimits()
        for row in self._context.state.running.array.tolist():
            self.watch_limit(row)

    def limit_changed(self, job: str) -> None:
        row = self._context.state.row_of[job]
        attempt = self._context.state.attempt[row]
        self._limits.forget(job, attempt)
        self._warnings.forget(job, attempt)
        self.watch_limit(row)

    def due(self) -> float:
        """When a time limit or a notice is due, on the monotonic clock."""
        return min(self._limits.due(), self._warnings.due())

    def warn(self) -> None:
        """Signal jobs that will soon run out of time; they go on until they do."""
        for job, attempt in self._warnings.over():
            row = self._context.state.row_of.get(job)
            if job in self._context.store.open and row not in self._context.state.recalled:
                self.ask(job, attempt, math.inf, self._work_of(job).signal)

    def end_overdue(self, now: float) -> None:
        state = self._context.state
        for job, attempt in self._limits.over():
            row = state.row_of.get(job, -1)
            if row >= 0 and state.attempt[row] == attempt and state.phase[row] is Phase.RUNNING:
                grace = min(self._work_of(job).grace, until_taken(state, row, now))
                self.recall(job, "timeout", now, grace)

    # -- preemption -----------------------------------------------------------------------------------

    def obey(self, plan: Plan, now: float) -> list[Start]:
        """Stop the jobs that a plan stops, and promise their GPUs; returns the starts that need not wait."""
        starts, later = split_promised(self._context.state, plan)
        for job in plan.stops:
            self.recall(job, PREEMPTED, now)
        for start in later:
            self._context.record(Promised(now, start.job, start.gpus))
        return starts

    def promised(self, now: float) -> list[Start]:
        """The promises that can be kept now; those that never can are taken back."""
        state = self._context.state
        due, broken = standing_promises(state)
        for row in broken:
            self._context.record(Unpromised(now, state.ids[row]))
        return [Start(state.ids[row], state.promises[row]) for row in due]

    def take_back(self, now: float) -> None:
        """Take back all promises: another policy is in force."""
        for row in list(self._context.state.promises):
            self._context.record(Unpromised(now, self._context.state.ids[row]))

    def preempted(self, row: int, report: Ended, at: float, measured: dict[str, Any]) -> None:
        """A preempted job has ended: it waits again, whatever its exit code."""
        state = self._context.state
        others = " and ".join(f"job {state.ids[other]}" for other in in_place_of(state, row)) or "others"
        killed = " (killed after its grace)" if report.code == 137 else ""
        message = f"stopped for {others}{killed}, waits again"
        self._context.record(Preempted(at, report.job, report.attempt), message=message, measured=measured)
