"""Routes of limits that admins set: drained GPUs, reservations, quotas and shares."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.core.model import Booking, Quota
from gpuyard.daemon.limits import Limits, UserShare
from gpuyard.daemon.loop import Yard
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.paths import API
from gpuyard.server.request_fields import LAST, MOST_INDEX, MOST_SECONDS, ONE_WORD, WHOLE, Index, Word
from gpuyard.server.responses import iso, reply

Ask = Callable[[Callable[[], Any]], Awaitable[Any]]


class GpuChoice(BaseModel):
    """Some GPUs, or all."""

    model_config = ConfigDict(extra="forbid", strict=True)

    gpus: Annotated[list[Index] | None, Field(min_length=1, description="Which; all of them if not said.")] = None
    reason: Annotated[Word, Field(max_length=1000, description="Why, for others to read.")] = ""


class ReservationWish(BaseModel):
    """GPUs to be kept for a time."""

    model_config = ConfigDict(extra="forbid", strict=True)

    gpus: Annotated[list[Index], Field(min_length=1, description="Which.")]
    begin: Annotated[float, Field(ge=0, le=LAST, description="Seconds since the epoch.")]
    end: Annotated[float, Field(ge=0, le=LAST, description="Seconds since the epoch.")]
    name: Annotated[str, Field(max_length=100, pattern=ONE_WORD, description="One is made up, if not said.")] = ""
    users: Annotated[list[Word] | None, Field(description="Who may use them; who asks, if not said.")] = None


class QuotaChoice(BaseModel):
    """What somebody may have."""

    model_config = ConfigDict(extra="forbid", strict=True)

    gpus: Annotated[
        int | None, Field(ge=0, le=MOST_INDEX, description="GPUs at once; 0: no quota; not said: as before."), WHOLE
    ] = None
    gpu_hours: Annotated[float | None, Field(ge=0, le=MOST_SECONDS, description="In any seven days.")] = None


class ShareChoice(BaseModel):
    """What share somebody deserves."""

    model_config = ConfigDict(extra="forbid", strict=True)

    weight: Annotated[float, Field(gt=0, le=MOST_SECONDS, description="Relative to others' 1.")]


class LimitRoutes:
    """Handlers; `add_to` makes them known."""

    def __init__(self, yard: Yard, ask: Ask, look: Ask, user: Callable[[Request], str]) -> None:
        self.rulebook = Limits(yard.context)
        self._ask, self._look, self._user = ask, look, user

    def add_to(self, add: Callable[..., None]) -> None:
        """Make the routes known."""
        add("/gpus/drain", self.drain, "POST", Permission.ADMIN, "drain GPUs")
        add("/gpus/resume", self.resume, "POST", Permission.ADMIN, "resume GPUs")
        add("/reservations", self.reservations, "GET", Permission.EVERYBODY)
        add("/reservations", self.reserve, "POST", Permission.ADMIN, "reserve GPUs", status_code=201)
        add("/reservations/{name}", self.unreserve, "DELETE", Permission.ADMIN, "give reservations up")
        add("/rules", self.rules, "GET", Permission.EVERYBODY)
        add("/rules/quotas/{name}", self.set_quota, "PUT", Permission.ADMIN, "set quotas")
        add("/rules/shares/{name}", self.set_share, "PUT", Permission.ADMIN, "set shares")

    async def drain(self, request: Request, given: GpuChoice) -> Response:
        """Let nothing start on these GPUs; what runs there goes on."""
        who = {"by": self._user(request)} | ({"reason": given.reason} if given.reason else {})
        return reply({"drained": await self._ask(lambda: self.rulebook.drain(given.gpus, **who))})

    async def resume(self, request: Request, given: GpuChoice) -> Response:
        """Let these GPUs be used again."""
        who = self._user(request)
        return reply({"drained": await self._ask(lambda: self.rulebook.resume(given.gpus, by=who))})

    async def reservations(self) -> Response:
        """Reservations that are not over."""
        found = await self._look(self.rulebook.bookings)
        return reply({"reservations": [reservation_json(booking) for booking in found]})

    async def reserve(self, request: Request, given: ReservationWish) -> Response:
        """Keep GPUs for some users for a time."""
        who = self._user(request)
        users = [who] if given.users is None else given.users

        def made() -> tuple[Booking, list[str]]:
            booking = self.rulebook.reserve(given.name, given.gpus, given.begin, given.end, users, who)
            return booking, self.rulebook.in_the_way(booking)

        booking, jobs = await self._ask(made)
        response = reply({**reservation_json(booking), "in_the_way": jobs}, 201)
        response.headers["Location"] = f"{API}/reservations/{quote(booking.name, safe='')}"
        return response

    async def unreserve(self, request: Request, name: str) -> Response:
        """Give a reservation up."""
        who = self._user(request)
        await self._ask(lambda: self.rulebook.unreserve(name, who))
        return await self.reservations()

    async def rules(self) -> Response:
        """What everybody deserves, may have and has had."""
        rules, standings = await self._look(lambda: (self.rulebook.rules, self.rulebook.standings()))
        return reply(
            {
                "half_life": rules.half_life if math.isfinite(rules.half_life) else None,
                "preempts": rules.preempts,
                "users": [limits_json(standing) for standing in standings],
            }
        )

    async def set_quota(self, request: Request, name: str, given: QuotaChoice) -> Response:
        """Say what a user, a group (@name) or everybody else (*) may have."""
        who = self._user(request)

        def change() -> None:
            former = dict(self.rulebook.rules.quotas).get(name, Quota())
            gpus = former.gpus if given.gpus is None else given.gpus
            hours = former.gpu_hours if given.gpu_hours is None else given.gpu_hours
            self.rulebook.set_quota(name, Quota(gpus, hours), who)

        await self._ask(change)
        return await self.rules()

    async def set_share(self, request: Request, name: str, given: ShareChoice) -> Response:
        """Say what share a user, a group (@name) or everybody else (*) deserves."""
        who = self._user(request)
        await self._ask(lambda: self.rulebook.set_weight(name, given.weight, who))
        return await self.rules()


def reservation_json(booking: Booking) -> dict[str, Any]:
    """A reservation."""
    return {
        "name": booking.name, "gpus": list(booking.gpus), "begin_at": iso(booking.begin), "end_at": iso(booking.end),
        "users": list(booking.users),
    }  # fmt: skip


def limits_json(standing: UserShare) -> dict[str, Any]:
    """What somebody deserves, may have and has had."""
    return {
        "name": standing.user, "group": standing.group or None, "weight": standing.weight,
        "gpus": standing.gpus, "week_gpu_hours": standing.week, "faded_gpu_hours": standing.faded,
        "quota_gpus": standing.quota.gpus or None, "quota_gpu_hours": standing.quota.gpu_hours or None,
    }  # fmt: skip
