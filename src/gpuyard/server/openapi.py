"""The OpenAPI document: FastAPI's, completed with the descriptions of the routes and schemas of the API's types."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Literal, NotRequired, Required, Union

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from gpuyard.api.replies import Problem
from gpuyard.config import Settings
from gpuyard.server.auth.authentication import COOKIE
from gpuyard.server.requests import KEY_HEADER, REPLAYED_HEADER
from gpuyard.server.routing import Answer, Route, complete_routes, declaration_of

Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {}, object: {},
}  # fmt: skip


def schema_of(kind: Any, found: dict[str, Schema]) -> Schema:
    """The schema of a type; those of classes inside are added to `found` and referred to."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if typing.is_typeddict(kind):
        if kind.__name__ not in found:
            found[kind.__name__] = {}  # it may contain itself
            found[kind.__name__] = _object(kind, found)
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (NotRequired, Required):
        return schema_of(inner[0], found)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one, found) for one in inner]}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0], found)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1], found)}
    raise TypeError(f"there is no schema for {kind!r}")


def _object(kind: Any, found: dict[str, Schema]) -> Schema:
    docs = _field_docs(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {name: schema_of(of, found) for name, of in hints.items()}
    for name, text in docs.items():
        fields[name] = {"description": text, **fields[name]}
    # Not `__required_keys__`, which is wrong where annotations are strings.
    needed = [name for name, of in hints.items() if kind.__total__ and typing.get_origin(of) is not NotRequired]
    doc = inspect.getdoc(kind) or ""
    return {"type": "object", "title": kind.__name__, "description": doc, "properties": fields, "required": needed}


@cache
def _field_docs(kind: Any) -> dict[str, str]:
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


_REF = "#/components/schemas/{model}"
_ABOUT = """Queue GPU jobs, look at the queue, and decide who is next.

Times are ISO-8601 with a zone, durations seconds, sizes bytes. A refusal is a problem object (RFC 9457) whose `detail`
says what to do. See docs/reference/api.md."""
_TAGS = {
    "Jobs": "Commands, queued until GPUs are free.",
    "Batches": "Jobs that came out of one file.",
    "Leases": "GPUs for processes that run already.",
    "Events": "What happened, in order.",
    "GPUs": "The GPUs, and who is on them.",
    "Reservations": "GPUs that are kept for somebody.",
    "Rules": "Who may have what, and has had it.",
    "Policy": "What decides who is next.",
    "Notifications": "Being told of one's jobs.",
    "Access": "Tokens, sessions, and who did what.",
    "Daemon": "The daemon itself.",
}
_PARAMETERS = {
    "job": "A job's id; `12` may be an array, `12_3` is one of its tasks, and `12_[3-5]` are some.",
    "name": "The name.",
    "signature": "What jobs are known by, as GET /estimates tells it.",
    "offset": "The first byte; below 0: counted from the end.",
    "size": "At most so many bytes.",
    "attempt": "Which attempt; the latest, if not said.",
    "limit": "At most so many.",
    "id": "The token's id.",
    "subscription": "Its id, or its name.",
    "batch": "A batch's id, which is that of its first job.",
    "user": "Only those of this user.",
    "failed": "Only those that could not be sent.",
    "since": "Only what happened then or later.",
    "for": "What to wait for: that it is over, or that it has started.",
}
REFUSAL_TEXTS = {
    400: "The request is not JSON.",
    401: "It is not known who asks: send a token.",
    403: "Whoever asks may not do that.",
    404: "There is no such thing.",
    409: "This cannot be done as things stand.",
    410: "It was there, and is kept no longer.",
    411: "The request does not say how long it is.",
    413: "The request is too long.",
    415: "The request is of another type than JSON.",
    416: "There is no such range.",
    421: "The request was meant for another host.",
    422: "The request makes no sense; `errors` may tell where.",
    429: "Too many failures: wait a while.",
    503: "This cannot be done now: try again later.",
}
_EVERYBODY = (401, 403, 421, 429)
_WITH_BODY = (400, 411, 413, 415)
_DETAILS = {
    404: "there is no job 17 (gpuyard ps --all lists them)",
    409: "job 17 runs already; only a waiting job can be held",
    422: "gpus: must be a whole number of 1 or more, as in 1, not 0",
}


def openapi_document(app: FastAPI, settings: Settings) -> dict[str, Any]:
    routes = complete_routes(app)
    found = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=routes)
    components = found.setdefault("components", {})
    schemas: dict[str, Schema] = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI adds these, but the API does not return them
        schemas.pop(name, None)
    declared = list(_declared(routes))
    read = [(one.model, "validation") for _, one in declared if one.model is not None]
    schemas |= models_json_schema(read, ref_template=_REF)[1].get("$defs", {})  # type: ignore[arg-type]
    for path, one in declared:
        _describe(found["paths"][path][one.method.lower()], one, schemas)
    components["responses"] = {str(status): _refusal(status, schemas) for status in REFUSAL_TEXTS}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token, as gpuyard token makes them."},
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "As the page has it."},
    }
    found["security"] = security_requirements(settings)
    found["tags"] = [{"name": name, "description": text} for name, text in _TAGS.items()]
    found["servers"] = [{"url": "/"}]
    return found


def security_requirements(settings: Settings) -> list[dict[str, list[str]]]:
    """What a request must prove; nothing where the kernel names the caller."""
    wanted = not settings.local or settings.tokens == "required" or bool(settings.allowed_hosts)
    known: list[dict[str, list[str]]] = [{"token": []}, {"session": []}]
    return known if wanted and settings.tokens != "none" else [{}, *known]


def _declared(routes: Iterable[APIRoute]) -> Iterator[tuple[str, Route]]:
    for route in routes:
        if (declared := declaration_of(route.endpoint)) is not None and declared.id:
            yield route.path_format, declared


def _describe(operation: dict[str, Any], route: Route, schemas: dict[str, Schema]) -> None:
    operation |= {"operationId": route.id, "summary": route.summary, "tags": [route.tag]}
    for parameter in operation.get("parameters", []):
        parameter.setdefault("description", _PARAMETERS.get(parameter["name"], ""))
    if route.public:
        operation["security"] = []
    if route.once:
        operation.setdefault("parameters", []).append(_KEY_PARAMETER)
    if route.model is not None:
        schema = {"$ref": _REF.format(model=route.model.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if (body := operation.get("requestBody")) is not None:
        content = body["content"]["application/json"]
        content["examples"] = {name: {"value": value} for name, value in route.examples.items()}
    bad = {*route.refusals, *_EVERYBODY, *(_WITH_BODY if body is not None else ()), *((422,) if route.strict else ())}
    good = {str(status): _response(one, schemas, route.once) for status, one in route.answers.items()}
    operation["responses"] = good | {str(code): {"$ref": f"#/components/responses/{code}"} for code in sorted(bad)}


def _response(one: Answer, schemas: dict[str, Schema], once: bool) -> dict[str, Any]:
    content = _content(one, schemas)
    headers = {**one.headers, **({REPLAYED_HEADER: _REPLAYED_HEADER} if once else {})}
    links = {
        operation: {"operationId": operation, "parameters": dict(parameters)}
        for operation, parameters in one.links.items()
    }
    parts = {"content": content, "headers": headers, "links": links}
    return {"description": one.what, **{name: part for name, part in parts.items() if part}}


def _content(one: Answer, schemas: dict[str, Schema]) -> dict[str, Any]:
    others = {kind: {"schema": {"type": "string"}, "example": example} for kind, example in one.also.items()}
    if one.kind is None:
        return others
    if one.kind is bytes:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    several = [schema_of(kind, schemas) for kind in (one.kind if isinstance(one.kind, tuple) else (one.kind,))]
    schema = several[0] if len(several) == 1 else {"anyOf": several}
    return {"application/json": {"schema": schema, "example": one.example}, **others}


def _refusal(status: int, schemas: dict[str, Schema]) -> dict[str, Any]:
    example = {"title": "...", "status": status, "detail": _DETAILS.get(status, REFUSAL_TEXTS[status])}
    content = {"application/problem+json": {"schema": schema_of(Problem, schemas), "example": example}}
    found: dict[str, Any] = {"description": REFUSAL_TEXTS[status], "content": content}
    return found


_KEY_PARAMETER: dict[str, Any] = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "A word of your own: sent again with it, the same request is answered as before, and done once.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    "example": "3f1c9d52-0b1e-4c55-9d7a-2a4c8a6f0f11",
}
_REPLAYED_HEADER: dict[str, Any] = {
    "description": "`true` if this answers a request that was answered before.", "schema": {"enum": ["true"]},
}  # fmt: skip
