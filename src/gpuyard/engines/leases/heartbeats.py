"""Signs of life of those who have leases but no process here, and what follows if there are none."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol

from gpuyard.units import format_duration

REST = 20.0  # seconds for which GPUs must be free before their user counts as done: between epochs they are idle


class InUse(Protocol):
    """Whether a process is on a GPU that was given away some seconds ago; None: unknown."""

    def __call__(self, gpu: int, seconds: float, /) -> bool | None: ...


class Heartbeats:
    """The last heartbeat of each lease. The server's threads note it, and the loop's thread looks.

    Only what is expected is noted, so nothing is left of leases that are over.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def expect(self, job: str) -> None:
        """From now on signs of a lease count; the first is that it exists."""
        self._last.setdefault(job, time.monotonic())

    def note(self, job: str) -> None:
        if job in self._last:
            self._last[job] = time.monotonic()

    def forget(self, job: str) -> None:
        self._last.pop(job, None)

    def silent(self, job: str, now: float) -> float:
        """Seconds since the last sign, on the monotonic clock."""
        return max(0.0, now - self._last.get(job, now))

    def last(self, job: str) -> float | None:
        """The last sign, in seconds since the epoch; None if the lease is not watched."""
        found = self._last.get(job)
        return None if found is None else time.time() - max(0.0, time.monotonic() - found)


class Silence:
    """When silence ends a lease: after `limit` seconds, or once its GPUs were used and have been free for a while."""

    def __init__(self, limit: float, rest: float = REST) -> None:
        self.limit = limit
        self._rest = rest
        self._used = -math.inf  # when a process was last seen on its GPUs

    @property
    def used(self) -> bool:
        return self._used > -math.inf

    def broken(self, silent: float) -> str:
        """Why a lease that lasts by heartbeats is over; empty if it is not."""
        return f"no sign of life for {format_duration(self.limit)}" if silent >= self.limit else ""

    def unused(self, busy: Sequence[bool | None], silent: float, now: float) -> str:
        """Why a lease that lasts while its GPUs are used is over; empty if it is not."""
        if any(busy) or (None in busy and self.used):  # in doubt, who used them still does
            self._used = now
        if self.used:
            free = now - self._used
            return f"its GPUs were used, and free for {format_duration(self._rest)}" if free >= self._rest else ""
        late = silent >= self.limit
        return f"its GPUs were not used within {format_duration(self.limit)}" if late else ""
