"""Which paths belong to the API, the web page and watchmen, and which need no authentication."""

from __future__ import annotations

import re

API = "/api/v1"
_PAGES = frozenset(
    ("/", "/queue", "/submit", "/history", "/sharing", "/simulate", "/settings", "/login", "/favicon.ico", "/jobs")
)  # fmt: skip
LINES = "/_nicegui_ws/"  # the page's websockets, or the polling that stands in for them
_ASSETS = "/_nicegui/"
_PAGE_FOLDERS = ("/page/", "/jobs/", _ASSETS, LINES)
_UPLOAD = re.compile(r"/page/upload(?:/.*)?|/_nicegui/client/[^/]+/upload/[^/]+")
_OURS = frozenset(("/healthz", "/readyz", "/metrics", "/openapi.json"))
_FOR_ALL = frozenset(("/healthz", "/readyz"))
_LOGINS = frozenset((f"{API}/session", "/auth"))
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))  # methods that change nothing


def is_watchmen(path: str) -> bool:
    return path not in _OURS and not is_page(path) and not is_api(path)


def is_page(path: str) -> bool:
    return path in _PAGES or path.startswith(_PAGE_FOLDERS)


def is_asset(path: str) -> bool:
    return path.startswith(_ASSETS)


def is_upload(path: str) -> bool:
    return _UPLOAD.fullmatch(path) is not None


def is_api(path: str) -> bool:
    return path == API or path.startswith(f"{API}/")


def is_open(method: str, path: str) -> bool:
    """Whether it needs no authentication: the page, on which users log in, and the health checks."""
    if method in ("GET", "HEAD"):
        return path in _FOR_ALL or is_page(path)
    return is_login(method, path) or (method == "POST" and path.startswith(LINES))


def is_login(method: str, path: str) -> bool:
    return method == "POST" and path in _LOGINS


def is_waiting(path: str) -> bool:
    """Whether it is about waiting for GPUs, which unknown callers may do if the settings say so."""
    return path == f"{API}/leases" or path.startswith(f"{API}/leases/") or is_watchmen(path)


_ASKING = (f"{API}/policy/preview", f"{API}/estimates")


def is_read(method: str, path: str) -> bool:
    """Whether a request changes nothing: by its method, or because it only asks what would happen."""
    return method in SAFE or (method == "POST" and path in _ASKING)


def is_heartbeat(path: str) -> bool:
    return path.endswith("/heartbeat") or path == "/client/ping"
