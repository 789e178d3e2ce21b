"""What of a request's and an answer's head passes between a browser and the page's process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.types import Scope

from gpuyard.server.admission import COOKIE
from gpuyard.server.tickets import HEADER

Headers = Sequence[tuple[bytes, bytes]]
_ONE_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
_KEPT_BACK = frozenset((HEADER, b"authorization", b"x-auth-token", b"expect", b"forwarded", b"via", b"x-real-ip"))
_OWN_COOKIE = f"{COOKIE}=".encode()


def request_head(target: bytes, method: bytes, headers: Headers, ticket: str, more: Headers) -> bytes:
    """A request as the page's process is to see it: with a ticket of ours or none, and without secrets of the viewer's.

    `more` is about this hop: what the request said of its own is left out.
    """
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines += [b"%b: %b" % one for one in (*_passing(headers), *more)]
    if ticket:
        lines.append(b"%b: %b" % (HEADER, ticket.encode()))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def target_of(scope: Scope) -> bytes:
    """What a request is for, as it came."""
    path, query = bytes(scope["raw_path"]), scope.get("query_string", b"")
    return path + b"?" + query if query else path


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer of the page's process that pass to the browser."""
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
    """All cookies but the session's, which is nobody's business but the daemon's."""
    parts = (part.strip() for part in value.split(b";"))
    return b"; ".join(part for part in parts if part and not part.startswith(_OWN_COOKIE))
