"""The application: the routes, behind the gate, and how refusals are told."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gpuyard import __version__
from gpuyard.daemon.desk import NoSuchJob, NotNow
from gpuyard.daemon.retention import Removed
from gpuyard.daemon.rulebook import NoSuchReservation
from gpuyard.daemon.store import StoreFailing
from gpuyard.errors import GpuyardError, UserError
from gpuyard.server.access import NoSuchToken
from gpuyard.server.admission import TooMany, Unknown
from gpuyard.server.api import Api
from gpuyard.server.gate import Gate, refusal
from gpuyard.server.permissions import Forbidden

_STATUS = {
    Unknown: 401, TooMany: 429, NoSuchToken: 404,
    Removed: 410, Forbidden: 403, NoSuchJob: 404, NoSuchReservation: 404, NotNow: 409, StoreFailing: 503,
    UserError: 422,
}  # fmt: skip


def make_app(api: Api) -> FastAPI:
    """The application."""
    app = FastAPI(title="gpuyard", version=__version__, docs_url=None, redoc_url=None)  # their scripts are others'
    api.add_to(app)
    app.add_middleware(Gate, doors=api.doors)

    @app.exception_handler(GpuyardError)
    async def refused(request: Request, error: GpuyardError) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        headers = {"Retry-After": str(error.seconds)} if isinstance(error, TooMany) else None
        return refusal(request.url.path, status, str(error), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return refusal(request.url.path, 422, "; ".join(_complaint(part) for part in error.errors()))

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        return refusal(request.url.path, error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    return app


def _complaint(part: Any) -> str:
    where = ".".join(str(step) for step in part["loc"] if step not in ("body", "query", "path"))
    message = str(part["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
