"""Pages that were asked for and never opened: a browser opens one at once, and a program that only asks never does.

Each takes memory for a minute, in case the browser is slow. So of each viewer only the latest are kept, and of all whom
nobody knows together: else whoever asks again and again could fill the memory.
"""

from __future__ import annotations

from collections import defaultdict

from nicegui import Client
from starlette.types import ASGIApp, Receive, Scope, Send

MOST = 60
"""Pages that are kept for each viewer until they are opened."""


class Crowd:
    """Thins out what waits to be opened, whenever another page was asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        before = len(Client.instances)
        await self._app(scope, receive, send)
        if len(Client.instances) > max(before, MOST):
            thin_out()


def thin_out() -> None:
    """Let the oldest go, of whoever has too many."""
    waiting: defaultdict[str, list[Client]] = defaultdict(list)
    for client in Client.instances.values():  # the oldest first
        if client._response_built and not client.has_socket_connection and not client._delete_tasks:
            waiting[client.request.headers.get("x-gpuyard-ticket", "")].append(client)
    for clients in waiting.values():
        for old in clients[:-MOST]:
            old.delete()
