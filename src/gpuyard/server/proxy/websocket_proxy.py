"""Forwards websockets between browsers and the process of the web page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httptools
from starlette.types import Scope

from gpuyard.errors import GpuyardError
from gpuyard.server.auth.audit import REFUSALS, AuditEntry
from gpuyard.server.auth.authentication import TicketClaim
from gpuyard.server.auth.hosts import address_of
from gpuyard.server.auth.middleware import Auth
from gpuyard.server.paths import LINES
from gpuyard.server.proxy.http_proxy import request_head, target_of, ticket_for
from gpuyard.server.proxy.supervisor import PageSupervisor

_CHECK = 20.0  # seconds between checks of the session
_STUCK = 60.0  # seconds after which a connection that takes no data is closed
_BEGIN = 30.0  # seconds in which the page's process has to answer
_LINGER = 5.0  # seconds to send the rest
_MOST = 2**17  # bytes in the send buffer
_GOING_AWAY, _MAY_NOT = b"\x88\x02\x03\xe9", b"\x88\x02\x03\xf0"  # frames of websockets that end them: 1001, 1008


class WebSocketProxy:
    def __init__(self, page: PageSupervisor, auth: Auth) -> None:
        self.page, self._auth = page, auth

    def take(
        self, scope: Scope, url: bytes, transport: asyncio.Transport, lost: Callable[[Any], None]
    ) -> BrowserConnection:
        """The protocol for a connection; `lost` is called when it ends."""
        browser = BrowserConnection(transport, lost)
        scope["raw_path"], scope["query_string"] = _parts(url)
        scope["path"] = scope["raw_path"].decode("latin-1")
        refused = self._refused(scope)
        if refused:
            browser.refuse(*refused)
            self._note(scope, refused[0])
        else:
            browser.begin(self._connected(browser, scope))
        return browser

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Status and text of a refusal; None if the connection is allowed."""
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
        if status in REFUSALS:
            address = address_of(scope, self._auth.settings)
            self._auth.audit.add(AuditEntry(time.time(), "", "nobody", address, scope["method"], scope["path"], status))

    async def _connected(self, browser: BrowserConnection, scope: Scope) -> None:
        try:
            scope["state"]["caller"] = self._auth.authenticator.caller(scope)
        except GpuyardError:  # the page's process shows the login
            scope["state"].pop("caller", None)
        ticket = await ticket_for(scope, self._auth)
        more = [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        head = request_head(target_of(scope), b"GET", scope["headers"], ticket, more)
        try:
            async with asyncio.timeout(_BEGIN):
                await self.page.connect_to(lambda: PageConnection(browser, head))
        except OSError:
            browser.refuse(503, "the page is being started; try again")
            return
        if (claim := self._auth.authenticator.tickets.read(ticket)) is not None:
            browser.watch(lambda: self._holds(claim))

    def _holds(self, claim: TicketClaim) -> bool:
        """Whether the caller may still see the page; this counts as use of the session."""
        try:
            self._auth.authenticator.claimed(claim)
        except GpuyardError:
            return False
        return True


def _parts(url: bytes) -> tuple[bytes, bytes]:
    """The path and the query; empty if the URL cannot be parsed."""
    try:
        found = httptools.parse_url(url)
    except httptools.HttpParserError:
        return b"", b""
    return found.path or b"", found.query or b""


class BrowserConnection(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport, lost: Callable[[Any], None]) -> None:
        self._transport, self._lost = transport, lost
        self._page: PageConnection | None = None
        self._answered = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None
        transport.set_write_buffer_limits(_MOST)
        transport.pause_reading()  # until the page's process is connected

    def begin(self, connecting: Any) -> None:
        self.after("begin", _BEGIN, self._give_up)
        self._task = asyncio.create_task(connecting)

    def watch(self, holds: Callable[[], bool]) -> None:
        """Close the connection once its caller may not see the page any more."""
        if self._transport.is_closing():
            return
        if holds():
            self.after("watch", _CHECK, lambda: self.watch(holds))
        else:
            self.end(_MAY_NOT)

    def refuse(self, status: int, why: str) -> None:
        if self._answered:
            return self.end()
        body = why.encode()
        self._transport.write(
            b"HTTP/1.1 %d No\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
            b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n\r\n%b" % (status, len(body), body)
        )
        return self.end()

    def end(self, frame: bytes = b"") -> None:
        """Close the connection when all data is sent, or after a few seconds."""
        if frame and self._answered:
            self._transport.write(frame)
        self._transport.close()
        self.after("linger", _LINGER, self._transport.abort)

    def shutdown(self) -> None:
        self.end(_GOING_AWAY)

    def _give_up(self) -> None:
        self.refuse(503, "the page is being started; try again")

    def after(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` later; replaces the timer of that name."""
        self.stop_timer(name)
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, act)

    def stop_timer(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    # -- between the two ---------------------------------------------------------------------------

    def joined(self, page: PageConnection) -> None:
        self._page = page
        self.set_reading(True)

    def send(self, data: bytes) -> None:
        self._answered = True
        self.stop_timer("begin")
        self._transport.write(data)

    def set_reading(self, on: bool) -> None:
        """Resume or pause reading, so that a slow receiver is not flooded."""
        _set_reading(self._transport, on)

    def data_received(self, data: bytes) -> None:
        if self._page is not None:
            self._page.send(data)

    def pause_writing(self) -> None:
        self.after("stuck", _STUCK, self._transport.abort)
        if self._page is not None:
            self._page.set_reading(False)

    def resume_writing(self) -> None:
        self.stop_timer("stuck")
        if self._page is not None:
            self._page.set_reading(True)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self.stop_timer(name)
        if self._task is not None:
            self._task.cancel()
        if self._page is not None:
            self._page.abort()
        self._lost(exc)


def _set_reading(transport: asyncio.Transport, on: bool) -> None:
    if not transport.is_closing():
        (transport.resume_reading if on else transport.pause_reading)()


class PageConnection(asyncio.Protocol):
    def __init__(self, browser: BrowserConnection, head: bytes) -> None:
        self._browser, self._head = browser, head
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(_MOST)
        transport.write(self._head)
        self._browser.joined(self)

    def data_received(self, data: bytes) -> None:
        self._browser.send(data)

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def set_reading(self, on: bool) -> None:
        if self._transport is not None:
            _set_reading(self._transport, on)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._browser.set_reading(False)

    def resume_writing(self) -> None:
        self._browser.set_reading(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._browser.end()
