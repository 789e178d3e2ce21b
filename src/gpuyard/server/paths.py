"""Which paths belong to the API, the web page and watchmen, and which need no authentication."""

from __future__ import annotations

import re

API = "/api/v1"
_PAGES = frozenset(
    ("/", "/queue", "/submit", "/history", "/sharing", "/simulate", "/settings", "/login", "/favicon.ico", "/jobs")
)  # fmt: skip
LINES = "/_nicegui_ws/"
"""Where the page's websockets are, or what browsers without any have in their place."""
_ASSETS = "/_nicegui/"
_PAGE_FOLDERS = ("/page/", "/jobs/", _ASSETS, LINES)
_UPLOAD = re.compile(r"/page/upload(?:/.*)?|/_nicegui/client/[^/]+/upload/[^/]+")
_OURS = frozenset(("/healthz", "/readyz", "/metrics", "/openapi.json"))
_FOR_ALL = frozenset(("/healthz", "/readyz"))
_LOGINS = frozenset((f"{API}/session", "/auth"))
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""


def is_watchmen(path: str) -> bool:
    """Whether a path is one of watchmen's API, whose clients expect its kind of answers."""
    return path not in _OURS and not is_page(path) and not is_api(path)


def is_page(path: str) -> bool:
    """Whether a path is the page's: its process answers."""
    return path in _PAGES or path.startswith(_PAGE_FOLDERS)


def is_asset(path: str) -> bool:
    """Whether it is a file for which it does not matter who asks."""
    return path.startswith(_ASSETS)


def is_upload(path: str) -> bool:
    """Whether a file may be sent there."""
    return _UPLOAD.fullmatch(path) is not None


def is_api(path: str) -> bool:
    """Whether a path is one of our API."""
    return path == API or path.startswith(f"{API}/")


def is_open(method: str, path: str) -> bool:
    """Whether even nobody may ask: the page, with which people log in, and whether the daemon lives."""
    if method in ("GET", "HEAD"):
        return path in _FOR_ALL or is_page(path)
    return is_login(method, path) or (method == "POST" and path.startswith(LINES))


def is_login(method: str, path: str) -> bool:
    """Whether this is how one gets a session."""
    return method == "POST" and path in _LOGINS


def is_waiting(path: str) -> bool:
    """Whether this is about GPUs to wait for: also those may use it whom nobody knows, where that is set."""
    return path == f"{API}/leases" or path.startswith(f"{API}/leases/") or is_watchmen(path)


_ASKING = (f"{API}/policy/preview", f"{API}/estimates")


def is_read(method: str, path: str) -> bool:
    """Whether this changes nothing: by its method, or since it only asks what would be."""
    return method in SAFE or (method == "POST" and path in _ASKING)


def is_heartbeat(path: str) -> bool:
    """Whether this only tells that somebody still waits, as happens every few seconds."""
    return path.endswith("/heartbeat") or path == "/client/ping"
