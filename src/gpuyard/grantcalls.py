"""What a client may ask and tell of jobs that adapt to what they are granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Unpack, cast
from urllib.parse import quote

from gpuyard.grantshapes import Adaptation, Grant, JobReport

LONGEST = 30.0
"""Seconds for which the daemon lets somebody wait for news."""


class _Asking(Protocol):
    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class GrantCalls:
    """Part of `Client`."""

    def grant(self: _Asking, id: str, *, since: int = 0, wait: float = 0.0) -> Grant:
        """What a running job has by now, and what changed after the change with the number `since`.

        With `wait`, once something has, or so many seconds (at most 30) have passed.
        """
        wait = min(max(wait, 0.0), LONGEST)
        return cast(Grant, self._get(f"{_of(id)}/grant", patience=wait, since=since, wait=f"{wait:.3f}"))

    def report(self: _Asking, id: str, **report: Unpack[JobReport]) -> Grant:
        """Tell how a job that adapts does, and what it decided; see `gpuyard.grants`. Answers what it has."""
        return cast(Grant, self._ask("POST", f"{_of(id)}/report", {k: v for k, v in report.items() if v is not None}))

    def give_back_grant(self: _Asking, id: str, gpus: Sequence[int] | None = None, *, reason: str = "") -> Grant:
        """Give GPUs back that a job was lent, by index; all of them, if not said."""
        body: dict[str, Any] = {"reason": reason} if reason else {}
        return cast(
            Grant, self._ask("POST", f"{_of(id)}/grant/return", {"gpus": None if gpus is None else list(gpus), **body})
        )

    def adaptation(self: _Asking, id: str) -> Adaptation:
        """What a job that adapts was given so far, and what it made of it."""
        return cast(Adaptation, self._get(f"{_of(id)}/adaptation"))


def _of(id: str) -> str:
    return f"/jobs/{quote(id, safe='')}"
