"""Forwards websockets between browsers and the process of the web page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools
from starlette.types import Scope

from gpuyard.errors import GpuyardError
from gpuyard.server.auth.audit import REFUSALS, AuditEntry
from gpuyard.server.auth.authentication import TicketClaim
from gpuyard.server.auth.hosts import address_of
from gpuyard.server.paths import LINES
from gpuyard.server.proxy.http_proxy import request_head, target_of, ticket_for
from gpuyard.server.proxy.supervisor import PageSupervisor

if TYPE_CHECKING:
    from gpuyard.server.auth.middleware import Auth

_CHECK = 20.0  # seconds between looks at whether somebody may still look
_STUCK = 60.0  # seconds after which who takes nothing is given up
_BEGIN = 30.0  # seconds in which the page's process has to answer
_LINGER = 5.0  # seconds for what is still to be sent
_MOST = 2**17  # bytes that are kept for who is slow
_GOING_AWAY, _MAY_NOT = b"\x88\x02\x03\xe9", b"\x88\x02\x03\xf0"  # frames of websockets that end them: 1001, 1008


class WebSocketProxy:
    """Takes connections that ask to become websockets."""

    def __init__(self, page: PageSupervisor, auth: Auth) -> None:
        self.page, self._auth = page, auth

    def take(
        self, scope: Scope, url: bytes, transport: asyncio.Transport, lost: Callable[[Any], None]
    ) -> BrowserConnection:
        """What the connection is handed to; `lost` is told when it ends."""
        pump = BrowserConnection(transport, lost)
        scope["raw_path"], scope["query_string"] = _parts(url)
        scope["path"] = scope["raw_path"].decode("latin-1")
        refused = self._refused(scope)
        if refused:
            pump.refuse(*refused)
            self._note(scope, refused[0])
        else:
            pump.begin(self._connected(pump, scope))
        return pump

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Why not; None if nothing speaks against it."""
        hosts, headers = self._auth.hosts, dict(scope["headers"])
        host, port = headers.get(b"host", b"").decode("latin-1"), (scope.get("server") or (None, None))[1]
        names = sum(name == b"host" for name, _ in scope["headers"])
        if "peer" not in scope["state"] and (names != 1 or not hosts.serves(host, port)):
            return 421, "this daemon does not answer as that"
        if b"origin" not in headers:
            return 403, "only the daemon's own page may open this"
        if hosts.is_foreign(headers[b"origin"].decode("latin-1"), host, scope["scheme"], port):
            return 403, "a page of another origin may not open this"
        if scope["method"] != "GET" or scope["path"] != f"{LINES}socket.io/":
            return 404, "there is no websocket here"
        if b"content-length" in headers or b"transfer-encoding" in headers:
            return 400, "a websocket begins without a body"
        return None if self.page.is_on else (404, "this daemon has no page")

    def _note(self, scope: Scope, status: int) -> None:
        """Write a refusal down, as of any other request."""
        if status in REFUSALS:
            address = address_of(scope, self._auth.settings)
            self._auth.audit.add(AuditEntry(time.time(), "", "nobody", address, scope["method"], scope["path"], status))

    async def _connected(self, pump: BrowserConnection, scope: Scope) -> None:
        """Find out who it is, and connect them."""
        try:
            scope["state"]["caller"] = self._auth.authenticator.caller(scope)
        except GpuyardError:  # whoever is not known can see the door only, which the page's process sees to
            scope["state"].pop("caller", None)
        ticket = await ticket_for(scope, self._auth)
        more = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        head = request_head(target_of(scope), b"GET", scope["headers"], ticket, more)
        try:
            async with asyncio.timeout(_BEGIN):
                await self.page.connect_to(lambda: PageConnection(pump, head))
        except OSError:
            pump.refuse(503, "the page is being started; try again")
            return
        if (claim := self._auth.authenticator.tickets.read(ticket)) is not None:
            pump.watch(lambda: self._holds(claim))

    def _holds(self, claim: TicketClaim) -> bool:
        """Whether somebody may still look; who has a page open uses their session."""
        try:
            self._auth.authenticator.claimed(claim)
        except GpuyardError:
            return False
        return True


def _parts(url: bytes) -> tuple[bytes, bytes]:
    """The path and the query; nothing of what cannot be read."""
    try:
        found = httptools.parse_url(url)
    except httptools.HttpParserError:
        return b"", b""
    return found.path or b"", found.query or b""


class BrowserConnection(asyncio.Protocol):
    """The browser's end."""

    def __init__(self, transport: asyncio.Transport, lost: Callable[[Any], None]) -> None:
        self._transport, self._lost = transport, lost
        self._far: PageConnection | None = None
        self._answered = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None
        transport.set_write_buffer_limits(_MOST)
        transport.pause_reading()  # until there is somebody to pass it on to

    def begin(self, connecting: Any) -> None:
        """Have it connected."""
        self.after("begin", _BEGIN, self._give_up)
        self._task = asyncio.create_task(connecting)

    def watch(self, holds: Callable[[], bool]) -> None:
        """End it once whoever opened it may not look any longer."""
        if self._transport.is_closing():
            return
        if holds():
            self.after("watch", _CHECK, lambda: self.watch(holds))
        else:
            self.end(_MAY_NOT)

    def refuse(self, status: int, why: str) -> None:
        """Say no, in plain HTTP."""
        if self._answered:
            return self.end()
        body = why.encode()
        self._transport.write(
            b"HTTP/1.1 %d No\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n\r\n%b" % (status, len(body), body)
        )
        return self.end()

    def end(self, frame: bytes = b"") -> None:
        """Hang up, when what is on its way has been taken, or has not been for a while."""
        if frame and self._answered:
            self._transport.write(frame)
        self._transport.close()
        self.after("linger", _LINGER, self._transport.abort)

    def shutdown(self) -> None:
        """The daemon ends."""
        self.end(_GOING_AWAY)

    def _give_up(self) -> None:
        self.refuse(503, "the page is being started; try again")

    def after(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        """Do something later, unless it is put off or called off."""
        self.stop_timer(name)
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, act)

    def stop_timer(self, name: str) -> None:
        """Call it off."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    # -- between the two ---------------------------------------------------------------------------

    def joined(self, far: PageConnection) -> None:
        """The page's process is there."""
        self._far = far
        self.hurry(True)

    def give(self, data: bytes) -> None:
        """Send something to the browser."""
        self._answered = True
        self.stop_timer("begin")
        self._transport.write(data)

    def hurry(self, on: bool) -> None:
        """Read on, or wait until what was read has been taken."""
        if self._transport.is_closing():
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """The browser says something."""
        if self._far is not None:
            self._far.give(data)

    def pause_writing(self) -> None:
        """The browser is slow."""
        self.after("stuck", _STUCK, self._transport.abort)
        if self._far is not None:
            self._far.hurry(False)

    def resume_writing(self) -> None:
        """The browser has caught up."""
        self.stop_timer("stuck")
        if self._far is not None:
            self._far.hurry(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The browser has gone."""
        for name in list(self._timers):
            self.stop_timer(name)
        if self._task is not None:
            self._task.cancel()
        if self._far is not None:
            self._far.leave()
        self._lost(exc)


class PageConnection(asyncio.Protocol):
    """The end of the page's process."""

    def __init__(self, pump: BrowserConnection, head: bytes) -> None:
        self._pump, self._head = pump, head
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there, or will be."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(_MOST)
        transport.write(self._head)
        self._pump.joined(self)

    def data_received(self, data: bytes) -> None:
        """It says something."""
        self._pump.give(data)

    def give(self, data: bytes) -> None:
        """Send something to it."""
        assert self._transport is not None
        self._transport.write(data)

    def hurry(self, on: bool) -> None:
        """Read on, or wait until what was read has been taken."""
        if self._transport is None or self._transport.is_closing():
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def leave(self) -> None:
        """Nobody is at the other end any more."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """It is slow."""
        self._pump.hurry(False)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._pump.hurry(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended; the browser tries again by itself."""
        self._pump.end()
