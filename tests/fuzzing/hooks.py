"""What schemathesis must keep to, so that nothing harmful is run and nobody waits: loaded by it, not by pytest.

It invents commands, directories and files. Those that would be taken are replaced by harmless ones just before they are
sent; what is refused anyway goes as it is. GPUYARD_FUZZ_PLACE is a directory that everything may be written to.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis

PLACE = os.environ["GPUYARD_FUZZ_PLACE"]


OPEN = {"Event"}
"""Answers that may hold more than is said of them."""


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Let no answer hold what is not described."""
    for name, schema in raw_schema["components"]["schemas"].items():
        if schema.get("type") == "object" and name not in OPEN:
            schema.setdefault("additionalProperties", False)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    if isinstance(case.body, dict | list):
        case.body = harmless(case.body)
    if isinstance(case.query, dict) and _is_number(case.query.get("wait")):
        case.query["wait"] = min(float(case.query["wait"]), 0.01)
    if isinstance(case.query, dict) and case.query.get("follow"):
        case.query["follow"] = False  # who follows a job that waits, waits


def harmless(value: Any) -> Any:
    """The same request, of which nothing but a little sleep can come."""
    if isinstance(value, list):
        return [harmless(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _replaced(name, one) for name, one in value.items()}


def _replaced(name: str, value: Any) -> Any:
    if name == "command" and isinstance(value, list) and value and all(map(_is_plain, value)):
        return ["/bin/sleep", "1"]  # long enough that some wait, run and are over
    if name == "directory" and _is_plain(value) and value.startswith("/"):
        return PLACE
    if name in ("output", "error") and _is_plain(value) and value:
        return f"{PLACE}/%j.log"
    if name == "script" and _is_plain(value) and value.startswith("#!"):
        return "#!/bin/sh\nexit 0\n"
    if name == "notify" and isinstance(value, list) and all(map(_is_plain, value)):
        return []
    if name == "url" and _is_plain(value) and ":" in value:
        return "json://127.0.0.1:9/"  # where nobody listens
    if name == "array" and _is_plain(value):
        return "0-2" if value else value
    return harmless(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_number(value: Any) -> bool:
    try:
        return 0 <= float(value) <= 30
    except (TypeError, ValueError):
        return False
