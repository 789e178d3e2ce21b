"""The declaration of a route beside its handler: path, permission, description, responses and examples.

    @Route("GET /gpus/{index:int}", "getGpu", "Look at a GPU", "GPUs", ok("The GPU.", types.Gpu, GPU), (404, 422))
    async def gpu(self, index: int) -> Response: ...

`add_routes` registers the declared methods of an object; `openapi` builds the document from the declarations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import Receive, Scope, Send

from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.context import Context
from gpuyard.server.paths import API
from gpuyard.server.requests import JsonRequest, check_parameters

Headers = Mapping[str, Mapping[str, Any]]
Links = Mapping[str, Mapping[str, str]]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])

NO_JOB = (404, 422)  # refusals of a route of one job: there is none with that id, or the id makes no sense
NOT_CHANGED = (*NO_JOB, 409, 503)
"""Refusals of a change of one job: also, its state does not allow it, or the store cannot be written."""
TEXT: Mapping[str, Any] = {"type": "string"}
PAGED: Headers = {"Link": {"description": "Where the next page is, with rel=next.", "schema": TEXT}}
LOCATION: Headers = {"Location": {"description": "Where it is.", "required": True, "schema": TEXT}}
AT, LATER = "2026-11-16T09:30:00.000+01:00", "2026-11-16T11:00:00.000+01:00"  # times in examples
_DECLARATION = "declaration"


@dataclass(frozen=True, slots=True)
class Answer:
    what: str
    kind: Any = None  # the type of its body, or a tuple of types; None: no body
    example: Any = None
    headers: Headers = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    """Other media types of the same response, with an example of each."""
    links: Links = field(default_factory=dict)
    """Operations that may follow, and where their parameters are found in this response."""


Answers = Mapping[int, Answer]


class Restriction(NamedTuple):
    permission: Permission
    action: str = ""  # what the route does, for a refusal; `{job}` is the job's id


ANYBODY = Restriction(Permission.EVERYBODY)


def owner(action: str) -> Restriction:
    return Restriction(Permission.OWNER, action)


def admin(action: str) -> Restriction:
    return Restriction(Permission.ADMIN, action)


def ok(what: str, kind: Any, example: Any, **more: Any) -> Answers:
    return {200: Answer(what, kind, example, **more)}


def created(kind: Any, example: Any, links: Links, headers: Headers | None = None) -> Answers:
    return {201: Answer("It is on disk.", kind, example, headers or {}, links=links)}


def links_to(operations: tuple[str, ...], place: str, parameter: str = "job") -> Links:
    """Links to operations whose parameter is at a place (JSON pointer) of the response's body."""
    return {operation: {parameter: f"$response.body#/{place}"} for operation in operations}


@dataclass(frozen=True, slots=True)
class Route:
    request: str  # method and path, as in `GET /jobs/{job}`
    id: str = ""  # the operation's id; empty: the route is not in the OpenAPI document
    summary: str = ""
    tag: str = ""
    answers: Answers = field(default_factory=dict)
    refusals: tuple[int, ...] = ()  # statuses of its own refusals; those of the middleware are added
    examples: Mapping[str, Any] = field(default_factory=dict)  # examples of its request body
    may: Restriction = ANYBODY
    model: type[BaseModel] | None = None  # the type of the request body, where the handler reads the body itself
    once: bool = False  # whether a request may have an idempotency key
    public: bool = False  # whether it needs no authentication
    root: str = API

    def __call__(self, handler: Handler) -> Handler:
        setattr(handler, _DECLARATION, self)
        return handler

    @property
    def method(self) -> str:
        return self.request.partition(" ")[0]

    @property
    def strict(self) -> bool:
        """Whether query parameters that it does not know are refused."""
        return self.method == "GET" and self.root == API

    @property
    def direct(self) -> bool:
        """Whether its handler takes the request alone, and nothing is to be checked before."""
        return self.model is not None and self.may.permission is Permission.EVERYBODY


Guard = Callable[[Route], Callable[[Request], Awaitable[None]]]
"""Makes the dependency that checks the permission of a route."""


def declaration_of(endpoint: Any) -> Route | None:
    found: Route | None = getattr(endpoint, _DECLARATION, None)
    return found


def add_routes(app: FastAPI, handlers: object, guard: Guard) -> None:
    for name, function in vars(type(handlers)).items():
        if (declared := declaration_of(function)) is not None:
            app.router.routes.append(LateRoute(declared, getattr(handlers, name), guard))


class LateRoute(BaseRoute):
    """A route that FastAPI analyses at its first request: all of them together take a fifth of a second."""

    def __init__(self, declared: Route, endpoint: Callable[..., Any], guard: Guard) -> None:
        self.path = declared.root + declared.request.partition(" ")[2]
        self.methods = {declared.method}
        self._declared, self._endpoint, self._guard = declared, endpoint, guard
        self._pattern = compile_path(self.path)[0]

    @cached_property
    def complete(self) -> APIRoute:
        declared = self._declared
        kind = StrictRoute if declared.strict else DirectRoute if declared.direct else BodyRoute
        return kind(
            self.path,
            self._endpoint,
            methods=[declared.method],
            dependencies=[] if declared.may.permission is Permission.EVERYBODY else [Depends(self._guard(declared))],
            include_in_schema=bool(declared.id),
            openapi_extra={"x-may": declared.may.permission.value},
        )

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or self._pattern.match(scope["path"]) is None:
            return Match.NONE, {}
        return self.complete.matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.complete.handle(scope, receive, send)


def complete_routes(app: FastAPI) -> list[APIRoute]:
    return [route.complete for route in app.routes if isinstance(route, LateRoute)]


def job_guard(context: Context) -> Guard:
    """Checks the permission for routes of a job, whose id is in the path, and for those of admins."""

    def guard_of(declared: Route) -> Callable[[Request], Awaitable[None]]:
        async def guard(request: Request) -> None:
            parameters, permissions = request.path_params, context.permissions
            job = parameters.get("job") or parameters.get("batch", "")  # a batch has the id of its first job
            caller, action = permissions.caller(request), declared.may.action.format(job=job)
            permissions.check(declared.may.permission, caller, action, lambda: tasks.owner(context.reader, job))

        return guard

    return guard_of


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = sorted(field.alias for field in self.dependant.query_params)

        async def checked(request: Request) -> Response:
            check_parameters(request.query_params, known)
            return await handle(request)

        return checked


class BodyRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return read


class DirectRoute(APIRoute):
    """Calls a handler without FastAPI's resolution of parameters, which takes longer than most handlers.

    The application's middleware handles its errors.
    """

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = call
