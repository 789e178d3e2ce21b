"""The application: the routes, behind the gate, and how refusals are told."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gpuyard import __version__
from gpuyard.daemon.described import NoSuchJob
from gpuyard.daemon.desk import NotNow
from gpuyard.daemon.retention import Removed
from gpuyard.daemon.rulebook import NoSuchReservation
from gpuyard.daemon.store import StoreFailing
from gpuyard.engines.base import EngineError
from gpuyard.errors import GpuyardError, UserError
from gpuyard.notices.courier import Stopped
from gpuyard.notices.outbox import NoSuchSubscription
from gpuyard.server.access import NoSuchToken
from gpuyard.server.admission import TooMany, Unknown
from gpuyard.server.answers import reply
from gpuyard.server.api import Api
from gpuyard.server.bodies import NotJson
from gpuyard.server.complaints import message, where
from gpuyard.server.contract import ROUTES
from gpuyard.server.forward import Forward
from gpuyard.server.gate import Gate
from gpuyard.server.gpus import NoSuchGpu
from gpuyard.server.heads import Heads
from gpuyard.server.openapi import described
from gpuyard.server.paths import API
from gpuyard.server.permissions import Forbidden
from gpuyard.server.probes import Probes
from gpuyard.server.refusals import refusal
from gpuyard.server.streaming import TooManyStreams

log = logging.getLogger("gpuyard")
_STATUS = {
    Unknown: 401, TooMany: 429, TooManyStreams: 429, NoSuchToken: 404, NoSuchSubscription: 404, Stopped: 503,
    Removed: 410, Forbidden: 403, NoSuchJob: 404, NoSuchReservation: 404, NoSuchGpu: 404, NotNow: 409, NotJson: 400,
    StoreFailing: 503, EngineError: 503, UserError: 422,
}  # fmt: skip
_MISTAKE = "the daemon made a mistake, which its log tells of (gpuyard status says where that is); please report it"
_MOST_COMPLAINTS = 20
_SPEC = "/api/v1/openapi.json"


def make_app(api: Api) -> FastAPI:
    """The application."""
    # FastAPI's pages of documentation would be fetched from elsewhere, in part; so there are none.
    app = FastAPI(title="gpuyard", version=__version__, openapi_url=None, redirect_slashes=False)
    api.add_to(app)
    Probes(api).add_to(app)
    app.add_middleware(Forward, page=api.page, doors=api.doors)
    app.add_middleware(Heads)
    app.add_middleware(Gate, doors=api.doors)
    app.add_exception_handler(GpuyardError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(Exception, _broken)
    _describe(app, api)
    return app


def _describe(app: FastAPI, api: Api) -> None:
    """Let the application tell what its routes take and give."""
    kept: list[Response] = []

    async def openapi(request: Request) -> Response:
        if not kept:
            kept.append(reply(described(app, api.settings)))
        return kept[0]

    for path in (_SPEC, "/openapi.json"):
        app.add_route(path, openapi, include_in_schema=False)


async def _refused(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    if status == 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return await _broken(request, error)
    headers = {"Retry-After": str(error.seconds)} if isinstance(error, TooMany) else None
    told = error.told(request.url.path) if isinstance(error, Unknown) else str(error)
    return refusal(request.url.path, status, told, headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    parts = error.errors()
    if any(part["type"] == "json_invalid" for part in parts):
        return refusal(
            request.url.path,
            400,
            f"the request is not JSON: {parts[0].get('ctx', {}).get('error', 'it cannot be read')}",
        )
    taken = _taken(request)
    told = [{"where": where(part), "message": message(part, taken)} for part in parts[:_MOST_COMPLAINTS]]
    detail = "; ".join(f"{one['where']}: {one['message']}".removeprefix("body: ") for one in told)
    return refusal(request.url.path, 422, detail, errors=told)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        return refusal(
            request.url.path, 405, f"{what}: this can be asked with {allowed} only", headers={"Allow": allowed}
        )
    if error.status_code == 404:
        return refusal(request.url.path, 404, f"{what}: there is nothing here; GET {_SPEC} tells what there is")
    if error.status_code == 400:  # by FastAPI, of a body that not even the reading of JSON could make sense of
        return refusal(
            request.url.path, 400, "the request is not JSON, or nested too deeply, or holds a number that is too long"
        )
    return refusal(request.url.path, error.status_code, f"{what}: {error.detail}", headers=dict(error.headers or {}))


async def _broken(request: Request, error: Exception) -> Response:
    """What is nobody's fault but ours: its story is for the log (where uvicorn tells it), not for who asked."""
    return refusal(request.url.path, 500, _MISTAKE)


def _methods(request: Request) -> list[str]:
    """All methods that a path can be asked with. It may be that of several routes; of one that names it, rather."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    named = [route for route in routes if getattr(route, "path", "") == request.url.path]
    return sorted({method for route in named or routes for method in getattr(route, "methods", None) or ()})


def _taken(request: Request) -> Any:
    """The type of what a request should hold."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return None
    told = ROUTES.get(f"{request.method} {route.path.removeprefix(API)}")
    if told is not None and told.model is not None:
        return told.model
    return route.body_field.field_info.annotation if route.body_field is not None else None
