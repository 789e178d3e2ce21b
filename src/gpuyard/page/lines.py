"""The lines of open pages: each is for whoever asked for the page, and nobody else hears from it or speaks for it.

NiceGUI takes everybody in who knows a page's id. So does the tab of somebody who was logged out: the daemon ends its
line, and it opens another, as nobody. Here it is turned away, on which it loads its page again and comes to the door.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from fastapi.responses import PlainTextResponse
from nicegui import Client, core
from starlette.types import ASGIApp, Receive, Scope, Send

_PATH = "/_nicegui_ws/"
_OF_PAGES = ("event", "javascript_response", "ack", "log")
_MAY_NOT = 1008  # of websockets


class Lines:
    """Turns away who goes on with a line that somebody else began."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        kind = scope["type"]
        if kind == "lifespan" or not scope["path"].startswith(_PATH) or _is_their_own(scope):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": _MAY_NOT})
        else:
            await PlainTextResponse("This line is somebody else's; load the page again.", 403)(scope, receive, send)


def _is_their_own(scope: Scope) -> bool:
    """Whether who asks began the line that they name, if they name any."""
    for id in parse_qs(scope["query_string"].decode("latin-1")).get("sid", ()):
        begun = core.sio.environ.get(id)
        here = dict(scope["headers"]).get(b"x-gpuyard-ticket", b"").decode("latin-1")
        if begun is not None and holder(begun.get("HTTP_X_GPUYARD_TICKET", "")) != holder(here):
            return False
    return True


def guard() -> None:
    """Have NiceGUI look at who opens a page, and at which page a message is of."""
    accept = Client.accept_handshake

    def accepts(self: Client, socket_id: str, tab_id: str, environ: dict[str, Any] | None) -> bool:
        asked = self.request.headers.get("x-gpuyard-ticket", "")
        same = holder(asked) == holder((environ or {}).get("HTTP_X_GPUYARD_TICKET", ""))
        return same and accept(self, socket_id, tab_id, environ)

    Client.accept_handshake = accepts  # type: ignore[method-assign]
    handlers = core.sio.handlers["/"]
    for name in _OF_PAGES:
        handlers[name] = _of_its_own_page(handlers[name])


def _of_its_own_page(handler: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    def heard(line: str, message: Any) -> Any:
        if isinstance(message, dict) and message.get("client_id") in core.sio.rooms(line):
            return handler(line, message)
        return None

    return heard


def holder(ticket: str) -> Any:
    """Whose a ticket is, by how they came: addresses may change. Whether it is good the daemon has looked at."""
    said = ticket.removeprefix("gt_").partition(".")[0]
    try:
        return json.loads(urlsafe_b64decode(said + "=" * (-len(said) % 4)))[:2]
    except (ValueError, TypeError, IndexError):
        return ticket
