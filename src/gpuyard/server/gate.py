"""The way in. Nobody comes further who is not known, asks by a name that is not ours, from a page that is not ours, for
more than their role allows, or sends what nobody needs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.errors import GpuyardError
from gpuyard.server.admission import TooMany, Unknown, shown_token
from gpuyard.server.forgery import check_page, check_sending
from gpuyard.server.outgoing import Outgoing
from gpuyard.server.paths import SAFE, is_login, is_look, is_open, is_page, is_upload, is_waiting
from gpuyard.server.permissions import Caller, Forbidden, Role
from gpuyard.server.refusals import refusal
from gpuyard.server.times import prefer

if TYPE_CHECKING:
    from gpuyard.server.doors import Doors

_MOST_BODY = 2**23
_MOST_UPLOAD = 2**26
_MOST_OF_STRANGERS = 2**13  # enough for a token
_MOST_PASSED_OVER = 10_000  # pieces, of 64 KiB or so


class Refusal(GpuyardError):
    """No."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Gate:
    """Whoever is not served, or sends more than anybody needs to, comes no further."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self._app, self._doors = app, doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at who asks, at how, and at how much is to come."""
        outgoing = Outgoing(scope, send, self._doors)
        prefer(scope["headers"])
        answer = self._at_once(scope)
        if answer is not None and answer.status_code == 413 and "caller" in scope["state"]:
            await _pass_over(receive)
        try:
            await (answer or self._app)(scope, receive, outgoing.send)
        except Exception:
            if not outgoing.cut:
                raise
        finally:
            outgoing.note()

    def _at_once(self, scope: Scope) -> Response | None:
        """What is answered without asking any route: refusals, mostly."""
        path = scope["path"]
        try:
            return self._looked_at(scope)
        except Unknown as error:
            return refusal(path, 401, error.told(path))
        except TooMany as error:
            return refusal(path, 429, str(error), {"Retry-After": str(error.seconds)})
        except Forbidden as error:
            return refusal(path, 403, str(error))
        except Refusal as error:
            return refusal(path, error.status, str(error))

    def _looked_at(self, scope: Scope) -> Response | None:
        method, path, headers = scope["method"], scope["path"], dict(scope["headers"])
        state = scope.setdefault("state", {})
        foreign = self._is_foreign(scope, headers)
        if foreign and method == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        try:
            caller = self._doors.admission.caller(scope)
        except (Unknown, Forbidden):
            if foreign or not is_open(method, path) or shown_token(scope, headers):
                raise
        else:
            state["caller"] = caller
            if foreign and not caller.via.startswith("token"):
                raise Forbidden("a page of another origin gets this with a token only, as X-Auth-Token or ?token=")
            check_page(caller, method, path, headers)
            check_role(caller, method, path)
        check_sending(method, path, headers)
        check_length(headers, most_of(path, "caller" in state))
        if not is_page(path):
            check_kind(method, headers)
        return None

    def _is_foreign(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a page of another origin asks, where it may; elsewhere it is refused."""
        hosts, on_tcp = self._doors.hosts, "peer" not in scope["state"]
        host, port = headers.get(b"host", b"").decode("latin-1"), (scope.get("server") or (None, None))[1]
        names = sum(name == b"host" for name, _ in scope["headers"])
        if on_tcp and (names != 1 or not hosts.serves(host, port)):
            raise Refusal(421, f"this daemon does not answer as {host or 'nobody'}; if it should, name it in the "
                               "setting allowed_hosts")  # fmt: skip
        origin = headers.get(b"origin")
        if origin is None or not hosts.is_foreign(origin.decode("latin-1"), host, scope["scheme"], port):
            return False
        if scope["path"] == "/api" and scope["method"] in ("GET", "OPTIONS"):
            return True
        raise Forbidden(f"a page of {origin.decode('latin-1')} may not ask this daemon, which is {host}")


_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Methods": "GET",
    "Access-Control-Allow-Headers": "X-Auth-Token, Authorization", "Access-Control-Max-Age": "600",
}  # fmt: skip


def check_role(caller: Caller, method: str, path: str) -> None:
    """Refuse what a role does not allow, whoever it is."""
    if is_look(method, path) or is_login(method, path) or is_page(path):  # the page asks us again, with their rights
        return
    if caller.via == "nobody" and not is_waiting(path):
        raise Unknown("without a token you may look at the queue and wait for GPUs, and nothing else")
    if caller.role is Role.VIEWER and not (method == "DELETE" and path == "/api/v1/session"):
        raise Forbidden("your token is a viewer's, which changes nothing; make one with --role user")


def most_of(path: str, known: bool) -> int:
    """How many bytes somebody may send there."""
    if not known:
        return _MOST_OF_STRANGERS
    return _MOST_UPLOAD if is_upload(path) else _MOST_BODY


def check_length(headers: Mapping[bytes, bytes], most: int = _MOST_BODY) -> None:
    """Refuse what is too long, or of unknown length."""
    if b"transfer-encoding" in headers:
        raise Refusal(411, "a request must say how long it is, by Content-Length")
    if int(headers.get(b"content-length", b"0")) > most:
        raise Refusal(413, f"a request may have {most} bytes at most, environment included")


def check_kind(method: str, headers: Mapping[bytes, bytes]) -> None:
    """Refuse what is no JSON: a form of any page could send that without asking."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if int(headers.get(b"content-length", b"0")) and method not in SAFE and kind != b"application/json":
        raise Refusal(415, "a request's body must be JSON; send it as `Content-Type: application/json`")


async def _pass_over(receive: Receive) -> None:
    """Read what comes, and forget it: who still writes when we hang up would not see our answer."""
    for _ in range(_MOST_PASSED_OVER):
        if not (await receive()).get("more_body", False):
            return
