"""Loans:

idle GPUs that no waiting job can use are offered to running jobs that adapt; and what a job was granted, by its
events.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.api.grant_types import Decided, GrantChange, Lent, TimeSet
from gpuyard.core.events import Adapted, Granted, Reclaimed, Returned
from gpuyard.core.limits.loans import idle, loans, unwelcome, within_quota
from gpuyard.core.model import Phase
from gpuyard.daemon.context import Context
from gpuyard.daemon.planning import Planning
from gpuyard.daemon.store.records import Row

KINDS = frozenset(
    (
        "Submitted", "Edited", "Placed", "Started", "Preempted", "Requeued", "Recalled", "Granted", "Reclaimed",
        "Returned", "Adapted", "Exited",
    )
)  # fmt: skip
"""The events that tell of it."""
_OVER = ("Preempted", "Requeued", "Exited")
_CAUSES = {
    "cancelled": "it was cancelled", "timeout": "its time is over", "preempted": "others come first",
    "requeued": "it is to wait again",
    "oom": "it uses more GPU memory than it may", "crowded": "others want the memory that it was given",
}  # fmt: skip


@dataclass(slots=True)
class GrantHistory:
    attempt: int = 0
    last: int = 0  # the number of the last event
    gpus: list[int] = field(default_factory=list)  # its own
    lent: list[int] = field(default_factory=list)  # those that it may use beside these
    started: float | None = None
    grace: float = 10.0
    budget: float | None = None
    wanted_end: float | None = None  # the deadline of the request (`--deadline`)
    changes: list[GrantChange] = field(default_factory=list)  # what its latest attempt has to hear
    grants: list[Lent] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    times: list[TimeSet] = field(default_factory=list)

    @property
    def deadline(self) -> float | None:
        """When it must be done; None: never, or it has not begun."""
        return deadline_of(self.started, self.budget, self.wanted_end)

    @property
    def all_gpus(self) -> list[int]:
        return [*self.gpus, *self.lent]


def deadline_of(started: float | None, budget: float | None, wanted_end: float | None) -> float | None:
    """When a job must be done: when its time is over, or at its deadline if that is earlier."""
    end = math.inf if started is None or budget is None else started + budget
    end = min(end, math.inf if wanted_end is None else wanted_end)
    return end if end < math.inf else None


def grants_of(events: Iterable[tuple[int, Row]], visible: Sequence[str]) -> GrantHistory:
    """The history of a job by all its events in order; `visible` has CUDA's name of each GPU."""
    course = GrantHistory()
    for number, row in events:
        data = json.loads(row.data) if row.data else {}
        _fold(course, number, row, data, data.get("details", {}), visible)
        course.last = number
    return course


def _fold(
    course: GrantHistory, number: int, row: Row, data: dict[str, Any], details: dict[str, Any], visible: Sequence[str]
) -> None:
    said = details.get("why", "")
    if row.kind in ("Submitted", "Edited"):
        kind = _note_request(course, row.at, data["request"], details.get("work", {}))
        if kind:
            _tell(course, number, row.at, kind, details.get("message", "") or _by(details), visible)
    elif row.kind == "Placed":
        course.attempt, course.gpus, course.lent, course.started = row.attempt or 0, list(data["gpus"]), [], None
        course.changes = []
    elif row.kind == "Started":
        course.started = row.at
    elif row.kind in _OVER:
        for lent in course.grants:
            if lent["until"] is None:
                lent["until"], lent["ended"] = row.at, lent.get("ended") or "the job ended"
        course.lent = []
    elif row.kind == "Granted":
        course.lent += data["gpus"]
        course.grants += [{"gpu": gpu, "since": row.at, "until": None, "why": said} for gpu in data["gpus"]]
        _tell(course, number, row.at, "up", said, visible)
    elif row.kind == "Reclaimed":
        course.lent = [gpu for gpu in course.lent if gpu not in data["gpus"]]
        for lent in _open(course, data["gpus"]):
            lent["told"], lent["ended"] = row.at, said
        _tell(course, number, row.at, "down", said, visible, details.get("grace"))
    elif row.kind == "Returned":
        course.lent = [gpu for gpu in course.lent if gpu not in data["gpus"]]
        for lent in _open(course, data["gpus"]):
            lent["until"], lent["ended"] = row.at, "; ".join(filter(None, (lent.get("ended"), said)))
    elif row.kind == "Recalled":
        _note_recall(course, number, row, data, details, visible)
    elif row.kind == "Adapted":
        course.decisions.append(_decided(row.at, details))


def _note_request(course: GrantHistory, at: float, request: dict[str, Any], work: dict[str, Any]) -> str:
    """Note what a job asks for now; `extend` or `shrink` if a running job gets another time."""
    former, before = course.deadline, course.budget
    course.grace, course.budget = work.get("grace", 10.0), work.get("time_limit")
    course.wanted_end = request.get("deadline")
    now = course.deadline
    if course.started is None or now == former:
        return ""
    course.times.append({"at": at, "before": before, "after": course.budget})
    return "extend" if (now or math.inf) > (former or math.inf) else "shrink"


def _note_recall(
    course: GrantHistory, number: int, row: Row, data: dict[str, Any], details: dict[str, Any], visible: Sequence[str]
) -> None:
    grace = details.get("grace", course.grace)
    why = details.get("message") or _CAUSES.get(data["cause"], data["cause"])
    _tell(course, number, row.at, "preempt", why, visible, grace)
    course.changes[-1]["deadline"] = row.at + grace


def _tell(
    course: GrantHistory,
    number: int,
    at: float,
    kind: str,
    why: str,
    visible: Sequence[str],
    grace: float | None = None,
) -> None:
    course.changes.append(
        {
            "number": number, "kind": kind, "at": at, "budget": course.budget, "deadline": course.deadline,
            "gpus": [visible[gpu] for gpu in course.all_gpus if gpu < len(visible)], "indices": course.all_gpus,
            "grace": course.grace if grace is None else grace, "why": why,
        }
    )  # fmt: skip


def _open(course: GrantHistory, gpus: Sequence[int]) -> list[Lent]:
    return [lent for lent in course.grants if lent["gpu"] in gpus and lent["until"] is None]


def _by(details: dict[str, Any]) -> str:
    return f"changed by {details['by']}" if details.get("by") else "its time was changed"


def _decided(at: float, details: dict[str, Any]) -> Decided:
    return {
        "at": at, "decision": details.get("decision", ""), "reason": details.get("reason", ""),
        "accepted": details.get("accepted"), "parameters_before": details.get("parameters_before"),
        "parameters": details.get("parameters"), "cost_ratio": details.get("cost_ratio"),
        "predicted_gain": details.get("predicted_gain"),
    }  # fmt: skip


FRESH = 60.0  # seconds for which a report counts
LONGEST_GRACE = 30.0  # seconds that a job has at most to leave a GPU on loan: others wait for it
_STEPS, _SHARE, _LEAST = 20, 0.05, 5.0  # steps, part of the budget and seconds that must be left for an offer
_ANSWER = 60.0  # seconds in which a job is to say what it makes of an offer
_DECLINED, _TAKEN_BACK = 60.0, 5.0  # seconds for which it is offered nothing after it declined, or had to leave
_MOST_DECISIONS = 500  # of one attempt that are recorded
_SHOWN = 5  # other jobs that a reason names


@dataclass(frozen=True, slots=True)
class Report:
    at: float  # on the time of day
    ticks: float  # on the monotonic clock
    attempt: int
    step_seconds: float | None = None
    gain_per_second: float | None = None
    noise: float | None = None
    accuracy: float | None = None
    parameters: int | None = None

    @property
    def gain(self) -> float:
        """Accuracy per second by one more GPU; 0 if unknown, or no more than noise."""
        gain = self.gain_per_second or 0.0
        return gain if gain > (self.noise or 0.0) else 0.0


class Offers:
    """Lends idle GPUs. All of it runs in the loop's thread; any thread may ask `report_of`."""

    def __init__(self, context: Context, planning: Planning, look_at_gpus: Callable[[float], None]) -> None:
        self._context, self._planning, self._look_at_gpus = context, planning, look_at_gpus
        self._reports: dict[str, Report] = {}
        self._leave_by: dict[int, float] = {}  # when GPUs that were asked back are taken, on the monotonic clock
        self._answer_by: dict[int, float] = {}  # when it must be known what became of GPUs that were lent
        self._not_before: dict[str, float] = {}  # when jobs may be offered something again
        self._decisions: dict[tuple[str, int], int] = {}

    def due(self) -> float:
        """When the next GPU is due back without any event, on the monotonic clock."""
        return min((*self._leave_by.values(), *self._answer_by.values()), default=math.inf)

    def report_of(self, job: str) -> Report | None:
        return self._reports.get(job)

    def grace_of(self, job: str) -> float:
        """Seconds that a job has to leave a GPU on loan."""
        return min(self._context.work_of(job).grace, LONGEST_GRACE)

    # -- what jobs tell ---------------------------------------------------------------------------

    def heard(self, job: str, attempt: int, numbers: Mapping[str, Any], decision: Mapping[str, Any]) -> None:
        now = self._context.clock.now()
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
            self._context.record(Adapted(now, job, attempt), **decision)
        offered = [gpu for gpu in loans(self._context.state, job) if gpu in self._answer_by]
        if decision.get("accepted") is False and offered:
            self._not_before[job] = time.monotonic() + _DECLINED
            self._return(job, offered, f"it declined: {decision.get('reason') or decision['decision']}", now)
        for gpu in offered:
            self._answer_by.pop(gpu, None)

    def give_back(self, job: str, attempt: int, gpus: Iterable[int] | None, reason: str = "") -> None:
        """A job has left GPUs on loan; others are ignored."""
        if not self._runs(job, attempt):
            return
        own = loans(self._context.state, job)
        some = own if gpus is None else [gpu for gpu in own if gpu in set(gpus)]
        if some:
            asked = all(gpu in self._context.state.reclaimed for gpu in some)
            if not asked:
                self._not_before[job] = time.monotonic() + _DECLINED
            why = f": {reason}" if reason else ""
            self._return(job, some, f"it left as it was told to{why}" if asked else f"it gave it back{why}")

    # -- what happens in a turn -------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Before a plan: take back GPUs whose grace is over."""
        state, ticks = self._context.state, time.monotonic()
        if not (state.lent or self._reports or self._leave_by or self._answer_by):
            return
        self._forget_the_gone()
        for gpu in state.reclaimed - self._leave_by.keys():  # by an earlier daemon
            self._leave_by[gpu] = ticks + self.grace_of(state.lent[gpu])
        for gpu in [gpu for gpu, by in self._leave_by.items() if by <= ticks]:
            self._return(state.lent[gpu], [gpu], "its grace was over", now)
        for gpu in [gpu for gpu, by in self._answer_by.items() if by <= ticks]:
            self._answer_by.pop(gpu)
            self._not_before[state.lent[gpu]] = ticks + _DECLINED
            self._ask_back(gpu, "it did not say what it makes of it", now)

    def look(self, now: float) -> None:
        """After a plan: reclaim what others need, and lend what no job can use."""
        state = self._context.state
        if state.lent:
            for gpu, why in self._wanted(now).items():
                self._ask_back(gpu, why, now)
        if self._reports and self._context.settings.offers and self._planning.is_current:
            self._offer(now)

    def _wanted(self, now: float) -> dict[int, str]:
        """GPUs on loan that must be given back, and why."""
        state, found = self._context.state, dict[int, str]()
        for gpu, job in state.lent.items():
            if not self._context.work_of(job).adaptive:
                found[gpu] = "it is not adaptive any more"
        for gpu in unwelcome(state, now):
            found[gpu] = "the GPU is drained, reserved for others, or cannot be used"
        for row, gpus in state.promises.items():
            found |= {gpu: f"job {state.ids[row]} needs it" for gpu in gpus if gpu in state.lent}
        return {gpu: why for gpu, why in found.items() if gpu not in state.reclaimed}

    def _ask_back(self, gpu: int, why: str, now: float) -> None:
        state = self._context.state
        job = state.lent[gpu]
        if gpu in state.reclaimed:
            return
        grace = self.grace_of(job)
        self._answer_by.pop(gpu, None)
        self._leave_by[gpu] = time.monotonic() + grace
        attempt = state.attempt[state.row_of[job]]
        self._context.record(Reclaimed(now, job, attempt, (gpu,)), why=why, grace=grace)

    def _return(self, job: str, gpus: list[int], why: str, now: float | None = None) -> None:
        state = self._context.state
        for gpu in gpus:
            self._leave_by.pop(gpu, None)
            self._answer_by.pop(gpu, None)
        self._not_before[job] = max(self._not_before.get(job, 0.0), time.monotonic() + _TAKEN_BACK)
        self._context.machine.left(gpus)
        attempt = state.attempt[state.row_of[job]]
        at = self._context.clock.now() if now is None else now
        self._context.record(Returned(at, job, attempt, tuple(gpus)), why=why)

    # -- offers -----------------------------------------------------------------------------------

    def _offer(self, now: float) -> None:
        """Lend idle GPUs to the jobs that gain most; a report counts for one offer."""
        gains = self._gains(now)
        if not gains:
            return
        context = self._context
        if context.machine.is_stale():
            self._look_at_gpus(now)
        for job in sorted(gains, key=lambda job: (-gains[job], context.state.row_of[job])):
            row = context.state.row_of[job]
            free = idle(context.state, row, now, max(_LEAST, 2 * self.grace_of(job)))
            if not free or not within_quota(context.state, row, now):
                continue
            gpu, others = free[-1], {other: gain for other, gain in gains.items() if other != job}
            why = _why(bool(len(context.state.waiting)), gains[job], others)
            context.record(Granted(now, job, context.state.attempt[row], (gpu,)), why=why, gain_per_second=gains[job])
            ticks = time.monotonic()
            self._answer_by[gpu] = ticks + _ANSWER
            self._not_before[job] = math.nextafter(ticks, math.inf)
            gains = {other: gain for other, gain in gains.items() if other != job}

    def _gains(self, now: float) -> dict[str, float]:
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
        """Why a job that reports is offered nothing; empty: it may be."""
        state = self._context.state
        row = state.row_of.get(job, -1)
        if row < 0 or state.phase[row] is not Phase.RUNNING or state.attempt[row] != report.attempt:
            return "it does not run"
        work = self._context.work_of(job)
        if not work.adaptive:
            return "it is not adaptive"
        if row in state.recalled:
            return "it was told to end"
        if state.table.compute[row] < 100:
            return "it shares its GPU"
        if len(loans(state, job)) >= self._context.settings.offer_most:
            return "it has as many GPUs on loan as one job may have"
        budget = work.time_limit or math.inf
        left = float(state.table.started[row]) + budget - now
        least = max(_STEPS * (report.step_seconds or 0.0), _SHARE * budget if budget < math.inf else 0.0, _LEAST)
        return f"only {max(left, 0.0):.0f} s of its budget are left" if left < least else ""

    # -- what is known ----------------------------------------------------------------------------

    def _runs(self, job: str, attempt: int) -> bool:
        state = self._context.state
        row = state.row_of.get(job, -1)
        return row >= 0 and state.phase[row] is Phase.RUNNING and state.attempt[row] == attempt

    def _forget_the_gone(self) -> None:
        state = self._context.state
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
    return f"{gain * 6000:.3g}"


def _why(somebody_waits: bool, gain: float, others: Mapping[str, float]) -> str:
    idle = "nobody who waits can use it now" if somebody_waits else "nobody waits for it"
    shown = sorted(others, key=lambda job: -others[job])[:_SHOWN]
    than = f", more than {', '.join(f'job {job} ({points(others[job])})' for job in shown)}" if shown else ""
    return f"{idle}, and it gains {points(gain)} points per minute{than}"
