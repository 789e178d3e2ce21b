"""What a client may ask of recordings: what GPUs did, and what a job did on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, cast
from urllib.parse import quote

from gpuyard.recordingshapes import Recorded
from gpuyard.units import parse_duration


class _Asking(Protocol):
    def _get(self, target: str, **query: Any) -> dict[str, Any]: ...


class RecordingCalls:
    """Part of `Client`."""

    def recording(
        self: _Asking,
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
