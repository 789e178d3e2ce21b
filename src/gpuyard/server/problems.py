"""Problem objects (RFC 9457) of refused requests, and messages for invalid fields."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import Response
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpuyard.errors import suggest
from gpuyard.server.paths import is_watchmen
from gpuyard.server.request_fields import MOST_INDEX, ONE_WORD
from gpuyard.spec.fields import FIELDS
from gpuyard.spec.job_field import JobField


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
    steps = (str(step) for step in _steps(part) if not _TAG.search(str(step)))
    return ".".join(steps) or "body"


def error_message(part: Mapping[str, Any], taken: Any = None) -> str:
    """The message for an invalid field; `taken` is the type of the request body."""
    kind, about = part["type"], part.get("ctx", {})
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return _OBJECT if _steps(part) else f"the body {_OBJECT}"
    if kind == "extra_forbidden":
        *above, name = _steps(part)
        return f"there is no such field{suggest(str(name), _fields(taken, above))}"
    field = None if kind in ("missing", "value_error") else _job_field(taken, _steps(part))
    if field is not None and not (kind == "less_than_equal" and field.most == MOST_INDEX):  # which it does not tell
        return f"must be {field.json_wanted}{_given(part)}"
    if kind in ("too_short", "string_too_short") and about.get("min_length") == 1:
        return "must not be empty"
    if kind in ("literal_error", "enum"):
        return f"is one of {about['expected'].replace(' or ', ', ')}".replace("'", "")
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(about["pattern"], str(part["msg"]))
    kind = "string_too_long" if kind == "too_long" and isinstance(part.get("input"), str) else kind
    if kind in _LIMITS:
        numbers = {name: f"{value:.15g}" for name, value in about.items() if isinstance(value, int | float)}
        return _LIMITS[kind].format(**numbers)
    if wanted := next((text for start, text in _WANTED.items() if kind.startswith(start)), ""):
        return f"must be {wanted}{_given(part)}"
    return str(part["msg"]).removeprefix("Value error, ")


_TAG = re.compile(r"[\[(]|^constrained-")  # what the validator calls the members of a union
_LIMITS = {
    "missing": "is required", "greater_than_equal": "must be a number of {ge} or more, as in {ge}",
    "less_than_equal": "must be a number of at most {le}, as in {le}",
    "greater_than": "must be a number above {gt}", "less_than": "must be a number below {lt}",
    "too_long": "must have at most {max_length} entries", "too_short": "must have at least {min_length} entries",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
}  # fmt: skip
_WANTED = {
    "int_": "a whole number, as in 2", "float_": "a number, as in 1.5", "finite_number": "a finite number, as in 1.5",
    "bool_": "true or false", "string_": 'a text, as in "train"', "list_": 'a list, as in ["a", "b"] or [0, 1]',
    "datetime_": "a time in ISO-8601, as in 2026-11-20T08:00:00+01:00",
    "timezone_": "a time with its zone, as in 2026-11-20T08:00:00+01:00",
}  # fmt: skip
"""What a value must be, by the beginning of the validator's type of error."""
_LONGEST = 40  # characters of what was given, in a message
_DECLARED = {field.name: field for field in FIELDS if field.description}


def _given(part: Mapping[str, Any]) -> str:
    given = part.get("input")
    if isinstance(given, str | list | dict) and len(given) > _LONGEST:  # which would take long to write
        return ""
    text = json.dumps(given, default=str)
    return f", not {text}" if len(text) <= _LONGEST else ""


def _job_field(taken: Any, steps: Sequence[Any]) -> JobField | None:
    """The field of a job that a path of a request body is about, if it is one that `spec` declares."""
    at = next((at for at in range(len(steps) - 1, -1, -1) if steps[at] in _DECLARED), None)
    if at is None:
        return None
    field = _DECLARED[steps[at]]
    known = [info for model in _models_at(taken, steps[:at]) for info in _named(model, steps[at])]
    return field if any(info.description == field.description for info in known) else None


def _steps(part: Mapping[str, Any]) -> tuple[Any, ...]:
    steps = tuple(part["loc"])
    return steps[1:] if steps and steps[0] in _SOURCES else steps


def _fields(taken: Any, steps: Sequence[Any]) -> list[str]:
    models = _models_at(taken, steps)
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _models_at(taken: Any, steps: Sequence[Any]) -> list[type[BaseModel]]:
    models = list(_models(taken))
    for step in steps:
        fields = [field for model in models for field in _named(model, step)]
        models = [model for field in fields for model in _models(field.annotation)] if fields else models
    return models


def _named(model: type[BaseModel], step: Any) -> list[FieldInfo]:
    return [field for name, field in model.model_fields.items() if step in (name, field.alias)]


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The models in a type, as in `list[Submission] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in typing.get_args(kind):
        yield from _models(inner)
