"""Whose paths are whose: the API's, watchmen's, and those for which nobody needs to be known."""

from __future__ import annotations

API = "/api/v1"
_PAGE = "/page/"
_OURS = frozenset(("/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/favicon.ico"))
_FOR_ALL = frozenset(("/", "/healthz", "/readyz", "/favicon.ico"))
_LOGINS = frozenset((f"{API}/session", "/auth"))
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""


def is_watchmens(path: str) -> bool:
    """Whether a path is one of watchmen's API, whose clients expect its kind of answers."""
    return path not in _OURS and not path.startswith(_PAGE) and not is_api(path)


def is_api(path: str) -> bool:
    """Whether a path is one of our API."""
    return path == API or path.startswith(f"{API}/")


def is_open(method: str, path: str) -> bool:
    """Whether even nobody may ask: the page, with which people log in, and whether the daemon lives."""
    if method in ("GET", "HEAD"):
        return path in _FOR_ALL or path.startswith(_PAGE)
    return is_login(method, path)


def is_login(method: str, path: str) -> bool:
    """Whether this is how one gets a session."""
    return method == "POST" and path in _LOGINS


def is_waiting(path: str) -> bool:
    """Whether this is about GPUs to wait for: also those may use it whom nobody knows, where that is set."""
    return path == f"{API}/leases" or path.startswith(f"{API}/leases/") or is_watchmens(path)


def is_sign_of_life(path: str) -> bool:
    """Whether this only tells that somebody still waits, as happens every few seconds."""
    return path.endswith("/heartbeat") or path == "/client/ping"
