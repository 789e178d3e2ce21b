"""The middleware before all routes:

host, origin, caller, role and size of a request; headers and audit of its response.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.config import Settings
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import GpuyardError
from gpuyard.server.auth.audit import REFUSALS, AuditEntry, AuditLog
from gpuyard.server.auth.authentication import Authenticator, TooManyFailures, Unauthenticated, shown_token
from gpuyard.server.auth.credentials import CredentialStore
from gpuyard.server.auth.hosts import Hosts, address_of
from gpuyard.server.auth.permissions import Caller, Forbidden, Permissions, Role, SubmitterLimits
from gpuyard.server.context import ASKER
from gpuyard.server.paths import (
    API,
    SAFE,
    is_api,
    is_heartbeat,
    is_login,
    is_open,
    is_page,
    is_read,
    is_upload,
    is_waiting,
    is_watchmen,
)
from gpuyard.server.problems import refusal
from gpuyard.server.responses import set_time_format


class Auth:
    def __init__(
        self,
        settings: Settings,
        permissions: Permissions,
        credentials: CredentialStore | None = None,
        job_with: Callable[[int], JobView | None] = lambda pid: None,
    ) -> None:
        self.settings = settings
        self.credentials = credentials or CredentialStore()
        self.authenticator = Authenticator(settings, permissions, self.credentials, job_with)
        self.hosts = Hosts(settings)
        self.submitters = SubmitterLimits(settings)
        self.audit = AuditLog(self.credentials)


_OWN = (b"same-origin", b"none")  # none: the user typed the address


def check_origin(caller: Caller, method: str, path: str, headers: Mapping[bytes, bytes], secret: str) -> None:
    """Refuse what a page of another site may have sent: browsers add cookies, and the kernel names their user."""
    if caller.via.startswith("token") or caller.by_page:  # no page knows that of others, and no browser sends this
        return
    site = headers.get(b"sec-fetch-site")
    if site is not None and site not in _OWN and not _is_navigation(method, path, headers):
        raise Forbidden("a page of another site may not ask this daemon; open the daemon's own page")
    if method in SAFE or is_page(path) or not caller.via.startswith("session"):
        return
    given = headers.get(b"x-csrf-token", b"").decode("latin-1")
    if not hmac.compare_digest(given.encode(), csrf_of(secret).encode()):
        raise Forbidden("the header X-CSRF-Token is missing or wrong; GET /api/v1/session tells what it must be")
    if b"origin" not in headers and site != b"same-origin":
        raise Forbidden("with a cookie, send the header Origin as well, as browsers do; or use a token")


def check_page_request(method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
    """Refuse changes at the page's paths without an Origin header; a foreign Origin was refused before."""
    if method not in SAFE and is_page(path) and b"origin" not in headers:
        raise Forbidden("only the daemon's own page may send this, with the header Origin, as browsers do")


def csrf_of(secret: str) -> str:
    """The CSRF token of a session: only a page that may read our responses knows it."""
    return urlsafe_b64encode(hashlib.sha256(f"csrf {secret}".encode(errors="surrogatepass")).digest()).decode()


def _is_navigation(method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
    navigates = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return navigates and method == "GET" and not is_api(path) and not is_watchmen(path)


_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
)
_POLICY = b"content-security-policy"
_FOR_API = b"default-src 'none'; frame-ancestors 'none'"
_FOR_PAGES = (  # Vue makes functions of its templates while it runs, and NiceGUI has its pages' elements in a script
    b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    b"form-action 'self'; frame-ancestors 'none'"
)
_WITH_JOBS = (f"{API}/jobs", f"{API}/leases")
_MOST_READ = 2**16  # bytes of a response in which the id of a new job is searched


class OutgoingResponse:
    """Adds headers to one response, cuts it off when the caller's rights end, and writes it to the audit log."""

    def __init__(self, scope: Scope, send: Send, auth: Auth) -> None:
        self._scope, self._send, self._auth = scope, send, auth
        self._status = 0
        self._body = b""
        self.cut = False  # whether it was cut off because the caller's token, session or rights have ended

    async def send(self, message: Message) -> None:
        if self.cut:
            raise OSError("the token is good no more")
        if message["type"] == "http.response.start":
            if self._scope["method"] in SAFE and not self._holds():  # it has waited, and meanwhile
                return await self._turn_away()
            self._status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._more(message)]
        elif self._status == 201 and self._scope["path"].startswith(_WITH_JOBS) and len(self._body) < _MOST_READ:
            self._body += message.get("body", b"")
        if message.get("more_body") and not self._holds():
            self.cut = True
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        return await self._send(message)

    async def _turn_away(self) -> None:
        self.cut, self._status = True, 401
        answer = refusal(
            self._scope["path"], 401, "your token or your rights have ended; ask again, or make another token"
        )
        headers = [*answer.raw_headers, *self._more({"headers": answer.raw_headers})]
        await self._send({"type": "http.response.start", "status": 401, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer.body})

    def _more(self, message: Message) -> list[tuple[bytes, bytes]]:
        there, path = {name.lower() for name, _ in message.get("headers", ())}, self._scope["path"]
        strict = is_api(path) or is_watchmen(path)
        wanted = [*_ALWAYS, (_POLICY, _FOR_API if strict else _FOR_PAGES)]
        if self._status == 401:
            wanted.append((b"www-authenticate", b"Bearer"))
        if path == "/api" and self._via.startswith("token"):
            wanted.append((b"access-control-allow-origin", b"*"))
        return [(name, value) for name, value in wanted if name not in there]

    @property
    def _caller(self) -> Caller | None:
        found = self._scope.get("state", {}).get("caller")
        return found if isinstance(found, Caller) else None

    @property
    def _via(self) -> str:
        caller = self._caller
        return "nobody" if caller is None else caller.via

    def _holds(self) -> bool:
        caller = self._caller
        return caller is None or self._auth.authenticator.holds(caller)

    def note(self) -> None:
        scope, status = self._scope, self._status
        path = scope["path"]  # what the page's process asks for is written down when it does
        looks = is_read(scope["method"], path) or is_heartbeat(path) or is_page(path)
        changes = not looks and not 400 <= status < 500
        if not changes and status not in REFUSALS:
            return
        caller = self._caller
        user, way = (caller.name, caller.way) if caller is not None else ("", "nobody")
        address = scope.get("state", {}).get("address") or address_of(scope, self._auth.settings)
        entry = AuditEntry(time.time(), user, way, address, scope["method"], scope["path"], status,
                      scope.get("state", {}).get("about", ""))  # fmt: skip
        self._auth.audit.add(entry, self._body)


_MOST_BODY = 2**23
_MOST_UPLOAD = 2**26
_MOST_OF_STRANGERS = 2**13  # enough for a token
_MOST_PASSED_OVER = 10_000  # pieces, of 64 KiB or so


class RequestRefused(GpuyardError):
    """No."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class AuthMiddleware:
    """Checks host, origin, caller, role and size of each request before any route sees it."""

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app, self._auth = app, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outgoing = OutgoingResponse(scope, send, self._auth)
        set_time_format(scope["headers"])
        answer = self._at_once(scope)
        if answer is not None and answer.status_code == 413 and "caller" in scope["state"]:
            await _discard(receive)
        try:
            await (answer or self._app)(scope, receive, outgoing.send)
        except Exception:
            if not outgoing.cut:
                raise
        finally:
            outgoing.note()

    def _at_once(self, scope: Scope) -> Response | None:
        """The response, if no route is to see the request: a refusal, or that to a preflight."""
        path = scope["path"]
        try:
            return self._checked(scope)
        except Unauthenticated as error:
            return refusal(path, 401, error.message_for(path))
        except TooManyFailures as error:
            return refusal(path, 429, str(error), {"Retry-After": str(error.seconds)})
        except Forbidden as error:
            return refusal(path, 403, str(error))
        except RequestRefused as error:
            return refusal(path, error.status, str(error))

    def _checked(self, scope: Scope) -> Response | None:
        method, path, headers = scope["method"], scope["path"], dict(scope["headers"])
        state = scope.setdefault("state", {})
        foreign = self._is_foreign(scope, headers)
        if foreign and method == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        try:
            caller = self._auth.authenticator.caller(scope)
        except (Unauthenticated, Forbidden):
            if foreign or not is_open(method, path) or shown_token(scope, headers):
                raise
        else:
            state["caller"] = caller
            ASKER.set(caller.name)
            if foreign and not caller.via.startswith("token"):
                raise Forbidden("a page of another origin gets this with a token only, as X-Auth-Token or ?token=")
            check_origin(caller, method, path, headers, state.get("secret", ""))
            check_role(caller, method, path)
        check_page_request(method, path, headers)
        check_length(headers, body_limit(path, "caller" in state))
        if not is_page(path):
            check_content_type(method, headers)
        return None

    def _is_foreign(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a page of another origin asks for a path that it may read; other paths are refused."""
        hosts, on_tcp = self._auth.hosts, "peer" not in scope["state"]
        host, port = headers.get(b"host", b"").decode("latin-1"), (scope.get("server") or (None, None))[1]
        names = sum(name == b"host" for name, _ in scope["headers"])
        if on_tcp and (names != 1 or not hosts.serves(host, port)):
            who = host or "nobody"
            raise RequestRefused(
                421, f"this daemon does not answer as {who}; if it should, name it in the setting allowed_hosts"
            )
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
    if is_read(method, path) or is_login(method, path) or is_page(path):  # the page asks us again, with their rights
        return
    if caller.via == "nobody" and not is_waiting(path):
        raise Unauthenticated("without a token you may look at the queue and wait for GPUs, and nothing else")
    if caller.role is Role.VIEWER and not (method == "DELETE" and path == f"{API}/session"):
        raise Forbidden("your token is a viewer's, which changes nothing; make one with --role user")


def body_limit(path: str, known: bool) -> int:
    if not known:
        return _MOST_OF_STRANGERS
    return _MOST_UPLOAD if is_upload(path) else _MOST_BODY


def check_length(headers: Mapping[bytes, bytes], most: int = _MOST_BODY) -> None:
    if b"transfer-encoding" in headers:
        raise RequestRefused(411, "a request must say how long it is, by Content-Length")
    if int(headers.get(b"content-length", b"0")) > most:
        raise RequestRefused(413, f"a request may have {most} bytes at most, environment included")


def check_content_type(method: str, headers: Mapping[bytes, bytes]) -> None:
    """Refuse bodies that are not JSON: an HTML form of any site can send those without a preflight."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if int(headers.get(b"content-length", b"0")) and method not in SAFE and kind != b"application/json":
        raise RequestRefused(415, "a request's body must be JSON; send it as `Content-Type: application/json`")


async def _discard(receive: Receive) -> None:
    """Read and drop the body: a client that still writes when we close the connection would not see our response."""
    for _ in range(_MOST_PASSED_OVER):
        if not (await receive()).get("more_body", False):
            return
