"""NiceGUI as both applications use it: assets, caching, limits on unopened pages, and checks on websockets."""

from __future__ import annotations

import gzip
import hashlib
import json
import mimetypes
from base64 import urlsafe_b64decode
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from nicegui import Client, core, ui
from nicegui import app as pages
from nicegui.translations import translations
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_UNOPENED = 60  # pages kept per viewer until a browser connects to them


class UnopenedPages:
    """Middleware that drops old unopened pages whenever another page was requested."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        before = len(Client.instances)
        await self._app(scope, receive, send)
        if len(Client.instances) > max(before, MAX_UNOPENED):
            drop_unopened()


def drop_unopened() -> None:
    waiting: defaultdict[str, list[Client]] = defaultdict(list)
    for client in Client.instances.values():  # oldest first
        if client._response_built and not client.has_socket_connection and not client._delete_tasks:
            waiting[client.request.headers.get("x-gpuyard-ticket", "")].append(client)
    for clients in waiting.values():
        for old in clients[:-MAX_UNOPENED]:
            old.delete()


_ASSETS = Path(__file__).parent / "assets"
_SHEET = "all.css"
_IMMUTABLE = "public, max-age=31536000, immutable"
_GZIP_FROM = 1000  # bytes
_MAX_CACHED = 2**25  # bytes of NiceGUI's files, gzipped; there are about 2 MB


class Asset(NamedTuple):
    content: bytes
    packed: bytes
    kind: str
    mark: str


def _asset(name: str, content: bytes) -> Asset:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    mark = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return Asset(content, gzip.compress(content) if len(content) >= _GZIP_FROM else b"", kind, mark)


def _read_assets() -> dict[str, Asset]:
    """All files, and all style sheets joined into one; page.css first, since the others build on it."""
    read = {file.name: file.read_bytes() for file in sorted(_ASSETS.iterdir()) if file.is_file()}
    sheets = sorted((name for name in read if name.endswith(".css")), key=lambda name: (name != "page.css", name))
    read[_SHEET] = b"\n".join(read[name] for name in sheets)
    return {name: _asset(name, content) for name, content in read.items()}


class Assets:
    def __init__(self) -> None:
        self._files = _read_assets()

    @property
    def head(self) -> str:
        """Tags for every page's head; URLs contain the content's hash, so that browsers can cache for ever."""
        sheet, script = (f"/page/assets/{name}?v={self._files[name].mark[1:-1]}" for name in (_SHEET, "page.js"))
        return f'<link rel="stylesheet" href="{sheet}"><script src="{script}"></script>'

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route("/page/assets/{name}", self.give, include_in_schema=False)
        app.add_middleware(ResponseCache)

    async def give(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            return Response("There is no such file.", 404)
        named = request.query_params.get("v") == file.mark[1:-1]
        headers = {"Cache-Control": _IMMUTABLE if named else "no-cache", "ETag": file.mark, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.mark:
            return Response(status_code=304, headers=headers)
        if file.packed and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=file.kind)
        return Response(file.content, headers=headers, media_type=file.kind)


class ResponseCache:
    """Cache of NiceGUI's own files: NiceGUI would read and gzip each of them again for every browser."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kept: dict[tuple[str, bool], list[Message]] = {}
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith("/_nicegui/"):
            return await self._app(scope, receive, send)
        key = scope["path"], b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b"")
        if key in self._kept:
            for message in self._kept[key]:
                await send(message)
            return None
        sent: list[Message] = []

        async def note(message: Message) -> None:
            sent.append(message)
            await send(message)

        await self._app(scope, receive, note)
        self._keep(key, sent)
        return None

    def _keep(self, key: tuple[str, bool], sent: list[Message]) -> None:
        if not sent or sent[0].get("status") != 200 or sent[-1].get("more_body"):
            return
        size = sum(len(message.get("body", b"")) for message in sent)
        lasting = b"immutable" in dict(sent[0]["headers"]).get(b"cache-control", b"")
        if lasting and self._size + size <= _MAX_CACHED:
            self._kept[key] = sent
            self._size += size


_WEBSOCKET_PATH = "/_nicegui_ws/"
_PAGE_MESSAGES = ("event", "javascript_response", "ack", "log")
_POLICY_VIOLATION = 1008  # close code of websockets


class WebsocketGuard:
    """Middleware that refuses requests to continue another viewer's socket.io connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan" or not scope["path"].startswith(_WEBSOCKET_PATH) or _is_their_own(scope):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await PlainTextResponse("This line is somebody else's; load the page again.", 403)(scope, receive, send)


def _is_their_own(scope: Scope) -> bool:
    for id in parse_qs(scope["query_string"].decode("latin-1")).get("sid", ()):
        begun = core.sio.environ.get(id)
        here = dict(scope["headers"]).get(b"x-gpuyard-ticket", b"").decode("latin-1")
        if begun is not None and ticket_holder(begun.get("HTTP_X_GPUYARD_TICKET", "")) != ticket_holder(here):
            return False
    return True


def guard_websockets() -> None:
    accept = Client.accept_handshake

    def accepts(self: Client, socket_id: str, tab_id: str, environ: dict[str, Any] | None) -> bool:
        asked = self.request.headers.get("x-gpuyard-ticket", "")
        same = ticket_holder(asked) == ticket_holder((environ or {}).get("HTTP_X_GPUYARD_TICKET", ""))
        return same and accept(self, socket_id, tab_id, environ)

    Client.accept_handshake = accepts  # type: ignore[method-assign]
    handlers = core.sio.handlers["/"]
    for name in _PAGE_MESSAGES:
        handlers[name] = _of_its_own_page(handlers[name])


def _of_its_own_page(handler: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    def heard(line: str, message: Any) -> Any:
        if isinstance(message, dict) and message.get("client_id") in core.sio.rooms(line):
            return handler(line, message)
        return None

    return heard


def ticket_holder(ticket: str) -> Any:
    """User and origin of a ticket, without the address, which may change. The daemon has already verified it."""
    said = ticket.removeprefix("gt_").partition(".")[0]
    try:
        return json.loads(urlsafe_b64decode(said + "=" * (-len(said) % 4)))[:2]
    except (ValueError, TypeError, IndexError):
        return ticket


BUILD_TIMEOUT = 20.0  # seconds that a view may take to build, generous for a busy machine
_THEMES = {"dark": True, "light": False}


def set_up_nicegui(app: FastAPI, lost: str, meanwhile: str, mistaken: str) -> None:
    """Let NiceGUI serve pages in an application that has its own routes already.

    `lost` and `meanwhile` are shown when the connection breaks, `mistaken` when a page fails.
    """
    files = Assets()
    files.add_to(app)
    translations["en-US"] |= {"connection_lost": lost, "trying_to_reconnect": meanwhile}
    ui.add_head_html(files.head, shared=True)
    pages.config.quasar_config["loadingBar"]["skipHijack"] = True  # live pages would seem to load for ever
    ui.run_with(
        app, title="gpuyard", language="en-US", dark=None, tailwind=False, show_welcome_message=False,
        binding_refresh_interval=None, reconnect_timeout=5.0, message_history_length=100,
    )  # fmt: skip
    pages.on_exception(lambda: ui.notify(mistaken, type="negative"))  # NiceGUI logs it
    app.add_middleware(UnopenedPages)
    app.add_middleware(WebsocketGuard)
    guard_websockets()


def apply_theme(request: Request) -> None:
    """Light or dark as the viewer chose it, else as the system has it."""
    ui.dark_mode(_THEMES.get(request.cookies.get("gpuyard_theme", "")))
