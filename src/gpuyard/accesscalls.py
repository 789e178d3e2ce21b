"""What a client may ask about who comes in by TCP: tokens, and who did what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote


class _Asking(Protocol):
    def _get(self, target: str, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class AccessCalls:
    """Part of `Client`."""

    def make_token(
        self: _Asking, user: str | None = None, *, role: str = "user", expires: float | None = None, label: str = ""
    ) -> dict[str, Any]:
        """Make a token for a user (oneself, if not said), for so many seconds; its text, `token`, is told only now."""
        return self._ask("POST", "/tokens", {"user": user, "role": role, "expires": expires, "label": label})

    def tokens(self: _Asking, *, user: str | None = None) -> list[dict[str, Any]]:
        """One's tokens, or everybody's for an admin, without their secrets; the newest first."""
        found: list[dict[str, Any]] = self._get("/tokens", user=user)["tokens"]
        return found

    def revoke_token(self: _Asking, id: str) -> dict[str, Any]:
        """Let a token be good for nothing from now on."""
        return self._ask("DELETE", f"/tokens/{quote(id, safe='')}", {})

    def who_am_i(self: _Asking) -> dict[str, Any]:
        """Who the daemon takes one for: `user`, `role` and `via`."""
        return self._get("/session")

    def audit(
        self: _Asking, *, user: str | None = None, since: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Who changed what, and who was refused, the latest first; for admins. `since` is ISO-8601."""
        found: list[dict[str, Any]] = self._get("/audit", user=user, since=since, limit=limit)["entries"]
        return found
