"""Requests of `Client` by noun: access, estimates, limits, notifications, batches, recordings, grants."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Unpack, cast
from urllib.parse import quote

from gpuyard.api.access_types import Estimate, Expectation
from gpuyard.api.batch_types import BatchReport, BatchStanding, BatchSummary, Taken
from gpuyard.api.grant_types import Adaptation, Grant, JobReport, Recorded
from gpuyard.units import parse_duration


class _AccessAsking(Protocol):
    def _get(self, target: str, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class AccessCalls:
    """Part of `Client`."""

    def make_token(
        self: _AccessAsking,
        user: str | None = None,
        *,
        role: str = "user",
        expires: float | None = None,
        label: str = "",
    ) -> dict[str, Any]:
        """Make a token for a user (oneself, if not said), for so many seconds; its text, `token`, is told only now."""
        return self._ask("POST", "/tokens", {"user": user, "role": role, "expires": expires, "label": label})

    def tokens(self: _AccessAsking, *, user: str | None = None) -> list[dict[str, Any]]:
        """One's tokens, or everybody's for an admin, without their secrets; the newest first."""
        found: list[dict[str, Any]] = self._get("/tokens", user=user)["tokens"]
        return found

    def revoke_token(self: _AccessAsking, id: str) -> dict[str, Any]:
        """Let a token be good for nothing from now on."""
        return self._ask("DELETE", f"/tokens/{quote(id, safe='')}", {})

    def who_am_i(self: _AccessAsking) -> dict[str, Any]:
        """Who the daemon takes one for: `user`, `role` and `via`."""
        return self._get("/session")

    def audit(
        self: _AccessAsking, *, user: str | None = None, since: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Who changed what, and who was refused, the latest first; for admins. `since` is ISO-8601."""
        found: list[dict[str, Any]] = self._get("/audit", user=user, since=since, limit=limit)["entries"]
        return found


class _EstimateAsking(Protocol):
    def _get(self, target: str, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class EstimateCalls:
    """Part of `Client`."""

    def estimates(self: _EstimateAsking, user: str | None = None, limit: int | None = None) -> list[Estimate]:
        """What is known of jobs by their signature, the latest first."""
        return cast("list[Estimate]", self._get("/estimates", user=user, limit=limit)["estimates"])

    def estimate(self: _EstimateAsking, id: str) -> Expectation:
        """What is expected of a job by now, and by which runs."""
        return cast(Expectation, self._get(f"/jobs/{quote(id, safe='')}/estimate"))

    def guess(self: _EstimateAsking, command: Sequence[str], directory: str | None = None, **more: Any) -> Expectation:
        """What would be expected of a command in a directory there; `tags` and `gpus` matter, too."""
        where = {} if directory is None else {"directory": directory}
        return cast(Expectation, self._ask("POST", "/estimates", {"command": list(command), **where, **more}))

    def forget_estimate(self: _EstimateAsking, signature: str) -> int:
        """Forget the runs of a signature; returns how many there were."""
        return int(self._ask("DELETE", f"/estimates/{quote(signature, safe='')}", {})["runs"])


class _RuleAsking(Protocol):
    def _get(self, target: str) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class RuleCalls:
    """Part of `Client`."""

    def drain(self: _RuleAsking, gpus: Sequence[int] | None = None, reason: str = "") -> list[int]:
        """Let nothing start on these GPUs, or on any; returns those that are drained now."""
        found: list[int] = self._ask("POST", "/gpus/drain", {"gpus": gpus, "reason": reason})["drained"]
        return found

    def resume(self: _RuleAsking, gpus: Sequence[int] | None = None) -> list[int]:
        """Let drained GPUs be used again; returns those that still are drained."""
        found: list[int] = self._ask("POST", "/gpus/resume", {"gpus": gpus})["drained"]
        return found

    def reservations(self: _RuleAsking) -> list[dict[str, Any]]:
        """Reservations that are not over, the next to begin first."""
        found: list[dict[str, Any]] = self._get("/reservations")["reservations"]
        return found

    def reserve(
        self: _RuleAsking,
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

    def unreserve(self: _RuleAsking, name: str) -> None:
        """Give a reservation up."""
        self._ask("DELETE", f"/reservations/{quote(name, safe='')}", {})

    def rules(self: _RuleAsking) -> dict[str, Any]:
        """What everybody deserves, may have and has had."""
        return self._get("/rules")

    def set_quota(
        self: _RuleAsking, name: str, *, gpus: int | None = None, gpu_hours: float | None = None
    ) -> dict[str, Any]:
        """Limit a user, a group (`@name`) or everybody else (`*`); 0 lifts a limit, None leaves it."""
        return self._ask("PUT", f"/rules/quotas/{quote(name, safe='')}", {"gpus": gpus, "gpu_hours": gpu_hours})

    def set_share(self: _RuleAsking, name: str, weight: float) -> dict[str, Any]:
        """Say what share a user, a group (`@name`) or everybody else (`*`) deserves, relative to others' 1."""
        return self._ask("PUT", f"/rules/shares/{quote(name, safe='')}", {"weight": weight})


_PATIENCE = 70.0
"""Seconds that the daemon may take to look at a URL, or to send something there."""


class _NotifyAsking(Protocol):
    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any], *, patience: float = 0.0) -> dict[str, Any]: ...


class NotifyCalls:
    """Part of `Client`."""

    def subscriptions(self: _NotifyAsking) -> list[dict[str, Any]]:
        """Where you are told of your jobs; of each URL only what is no secret."""
        found: list[dict[str, Any]] = self._get("/notifications/subscriptions")["subscriptions"]
        return found

    def can_mail(self: _NotifyAsking) -> bool:
        """Whether the daemon has a mail server, so that a bare address can be told."""
        return bool(self._get("/notifications/subscriptions")["mail"])

    def subscribe(
        self: _NotifyAsking,
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

    def unsubscribe(self: _NotifyAsking, which: str) -> dict[str, Any]:
        """Be told no more there; by the name or the id of the subscription."""
        return self._ask("DELETE", f"/notifications/subscriptions/{quote(which, safe='')}", {})

    def test_subscription(self: _NotifyAsking, which: str) -> dict[str, Any]:
        """Send something there now; how that went."""
        target = f"/notifications/subscriptions/{quote(which, safe='')}/test"
        return self._ask("POST", target, {}, patience=_PATIENCE)

    def notifications(
        self: _NotifyAsking,
        *,
        job: str | None = None,
        failed: bool = False,
        all: bool = False,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """What was sent, or is to be, the latest first; of one job, or what failed; as an admin, of all users."""
        only, every = ("true" if chosen else None for chosen in (failed, all))
        answer = self._get("/notifications", job=job, limit=limit, failed=only, all=every)
        found: list[dict[str, Any]] = answer["notifications"]
        return found


_LONGEST = 30.0


class _BatchAsking(Protocol):
    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...
    def _ask_once(self, target: str, body: Mapping[str, Any], key: str | None = None) -> dict[str, Any]: ...


class BatchCalls:
    """Part of `Client`."""

    def submit_batch(
        self: _BatchAsking,
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

    def batches(self: _BatchAsking, *, user: str | None = None, limit: int | None = None) -> list[BatchSummary]:
        """Batches, the newest first."""
        return cast("list[BatchSummary]", self._get("/batches", user=user, limit=limit)["batches"])

    def batch(
        self: _BatchAsking, id: str, *, wait: float = 0.0, over: int | None = None, since: float | None = None
    ) -> BatchStanding:
        """How a batch stands; with `wait` not before other than `over` rows are over, or so many seconds have passed.

        Of the rows that are over it tells those that ended at the time `since`, in seconds since the epoch, or later.
        """
        wait = min(wait, _LONGEST)
        waiting = f"{wait:.3f}" if wait > 0 else None
        when = None if since is None else repr(since)
        return cast(BatchStanding, self._get(_batch_of(id), patience=wait, wait=waiting, over=over, since=when))

    def batch_report(self: _BatchAsking, id: str) -> BatchReport:
        """What a batch achieved, beside running its rows one after another."""
        return cast(BatchReport, self._get(f"{_batch_of(id)}/report"))

    def cancel_batch(self: _BatchAsking, id: str, grace: float | None = None) -> BatchStanding:
        """End all that is left of a batch."""
        return cast(BatchStanding, self._ask("POST", f"{_batch_of(id)}/cancel", {"grace": grace}))


def _batch_of(id: str) -> str:
    return f"/batches/{quote(id, safe='')}"


class _RecordingAsking(Protocol):
    def _get(self, target: str, **query: Any) -> dict[str, Any]: ...


class RecordingCalls:
    """Part of `Client`."""

    def recording(
        self: _RecordingAsking,
        job: str | None = None,
        *,
        since: float | str | None = None,
        until: float | str | None = None,
        gpus: Sequence[int] | None = None,
        metrics: Sequence[str] | None = None,
        points: int | None = None,
        attempt: int | None = None,
    ) -> Recorded:
        """What GPUs did in a span of time (the last hour, if not said), or what a job did on its own.

        Times are seconds since the epoch, ISO-8601, or so long ago (`90m`). Where there are more than `points` values,
        spans of them become one, with the least and the most.
        """
        query = {"metrics": None if metrics is None else ",".join(metrics), "points": points}
        if job is not None:
            target = f"/jobs/{quote(job, safe='')}/recording"
            return cast(Recorded, self._get(target, attempt=attempt, **query))
        some = None if gpus is None else ",".join(map(str, gpus))
        span = {"from": _instant(since), "to": _instant(until)}
        return cast(Recorded, self._get("/recordings", gpus=some, **span, **query))


def _instant(when: float | str | None) -> float | str | None:
    """A time as the API takes it; what begins like no date is so long ago."""
    if isinstance(when, str) and when[4:5] != "-":
        return time.time() - parse_duration(when)
    return when


LONGEST = 30.0
"""Seconds for which the daemon lets somebody wait for news."""


class _GrantAsking(Protocol):
    def _get(self, target: str, *, patience: float = 0.0, **query: Any) -> dict[str, Any]: ...
    def _ask(self, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class GrantCalls:
    """Part of `Client`."""

    def grant(self: _GrantAsking, id: str, *, since: int = 0, wait: float = 0.0) -> Grant:
        """What a running job has by now, and what changed after the change with the number `since`.

        With `wait`, once something has, or so many seconds (at most 30) have passed.
        """
        wait = min(max(wait, 0.0), LONGEST)
        return cast(Grant, self._get(f"{_grants_of(id)}/grant", patience=wait, since=since, wait=f"{wait:.3f}"))

    def report(self: _GrantAsking, id: str, **report: Unpack[JobReport]) -> Grant:
        """Tell how a job that adapts does, and what it decided; see `gpuyard.grants`. Answers what it has."""
        return cast(
            Grant, self._ask("POST", f"{_grants_of(id)}/report", {k: v for k, v in report.items() if v is not None})
        )

    def give_back_grant(self: _GrantAsking, id: str, gpus: Sequence[int] | None = None, *, reason: str = "") -> Grant:
        """Give GPUs back that a job was lent, by index; all of them, if not said."""
        body: dict[str, Any] = {"reason": reason} if reason else {}
        return cast(
            Grant,
            self._ask("POST", f"{_grants_of(id)}/grant/return", {"gpus": None if gpus is None else list(gpus), **body}),
        )

    def adaptation(self: _GrantAsking, id: str) -> Adaptation:
        """What a job that adapts was given so far, and what it made of it."""
        return cast(Adaptation, self._get(f"{_grants_of(id)}/adaptation"))


def _grants_of(id: str) -> str:
    return f"/jobs/{quote(id, safe='')}"
