"""What a client may ask of notifications: who wants to be told of what, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

_PATIENCE = 70.0
"""Seconds that the daemon may take to look at a URL, or to send something there."""


class _Asking(Protocol):
    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any], *, patience: float = 0.0) -> dict[str, Any]: ...


class NotifyCalls:
    """Part of `Client`."""

    def subscriptions(self: _Asking) -> list[dict[str, Any]]:
        """Where you are told of your jobs; of each URL only what is no secret."""
        found: list[dict[str, Any]] = self._get("/notifications/subscriptions")["subscriptions"]
        return found

    def can_mail(self: _Asking) -> bool:
        """Whether the daemon has a mail server, so that a bare address can be told."""
        return bool(self._get("/notifications/subscriptions")["mail"])

    def subscribe(
        self: _Asking,
        url: str,
        *,
        name: str | None = None,
        events: Sequence[str] | None = None,
        long_wait: float | None = None,
        title: str | None = None,
        body: str | None = None,
    ) -> dict[str, Any]:
        """Be told of your jobs at a URL of apprise, or at an address; `events` are those of `gpuyard notify add`."""
        given = {
            "url": url, "name": name, "events": events, "long_wait": long_wait, "title": title, "body": body,
        }  # fmt: skip
        wanted = {key: value for key, value in given.items() if value is not None}
        return self._ask("POST", "/notifications/subscriptions", wanted, patience=_PATIENCE)

    def unsubscribe(self: _Asking, which: str) -> dict[str, Any]:
        """Be told no more there; by the name or the id of the subscription."""
        return self._ask("DELETE", f"/notifications/subscriptions/{quote(which, safe='')}", {})

    def test_subscription(self: _Asking, which: str) -> dict[str, Any]:
        """Send something there now; how that went."""
        target = f"/notifications/subscriptions/{quote(which, safe='')}/test"
        return self._ask("POST", target, {}, patience=_PATIENCE)

    def notifications(
        self: _Asking, *, job: str | None = None, failed: bool = False, all: bool = False, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """What was sent, or is to be, the latest first; of one job, or what failed; as an admin, of all users."""
        only, every = ("true" if chosen else None for chosen in (failed, all))
        answer = self._get("/notifications", job=job, limit=limit, failed=only, all=every)
        found: list[dict[str, Any]] = answer["notifications"]
        return found
