"""HEAD: what GET would answer, without its body, which the server leaves out by itself."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Over(Exception):
    """The head is out, and nothing else is wanted."""


class Heads:
    """Lets every route that can be asked with GET be asked with HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask as if by GET, until the head is there: what follows may go on for hours."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise Over

        try:
            await self._app({**scope, "method": "GET"}, receive, send_head)
        except Over:
            return None
