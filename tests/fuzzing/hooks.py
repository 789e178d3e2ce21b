"""What schemathesis must keep to, so that nothing harmful is run and nobody waits: loaded by it, not by pytest.

It invents commands, directories, files and URLs. Those that would be taken are replaced by harmless ones just before
they are sent; what is refused anyway goes as it is. And since hardly anything that it invents for a dependency or a
signal can be meant, most requests get something that can, so that they are not all refused. GPUYARD_FUZZ_PLACE is a
directory that everything may be written to.
"""

from __future__ import annotations

import itertools
import os
import zlib
from typing import Any

import schemathesis

PLACE = os.environ["GPUYARD_FUZZ_PLACE"]
OPEN = {"Event"}
"""Answers that may hold more than is said of them."""
NOWHERE = "json://127.0.0.1:9/"
"""Where nobody listens."""
COUNT = itertools.count()
GPUS = 4
POLICIES = ("sjf", "fcfs@strict", "priority:ageing=2@easy@pack", "rr", "las", "multifactor@conservative@spread")


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Let no answer hold what is not described."""
    for name, schema in raw_schema["components"]["schemas"].items():
        if schema.get("type") == "object" and name not in OPEN:
            schema.setdefault("additionalProperties", False)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Send nothing that does harm, or takes long."""
    if isinstance(case.body, dict | list):
        meant = zlib.crc32(repr(case.body).encode(errors="replace")) % 4 > 0
        case.body = changed(case.body, meant)
    key = (case.headers or {}).get("Idempotency-Key")
    if (
        isinstance(key, str) and 0 < len(key) < 200 and "\0" not in key and next(COUNT) % 4
    ):  # else it may come again, with another request
        case.headers["Idempotency-Key"] = f"{key}-{next(COUNT)}"
    if isinstance(case.query, dict) and _is_number(case.query.get("wait")):
        case.query["wait"] = min(float(case.query["wait"]), 0.01)
    if isinstance(case.query, dict) and case.query.get("follow"):
        case.query["follow"] = False  # who follows a job that waits, waits


def changed(value: Any, meant: bool) -> Any:
    """The same request, of which nothing but a little sleep can come."""
    if isinstance(value, list):
        return [changed(one, meant) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: _harmless(name, one, meant) for name, one in value.items()}
    if found.get("url") == NOWHERE:  # a process is started for everything that is sent
        found.setdefault("events", ["long-wait"])
    return {name: _meant(name, one) for name, one in found.items()} if meant else found


def _harmless(name: str, value: Any, meant: bool) -> Any:
    if name == "command" and isinstance(value, list) and value and all(map(_is_plain, value)):
        return ["/bin/sleep", "0.2"]  # long enough that some wait, run and are over
    if name == "notify" and isinstance(value, list) and all(map(_is_plain, value)):
        return []
    if name == "events" and isinstance(value, list) and value and all(map(_is_plain, value)):
        return ["long-wait"]
    if not _is_plain(value):
        return changed(value, meant)
    if name == "directory" and value.startswith(("/", "~")):
        return PLACE
    if name in ("output", "error") and value:
        return f"{PLACE}/%j.log"
    if name == "script" and value.startswith("#!"):
        return "#!/bin/sh\nexit 0\n"
    if name == "array" and value:
        return "0-2"
    if name == "url" and ":" in value:
        return NOWHERE
    return value


def _meant(name: str, value: Any) -> Any:
    """Something of the same kind that somebody might mean; what is of no good kind stays as it is."""
    number = zlib.crc32(repr(value).encode(errors="replace"))
    if name == "gpus" and isinstance(value, int) and 1 <= value <= 1_000_000:
        return number % GPUS + 1
    if name in ("from", "gpus") and isinstance(value, list) and value and all(map(_is_index, value)):
        return sorted({index % GPUS for index in value})
    if not _is_plain(value):
        return value
    if name == "directory":
        return PLACE
    if name == "policy":
        return POLICIES[number % len(POLICIES)]
    return {"dependency": "", "signal": "USR1", "array": "0-2", "script": "#!/bin/sh\n"}.get(name, value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 1_000_000


def _is_number(value: Any) -> bool:
    try:
        return 0 <= float(value) <= 30
    except (TypeError, ValueError):
        return False
