"""The way in: who is not served, or sends more than anybody needs to, comes no further. And how a refusal looks."""

from __future__ import annotations

import json

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.server.admission import Admission, Unknown
from gpuyard.server.permissions import Forbidden

_MOST_BODY = 2**23
PROBES = frozenset(("/healthz", "/readyz"))
"""What tells nothing but whether the daemon does its work, and so asks nobody who they are."""
_MOST_PASSED_OVER = 10_000  # pieces, of 64 KiB or so


class Gate:
    """Whoever is not served, or sends more than anybody needs to, comes no further."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at who asks, and at how much is to come."""
        refusal = self._refusal(scope)
        if refusal is not None and refusal.status_code == 413:
            await _pass_over(receive)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        try:
            if scope["path"] not in PROBES:
                scope.setdefault("state", {})["caller"] = self._admission.caller(scope)
        except Unknown as error:
            return problem(401, str(error))
        except Forbidden as error:
            return problem(403, str(error))
        headers = dict(scope.get("headers", ()))
        if b"transfer-encoding" in headers:
            return problem(411, "a request must say how long it is, by Content-Length")
        if int(headers.get(b"content-length", b"0")) > _MOST_BODY:
            return problem(413, f"a request may have {_MOST_BODY} bytes at most, environment included")
        return None


async def _pass_over(receive: Receive) -> None:
    """Read what comes, and forget it: who still writes when we hang up would not see our answer."""
    for _ in range(_MOST_PASSED_OVER):
        if not (await receive()).get("more_body", False):
            return


def problem(status: int, detail: str) -> Response:
    """A refusal, as RFC 9457 has it."""
    body = json.dumps({"title": _TITLES.get(status, "Error"), "status": status, "detail": detail})
    return Response(body, status, media_type="application/problem+json")


_TITLES = {
    401: "Who are you?", 403: "Forbidden", 404: "Not found", 409: "Not possible now", 410: "Gone", 411: "No length",
    413: "Too long", 416: "No such range", 422: "Not valid", 429: "Too many", 503: "Cannot write",
}  # fmt: skip
