"""Routes of notifications: subscriptions and deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.notify.messages import Sources
from gpuyard.notify.outbox import Delivery, NoSuchSubscription, Subscription
from gpuyard.notify.service import NotificationService
from gpuyard.notify.subscriptions import check_events
from gpuyard.server.auth.permissions import NO_ACCOUNT, Caller, Forbidden, Permission
from gpuyard.server.responses import ReasonTexts, iso, reply, state_text, times_are_known
from gpuyard.server.routes.submissions import AskedForJob
from gpuyard.spec.notation import array_of

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_REASON_PATIENCE = 2.0  # seconds; a notification without a reason is better than none
Wish = TypeVar("Wish", bound=AskedForJob)


class SubscriptionWish(BaseModel):
    """That somebody wants to be told of their jobs."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(max_length=4000, description="Where: a URL of apprise, or an e-mail address.")]
    name: Annotated[str, Field(max_length=60, description="What to call it; after its kind, if not said.")] = ""
    events: Annotated[list[str] | None, Field(max_length=20, description="Of what; finish, failure, timeout.")] = None
    long_wait: Annotated[float | None, Field(gt=0, le=1e9, description="Seconds that are a long wait; 3600.")] = None
    title: Annotated[str, Field(max_length=10_000, description="A template, as in `{name}: {state}`.")] = ""
    body: Annotated[str, Field(max_length=10_000, description="A template for the text.")] = ""


class NotificationRoutes:
    """Handlers; `add_to` makes them known."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.office: NotificationService | None = None
        """Set once the daemon has one."""
        self.problem = "they are not set up"

    def open(self) -> NotificationService | None:
        """Set notifications up; where that fails, everything else goes on."""
        from sqlite3 import Error

        try:
            self.office = NotificationService(self._api.settings, self._sources())
        except (Error, OSError, UserError) as error:
            self.problem = str(error)
            return None
        return self.office

    def _sources(self) -> Sources:
        yard = self._api.yard
        return Sources(
            self._api.settings.database,
            yard.machine.node,
            lambda: list(yard.store.open.values()),
            self._why,
            yard.engine.read_log,
        )

    def _why(self, view: JobView) -> str:
        """Why a job waits, or what is to be said of its end. Not for the yard's own thread."""
        if view.state != "queued":
            return state_text(view) or ""
        api = self._api
        try:
            reasons = api.yard.ask(api.desk.reasons, changes=False).result(_REASON_PATIENCE)
        except (TimeoutError, UserError):
            return ""
        say = ReasonTexts(times=times_are_known(list(api.yard.store.open.values())))
        return say(reasons.get(view.id), view) or state_text(view) or ""

    # -- routes -----------------------------------------------------------------------------------

    def add_to(self, add: Callable[..., None]) -> None:
        """Make the routes known."""
        add("/notifications", self.deliveries, "GET", Permission.EVERYBODY)
        add("/notifications/subscriptions", self.subscriptions, "GET", Permission.EVERYBODY)
        add("/notifications/subscriptions", self.subscribe, "POST", Permission.EVERYBODY, status_code=201)
        add("/notifications/subscriptions/{subscription}", self.unsubscribe, "DELETE", Permission.EVERYBODY)
        add("/notifications/subscriptions/{subscription}/test", self.test, "POST", Permission.EVERYBODY)

    async def subscriptions(self, request: Request) -> Response:
        """Where whoever asks is told of their jobs."""
        office, user = self._open(), self._who(request).name
        found = await asyncio.to_thread(office.outbox.subscriptions, user)
        return reply({"subscriptions": [_subscription(one) for one in found if not one.of_jobs], "mail": office.mail})

    async def subscribe(self, request: Request, given: SubscriptionWish) -> Response:
        """Let whoever asks be told of their jobs. The URL is looked at first, and never shown again."""
        user = self._who(request).name
        made = self._open().subscribe(
            user, given.url, name=given.name, events=given.events, long_wait=given.long_wait, title=given.title,
            body=given.body,
        )  # fmt: skip
        return reply(_subscription(await asyncio.wrap_future(made)), 201)

    async def unsubscribe(self, request: Request, subscription: str) -> Response:
        """Tell no more there."""
        office, user = self._open(), self._who(request).name
        return reply(_subscription(await asyncio.to_thread(office.unsubscribe, user, subscription)))

    async def test(self, request: Request, subscription: str) -> Response:
        """Send something there now, and tell how that went."""
        user = self._who(request).name
        return reply(_delivery(await asyncio.wrap_future(self._open().test(user, subscription)), True))

    async def deliveries(
        self,
        request: Request,
        job: str = "",
        failed: bool = False,
        all: Annotated[bool, Query(description="Everybody's; for admins.")] = False,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        """What was sent, or is to be, the latest first."""
        office, caller = self._open(), self._api.permissions.caller(request)
        if all and not caller.admin:
            raise Forbidden("only an admin may see what others are told; leave all out to see your own")
        jobs = tuple(filter(None, (job, array_of(job) if job else "")))
        user = None if all else caller.name
        found = await asyncio.to_thread(lambda: office.outbox.recent(user, jobs, failed=failed, limit=limit))
        return reply({"notifications": [_delivery(one, one.user == caller.name) for one in found]})

    # -- for other routes -------------------------------------------------------------------------

    async def resolved(self, request: Request, wish: Wish) -> Wish:
        """The same wish, with nothing secret in it: URLs are kept apart, and a number stands for each."""
        if wish.notify is None and wish.notify_on is None:
            return wish
        changes: dict[str, Any] = {}
        if wish.notify_on is not None:
            changes["notify_on"] = list(check_events(wish.notify_on)) if wish.notify_on else []
        if wish.notify:
            try:
                refs = await asyncio.wrap_future(self._open().refs(self._who(request).name, wish.notify))
            except NoSuchSubscription as error:  # part of what is asked for, not what is asked
                raise UserError(str(error)) from error
            changes["notify"] = list(refs)
        return wish.model_copy(update=changes)

    async def resolved_all(self, request: Request, wishes: Sequence[Wish]) -> list[Wish]:
        """Several such wishes."""
        return [await self.resolved(request, wish) for wish in wishes]

    def _open(self) -> NotificationService:
        if self.office is None:
            raise NotNow(f"there are no notifications now: {self.problem}")
        return self.office

    def _who(self, request: Request) -> Caller:
        caller = self._api.permissions.caller(request)
        if caller.uid == NO_ACCOUNT:
            raise Forbidden("only who has an account on this machine can be told of jobs")
        return caller


def _subscription(one: Subscription) -> dict[str, Any]:
    return {
        "id": str(one.id), "name": one.name, "target": one.target, "events": list(one.events),
        "long_wait": one.long_wait, "title": one.title or None, "body": one.body or None,
        "created_at": iso(one.created),
    }  # fmt: skip


def _delivery(one: Delivery, own: bool) -> dict[str, Any]:
    """A delivery; where somebody else's goes is not told."""
    return {
        "id": str(one.id) if one.id else None, "at": iso(one.at), "user": one.user, "job": one.job or None,
        "event": one.event, "state": one.state, "attempts": one.attempts, "error": one.error or None,
        "next_at": iso(one.next) if one.state == "waiting" else None, "ended_at": iso(one.ended),
        "subscription": (one.name or None) if own else None, "target": one.target if own else None,
    }  # fmt: skip
