"""Forwards requests for the web page to its process, and streams the responses back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable, Sequence

import httptools
from fastapi import Response
from starlette.datastructures import State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.server.auth.authentication import COOKIE, PAGE, TICKET_HEADER, TicketClaim
from gpuyard.server.auth.hosts import address_of
from gpuyard.server.auth.middleware import Auth
from gpuyard.server.auth.permissions import Caller
from gpuyard.server.paths import is_asset, is_page
from gpuyard.server.problems import problem
from gpuyard.server.proxy.supervisor import PageSupervisor

Headers = Sequence[tuple[bytes, bytes]]
_ONE_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
_KEPT_BACK = frozenset(
    (TICKET_HEADER, b"authorization", b"x-auth-token", b"expect", b"forwarded", b"via", b"x-real-ip")
)
_OWN_COOKIE = f"{COOKIE}=".encode()


def request_head(target: bytes, method: bytes, headers: Headers, ticket: str, more: Headers) -> bytes:
    """The head of a request for the page's process, with a ticket, and without the viewer's secrets.

    `more` are the headers of this hop, which replace those of the browser's.
    """
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines += [b"%b: %b" % one for one in (*_passing(headers), *more)]
    if ticket:
        lines.append(b"%b: %b" % (TICKET_HEADER, ticket.encode()))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def target_of(scope: Scope) -> bytes:
    path, query = bytes(scope["raw_path"]), scope.get("query_string", b"")
    return path + b"?" + query if query else path


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [
        (name, value)
        for name, value in headers
        if name not in _ONE_HOP and not (name == b"set-cookie" and value.startswith(_OWN_COOKIE))
    ]


def _passing(headers: Headers) -> list[tuple[bytes, bytes]]:
    found = []
    for name, value in headers:
        if name in _ONE_HOP or name in _KEPT_BACK or name.startswith(b"x-forwarded-"):
            continue
        kept = _cookies(value) if name == b"cookie" else value
        if kept or name != b"cookie":
            found.append((name, kept))
    return found


def _cookies(value: bytes) -> bytes:
    """All cookies but the session's, which the page's process must not see."""
    parts = (part.strip() for part in value.split(b";"))
    return b"; ".join(part for part in parts if part and not part.startswith(_OWN_COOKIE))


async def ticket_for(scope: Scope, auth: Auth) -> str:
    """A ticket for the caller that the middleware found; empty if there is none."""
    caller = scope["state"].get("caller")
    if not isinstance(caller, Caller) or caller.by_page or caller is PAGE:
        return ""
    limits = caller.limits
    if auth.settings.shared and caller.via in ("socket", "loopback"):  # searches all of /proc
        limits = await asyncio.to_thread(auth.submitters.of_viewer, State(scope["state"]), caller.via)
    return auth.authenticator.tickets.issue(
        TicketClaim(caller.via, caller.uid, address_of(scope, auth.settings), limits)
    )


_PIECE = 2**16
_VISITOR, _PROGRAM = 5.0, 30.0  # seconds that a navigation, and a file, waits for a starting process
_LONGER = 4  # times as long, if the process runs
_STUCK = 60.0  # seconds after which a browser that takes no data is dropped
_TRIES = 3  # a request that makes the process crash is not repeated for ever
_AGAIN = 0.2  # seconds until the next try, if the process ends before it answers
_WAIT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="2"><meta name="color-scheme" content="light dark"><title>gpuyard</title>
<style>body{font:1rem/1.5 system-ui,sans-serif;display:grid;place-content:center;min-height:90vh;margin:1rem;
text-align:center}</style>
<main><h1>gpuyard</h1><p role="status">The page is being started; this tries again by itself.</p>
<p>The queue is not affected: jobs go on.</p></main></html>
"""


class PageUnavailable(Exception):
    """The page's process has not answered."""


class HttpProxy:
    """Forwards requests of the page to its process; all others go to the routes."""

    def __init__(self, app: ASGIApp, page: PageSupervisor, auth: Auth) -> None:
        self._app, self._page, self._auth = app, page, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_page(scope["path"]):
            return await self._app(scope, receive, send)
        if not self._page.is_on:
            detail = "this daemon has no page; it has one where it listens on TCP, unless the setting page is off"
            return await problem(404, detail)(scope, receive, send)
        ticket = "" if is_asset(scope["path"]) else await ticket_for(scope, self._auth)
        visits = b"text/html" in dict(scope["headers"]).get(b"accept", b"")
        exchange = ProxiedRequest(scope, receive, send)
        try:
            await exchange.run(self._page, ticket, _VISITOR if visits else _PROGRAM)
        except PageUnavailable:
            if exchange.begun:  # so that the browser does not take the part for the whole
                scope["state"].get("abort", _nothing)()
                return None
            answer = Response(_WAIT, 503, {"Retry-After": "2"}, media_type="text/html")
            await answer(scope, receive, send)
        except TimeoutError:
            scope["state"].get("abort", _nothing)()
        return None


class ProxiedRequest:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._sent_any = self._gone = False
        self.begun = False  # whether a part of the response is sent

    async def run(self, page: PageSupervisor, ticket: str, patience: float) -> None:
        """Forward the request; if the process ends before it answers, try again unless data would be lost."""
        begin, tries = time.monotonic(), 0
        while True:
            try:
                return await self._try(page, ticket, begin + (_LONGER * patience if page.answers else patience))
            except (OSError, httptools.HttpParserError, asyncio.IncompleteReadError) as error:
                tries += 1
                late = tries == _TRIES or time.monotonic() - begin + _AGAIN >= patience
                if late or self.begun or self._sent_any or self._gone:
                    raise PageUnavailable from error
            await asyncio.sleep(_AGAIN)

    async def _try(self, page: PageSupervisor, ticket: str, end: float) -> None:
        """Uses sockets, not streams: a stream that cannot be written any more drops what it has read."""
        with await page.connect() as connection:
            feeding = asyncio.create_task(self._send_request(connection, self._head(ticket)))
            try:
                await self._receive_response(connection, end)
            finally:
                feeding.cancel()
                await asyncio.wait([feeding])  # before the socket is closed

    def _head(self, ticket: str) -> bytes:
        scope = self._scope
        more = [(b"connection", b"close")]
        return request_head(target_of(scope), scope["method"].encode(), scope["headers"], ticket, more)

    async def _send_request(self, connection: socket.socket, head: bytes) -> None:
        """Send the request; when the browser disconnects, disconnect from the page."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # the reader sees why
            await loop.sock_sendall(connection, head)
            while (message := await self._receive())["type"] == "http.request":
                if body := message.get("body", b""):
                    self._sent_any = True
                    await loop.sock_sendall(connection, body)
            self._gone = True
            connection.shutdown(socket.SHUT_RDWR)

    async def _receive_response(self, connection: socket.socket, end: float) -> None:
        answer = _PageResponse()
        parser = httptools.HttpResponseParser(answer)
        while not answer.complete:
            try:
                async with asyncio.timeout_at(None if self.begun else _on_loop(end)):
                    data = await asyncio.get_running_loop().sock_recv(connection, _PIECE)
            except TimeoutError as error:
                raise PageUnavailable from error
            if data:
                parser.feed_data(data)
                answer.status = parser.get_status_code()
            elif self.begun and not answer.measured:
                break  # which is how it ends
            else:
                raise PageUnavailable if self.begun else asyncio.IncompleteReadError(b"", None)
            await self._pass_on(answer)
        await self._send_on({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, answer: _PageResponse) -> None:
        if answer.headed and not self.begun:
            self.begun = True
            await self._send_on(
                {"type": "http.response.start", "status": answer.status, "headers": response_headers(answer.headers)}
            )
        if answer.body:
            body, answer.body = answer.body, b""
            await self._send_on({"type": "http.response.body", "body": body, "more_body": True})

    async def _send_on(self, message: Message) -> None:
        async with asyncio.timeout(_STUCK):
            await self._send(message)


class _PageResponse:
    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.headed = self.complete = False
        self.body = b""

    @property
    def measured(self) -> bool:
        """Whether its length is known; else it ends with the connection."""
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def on_status(self, status: bytes) -> None:
        """The reason phrase is not used."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


def _on_loop(end: float) -> float:
    """A time of the monotonic clock, on the clock of the event loop."""
    return asyncio.get_running_loop().time() + end - time.monotonic()


def _nothing() -> None:
    return
