"""The daemon's clock: the time of day, but never backwards, whatever happens to the machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuyard.core.events import Cancelled, Event, Exited

_COARSE = 0.1  # seconds by which the times of files may lag behind


class Clock:
    """Continues where an earlier daemon stopped, and follows the time of day where that is ahead."""

    def __init__(self, not_before: float = 0.0) -> None:
        self._now = max(not_before, time.time())
        self._ticks = time.monotonic()

    def now(self) -> float:
        ticks = time.monotonic()
        self._now = max(self._now + (ticks - self._ticks), time.time())
        self._ticks = ticks
        return self._now


class Times:
    """The time of each job's last event, so that times by other clocks stay in order."""

    def __init__(self, written: Callable[[str], float]) -> None:
        self._written = written
        self._latest: dict[str, float] = {}

    def note(self, event: Event) -> None:
        job = getattr(event, "job", None)
        if job is None:
            return
        if isinstance(event, Exited | Cancelled):
            self._latest.pop(job, None)
        else:
            self._latest[job] = event.at

    def forget(self) -> None:
        """Keep only what is written."""
        self._latest = {}

    def began(self, job: str, at: float, now: float) -> float:
        """The start by the machine's clock: not before the placement, not after now."""
        return min(max(at, self._before(job)), now)

    def ended(self, job: str, at: float, now: float) -> float:
        """The end by the machine's clock; now, if the clock was set back."""
        before = self._before(job)
        return max(at, before) if before - _COARSE <= at <= now else now

    def _before(self, job: str) -> float:
        before = self._latest.get(job)
        return self._written(job) if before is None else before
