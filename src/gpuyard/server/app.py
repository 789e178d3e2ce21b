"""The FastAPI application: routes, middleware and exception handlers."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard import __version__
from gpuyard.config import Settings
from gpuyard.daemon.background.interference import Interference
from gpuyard.daemon.background.recorder import Recorder
from gpuyard.daemon.background.retention import Removed
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.limits import NoSuchReservation
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.database import NONSENSE, StoreFailing
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.engines.base import EngineError
from gpuyard.engines.leases.heartbeats import Heartbeats
from gpuyard.errors import GpuyardError, UserError, is_passing
from gpuyard.notify.outbox import NoSuchSubscription
from gpuyard.notify.sender import Stopped
from gpuyard.notify.service import TooManyTrials
from gpuyard.server.auth.authentication import TooManyFailures, Unauthenticated
from gpuyard.server.auth.credentials import CredentialStore, NoSuchToken
from gpuyard.server.auth.middleware import Auth, AuthMiddleware
from gpuyard.server.auth.permissions import Forbidden
from gpuyard.server.context import Context
from gpuyard.server.openapi import openapi_document
from gpuyard.server.paths import API
from gpuyard.server.problems import error_location, error_message, refusal
from gpuyard.server.proxy.http_proxy import HttpProxy
from gpuyard.server.proxy.supervisor import PageSupervisor
from gpuyard.server.requests import JobIntake, NotJson
from gpuyard.server.responses import reply
from gpuyard.server.routes.batches import BatchRoutes
from gpuyard.server.routes.estimates import EstimateRoutes
from gpuyard.server.routes.gpus import GpuRoutes, NoSuchGpu
from gpuyard.server.routes.grants import GrantRoutes
from gpuyard.server.routes.health import HealthRoutes
from gpuyard.server.routes.job_lists import BulkRoutes, JobListing, ListRoutes
from gpuyard.server.routes.jobs import JobLookup, JobRoutes
from gpuyard.server.routes.leases import Holders, LeaseRoutes, RecentReasons
from gpuyard.server.routes.limits import LimitRoutes
from gpuyard.server.routes.notifications import NotificationRoutes, Notifications
from gpuyard.server.routes.policies import PolicyRoutes
from gpuyard.server.routes.recordings import RecordingRoutes
from gpuyard.server.routes.statistics import StatisticsRoutes
from gpuyard.server.routes.tokens import SessionRoutes, TokenRoutes
from gpuyard.server.routes.watchmen import WatchmenRoutes
from gpuyard.server.routing import add_routes, declaration_of, job_guard
from gpuyard.server.stream.event_stream import EventHub, EventRoutes
from gpuyard.server.stream.job_logs import LogRoutes
from gpuyard.server.stream.streams import TooManyStreams


class HeadSent(Exception):
    """The head is out, and nothing else is wanted."""


class HeadMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise HeadSent

        try:
            await self._app({**scope, "method": "GET"}, receive, send_head)
        except HeadSent:
            return None


log = logging.getLogger("gpuyard")
_STATUS_OF_ERROR = {
    Unauthenticated: 401, TooManyFailures: 429, TooManyStreams: 429, NoSuchToken: 404, NoSuchSubscription: 404,
    Stopped: 503, TooManyTrials: 429,
    Removed: 410, Forbidden: 403, NoSuchJob: 404, NoSuchReservation: 404, NoSuchGpu: 404, NotNow: 409, NotJson: 400,
    StoreFailing: 503, EngineError: 503, UserError: 422,
}  # fmt: skip
_BUG_TEXT = "the daemon made a mistake, which its log tells of (gpuyard status says where that is); please report it"
_MOST_PROBLEMS = 20
_SPEC = f"{API}/openapi.json"


class Server:
    """The parts of the server that its routes use; `serve` starts and stops those that run beside it."""

    def __init__(
        self,
        daemon: Daemon,
        settings: Settings,
        shutdown: Callable[[], None],
        credentials: CredentialStore | None = None,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self.settings, self.shutdown = settings, shutdown
        self.context = context = Context.of(daemon, settings)
        self.auth = Auth(settings, context.permissions, credentials, context.job_with)
        self.heartbeats = heartbeats or Heartbeats()
        self.hub = EventHub(lambda: daemon.store.last, lambda: context.reader, context.watch)
        self.interference = Interference(daemon.context, context.progress, settings.interference_after)
        self.recorder = Recorder(daemon.context, settings)
        self.notifications = Notifications(context)
        self.page = PageSupervisor(settings)
        self.url = ""  # the URL of the API on TCP; empty: there is none
        daemon.listeners.append(context.watch.committed)


def make_app(server: Server) -> FastAPI:
    # FastAPI's pages of documentation would load parts from a CDN, so there are none.
    app = FastAPI(title="gpuyard", version=__version__, openapi_url=None, redirect_slashes=False)
    _add_handlers(app, server)
    app.add_middleware(HttpProxy, page=server.page, auth=server.auth)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AuthMiddleware, auth=server.auth)
    unforeseen = partial(_on_unforeseen, server.context)
    app.add_exception_handler(GpuyardError, partial(_on_error, unforeseen))
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(OSError, _on_system_error)
    for kind in (sqlite3.Error, *NONSENSE):
        app.add_exception_handler(kind, unforeseen)
    app.add_exception_handler(Exception, _on_bug)
    _add_openapi(app, server.settings)
    return app


def _add_handlers(app: FastAPI, server: Server) -> None:
    context, auth, notifications, heartbeats = server.context, server.auth, server.notifications, server.heartbeats
    lookup, intake, listing = JobLookup(context), JobIntake(context, auth.submitters), JobListing(context)
    reasons, holders = RecentReasons(context), Holders()
    jobs = JobRoutes(context, lookup, intake, notifications)
    handlers: list[object] = [
        jobs,
        BulkRoutes(context, jobs, intake, notifications),
        ListRoutes(context, listing),
        LogRoutes(context),
        BatchRoutes(context, intake, notifications),
        GrantRoutes(context),
        LeaseRoutes(context, lookup, intake, listing, reasons, holders, heartbeats),
        EventRoutes(context, server.hub),
        StatisticsRoutes(context, server.interference),
        EstimateRoutes(context, intake),
        RecordingRoutes(context, server.recorder),
        GpuRoutes(context),
        LimitRoutes(context),
        PolicyRoutes(context),
        TokenRoutes(auth, context.permissions),
        SessionRoutes(auth, context.permissions),
        NotificationRoutes(context, notifications),
        HealthRoutes(context, server.hub, server.page, lambda: server.url, server.shutdown),
    ]
    guard = job_guard(context)
    for one in handlers:
        add_routes(app, one, guard)
    watchmen = WatchmenRoutes(context, intake, reasons, holders, heartbeats)
    add_routes(app, watchmen, watchmen.guard)


def _add_openapi(app: FastAPI, settings: Settings) -> None:
    kept: list[Response] = []

    async def openapi(request: Request) -> Response:
        if not kept:
            kept.append(reply(openapi_document(app, settings)))
        return kept[0]

    for path in (_SPEC, "/openapi.json"):
        app.add_route(path, openapi, include_in_schema=False)


async def _on_error(
    unforeseen: Callable[[Request, Exception], Awaitable[Response]], request: Request, error: Exception
) -> Response:
    status = next((code for kind, code in _STATUS_OF_ERROR.items() if isinstance(error, kind)), 500)
    if status == 500:
        return await unforeseen(request, error)
    headers = {"Retry-After": str(error.seconds)} if isinstance(error, TooManyFailures) else None
    detail = error.message_for(request.url.path) if isinstance(error, Unauthenticated) else str(error)
    return refusal(request.url.path, status, detail, headers)


async def _on_unforeseen(context: Context, request: Request, error: Exception) -> Response:
    """The store is damaged, and so what was read of it made no sense; or the mistake is ours."""
    if not (problem := await context.damage_behind(error)):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return await _on_bug(request, error)
    return refusal(request.url.path, 503, problem)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    parts = error.errors()
    if any(part["type"] == "json_invalid" for part in parts):
        return refusal(
            request.url.path,
            400,
            f"the request is not JSON: {parts[0].get('ctx', {}).get('error', 'it cannot be read')}",
        )
    taken = _body_type(request)
    found: dict[str, str] = {}
    for part in parts[:_MOST_PROBLEMS]:  # of the members of a union, the first tells
        found.setdefault(error_location(part), error_message(part, taken))
    problems = [{"where": where, "message": message} for where, message in found.items()]
    detail = "; ".join(f"{one['where']}: {one['message']}".removeprefix("body: ") for one in problems)
    return refusal(request.url.path, 422, detail, errors=problems)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        return refusal(
            request.url.path, 405, f"{what}: this can be asked with {allowed} only", headers={"Allow": allowed}
        )
    if error.status_code == 404:
        return refusal(request.url.path, 404, f"{what}: there is nothing here; GET {_SPEC} tells what there is")
    if error.status_code == 400:  # by FastAPI, if even the JSON parser fails
        return refusal(
            request.url.path, 400, "the request is not JSON, or nested too deeply, or holds a number that is too long"
        )
    return refusal(request.url.path, error.status_code, f"{what}: {error.detail}", headers=dict(error.headers or {}))


async def _on_system_error(request: Request, error: Exception) -> Response:
    if not is_passing(error):
        raise error
    return refusal(request.url.path, 503, f"the daemon cannot do this now ({error}); try again")


async def _on_bug(request: Request, error: Exception) -> Response:
    """The traceback goes to the log (uvicorn writes it), not to the client."""
    return refusal(request.url.path, 500, _BUG_TEXT)


def _methods(request: Request) -> list[str]:
    """The methods of the routes that match a path; of those with exactly this path, if there are any."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    named = [route for route in routes if getattr(route, "path", "") == request.url.path]
    return sorted({method for route in named or routes for method in getattr(route, "methods", None) or ()})


def _body_type(request: Request) -> Any:
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return None
    declared = declaration_of(route.endpoint)
    if declared is not None and declared.model is not None:
        return declared.model
    return route.body_field.field_info.annotation if route.body_field is not None else None
