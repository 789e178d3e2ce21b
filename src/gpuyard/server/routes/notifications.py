"""Notifications: their service, the subscriptions that jobs refer to, and the routes of both."""

from __future__ import annotations

import asyncio
from sqlite3 import Error
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Query, Request, Response
from pydantic import Field

from gpuyard.api import access_types
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.notify.messages import Sources
from gpuyard.notify.outbox import Delivery, NoSuchSubscription, Subscription
from gpuyard.notify.service import NotificationService
from gpuyard.notify.subscriptions import check_events
from gpuyard.server.auth.permissions import NO_ACCOUNT, Caller, Forbidden
from gpuyard.server.context import Context
from gpuyard.server.requests import Body
from gpuyard.server.responses import ReasonTexts, iso, reply, state_text
from gpuyard.server.routes.submissions import AskedForJob
from gpuyard.server.routing import AT, LATER, Route, created, links_to, ok
from gpuyard.spec.notation import array_of

_REASON_PATIENCE = 2.0  # seconds; a notification without a reason is better than none
Asking = TypeVar("Asking", bound=AskedForJob)

SUBSCRIPTION: dict[str, Any] = {
    "id": "3", "name": "slack", "target": "slack://T...", "events": ["finish", "failure"], "long_wait": 3600.0,
    "title": None, "body": None, "created_at": AT,
}  # fmt: skip
DELIVERY: dict[str, Any] = {
    "id": "12", "at": AT, "user": "ann", "job": "17", "event": "finish", "state": "sent", "attempts": 1,
    "error": None, "next_at": None, "ended_at": LATER, "subscription": "slack", "target": "slack://T...",
}  # fmt: skip
SUBSCRIPTION_WISHES: dict[str, Any] = {
    "a webhook": {"url": "json://127.0.0.1:9/hook", "events": ["finish", "failure"], "name": "hook"}
}


class SubscriptionWish(Body):
    """That somebody wants to be told of their jobs."""

    url: Annotated[str, Field(max_length=4000, description="Where: a URL of apprise, or an e-mail address.")]
    name: Annotated[str, Field(max_length=60, description="What to call it; after its kind, if not said.")] = ""
    events: Annotated[list[str] | None, Field(max_length=20, description="Of what; finish, failure, timeout.")] = None
    long_wait: Annotated[float | None, Field(gt=0, le=1e9, description="Seconds that are a long wait; 3600.")] = None
    title: Annotated[str, Field(max_length=10_000, description="A template, as in `{name}: {state}`.")] = ""
    body: Annotated[str, Field(max_length=10_000, description="A template for the text.")] = ""


class Notifications:
    """The notification service, which may fail to start, and what other routes need of it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._service: NotificationService | None = None
        self.problem = "they are not set up"

    def open(self, url: str) -> NotificationService | None:
        """Make the service of a daemon whose API is at this URL, if it is on TCP.

        If that fails, `problem` says why, and the daemon goes on without.
        """
        daemon = self._context.daemon
        sources = Sources(
            self._context.settings.database,
            daemon.machine.node,
            lambda: list(daemon.store.open.values()),
            self._why,
            daemon.engine.read_log,
        )
        try:
            self._service = NotificationService(self._context.settings, sources, urlsplit(url).port or 0)
        except (Error, OSError, UserError) as error:
            self.problem = str(error)
        return self._service

    def _why(self, view: JobView) -> str:
        """Why a job waits, or how it ended. Not for the daemon's thread, which it waits for."""
        if view.state != "queued":
            return state_text(view) or ""
        daemon = self._context.daemon
        try:
            reasons = daemon.ask(self._context.commands.reasons, changes=False).result(_REASON_PATIENCE)
        except (TimeoutError, UserError):
            return ""
        return ReasonTexts()(reasons.get(view.id), view) or state_text(view) or ""

    @property
    def service(self) -> NotificationService:
        if self._service is None:
            raise NotNow(f"there are no notifications now: {self.problem}")
        return self._service

    def caller(self, request: Request) -> Caller:
        caller = self._context.permissions.caller(request)
        if caller.uid == NO_ACCOUNT:
            raise Forbidden("only who has an account on this machine can be told of jobs")
        return caller

    async def resolved(self, request: Request, asked: Asking) -> Asking:
        """The same request without secrets: URLs are stored apart, and a number stands for each."""
        if asked.notify is None and asked.notify_on is None:
            return asked
        changes: dict[str, Any] = {}
        if asked.notify_on is not None:
            changes["notify_on"] = list(check_events(asked.notify_on)) if asked.notify_on else []
        if asked.notify:
            try:
                refs = await asyncio.to_thread(self.service.refs, self.caller(request).name, asked.notify)
            except NoSuchSubscription as error:  # a field of the request, so 422 and not 404
                raise UserError(str(error)) from error
            changes["notify"] = list(refs)
        return asked.model_copy(update=changes)


class NotificationRoutes:
    def __init__(self, context: Context, notifications: Notifications) -> None:
        self._context, self._notifications = context, notifications

    @Route(
        "GET /notifications", "listNotifications", "List what was sent", "Notifications",
        ok("What.", access_types.Deliveries, {"notifications": [DELIVERY]}), (409, 422),
    )  # fmt: skip
    async def deliveries(
        self,
        request: Request,
        job: str = "",
        failed: bool = False,
        all: Annotated[bool, Query(description="Everybody's; for admins.")] = False,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        """What was sent, or is to be, the latest first."""
        outbox, caller = self._notifications.service.outbox, self._context.permissions.caller(request)
        if all and not caller.admin:
            raise Forbidden("only an admin may see what others are told; leave all out to see your own")
        jobs = tuple(filter(None, (job, array_of(job) if job else "")))
        user = None if all else caller.name
        found = await asyncio.to_thread(lambda: outbox.recent(user, jobs, failed=failed, limit=limit))
        return reply({"notifications": [_delivery(one, one.user == caller.name) for one in found]})

    @Route(
        "GET /notifications/subscriptions", "listSubscriptions", "List one's subscriptions", "Notifications",
        ok("All.", access_types.Subscriptions, {"subscriptions": [SUBSCRIPTION], "mail": True}), (409,),
    )  # fmt: skip
    async def subscriptions(self, request: Request) -> Response:
        """Where whoever asks is told of their jobs."""
        service, user = self._notifications.service, self._notifications.caller(request).name
        found = await asyncio.to_thread(service.outbox.subscriptions, user)
        return reply({"subscriptions": [_subscription(one) for one in found if not one.of_jobs], "mail": service.mail})

    @Route(
        "POST /notifications/subscriptions", "subscribe", "Be told of one's jobs", "Notifications",
        created(
            access_types.Subscription, SUBSCRIPTION, links_to(("testSubscription", "unsubscribe"), "id", "subscription")
        ),
        (409, 422, 503), SUBSCRIPTION_WISHES,
    )  # fmt: skip
    async def subscribe(self, request: Request, given: SubscriptionWish) -> Response:
        """Let whoever asks be told of their jobs. The URL is looked at first, and never shown again."""
        user = self._notifications.caller(request).name
        made = self._notifications.service.subscribe(
            user, given.url, name=given.name, events=given.events, long_wait=given.long_wait, title=given.title,
            body=given.body,
        )  # fmt: skip
        return reply(_subscription(await asyncio.wrap_future(made)), 201)

    @Route(
        "DELETE /notifications/subscriptions/{subscription}", "unsubscribe", "Be told no more", "Notifications",
        ok("What it was.", access_types.Subscription, SUBSCRIPTION), (404, 409, 503),
    )  # fmt: skip
    async def unsubscribe(self, request: Request, subscription: str) -> Response:
        """Tell no more there."""
        service, user = self._notifications.service, self._notifications.caller(request).name
        return reply(_subscription(await asyncio.to_thread(service.unsubscribe, user, subscription)))

    @Route(
        "POST /notifications/subscriptions/{subscription}/test", "testSubscription", "Try a subscription out",
        "Notifications", ok("How that went.", access_types.Delivery, DELIVERY), (404, 409, 422, 503),
    )  # fmt: skip
    async def test(self, request: Request, subscription: str) -> Response:
        """Send something there now, and tell how that went."""
        user = self._notifications.caller(request).name
        sent = self._notifications.service.test(user, subscription)
        return reply(_delivery(await asyncio.wrap_future(sent), True))


def _subscription(one: Subscription) -> dict[str, Any]:
    return {
        "id": str(one.id), "name": one.name, "target": one.target, "events": list(one.events),
        "long_wait": one.long_wait, "title": one.title or None, "body": one.body or None,
        "created_at": iso(one.created),
    }  # fmt: skip


def _delivery(one: Delivery, own: bool) -> dict[str, Any]:
    """A delivery; the target of another user's is not shown."""
    return {
        "id": str(one.id) if one.id else None, "at": iso(one.at), "user": one.user, "job": one.job or None,
        "event": one.event, "state": one.state, "attempts": one.attempts, "error": one.error or None,
        "next_at": iso(one.next) if one.state == "waiting" else None, "ended_at": iso(one.ended),
        "subscription": (one.name or None) if own else None, "target": one.target if own else None,
    }  # fmt: skip
