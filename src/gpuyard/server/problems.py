"""Problem objects (RFC 9457) of refused requests, and messages for invalid fields."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import Response
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpuyard.errors import suggest
from gpuyard.server.paths import is_watchmen
from gpuyard.server.request_fields import ONE_WORD


def refusal(path: str, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    if is_watchmen(path):
        body = json.dumps({"status": "err", "msg": detail})
        return Response(body, status, dict(headers or {}), media_type="application/json")
    return problem(status, detail, headers, **more)


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    body = json.dumps({"title": _TITLES.get(status, "Error"), "status": status, "detail": detail, **more})
    return Response(body, status, dict(headers or {}), media_type="application/problem+json")


_TITLES = {
    400: "Not JSON", 401: "Who are you?", 403: "Forbidden", 404: "Not found", 405: "Not this way",
    409: "Not possible now", 410: "Gone", 411: "No length", 413: "Too long", 415: "Not JSON", 416: "No such range",
    421: "Not our name", 422: "Not valid", 429: "Too many", 500: "Our mistake", 503: "Unavailable",
}  # fmt: skip


_SOURCES = ("body", "query", "path", "header")
_PATTERNS = {ONE_WORD: "must be one word, without spaces and slashes"}
_OBJECT = "must be an object, as in {...}"


def error_location(part: Mapping[str, Any]) -> str:
    """The path of an invalid field; `body` for the whole body."""
    return ".".join(map(str, _steps(part))) or "body"


def error_message(part: Mapping[str, Any], taken: Any = None) -> str:
    """The message for an invalid field; `taken` is the type of the request body."""
    kind, about = part["type"], part.get("ctx", {})
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return _OBJECT if _steps(part) else f"the body {_OBJECT}"
    if kind == "extra_forbidden":
        *above, name = _steps(part)
        return f"there is no such field{suggest(str(name), _fields(taken, above))}"
    if kind in ("too_short", "string_too_short") and about.get("min_length") == 1:
        return "must not be empty"
    if kind == "literal_error":
        return f"is one of {about['expected'].replace(' or ', ', ')}".replace("'", "")
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(about["pattern"], str(part["msg"]))
    return str(part["msg"]).removeprefix("Value error, ")


def _steps(part: Mapping[str, Any]) -> tuple[Any, ...]:
    steps = tuple(part["loc"])
    return steps[1:] if steps and steps[0] in _SOURCES else steps


def _fields(taken: Any, steps: Sequence[Any]) -> list[str]:
    models = list(_models(taken))
    for step in steps:
        fields = [field for model in models for field in _named(model, step)]
        models = [model for field in fields for model in _models(field.annotation)] if fields else models
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _named(model: type[BaseModel], step: Any) -> list[FieldInfo]:
    return [field for name, field in model.model_fields.items() if step in (name, field.alias)]


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The models in a type, as in `list[Submission] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in typing.get_args(kind):
        yield from _models(inner)
