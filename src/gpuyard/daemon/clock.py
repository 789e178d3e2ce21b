"""The daemon's clock: the time of day, but never backwards, whatever happens to the machine's clock."""

from __future__ import annotations

import time


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
