"""Requests that a browser may send without its user's knowing: who asks so must be a page of ours."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping

from gpuyard.server.admission import session_secret
from gpuyard.server.paths import SAFE, is_api, is_page, is_watchmens
from gpuyard.server.permissions import Caller, Forbidden

_OWN = (b"same-origin", b"none")  # none: whoever typed the address


def check_page(caller: Caller, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
    """Refuse what another's page may have sent: a browser adds a cookie by itself, and the kernel names its user."""
    if caller.via.startswith("token") or caller.by_page:  # no page knows that of others, and no browser sends this
        return
    site = headers.get(b"sec-fetch-site")
    if site is not None and site not in _OWN and not _is_visit(method, path, headers):
        raise Forbidden("a page of another site may not ask this daemon; open the daemon's own page")
    if method in SAFE or is_page(path) or not caller.via.startswith("session"):
        return
    given = headers.get(b"x-csrf-token", b"").decode("latin-1")
    if not hmac.compare_digest(given.encode(), csrf_of(session_secret(headers)).encode()):
        raise Forbidden("the header X-CSRF-Token is missing or wrong; GET /api/v1/session tells what it must be")
    if b"origin" not in headers and site != b"same-origin":
        raise Forbidden("with a cookie, send the header Origin as well, as browsers do; or use a token")


def check_sending(method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
    """Refuse what is sent to the page by anything but a page; that an Origin is ours was looked at already."""
    if method not in SAFE and is_page(path) and b"origin" not in headers:
        raise Forbidden("only the daemon's own page may send this, with the header Origin, as browsers do")


def csrf_of(secret: str) -> str:
    """What a page must send along: only one that may read our answers gets to know it."""
    return urlsafe_b64encode(hashlib.sha256(f"csrf {secret}".encode(errors="surrogatepass")).digest()).decode()


def _is_visit(method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether somebody follows a link to the page."""
    navigates = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return navigates and method == "GET" and not is_api(path) and not is_watchmens(path)
