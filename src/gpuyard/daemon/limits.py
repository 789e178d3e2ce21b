"""Time limits, on a clock that nobody can set: a time of day that is corrected ends nobody's job."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator


class Limits:
    """When the time of running attempts will be over."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, str, int]] = []
        self._end_of: dict[tuple[str, int], float] = {}

    def watch(self, job: str, attempt: int, left: float) -> None:
        """This attempt may run for so many seconds more, whatever was said before."""
        end = self._end_of[job, attempt] = time.monotonic() + left
        heapq.heappush(self._ends, (end, job, attempt))

    def forget(self, job: str, attempt: int) -> None:
        """This attempt may run as long as it likes."""
        self._end_of.pop((job, attempt), None)

    def due(self) -> float:
        """When the next one's time is over, on the monotonic clock."""
        return self._ends[0][0] if self._ends else math.inf

    def over(self) -> Iterator[tuple[str, int]]:
        """Attempts whose time is over; each is told of once, and may have ended long ago."""
        while self.due() <= time.monotonic():
            end, job, attempt = heapq.heappop(self._ends)
            if self._end_of.get((job, attempt)) == end:
                del self._end_of[job, attempt]
                yield job, attempt
