"""Routes of limits that admins set: drained GPUs, reservations, quotas and shares."""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Request, Response
from pydantic import Field

from gpuyard.api import replies
from gpuyard.core.model import Booking, Quota
from gpuyard.daemon.limits import DEFAULT_QUEUED, Limits, UserShare
from gpuyard.server.context import Context
from gpuyard.server.paths import API
from gpuyard.server.request_fields import LAST, MOST_INDEX, MOST_SECONDS, ONE_WORD, WHOLE, Index, Word
from gpuyard.server.requests import StrictBody
from gpuyard.server.responses import iso, reply
from gpuyard.server.routing import AT, LATER, LOCATION, Route, admin, created, links_to, ok

DRAINS: dict[str, Any] = {"two of them": {"gpus": [2, 3], "reason": "new fans"}, "all": {}}
RESUMES: dict[str, Any] = {"two of them": {"gpus": [2, 3]}, "all": {}}
RESERVATION: dict[str, Any] = {
    "name": "demo", "gpus": [0, 1], "begin_at": AT, "end_at": LATER, "users": ["ann"], "in_the_way": ["12"],
}  # fmt: skip
RESERVATIONS: dict[str, Any] = {
    "reservations": [{name: value for name, value in RESERVATION.items() if name != "in_the_way"}]
}
RESERVATION_WISHES: dict[str, Any] = {
    "for a demo": {"gpus": [0, 1], "begin": 4102444800, "end": 4102452000, "name": "demo", "users": ["ann"]}
}
RULES: dict[str, Any] = {
    "half_life": 604800.0, "preempts": True,
    "users": [
        {
            "name": "ann", "group": "vision", "weight": 2.0, "gpus": 2, "week_gpu_hours": 31.5,
            "faded_gpu_hours": 12.25, "quota_gpus": 4, "quota_gpu_hours": None,
            "quota_queued": None,
        }
    ],
}  # fmt: skip
QUOTAS: dict[str, Any] = {"four at once": {"gpus": 4}, "no more by the week": {"gpu_hours": 0}}
SHARES: dict[str, Any] = {"twice as much": {"weight": 2}}
_DRAINED = ok("GPUs that are drained now.", replies.Drained, {"drained": [2, 3]})
_RESERVATIONS = ok("Those that are left.", replies.Reservations, RESERVATIONS)
_RULES = ok("The rules as they stand.", replies.Rules, RULES)


class GpuChoice(StrictBody):
    """Some GPUs, or all."""

    gpus: Annotated[list[Index] | None, Field(min_length=1, description="Which; all of them if not said.")] = None
    reason: Annotated[Word, Field(max_length=1000, description="Why, for others to read.")] = ""


class ReservationWish(StrictBody):
    """GPUs to be kept for a time."""

    gpus: Annotated[list[Index], Field(min_length=1, description="Which.")]
    begin: Annotated[float, Field(ge=0, le=LAST, description="Seconds since the epoch.")]
    end: Annotated[float, Field(ge=0, le=LAST, description="Seconds since the epoch.")]
    name: Annotated[str, Field(max_length=100, pattern=ONE_WORD, description="One is made up, if not said.")] = ""
    users: Annotated[list[Word] | None, Field(description="Who may use them; who asks, if not said.")] = None


class QuotaChoice(StrictBody):
    """What somebody may have."""

    gpus: Annotated[
        int | None, Field(ge=0, le=MOST_INDEX, description="GPUs at once; 0: no quota; not said: as before."), WHOLE
    ] = None
    gpu_hours: Annotated[float | None, Field(ge=0, le=MOST_SECONDS, description="In any seven days.")] = None
    queued: Annotated[
        int | None, Field(ge=0, le=10**9, description=f"Jobs that wait or are held; 0: {DEFAULT_QUEUED:,}."), WHOLE
    ] = None


class ShareChoice(StrictBody):
    """What share somebody deserves."""

    weight: Annotated[float, Field(gt=0, le=MOST_SECONDS, description="Relative to others' 1.")]


class LimitRoutes:
    def __init__(self, context: Context) -> None:
        self._limits, self._ask, self._look = Limits(context.daemon.context), context.ask, context.look
        self._user = context.permissions.name

    @Route(
        "POST /gpus/drain", "drainGpus", "Drain GPUs", "GPUs", _DRAINED, (409, 422, 503), DRAINS,
        may=admin("drain GPUs"),
    )  # fmt: skip
    async def drain(self, request: Request, given: GpuChoice) -> Response:
        """Let nothing start on these GPUs; what runs there goes on."""
        who = {"by": self._user(request)} | ({"reason": given.reason} if given.reason else {})
        return reply({"drained": await self._ask(lambda: self._limits.drain(given.gpus, **who))})

    @Route(
        "POST /gpus/resume", "resumeGpus", "Resume GPUs", "GPUs", _DRAINED, (409, 422, 503), RESUMES,
        may=admin("resume GPUs"),
    )  # fmt: skip
    async def resume(self, request: Request, given: GpuChoice) -> Response:
        """Let these GPUs be used again."""
        who = self._user(request)
        return reply({"drained": await self._ask(lambda: self._limits.resume(given.gpus, by=who))})

    @Route("GET /reservations", "listReservations", "List reservations", "Reservations", _RESERVATIONS)
    async def reservations(self) -> Response:
        """Reservations that are not over."""
        found = await self._look(self._limits.bookings)
        return reply({"reservations": [reservation_json(booking) for booking in found]})

    @Route(
        "POST /reservations", "reserve", "Reserve GPUs", "Reservations",
        created(replies.Reservation, RESERVATION, links_to(("unreserve",), "name", "name"), LOCATION), (409, 422, 503),
        RESERVATION_WISHES, may=admin("reserve GPUs"),
    )  # fmt: skip
    async def reserve(self, request: Request, given: ReservationWish) -> Response:
        """Keep GPUs for some users for a time."""
        who = self._user(request)
        users = [who] if given.users is None else given.users

        def made() -> tuple[Booking, list[str]]:
            booking = self._limits.reserve(given.name, given.gpus, given.begin, given.end, users, who)
            return booking, self._limits.in_the_way(booking)

        booking, jobs = await self._ask(made)
        response = reply({**reservation_json(booking), "in_the_way": jobs}, 201)
        response.headers["Location"] = f"{API}/reservations/{quote(booking.name, safe='')}"
        return response

    @Route(
        "DELETE /reservations/{name}", "unreserve", "Give a reservation up", "Reservations", _RESERVATIONS,
        (404, 422, 503), may=admin("give reservations up"),
    )  # fmt: skip
    async def unreserve(self, request: Request, name: str) -> Response:
        """Give a reservation up."""
        who = self._user(request)
        await self._ask(lambda: self._limits.unreserve(name, who))
        return await self.reservations()

    @Route("GET /rules", "getRules", "Who may have what", "Rules", _RULES)
    async def rules(self) -> Response:
        """What everybody deserves, may have and has had."""
        rules, standings = await self._look(lambda: (self._limits.rules, self._limits.standings()))
        return reply(
            {
                "half_life": rules.half_life if math.isfinite(rules.half_life) else None,
                "preempts": rules.preempts,
                "users": [limits_json(standing) for standing in standings],
            }
        )

    @Route(
        "PUT /rules/quotas/{name}", "setQuota", "Set a quota", "Rules", _RULES, (422, 503), QUOTAS,
        may=admin("set quotas"),
    )  # fmt: skip
    async def set_quota(self, request: Request, name: str, given: QuotaChoice) -> Response:
        """Say what a user, a group (@name) or everybody else (*) may have."""
        who = self._user(request)

        def change() -> None:
            former = dict(self._limits.rules.quotas).get(name, Quota())
            gpus = former.gpus if given.gpus is None else given.gpus
            hours = former.gpu_hours if given.gpu_hours is None else given.gpu_hours
            queued = former.queued if given.queued is None else given.queued
            self._limits.set_quota(name, Quota(gpus, hours, queued), who)

        await self._ask(change)
        return await self.rules()

    @Route(
        "PUT /rules/shares/{name}", "setShare", "Set a share", "Rules", _RULES, (422, 503), SHARES,
        may=admin("set shares"),
    )  # fmt: skip
    async def set_share(self, request: Request, name: str, given: ShareChoice) -> Response:
        """Say what share a user, a group (@name) or everybody else (*) deserves."""
        who = self._user(request)
        await self._ask(lambda: self._limits.set_weight(name, given.weight, who))
        return await self.rules()


def reservation_json(booking: Booking) -> dict[str, Any]:
    return {
        "name": booking.name, "gpus": list(booking.gpus), "begin_at": iso(booking.begin), "end_at": iso(booking.end),
        "users": list(booking.users),
    }  # fmt: skip


def limits_json(standing: UserShare) -> dict[str, Any]:
    return {
        "name": standing.user, "group": standing.group or None, "weight": standing.weight,
        "gpus": standing.gpus, "week_gpu_hours": standing.week, "faded_gpu_hours": standing.faded,
        "quota_gpus": standing.quota.gpus or None, "quota_gpu_hours": standing.quota.gpu_hours or None,
        "quota_queued": standing.quota.queued or None,
    }  # fmt: skip
