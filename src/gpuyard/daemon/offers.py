"""Offers: idle GPUs that nobody who waits can use are lent to running jobs that adapt, where they bring most.

A job opts in (`--adaptive`) and reports what one more second of one more GPU would bring it. What it is lent it may
use until somebody needs it: then it is told to leave, and loses the GPU when it says that it has, or when its grace is
over. What is lent is in the log (`core.lending`); what was reported lives in memory, and is reported again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuyard.core.events import Adapted, Granted, Reclaimed, Returned
from gpuyard.core.lending import idle, loans, unwelcome, within_quota
from gpuyard.core.model import Phase
from gpuyard.daemon.views import Work

if TYPE_CHECKING:
    from gpuyard.daemon.yard import Yard

FRESH = 60.0
"""Seconds for which a report counts."""
LONGEST_GRACE = 30.0
"""Seconds that a job has at most to leave a GPU that it was lent: somebody waits for it."""
_STEPS, _SHARE, _LEAST = 20, 0.05, 5.0  # steps, part of the budget and seconds that must be left for an offer
_ANSWER = 60.0  # seconds in which a job is to say what it makes of an offer
_DECLINED, _TAKEN_BACK = 60.0, 5.0  # seconds for which it is offered nothing after it declined, or had to leave
_MOST_DECISIONS = 500  # of one attempt that are recorded
_SHOWN = 5  # other jobs that a reason names


@dataclass(frozen=True, slots=True)
class Report:
    """How a job does, by its own account."""

    at: float
    """On the time of day."""
    ticks: float
    """On the monotonic clock."""
    attempt: int
    step_seconds: float | None = None
    gain_per_second: float | None = None
    noise: float | None = None
    accuracy: float | None = None
    parameters: int | None = None

    @property
    def gain(self) -> float:
        """Accuracy per second of one more GPU; 0 where that is not told, or is no more than noise."""
        gain = self.gain_per_second or 0.0
        return gain if gain > (self.noise or 0.0) else 0.0


class Offers:
    """Who is lent what. All of it is done by the yard's own thread; `report_of` may be asked by any."""

    def __init__(self, yard: Yard, work_of: Callable[[str], Work]) -> None:
        self._yard, self._work_of = yard, work_of
        self._reports: dict[str, Report] = {}
        self._leave_by: dict[int, float] = {}
        """When GPUs that were asked back are taken, on the monotonic clock."""
        self._answer_by: dict[int, float] = {}
        """When it must be known what became of GPUs that were lent."""
        self._not_before: dict[str, float] = {}
        """When jobs may be offered something again."""
        self._decisions: dict[tuple[str, int], int] = {}

    def due(self) -> float:
        """When a GPU is to be taken back though nothing happens, on the monotonic clock."""
        return min((*self._leave_by.values(), *self._answer_by.values()), default=math.inf)

    def report_of(self, job: str) -> Report | None:
        """What a job told last."""
        return self._reports.get(job)

    def grace_of(self, job: str) -> float:
        """Seconds that a job has to leave a GPU that it was lent."""
        return min(self._work_of(job).grace, LONGEST_GRACE)

    # -- what jobs tell ---------------------------------------------------------------------------

    def heard(self, job: str, attempt: int, numbers: Mapping[str, Any], decision: Mapping[str, Any]) -> None:
        """A running job tells how it does, and perhaps what it decided."""
        now = self._yard.clock.now()
        if not self._runs(job, attempt):
            return
        before = self._reports.get(job)
        kept = {} if before is None or before.attempt != attempt else _numbers(before)
        self._reports[job] = Report(now, time.monotonic(), attempt, **{**kept, **numbers})
        if decision:
            self._decided(job, attempt, decision, now)

    def _decided(self, job: str, attempt: int, decision: Mapping[str, Any], now: float) -> None:
        key = job, attempt
        self._decisions[key] = self._decisions.get(key, 0) + 1
        if self._decisions[key] <= _MOST_DECISIONS:  # the log is not for steps
            self._yard.record(Adapted(now, job, attempt), **decision)
        offered = [gpu for gpu in loans(self._yard.state, job) if gpu in self._answer_by]
        if decision.get("accepted") is False and offered:
            self._not_before[job] = time.monotonic() + _DECLINED
            self._return(job, offered, f"it declined: {decision.get('reason') or decision['decision']}", now)
        for gpu in offered:
            self._answer_by.pop(gpu, None)

    def give_back(self, job: str, attempt: int, gpus: Iterable[int] | None, reason: str = "") -> None:
        """A job has left GPUs that it was lent; of others nothing is known here, and that is all right."""
        if not self._runs(job, attempt):
            return
        own = loans(self._yard.state, job)
        some = own if gpus is None else [gpu for gpu in own if gpu in set(gpus)]
        if some:
            asked = all(gpu in self._yard.state.reclaimed for gpu in some)
            if not asked:
                self._not_before[job] = time.monotonic() + _DECLINED
            why = f": {reason}" if reason else ""
            self._return(job, some, f"it left as it was told to{why}" if asked else f"it gave it back{why}")

    # -- what happens in a turn -------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Before a plan: take what was asked back long enough ago."""
        state, ticks = self._yard.state, time.monotonic()
        if not (state.lent or self._reports or self._leave_by or self._answer_by):
            return
        self._forget_the_gone()
        for gpu in state.reclaimed - self._leave_by.keys():  # by a former life
            self._leave_by[gpu] = ticks + self.grace_of(state.lent[gpu])
        for gpu in [gpu for gpu, by in self._leave_by.items() if by <= ticks]:
            self._return(state.lent[gpu], [gpu], "its grace was over", now)
        for gpu in [gpu for gpu, by in self._answer_by.items() if by <= ticks]:
            self._answer_by.pop(gpu)
            self._not_before[state.lent[gpu]] = ticks + _DECLINED
            self._ask_back(gpu, "it did not say what it makes of it", now)

    def look(self, now: float) -> None:
        """After a plan: ask back what others need, and lend what nobody can use."""
        state = self._yard.state
        if state.lent:
            for gpu, why in self._wanted(now).items():
                self._ask_back(gpu, why, now)
        if self._reports and self._yard.settings.offers and self._yard.planning.is_current:
            self._offer(now)

    def _wanted(self, now: float) -> dict[int, str]:
        """GPUs on loan that have to be given back, and why."""
        state, found = self._yard.state, dict[int, str]()
        for gpu, job in state.lent.items():
            if not self._work_of(job).adaptive:
                found[gpu] = "it is not adaptive any more"
        for gpu in unwelcome(state, now):
            found[gpu] = "the GPU is drained, reserved for others, or cannot be used"
        for row, gpus in state.promises.items():
            found |= {gpu: f"job {state.ids[row]} needs it" for gpu in gpus if gpu in state.lent}
        return {gpu: why for gpu, why in found.items() if gpu not in state.reclaimed}

    def _ask_back(self, gpu: int, why: str, now: float) -> None:
        state = self._yard.state
        job = state.lent[gpu]
        if gpu in state.reclaimed:
            return
        grace = self.grace_of(job)
        self._answer_by.pop(gpu, None)
        self._leave_by[gpu] = time.monotonic() + grace
        attempt = state.attempt[state.row_of[job]]
        self._yard.record(Reclaimed(now, job, attempt, (gpu,)), why=why, grace=grace)

    def _return(self, job: str, gpus: list[int], why: str, now: float | None = None) -> None:
        state = self._yard.state
        for gpu in gpus:
            self._leave_by.pop(gpu, None)
            self._answer_by.pop(gpu, None)
        self._not_before[job] = max(self._not_before.get(job, 0.0), time.monotonic() + _TAKEN_BACK)
        self._yard.machine.left(gpus)
        attempt = state.attempt[state.row_of[job]]
        at = self._yard.clock.now() if now is None else now
        self._yard.record(Returned(at, job, attempt, tuple(gpus)), why=why)

    # -- offers -----------------------------------------------------------------------------------

    def _offer(self, now: float) -> None:
        """Lend idle GPUs to those who gain most; what a job reported counts for one offer."""
        gains = self._gains(now)
        if not gains:
            return
        yard = self._yard
        if yard.machine.is_stale():
            yard.look_at_gpus(now)
        for job in sorted(gains, key=lambda job: (-gains[job], yard.state.row_of[job])):
            row = yard.state.row_of[job]
            free = idle(yard.state, row, now, max(_LEAST, 2 * self.grace_of(job)))
            if not free or not within_quota(yard.state, row, now):
                continue
            gpu, others = free[-1], {other: gain for other, gain in gains.items() if other != job}
            why = _why(bool(len(yard.state.waiting)), gains[job], others)
            yard.record(Granted(now, job, yard.state.attempt[row], (gpu,)), why=why, gain_per_second=gains[job])
            ticks = time.monotonic()
            self._answer_by[gpu] = ticks + _ANSWER
            self._not_before[job] = math.nextafter(ticks, math.inf)
            gains = {other: gain for other, gain in gains.items() if other != job}

    def _gains(self, now: float) -> dict[str, float]:
        """What one more GPU would bring to each job that may be offered one."""
        ticks = time.monotonic()
        return {
            job: report.gain
            for job, report in self._reports.items()
            if report.gain > 0
            and ticks - report.ticks < FRESH
            and ticks >= self._not_before.get(job, 0.0) < report.ticks
            and not self.refusal(job, report, now)
        }

    def refusal(self, job: str, report: Report, now: float) -> str:
        """Why a job that reports is offered nothing, whatever it gains; empty: it may be."""
        state = self._yard.state
        row = state.row_of.get(job, -1)
        if row < 0 or state.phase[row] is not Phase.RUNNING or state.attempt[row] != report.attempt:
            return "it does not run"
        work = self._work_of(job)
        if not work.adaptive:
            return "it is not adaptive"
        if row in state.recalled:
            return "it was told to end"
        if state.table.compute[row] < 100:
            return "it shares its GPU"
        if len(loans(state, job)) >= self._yard.settings.offer_most:
            return "it has as many GPUs on loan as one job may have"
        budget = work.time_limit or math.inf
        left = float(state.table.started[row]) + budget - now
        least = max(_STEPS * (report.step_seconds or 0.0), _SHARE * budget if budget < math.inf else 0.0, _LEAST)
        return f"only {max(left, 0.0):.0f} s of its budget are left" if left < least else ""

    # -- what is known ----------------------------------------------------------------------------

    def _runs(self, job: str, attempt: int) -> bool:
        state = self._yard.state
        row = state.row_of.get(job, -1)
        return row >= 0 and state.phase[row] is Phase.RUNNING and state.attempt[row] == attempt

    def _forget_the_gone(self) -> None:
        """What is known of jobs that have ended, and of GPUs that are lent no more."""
        state = self._yard.state
        for job in [job for job, report in self._reports.items() if not self._runs(job, report.attempt)]:
            del self._reports[job]
            self._not_before.pop(job, None)
            self._decisions = {key: count for key, count in self._decisions.items() if key[0] != job}
        self._leave_by = {gpu: by for gpu, by in self._leave_by.items() if gpu in state.reclaimed}
        self._answer_by = {gpu: by for gpu, by in self._answer_by.items() if gpu in state.lent}


def _numbers(report: Report) -> dict[str, Any]:
    return {
        "step_seconds": report.step_seconds,
        "gain_per_second": report.gain_per_second,
        "noise": report.noise,
        "accuracy": report.accuracy,
        "parameters": report.parameters,
    }


def points(gain: float) -> str:
    """Accuracy per second as people say it: points (hundredths) per minute."""
    return f"{gain * 6000:.3g}"


def _why(somebody_waits: bool, gain: float, others: Mapping[str, float]) -> str:
    """Why a job is given a GPU."""
    idle = "nobody who waits can use it now" if somebody_waits else "nobody waits for it"
    shown = sorted(others, key=lambda job: -others[job])[:_SHOWN]
    than = f", more than {', '.join(f'job {job} ({points(others[job])})' for job in shown)}" if shown else ""
    return f"{idle}, and it gains {points(gain)} points per minute{than}"
