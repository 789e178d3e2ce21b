"""Routes of adaptive jobs: their grants, their reports and the outcome."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import Field

from gpuyard.api import grant_types
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.jobs.loans import FRESH, KINDS, GrantHistory, Report, grants_of, points
from gpuyard.daemon.store.reader import EventFilter
from gpuyard.daemon.store.views import JobView
from gpuyard.gpus.base import Visible
from gpuyard.server import tasks
from gpuyard.server.context import Context
from gpuyard.server.request_fields import MOST_SECONDS, WHOLE, Index, Word
from gpuyard.server.requests import Body
from gpuyard.server.responses import reply
from gpuyard.server.routing import NO_JOB, NOT_CHANGED, Route, ok, owner
from gpuyard.server.stream.streams import Wait

_MOST_EVENTS = 100_000
_MOST = 2**63 - 1
_STEP = Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False, description="Seconds that one step takes now.")
_GAIN = Field(
    ge=-1e6, le=1e6, allow_inf_nan=False, description="Accuracy (1 is all) per second of one more GPU; 0: none."
)
_NOISE = Field(
    ge=0, le=1e6, allow_inf_nan=False, description="A gain per second that is not above this counts as none."
)
_SHARE = Field(ge=-1e6, le=1e6, allow_inf_nan=False)
_COUNT = Field(ge=0, le=10**15)
_NUMBERS = ("step_seconds", "gain_per_second", "noise", "accuracy", "parameters")
_DECISION = ("decision", "reason", "accepted", "parameters_before", "parameters", "cost_ratio", "predicted_gain")

ADAPTIVE_REPORTS: dict[str, Any] = {
    "how it does": {"step_seconds": 0.12, "gain_per_second": 0.00013, "noise": 0.00002, "parameters": 10602},
    "what it decided": {
        "decision": "grew at features.1", "reason": "expects +1.2 points; steps take 1.4 times as long",
        "accepted": True, "parameters_before": 10602, "parameters": 19914, "cost_ratio": 1.4, "predicted_gain": 0.012,
    },
}  # fmt: skip
GIVEN_BACK: dict[str, Any] = {"all of it": {}, "one of them": {"gpus": [1], "reason": "told to"}}
GRANT: dict[str, Any] = {
    "job": "3", "attempt": 1, "state": "running", "last": 57, "budget": 3600.0, "deadline": 1794825000.0, "grace": 10.0,
    "gpus": ["0", "1"], "indices": [0, 1], "granted": [1],
    "events": [
        {
            "number": 57, "kind": "up", "at": 1794821400.0, "budget": 3600.0, "deadline": 1794825000.0,
            "gpus": ["0", "1"], "indices": [0, 1], "grace": 10.0,
            "why": "nobody waits for it, and it gains 0.8 points per minute, more than job 5 (0.2)",
        }
    ],
}  # fmt: skip
ADAPTATION: dict[str, Any] = {
    "job": "3", "adaptive": True, "budget": 3600.0, "deadline": 1794825000.0, "grace": 10.0, "granted": [1],
    "grants": [
        {
            "gpu": 1, "since": 1794821400.0, "until": None,
            "why": "nobody waits for it, and it gains 0.8 points per minute, more than job 5 (0.2)",
        }
    ],
    "decisions": [
        {
            "at": 1794821401.5, "decision": "grew at features.1", "accepted": True, "parameters_before": 10602,
            "reason": "expects +1.2 points; steps take 1.4 times as long", "parameters": 19914, "cost_ratio": 1.4,
            "predicted_gain": 0.012,
        }
    ],
    "times": [{"at": 1794821500.0, "before": 1800.0, "after": 3600.0}],
    "report": {
        "at": 1794821520.0, "step_seconds": 0.17, "gain_per_second": 0.00005, "noise": None, "accuracy": 0.71,
        "parameters": 19914,
    },
    "standing": "has GPU 1 on loan, until somebody needs it",
}  # fmt: skip


class JobReport(Body):
    """What a job that adapts tells of itself; what is left out stays as it was told before."""

    step_seconds: Annotated[float | None, _STEP] = None
    gain_per_second: Annotated[float | None, _GAIN] = None
    noise: Annotated[float | None, _NOISE] = None
    accuracy: Annotated[float | None, _SHARE] = None
    parameters: Annotated[int | None, _COUNT, WHOLE] = None
    decision: Annotated[
        Word | None, Field(max_length=500, description="What it has decided: recorded, and shown to people.")
    ] = None
    reason: Annotated[Word | None, Field(max_length=2000, description="Why.")] = None
    accepted: Annotated[
        bool | None, Field(strict=True, description="Whether it uses what it was offered; false gives that back.")
    ] = None
    parameters_before: Annotated[int | None, _COUNT, WHOLE] = None
    cost_ratio: Annotated[
        float | None,
        Field(
            ge=0, le=1e6, allow_inf_nan=False, description="How many times as long steps take after what was decided."
        ),
    ] = None
    predicted_gain: Annotated[float | None, _SHARE] = None

    def numbers(self) -> dict[str, Any]:
        return {name: value for name in _NUMBERS if (value := getattr(self, name)) is not None}

    def decided(self) -> dict[str, Any]:
        if not self.decision:
            return {}
        return {name: value for name in _DECISION if (value := getattr(self, name)) is not None}


class GivenBack(Body):
    """GPUs that a job has left."""

    gpus: Annotated[list[Index] | None, Field(description="By index; all that it was lent, if not said.")] = None
    reason: Annotated[Word | None, Field(max_length=500, description="Why.")] = None


class GrantRoutes:
    def __init__(self, context: Context) -> None:
        self._context = context

    @Route(
        "GET /jobs/{job}/grant", "getGrant", "What a running job has, and what changes", "Jobs",
        ok("What it has.", grant_types.Grant, GRANT), (*NO_JOB, 409), may=owner("see what job {job} is granted"),
    )  # fmt: skip
    async def grant(
        self,
        job: str,
        since: Annotated[int, Query(ge=0, le=_MOST, description="The number of the last change that is known.")] = 0,
        wait: Wait = 0.0,
    ) -> Response:
        """What a running job has, and what changed; with `wait`, once something has, or the seconds are over."""
        end = time.monotonic() + wait
        while True:
            view = tasks.running(self._context.reader, job)
            course = self._course(view)  # read here, and not in a thread: nothing may happen before it is waited for
            news = [change for change in course.changes if change["number"] > since]
            left = end - time.monotonic()
            if news or left <= 0 or self._context.watch.over:
                return reply(self._grant(view, course, news))
            await self._context.watch.wait(left, view.id)

    @Route(
        "POST /jobs/{job}/report", "reportAdaptation", "Tell how a job that adapts does", "Jobs",
        ok("What it has.", grant_types.Grant, {**GRANT, "events": []}), NOT_CHANGED, ADAPTIVE_REPORTS,
        may=owner("tell how job {job} does"),
    )  # fmt: skip
    async def report(self, job: str, given: JobReport) -> Response:
        """Take down how a job that adapts does, and record what it decided."""
        view = tasks.running(self._context.reader, job)
        if not view.work.get("adaptive"):
            raise NotNow(f"job {view.id} did not opt in; gpuyard edit {view.id} --adaptive lets it")
        offers, numbers, decision = self._context.daemon.offers, given.numbers(), given.decided()
        ask = self._context.ask if decision else self._context.look
        await ask(lambda: offers.heard(view.id, view.attempt, numbers, decision))
        return await self._standing(job)

    @Route(
        "POST /jobs/{job}/grant/return", "returnGrant", "Give back GPUs that a job was lent", "Jobs",
        ok("What it has left.", grant_types.Grant, {**GRANT, "granted": [], "events": []}), NOT_CHANGED, GIVEN_BACK,
        may=owner("give back what job {job} was lent"),
    )  # fmt: skip
    async def give_back(self, job: str, given: GivenBack) -> Response:
        """Take GPUs back that a job was lent and has left; those that it does not have any more are no matter."""
        view, offers = tasks.running(self._context.reader, job), self._context.daemon.offers
        await self._context.ask(lambda: offers.give_back(view.id, view.attempt, given.gpus, given.reason or ""))
        return await self._standing(job)

    @Route(
        "GET /jobs/{job}/adaptation", "getAdaptation", "What a job was granted, and what it made of it", "Jobs",
        ok("What.", grant_types.Adaptation, ADAPTATION), NO_JOB,
    )  # fmt: skip
    async def adaptation(self, job: str) -> Response:
        """What a job was granted so far, what it decided, and why."""
        view = tasks.alone(self._context.reader, job)
        course = self._course(view)
        report = None if view.over else self._context.daemon.offers.report_of(view.id)
        granted = self._granted(view)
        return reply(
            {
                "job": view.id, "adaptive": view.work.get("adaptive", False), "budget": view.work.get("time_limit"),
                "deadline": course.deadline, "grace": view.work.get("grace", 10.0), "granted": granted,
                "grants": course.grants, "decisions": course.decisions, "times": course.times,
                "report": _reported(report), "standing": await self._how(view, report, granted),
            }
        )  # fmt: skip

    async def _standing(self, job: str) -> Response:
        view = tasks.alone(self._context.reader, job)
        return reply(self._grant(view, self._course(view), []))

    def _grant(self, view: JobView, course: GrantHistory, news: list[Any]) -> dict[str, Any]:
        return {
            "job": view.id, "attempt": view.attempt, "state": view.state, "last": course.last,
            "budget": course.budget, "deadline": course.deadline, "grace": course.grace,
            "gpus": [self._visible[gpu] for gpu in course.all_gpus if gpu < len(self._visible)],
            "indices": course.all_gpus, "granted": course.lent, "events": news,
        }  # fmt: skip

    async def _how(self, view: JobView, report: Report | None, granted: list[int]) -> str:
        """Whether it is offered GPUs, and why not, in a sentence."""
        if not view.work.get("adaptive") or view.state != "running":
            return ""
        daemon = self._context.daemon
        if granted:
            return f"has GPU {', '.join(map(str, granted))} on loan, until somebody needs it"
        if not daemon.settings.offers:
            return "is offered nothing: offers are switched off here (the setting offers)"
        if report is None or time.time() - report.at > FRESH:
            return f"is offered nothing: it has not told within {FRESH:.0f} s what it would gain"
        if report.gain <= 0:
            return "is offered nothing: it expects no gain beyond noise"
        why = await self._context.look(lambda: daemon.offers.refusal(view.id, report, daemon.clock.now()))
        if why:
            return f"is offered nothing: {why}"
        return f"would gain {points(report.gain)} points per minute of one more GPU; none is idle that it may have now"

    def _course(self, view: JobView) -> GrantHistory:
        found = self._context.reader.happened(0, _MOST, EventFilter(view.id, KINDS), _MOST_EVENTS)
        return grants_of(((seq, row) for seq, row, _ in found), self._visible)

    @property
    def _visible(self) -> Visible:
        return Visible(self._context.daemon.machine.gpus)

    def _granted(self, view: JobView) -> list[int]:
        return sorted(gpu for gpu, job in self._context.daemon.state.lent.items() if job == view.id)


def _reported(report: Report | None) -> dict[str, Any] | None:
    return None if report is None else {"at": report.at, **{name: getattr(report, name) for name in _NUMBERS}}
