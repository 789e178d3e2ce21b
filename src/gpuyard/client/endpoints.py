"""Requests of `Client` by noun: access, estimates, limits, notifications, batches, recordings, grants."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast
from urllib.parse import quote

from gpuyard.api.access_types import Estimate, Expectation
from gpuyard.api.batch_types import BatchReport, BatchStanding, BatchSummary, Taken
from gpuyard.api.grant_types import Adaptation, Grant, JobReport, Recorded
from gpuyard.client.connection import LONG, POLL, Connection, several
from gpuyard.units import parse_duration


class AccessCalls(Connection):
    def make_token(
        self, user: str | None = None, *, role: str = "user", expires: float | None = None, label: str = ""
    ) -> dict[str, Any]:
        """Make a token for a user (by default oneself); `expires` in seconds. Only this answer has its `token`."""
        return self._ask("POST", "/tokens", {"user": user, "role": role, "expires": expires, "label": label})

    def tokens(self, *, user: str | None = None) -> list[dict[str, Any]]:
        """One's tokens (for admins all users'), without secrets, newest first."""
        return cast("list[dict[str, Any]]", self._get("/tokens", user=user)["tokens"])

    def revoke_token(self, id: str) -> dict[str, Any]:
        return self._ask("DELETE", f"/tokens/{quote(id, safe='')}", {})

    def who_am_i(self) -> dict[str, Any]:
        """Who the daemon takes one for: `user`, `role` and `via`."""
        return self._get("/session")

    def audit(
        self, *, user: str | None = None, since: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """The audit log, latest first; for admins. `since` is ISO-8601."""
        return cast("list[dict[str, Any]]", self._get("/audit", user=user, since=since, limit=limit)["entries"])


class EstimateCalls(Connection):
    def estimates(self, user: str | None = None, limit: int | None = None) -> list[Estimate]:
        """Estimates by job signature, latest first."""
        return cast("list[Estimate]", self._get("/estimates", user=user, limit=limit)["estimates"])

    def estimate(self, id: str) -> Expectation:
        """The estimate for a job, and the runs that it is based on."""
        return cast(Expectation, self._get(f"/jobs/{quote(id, safe='')}/estimate"))

    def guess(self, command: Sequence[str], directory: str | None = None, **more: Any) -> Expectation:
        """The estimate for a command in a directory there; `tags` and `gpus` matter, too."""
        where = {} if directory is None else {"directory": directory}
        return cast(Expectation, self._ask("POST", "/estimates", {"command": list(command), **where, **more}))

    def forget_estimate(self, signature: str) -> int:
        """Forget the runs of a signature; returns their number."""
        return int(self._ask("DELETE", f"/estimates/{quote(signature, safe='')}", {})["runs"])


class RuleCalls(Connection):
    def drain(self, gpus: Sequence[int] | None = None, reason: str = "") -> list[int]:
        """Start nothing new on these GPUs, or on any; returns all drained GPUs."""
        return cast("list[int]", self._ask("POST", "/gpus/drain", {"gpus": gpus, "reason": reason})["drained"])

    def resume(self, gpus: Sequence[int] | None = None) -> list[int]:
        """Use drained GPUs again; returns those that are still drained."""
        return cast("list[int]", self._ask("POST", "/gpus/resume", {"gpus": gpus})["drained"])

    def reservations(self) -> list[dict[str, Any]]:
        """Reservations that are not over, by begin."""
        return cast("list[dict[str, Any]]", self._get("/reservations")["reservations"])

    def reserve(
        self, gpus: Sequence[int], begin: float, end: float, *, name: str = "", users: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Reserve GPUs for users (by default oneself) between two times, in seconds since the epoch."""
        body = {"gpus": list(gpus), "begin": begin, "end": end, "name": name, "users": users}
        return self._ask("POST", "/reservations", body)

    def unreserve(self, name: str) -> None:
        self._ask("DELETE", f"/reservations/{quote(name, safe='')}", {})

    def rules(self) -> dict[str, Any]:
        """Quotas, shares and usage of all users."""
        return self._get("/rules")

    def set_quota(
        self, name: str, *, gpus: int | None = None, gpu_hours: float | None = None, queued: int | None = None
    ) -> dict[str, Any]:
        """Limit a user, a group (`@name`) or everybody else (`*`); 0 removes a limit, None keeps it."""
        quota = {"gpus": gpus, "gpu_hours": gpu_hours, "queued": queued}
        return self._ask("PUT", f"/rules/quotas/{quote(name, safe='')}", quota)

    def set_share(self, name: str, weight: float) -> dict[str, Any]:
        """Set the fair share of a user, a group (`@name`) or everybody else (`*`), relative to the default of 1."""
        return self._ask("PUT", f"/rules/shares/{quote(name, safe='')}", {"weight": weight})


_NOTIFY_TIMEOUT = 70.0  # seconds that the daemon may take to check a URL, or to send a notification


class NotifyCalls(Connection):
    def subscriptions(self) -> list[dict[str, Any]]:
        """Your subscriptions; secrets in URLs are left out."""
        return cast("list[dict[str, Any]]", self._get("/notifications/subscriptions")["subscriptions"])

    def can_mail(self) -> bool:
        """Whether the daemon has a mail server, so that bare addresses work."""
        return bool(self._get("/notifications/subscriptions")["mail"])

    def subscribe(
        self,
        url: str,
        *,
        name: str | None = None,
        events: Sequence[str] | None = None,
        long_wait: float | None = None,
        title: str | None = None,
        body: str | None = None,
    ) -> dict[str, Any]:
        """Subscribe an apprise URL or an address to your jobs; `events` are those of `gpuyard notify add`."""
        given = {
            "url": url, "name": name, "events": events, "long_wait": long_wait, "title": title, "body": body,
        }  # fmt: skip
        wanted = {key: value for key, value in given.items() if value is not None}
        return self._ask("POST", "/notifications/subscriptions", wanted, patience=_NOTIFY_TIMEOUT)

    def unsubscribe(self, which: str) -> dict[str, Any]:
        """Remove a subscription, by its name or id."""
        return self._ask("DELETE", f"/notifications/subscriptions/{quote(which, safe='')}", {})

    def test_subscription(self, which: str) -> dict[str, Any]:
        """Send a test notification; returns the outcome."""
        target = f"/notifications/subscriptions/{quote(which, safe='')}/test"
        return self._ask("POST", target, {}, patience=_NOTIFY_TIMEOUT)

    def notifications(
        self, *, job: str | None = None, failed: bool = False, all: bool = False, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Notifications, sent or pending, latest first; of one job, failed ones, or (for admins) of all users."""
        only, every = ("true" if chosen else None for chosen in (failed, all))
        answer = self._get("/notifications", job=job, limit=limit, failed=only, all=every)
        return cast("list[dict[str, Any]]", answer["notifications"])


class BatchCalls(Connection):
    def submit_batch(
        self,
        jobs: Sequence[Mapping[str, Any]],
        name: str,
        *,
        waves: bool = False,
        same: str = "",
        again: bool = False,
        key: str | None = None,
    ) -> Taken:
        """Queue jobs, as made by `description`, as a batch; jobs that can never run here are reported and left out.

        With `waves` they start in order, those with the next `wave` in their `row` once the earlier ones are over.
        While a batch of yours with the same text `same` is open, nothing is queued and that batch is returned, unless
        `again`.
        """
        named = {"name": name, "key": same, "waves": waves, "again": again}
        body = {**several(jobs), "batch": named, "skip_refused": True}
        return cast(Taken, self._ask_once("/jobs/batch", body, key, patience=LONG))

    def batches(self, *, user: str | None = None, limit: int | None = None) -> list[BatchSummary]:
        """Batches, newest first."""
        return cast("list[BatchSummary]", self._get("/batches", user=user, limit=limit)["batches"])

    def batch(
        self, id: str, *, wait: float = 0.0, over: int | None = None, since: float | None = None
    ) -> BatchStanding:
        """Progress of a batch; with `wait`, once the number of finished rows is not `over`, or after that many seconds.

        Of the finished rows it lists those that ended at the time `since`, in seconds since the epoch, or later.
        """
        wait = min(wait, POLL)
        waiting = f"{wait:.3f}" if wait > 0 else None
        when = None if since is None else repr(since)
        return cast(BatchStanding, self._get(_batch_of(id), patience=wait, wait=waiting, over=over, since=when))

    def batch_report(self, id: str) -> BatchReport:
        """Results of a batch, compared with running its rows one after another."""
        return cast(BatchReport, self._get(f"{_batch_of(id)}/report"))

    def cancel_batch(self, id: str, grace: float | None = None) -> BatchStanding:
        """Cancel the open rows of a batch."""
        return cast(BatchStanding, self._ask("POST", f"{_batch_of(id)}/cancel", {"grace": grace}))


def _batch_of(id: str) -> str:
    return f"/batches/{quote(id, safe='')}"


class RecordingCalls(Connection):
    def recording(
        self,
        job: str | None = None,
        *,
        since: float | str | None = None,
        until: float | str | None = None,
        gpus: Sequence[int] | None = None,
        metrics: Sequence[str] | None = None,
        points: int | None = None,
        attempt: int | None = None,
    ) -> Recorded:
        """GPU metrics in a time window (by default the last hour), or those of one job.

        Times are seconds since the epoch, ISO-8601, or an age (`90m`). If there are more than `points` values, they are
        combined, with minimum and maximum.
        """
        query: dict[str, Any] = {"metrics": None if metrics is None else ",".join(metrics), "points": points}
        if job is not None:
            target = f"/jobs/{quote(job, safe='')}/recording"
            return cast(Recorded, self._get(target, attempt=attempt, **query))
        some = None if gpus is None else ",".join(map(str, gpus))
        span: dict[str, Any] = {"from": _instant(since), "to": _instant(until)}
        return cast(Recorded, self._get("/recordings", gpus=some, **span, **query))


def _instant(when: float | str | None) -> float | str | None:
    """A time as the API takes it; a text that is no date is an age."""
    if isinstance(when, str) and when[4:5] != "-":
        return time.time() - parse_duration(when)
    return when


class GrantCalls(Connection):
    def grant(self, id: str, *, since: int = 0, wait: float = 0.0) -> Grant:
        """What a running job has now, and the changes after number `since`.

        With `wait`, once there is one, or after that many seconds (at most 30).
        """
        wait = min(max(wait, 0.0), POLL)
        return cast(Grant, self._get(f"{_grants_of(id)}/grant", patience=wait, since=since, wait=f"{wait:.3f}"))

    def report(self, id: str, **report: Unpack[JobReport]) -> Grant:
        """Report an adaptive job's rates and decisions, see `gpuyard.grants`; returns what it has."""
        return cast(
            Grant, self._ask("POST", f"{_grants_of(id)}/report", {k: v for k, v in report.items() if v is not None})
        )

    def give_back_grant(self, id: str, gpus: Sequence[int] | None = None, *, reason: str = "") -> Grant:
        """Return GPUs on loan, by index; by default all."""
        body: dict[str, Any] = {"reason": reason} if reason else {}
        return cast(
            Grant,
            self._ask("POST", f"{_grants_of(id)}/grant/return", {"gpus": None if gpus is None else list(gpus), **body}),
        )

    def adaptation(self, id: str) -> Adaptation:
        """What an adaptive job was granted so far, and what it decided."""
        return cast(Adaptation, self._get(f"{_grants_of(id)}/adaptation"))


def _grants_of(id: str) -> str:
    return f"/jobs/{quote(id, safe='')}"
