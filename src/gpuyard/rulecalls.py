"""What a client may ask of those who share a machine: GPUs left alone, reservations, quotas and shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote


class _Asking(Protocol):
    def _get(self, target: str) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class RuleCalls:
    """Part of `Client`."""

    def drain(self: _Asking, gpus: Sequence[int] | None = None, reason: str = "") -> list[int]:
        """Let nothing start on these GPUs, or on any; returns those that are drained now."""
        found: list[int] = self._ask("POST", "/gpus/drain", {"gpus": gpus, "reason": reason})["drained"]
        return found

    def resume(self: _Asking, gpus: Sequence[int] | None = None) -> list[int]:
        """Let drained GPUs be used again; returns those that still are drained."""
        found: list[int] = self._ask("POST", "/gpus/resume", {"gpus": gpus})["drained"]
        return found

    def reservations(self: _Asking) -> list[dict[str, Any]]:
        """Reservations that are not over, the next to begin first."""
        found: list[dict[str, Any]] = self._get("/reservations")["reservations"]
        return found

    def reserve(
        self: _Asking,
        gpus: Sequence[int],
        begin: float,
        end: float,
        *,
        name: str = "",
        users: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Keep GPUs for some users (oneself, if not said) between two times, in seconds since the epoch."""
        wish = {"gpus": list(gpus), "begin": begin, "end": end, "name": name, "users": users}
        return self._ask("POST", "/reservations", wish)

    def unreserve(self: _Asking, name: str) -> None:
        """Give a reservation up."""
        self._ask("DELETE", f"/reservations/{quote(name, safe='')}", {})

    def rules(self: _Asking) -> dict[str, Any]:
        """What everybody deserves, may have and has had."""
        return self._get("/rules")

    def set_quota(
        self: _Asking, name: str, *, gpus: int | None = None, gpu_hours: float | None = None
    ) -> dict[str, Any]:
        """Limit a user, a group (`@name`) or everybody else (`*`); 0 lifts a limit, None leaves it."""
        return self._ask("PUT", f"/rules/quotas/{quote(name, safe='')}", {"gpus": gpus, "gpu_hours": gpu_hours})

    def set_share(self: _Asking, name: str, weight: float) -> dict[str, Any]:
        """Say what share a user, a group (`@name`) or everybody else (`*`) deserves, relative to others' 1."""
        return self._ask("PUT", f"/rules/shares/{quote(name, safe='')}", {"weight": weight})
