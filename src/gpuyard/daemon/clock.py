"""The daemon's clock: the time of day, but never backwards, whatever happens to the machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuyard.core.events import Cancelled, Event, Exited


class Clock:
    """Goes on from where a former life of the daemon stopped, and follows the time of day where that is ahead."""

    def __init__(self, not_before: float = 0.0) -> None:
        self._now = max(not_before, time.time())
        self._ticks = time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch."""
        ticks = time.monotonic()
        self._now = max(self._now + (ticks - self._ticks), time.time())
        self._ticks = ticks
        return self._now


class Times:
    """When something last happened to each job, so that what others date by their own clocks stays in order."""

    def __init__(self, written: Callable[[str], float]) -> None:
        self._written = written
        self._latest: dict[str, float] = {}

    def note(self, event: Event) -> None:
        """This happens now."""
        job = getattr(event, "job", None)
        if job is None:
            return
        if isinstance(event, Exited | Cancelled):
            self._latest.pop(job, None)
        else:
            self._latest[job] = event.at

    def forget(self) -> None:
        """Nothing but what is written has happened."""
        self._latest = {}

    def within(self, job: str, at: float, now: float) -> float:
        """When something happened to a job: not before all that happened to it already, and not later than now."""
        before = self._latest.get(job)
        return min(max(at, self._written(job) if before is None else before), now)
