"""What a client may ask of batches: jobs that come out of one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import quote

from gpuyard.batches.shapes import BatchReport, BatchStanding, BatchSummary, Taken

_LONGEST = 30.0


class _Asking(Protocol):
    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...
    def _ask_once(self, target: str, body: Mapping[str, Any], key: str | None = None) -> dict[str, Any]: ...


class BatchCalls:
    """Part of `Client`."""

    def submit_batch(
        self: _Asking,
        jobs: Sequence[Mapping[str, Any]],
        name: str,
        *,
        waves: bool = False,
        same: str = "",
        again: bool = False,
        key: str | None = None,
    ) -> Taken:
        """Queue jobs, as `description` makes them, as a batch; those that can never run here are told, and left out.

        With `waves` they start in this order, and those with the next `wave` in their `row` when the ones before are
        over. While a batch of yours with the same text `same` is open, nothing is queued and that one is told, unless
        `again`.
        """
        common = jobs[0].get("environment") if jobs else None  # mostly all have the same, which is long
        several = [{k: v for k, v in job.items() if k != "environment" or v != common} for job in jobs]
        named = {"name": name, "key": same, "waves": waves, "again": again}
        body: dict[str, Any] = {"jobs": several, "batch": named, "skip_refused": True}
        if common is not None:
            body["environment"] = common
        return cast(Taken, self._ask_once("/jobs/batch", body, key))

    def batches(self: _Asking, *, user: str | None = None, limit: int | None = None) -> list[BatchSummary]:
        """Batches, the newest first."""
        return cast("list[BatchSummary]", self._get("/batches", user=user, limit=limit)["batches"])

    def batch(
        self: _Asking, id: str, *, wait: float = 0.0, over: int | None = None, since: float | None = None
    ) -> BatchStanding:
        """How a batch stands; with `wait` not before other than `over` rows are over, or so many seconds have passed.

        Of the rows that are over it tells those that ended at the time `since`, in seconds since the epoch, or later.
        """
        wait = min(wait, _LONGEST)
        waiting = f"{wait:.3f}" if wait > 0 else None
        when = None if since is None else repr(since)
        return cast(BatchStanding, self._get(_of(id), patience=wait, wait=waiting, over=over, since=when))

    def batch_report(self: _Asking, id: str) -> BatchReport:
        """What a batch achieved, beside running its rows one after another."""
        return cast(BatchReport, self._get(f"{_of(id)}/report"))

    def cancel_batch(self: _Asking, id: str, grace: float | None = None) -> BatchStanding:
        """End all that is left of a batch."""
        return cast(BatchStanding, self._ask("POST", f"{_of(id)}/cancel", {"grace": grace}))


def _of(id: str) -> str:
    return f"/batches/{quote(id, safe='')}"
