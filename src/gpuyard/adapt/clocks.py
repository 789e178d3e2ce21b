"""Clocks that a budget is measured by: the wall's, the processor's, and one that moves only when it is told to."""

from __future__ import annotations

import math
import time
from typing import Protocol, runtime_checkable

from gpuyard.errors import UserError, suggest


@runtime_checkable
class Clock(Protocol):
    """Tells the time in seconds (or in units of work), from any beginning, and never goes back."""

    def now(self) -> float: ...

    def charge(self, cost: float) -> None:
        """Pay for work by a price. A clock that moves by itself takes no notice."""


class WallClock:
    """Seconds that pass, whoever uses them."""

    exact = False
    """Whether the price of a step is known before it is made."""
    jitter = 0.015
    """Seconds that others on the machine may take away at any moment."""

    def now(self) -> float:
        return time.monotonic()

    def charge(self, cost: float) -> None:
        """Time passes by itself."""


class CpuClock:
    """Seconds of processor time of this process, of all its threads together."""

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
        """Show another time, as of a training that is taken up again."""
        self._now = float(now)


CLOCKS: dict[str, type[WallClock] | type[CpuClock] | type[VirtualClock]] = {
    "wall": WallClock,
    "cpu": CpuClock,
    "virtual": VirtualClock,
}


def make_clock(name: str) -> Clock:
    """A clock by its name."""
    if name not in CLOCKS:
        raise UserError(f"there is no clock '{name}', only {', '.join(CLOCKS)}{suggest(name, CLOCKS)}")
    return CLOCKS[name]()
