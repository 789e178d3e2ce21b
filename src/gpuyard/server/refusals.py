"""How a refusal looks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from gpuyard.server.paths import is_watchmens


def refusal(path: str, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """A refusal, as whoever uses a path expects it."""
    if is_watchmens(path):
        body = json.dumps({"status": "err", "msg": detail})
        return Response(body, status, dict(headers or {}), media_type="application/json")
    return problem(status, detail, headers, **more)


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """A refusal, as RFC 9457 has it."""
    body = json.dumps({"title": _TITLES.get(status, "Error"), "status": status, "detail": detail, **more})
    return Response(body, status, dict(headers or {}), media_type="application/problem+json")


_TITLES = {
    400: "Not JSON", 401: "Who are you?", 403: "Forbidden", 404: "Not found", 405: "Not this way",
    409: "Not possible now", 410: "Gone", 411: "No length", 413: "Too long", 415: "Not JSON", 416: "No such range",
    421: "Not our name", 422: "Not valid", 429: "Too many", 500: "Our mistake", 503: "Unavailable",
}  # fmt: skip
