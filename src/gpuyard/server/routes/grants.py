"""Routes of adaptive jobs: their grants, their reports and the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.daemon.commands import NotNow, over
from gpuyard.daemon.jobs.loans import FRESH, KINDS, GrantHistory, Report, grants_of, points
from gpuyard.daemon.store.reader import EventFilter
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.gpus.base import Visible
from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.request_fields import MOST_SECONDS, WHOLE, Index, Word
from gpuyard.server.responses import reply
from gpuyard.server.stream.streams import Wait

if TYPE_CHECKING:
    from gpuyard.server.api import Api

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


class JobReport(BaseModel):
    """What a job that adapts tells of itself; what is left out stays as it was told before."""

    model_config = ConfigDict(extra="forbid")

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
        """How it does."""
        return {name: value for name in _NUMBERS if (value := getattr(self, name)) is not None}

    def decided(self) -> dict[str, Any]:
        """What it decided; empty if nothing."""
        if not self.decision:
            return {}
        return {name: value for name in _DECISION if (value := getattr(self, name)) is not None}


class GivenBack(BaseModel):
    """GPUs that a job has left."""

    model_config = ConfigDict(extra="forbid")

    gpus: Annotated[list[Index] | None, Field(description="By index; all that it was lent, if not said.")] = None
    reason: Annotated[Word | None, Field(max_length=500, description="Why.")] = None


class GrantRoutes:
    """Handlers; `add_to` makes them known."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, add: Callable[..., None]) -> None:
        """Make the routes known."""
        owner = Permission.OWNER
        add("/jobs/{job}/grant", self.grant, "GET", owner, "see what job {job} is granted")
        add("/jobs/{job}/grant/return", self.give_back, "POST", owner, "give back what job {job} was lent")
        add("/jobs/{job}/report", self.report, "POST", owner, "tell how job {job} does")
        add("/jobs/{job}/adaptation", self.adaptation, "GET", Permission.EVERYBODY)

    async def grant(
        self,
        job: str,
        since: Annotated[int, Query(ge=0, le=_MOST, description="The number of the last change that is known.")] = 0,
        wait: Wait = 0.0,
    ) -> Response:
        """What a running job has, and what changed; with `wait`, once something has, or the seconds are over."""
        end = time.monotonic() + wait
        while True:
            view = self._running(job)
            course = self._course(view)  # read here, and not in a thread: nothing may happen before it is waited for
            news = [change for change in course.changes if change["number"] > since]
            left = end - time.monotonic()
            if news or left <= 0 or self._api.watch.over:
                return reply(self._grant(view, course, news))
            await self._api.watch.wait(left, view.id)

    async def report(self, job: str, given: JobReport) -> Response:
        """Take down how a job that adapts does, and record what it decided."""
        view = self._running(job)
        if not view.work.get("adaptive"):
            raise NotNow(f"job {view.id} did not opt in; gpuyard edit {view.id} --adaptive lets it")
        offers, numbers, decision = self._api.yard.offers, given.numbers(), given.decided()
        ask = self._api.ask if decision else self._api.look
        await ask(lambda: offers.heard(view.id, view.attempt, numbers, decision))
        return await self._standing(job)

    async def give_back(self, job: str, given: GivenBack) -> Response:
        """Take GPUs back that a job was lent and has left; those that it does not have any more are no matter."""
        view, offers = self._running(job), self._api.yard.offers
        await self._api.ask(lambda: offers.give_back(view.id, view.attempt, given.gpus, given.reason or ""))
        return await self._standing(job)

    async def adaptation(self, job: str) -> Response:
        """What a job was granted so far, what it decided, and why."""
        view = self._alone(job)
        course = self._course(view)
        report = None if view.over else self._api.yard.offers.report_of(view.id)
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
        view = self._alone(job)
        return reply(self._grant(view, self._course(view), []))

    def _grant(self, view: JobView, course: GrantHistory, news: list[Any]) -> dict[str, Any]:
        return {
            "job": view.id, "attempt": view.attempt, "state": view.state, "last": course.last,
            "budget": course.budget, "deadline": course.deadline, "grace": course.grace,
            "gpus": [self._visible[gpu] for gpu in course.all_gpus if gpu < len(self._visible)],
            "indices": course.all_gpus, "granted": course.lent, "events": news,
        }  # fmt: skip

    async def _how(self, view: JobView, report: Report | None, granted: list[int]) -> str:
        """How it stands with offers, in a sentence."""
        if not view.work.get("adaptive") or view.state != "running":
            return ""
        yard = self._api.yard
        if granted:
            return f"has GPU {', '.join(map(str, granted))} on loan, until somebody needs it"
        if not yard.settings.offers:
            return "is offered nothing: offers are switched off here (the setting offers)"
        if report is None or time.time() - report.at > FRESH:
            return f"is offered nothing: it has not told within {FRESH:.0f} s what it would gain"
        if report.gain <= 0:
            return "is offered nothing: it expects no gain beyond noise"
        why = await self._api.look(lambda: yard.offers.refusal(view.id, report, yard.clock.now()))
        if why:
            return f"is offered nothing: {why}"
        return f"would gain {points(report.gain)} points per minute of one more GPU; none is idle that it may have now"

    def _alone(self, job: str) -> JobView:
        """A job, and no array of them."""
        if len(views := tasks.chosen(self._api.reader, job)) > 1:
            raise UserError(f"{job} is an array of {len(views):,} tasks; say which, as in {views[0].id}")
        return views[0]

    def _running(self, job: str) -> JobView:
        if (view := self._alone(job)).state != "running":
            raise over(view.id, view.state) if view.over else NotNow(f"job {view.id} does not run: it is {view.state}")
        return view

    def _course(self, view: JobView) -> GrantHistory:
        found = self._api.reader.happened(0, _MOST, EventFilter(view.id, KINDS), _MOST_EVENTS)
        return grants_of(((seq, row) for seq, row, _ in found), self._visible)

    @property
    def _visible(self) -> Visible:
        return Visible(self._api.yard.machine.gpus)

    def _granted(self, view: JobView) -> list[int]:
        return sorted(gpu for gpu, job in self._api.yard.state.lent.items() if job == view.id)


def _reported(report: Report | None) -> dict[str, Any] | None:
    return None if report is None else {"at": report.at, **{name: getattr(report, name) for name in _NUMBERS}}
