"""What goes out: with headers that keep browsers careful, to those alone who may still have it, and into the trail."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.types import Message, Scope, Send

from gpuyard.server.hosts import address_of
from gpuyard.server.paths import SAFE, is_api, is_look, is_page, is_sign_of_life, is_watchmens
from gpuyard.server.permissions import Caller
from gpuyard.server.refusals import refusal
from gpuyard.server.trail import REFUSALS, Entry

if TYPE_CHECKING:
    from gpuyard.server.doors import Doors

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
_WITH_JOBS = ("/api/v1/jobs", "/api/v1/leases")
_MOST_READ = 2**16  # bytes of an answer in which the id of a new job is looked for


class Outgoing:
    """One answer on its way."""

    def __init__(self, scope: Scope, send: Send, doors: Doors) -> None:
        self._scope, self._send, self._doors = scope, send, doors
        self._status = 0
        self._body = b""
        self.cut = False
        """Whether it ended before its time, since whoever asked may not have it any more."""

    async def send(self, message: Message) -> None:
        """Send a part of it."""
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
        answer = refusal(self._scope["path"], 401, "your token is good no more; make another with gpuyard token create")
        headers = [*answer.raw_headers, *self._more({"headers": answer.raw_headers})]
        await self._send({"type": "http.response.start", "status": 401, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer.body})

    def _more(self, message: Message) -> list[tuple[bytes, bytes]]:
        """Headers that are still missing."""
        there, path = {name.lower() for name, _ in message.get("headers", ())}, self._scope["path"]
        strict = is_api(path) or is_watchmens(path)
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
        """Whether what they came in by is still good: an answer may go on for hours."""
        return self._doors.access.holds(self._via)

    def note(self) -> None:
        """Write down who changed what, and who was refused."""
        scope, status = self._scope, self._status
        path = scope["path"]  # what the page's process asks for is written down when it does
        looks = is_look(scope["method"], path) or is_sign_of_life(path) or is_page(path)
        changes = not looks and not 400 <= status < 500
        if not changes and status not in REFUSALS:
            return
        caller = self._caller
        user, way = (caller.name, caller.way) if caller is not None else ("", "nobody")
        address = scope.get("state", {}).get("address") or address_of(scope, self._doors.settings)
        entry = Entry(time.time(), user, way, address, scope["method"], scope["path"], status,
                      scope.get("state", {}).get("about", ""))  # fmt: skip
        self._doors.trail.add(entry, self._body)
