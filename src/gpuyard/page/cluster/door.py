"""Who may ask: browsers that use a name of ours, for pages of ours, and to look.

A page of somebody else's can make a browser ask here, and by a name that it lets point to this machine (DNS rebinding)
even read the answers. NiceGUI looks at neither, and its websockets take every origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LINE = "/_nicegui_ws/"
_LOOKS = ("GET", "HEAD")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy",  # Vue makes functions of its templates, and NiceGUI has its elements in a script
     b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
     b"img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
     b"form-action 'none'; frame-ancestors 'none'"),
)  # fmt: skip


class Names:
    """By which names the page may be asked for: as this machine, by those that are given, by addresses if that is said.

    The port does not matter: `kubectl port-forward` has another one than we listen at, and no page can choose it.
    """

    def __init__(self, given: Iterable[str] = (), *, addresses: bool = False) -> None:
        self._given = {"localhost", *(name.lower() for name in given)}
        self._addresses = addresses

    def __contains__(self, host: str) -> bool:
        name = _name(host)
        if name in self._given:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._addresses  # an address cannot be made to point elsewhere


class Door:
    """Turns away who asks by another's name, from another's page, or for something to be changed."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        refused = self._refused(scope)
        if scope["type"] == "websocket" and refused:
            return await send({"type": "websocket.close", "code": 1008})

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", ())}
                more = [header for header in _HEADERS if header[0] not in there]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        answer: ASGIApp = PlainTextResponse(refused[1], refused[0]) if refused else self._app
        return await answer(scope, receive, careful)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the words of a no."""
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or hosts[0] not in self._names:
            return 421, (
                f"This page does not answer as {', '.join(hosts) or 'nobody'}; if it should, name that with "
                "gpuyard kubernetes dashboard --allowed-host.\n"
            )
        if any(not _is_same(origin, hosts[0]) for origin in origins):
            return 403, f"A page of {', '.join(origins)} may not ask this one.\n"
        if scope["type"] == "http" and scope["method"] not in _LOOKS and not scope["path"].startswith(_LINE):
            return 405, "There is nothing to change here: the cluster is only looked at.\n"
        return None


def _values(scope: Scope, wanted: bytes) -> Sequence[str]:
    return [value.decode("latin-1").strip() for name, value in scope["headers"] if name == wanted]


def _name(host: str) -> str:
    """The name in `name:port`; empty if it is none."""
    try:
        found = urlsplit(f"//{host.lower()}")
        port = found.port
    except ValueError:
        return ""
    rest = f":{port}" if port is not None else ""
    whole = found.netloc == host.lower() and found.username is None
    return (found.hostname or "").removesuffix(".") if whole and found.netloc.endswith(rest) else ""


def _is_same(origin: str, host: str) -> bool:
    """Whether a page comes from here; what is before us may have taken TLS off."""
    scheme, _, there = origin.lower().partition("://")
    usual = {"http": ":80", "https": ":443"}.get(scheme)
    return usual is not None and there.removesuffix(usual) == host.lower().removesuffix(usual)
