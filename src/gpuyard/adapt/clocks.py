"""Clocks that a budget is measured by (wall, CPU, virtual), and the durations of recent steps."""

from __future__ import annotations

import math
import time
from bisect import bisect_left, insort
from collections import deque
from typing import Any, Protocol, runtime_checkable

from gpuyard.errors import UserError, suggest


@runtime_checkable
class Clock(Protocol):
    """Tells the time in seconds (or in units of work), from any origin, and never goes back."""

    def now(self) -> float: ...

    def charge(self, cost: float) -> None:
        """Advance by the price of work. A real clock ignores it."""


class WallClock:
    exact = False  # whether the price of a step is known before it is made
    jitter = 0.015  # seconds that others on the machine may take away at any moment

    def now(self) -> float:
        return time.monotonic()

    def charge(self, cost: float) -> None:
        """Time passes by itself."""


class CpuClock:
    """Seconds of processor time of all threads of this process."""

    exact = False
    jitter = 0.002

    def now(self) -> float:
        return time.process_time()

    def charge(self, cost: float) -> None:
        """Time passes by itself."""


class VirtualClock:
    """Moves only by what it is charged: the same training takes the same time anywhere."""

    exact = True
    jitter = 0.0

    def __init__(self, now: float = 0.0) -> None:
        self._now = float(now)

    def now(self) -> float:
        return self._now

    def charge(self, cost: float) -> None:
        if not 0 <= cost < math.inf:
            raise UserError(f"a step costs 0 or more, and not without end: {cost:g}")
        self._now += cost

    def turn_to(self, now: float) -> None:
        """Set the time, for a resumed training."""
        self._now = float(now)


CLOCKS: dict[str, type[WallClock] | type[CpuClock] | type[VirtualClock]] = {
    "wall": WallClock,
    "cpu": CpuClock,
    "virtual": VirtualClock,
}


def make_clock(name: str) -> Clock:
    if name not in CLOCKS:
        raise UserError(f"there is no clock '{name}', only {', '.join(CLOCKS)}{suggest(name, CLOCKS)}")
    return CLOCKS[name]()


WINDOW = 32  # steps that are remembered
HIGH = 0.9  # the quantile that the next step is expected to stay below; higher ones are outliers


class StepTimes:
    """Seconds per unit of cost of recent steps. The first is dropped soon, since it includes set-up."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._count = 0
        self.typical = 0.0  # the median
        self.high = 0.0  # the 90th percentile
        self.longest = 0.0  # hardly any step is longer: the longest, and some more while only few were seen

    def __bool__(self) -> bool:
        return bool(self._recent)

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        self._count += 1
        if len(self._recent) > WINDOW or self._count == 3:
            gone = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, gone)]
        self._summarise()

    def scale(self, ratio: float) -> None:
        """Steps cost `ratio` times as much from now on."""
        self._recent = deque(seconds * ratio for seconds in self._recent)
        self._sorted = [seconds * ratio for seconds in self._sorted]
        self._summarise()

    def _summarise(self) -> None:
        if number := len(self._sorted):
            self.typical = self._sorted[number // 2]
            self.high = self._sorted[min(number - 1, int(HIGH * number))]
            self.longest = self._sorted[-1] * (1 + 1 / number)

    def state(self) -> dict[str, Any]:
        return {"recent": list(self._recent), "count": self._count}

    def load_state(self, state: dict[str, Any]) -> None:
        self._recent = deque(state["recent"])
        self._sorted, self._count = sorted(self._recent), state["count"]
        self.typical = self.high = self.longest = 0.0
        self._summarise()
