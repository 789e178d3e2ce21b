"""A budget of time: how much is left, whether one more step ends within it, and what to keep for the end.

from gpuyard.adapt.budget import Budget

budget = Budget(3600, reserve=30)
while budget.step():
    train_one_batch()
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from gpuyard.adapt.clocks import Clock, StepTimes, VirtualClock, WallClock, make_clock
from gpuyard.errors import UserError

MARGIN = 0.002  # of the total: kept back on real clocks, for what is not measured
_MOST = 2.0  # seconds: no more than this, however large the total is
_JITTER = 0.02  # of the total: the most that is kept back for the clock's jitter
CAUTION = 1.15  # factor on the time kept for recurring work
_POLL = 0.2  # seconds between looks for what the scheduler has to say
_EPSILON = 1e-9  # of the total: rounding error of sums of many small costs


class GrantEvent(Protocol):
    """An event of the scheduler, as `gpuyard.grants` has them."""

    @property
    def kind(self) -> str: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def budget(self) -> float | None: ...
    @property
    def why(self) -> str: ...


class Grants(Protocol):
    """Source of such events; it may also take reports."""

    def events(self) -> list[Any]: ...


@dataclass(frozen=True)
class Change:
    before: float
    after: float
    why: str


class Budget:
    """Seconds (or units of a virtual clock) that a training may use in total."""

    def __init__(
        self, seconds: float, clock: Clock | str | None = None, *, reserve: float = 0.0, grants: Grants | None = None
    ) -> None:
        if math.isnan(seconds) or seconds <= 0:
            raise UserError(f"a budget is more than 0 seconds, not {seconds:g}")
        if math.isnan(reserve) or reserve < 0:
            raise UserError(f"a reserve is 0 seconds or more, not {reserve:g}")
        if reserve >= seconds:
            raise UserError(f"a reserve of {reserve:g} leaves nothing of a budget of {seconds:g}; make it smaller")
        self.clock: Clock = make_clock(clock) if isinstance(clock, str) else clock or WallClock()
        self.exact = bool(getattr(self.clock, "exact", False))
        self.grants: Any = grants
        self.times = StepTimes()
        self.steps = 0  # steps begun
        self.stopped = ""  # why no further step begins though budget is left; empty if steps go on
        self.listeners: list[Callable[[Change], None]] = []
        self.news: deque[Any] = deque()  # events of the scheduler that are not about time
        self._total, self._fixed = float(seconds), float(reserve)
        self._kept: dict[str, deque[float]] = {}
        self._carried, self._since = 0.0, math.nan
        self._began, self._cost, self._aside = math.nan, 1.0, 0.0
        self._next_poll = -math.inf
        self._deadline = math.inf  # when this attempt of a job ends, in unix time
        self._granted_before: float | None = getattr(grants, "budget", None)
        """Wall-clock seconds; a budget on another clock changes in the same proportion."""
        self._reckon()

    @property
    def total(self) -> float:
        return self._total

    @property
    def used(self) -> float:
        """The time used; the clock runs from the first step on (or from `start`)."""
        return self._carried if self._since != self._since else self._carried + self.clock.now() - self._since

    @property
    def left(self) -> float:
        return max(0.0, self._total - self.used)

    @property
    def fraction(self) -> float:
        return min(1.0, self.used / self._total)

    @property
    def reserve(self) -> float:
        """Time kept for the end: as requested, or as measured if that is more."""
        return self._reserve

    @property
    def end(self) -> float:
        """When the last step must have ended, in terms of `used`."""
        return self._end

    @property
    def step_time(self) -> float:
        """The likely duration of the next step; nan before the first."""
        if self.exact:
            return self._cost if self.steps else math.nan
        return self.times.typical * self._cost if self.times else math.nan

    @property
    def step_end(self) -> float:
        """When the present step will likely have ended."""
        if self.exact:
            return self.used
        return (self.used if self._began != self._began else self._at(self._began)) + self.times.typical * self._cost

    @property
    def last(self) -> bool:
        """Whether the present step may well be the last."""
        if self.exact:
            return self.used + self._cost > self._end + _EPSILON * self._total
        return self._at(self._began) + (self.times.longest + self.times.high) * self._cost > self._end

    def start(self) -> None:
        if self._since != self._since:
            self._since = self.clock.now()

    def step(self, cost: float = 1.0) -> bool:
        """Whether one more step will end in time; it then counts as begun, and a virtual clock is charged for it."""
        now = self.clock.now()
        if self._since != self._since:
            self._since = now
        if self._began == self._began:
            if not self.exact:
                self.times.add((now - self._began - self._aside) / self._cost)
            self._began = math.nan
        if self.grants is not None:
            self.poll()
        used = self._carried + now - self._since
        needed = cost if self.exact else self.times.high * cost
        enough = used + needed <= self._end + _EPSILON * self._total or (self.steps == 0 and used < self._end)
        if self.stopped or not enough:
            return False
        if self.exact:
            self.clock.charge(cost)
        self._began, self._cost, self._aside = now, cost, 0.0
        self.steps += 1
        return True

    def end_step(self) -> None:
        """The step has ended; what follows until the next is no part of it."""
        if self._began == self._began:
            if not self.exact:
                self.times.add((self.clock.now() - self._began - self._aside) / self._cost)
            self._began = math.nan

    @contextmanager
    def aside(self, name: str = "") -> Iterator[None]:
        """Work that is no step. With a name it comes again at the end, and the same time is kept for that."""
        began = self.clock.now()
        try:
            yield
        finally:
            self.spent(self.clock.now() - began, name)

    def spent(self, seconds: float, name: str = "") -> None:
        """The same, afterwards: these seconds since the step began were no part of it."""
        self._aside += seconds
        if name:
            self.keep(name, seconds)

    def keep(self, name: str, seconds: float) -> None:
        """Keep time for the end; of several calls, the longest of the last three counts."""
        self._kept.setdefault(name, deque(maxlen=3)).append(seconds)
        self._reckon()

    def kept(self, name: str) -> float:
        return CAUTION * max(self._kept.get(name, (0.0,)))

    def dearer(self, ratio: float, names: tuple[str, ...] = ("evaluation",)) -> None:
        """The network grew: steps, and work under these names, take `ratio` times as long."""
        if math.isfinite(ratio) and ratio > 0:
            self.times.scale(ratio)
            for name in names:
                if name in self._kept:
                    self._kept[name] = deque((ratio * seconds for seconds in self._kept[name]), maxlen=3)
            self._reckon()

    def extend(self, seconds: float, why: str = "") -> None:
        if not seconds >= 0:
            raise UserError(f"a grant is extended by 0 seconds or more, not by {seconds:g}; shrink makes it less")
        self.set_total(self._total + seconds, why)

    def shrink(self, seconds: float, why: str = "") -> None:
        """Reduce the grant; never below what is used."""
        if not seconds >= 0:
            raise UserError(f"a grant is shrunk by 0 seconds or more, not by {seconds:g}; extend makes it more")
        self.set_total(max(self._total - seconds, _EPSILON), why)

    def set_total(self, seconds: float, why: str = "") -> None:
        """Change the grant, and notify listeners."""
        if math.isnan(seconds) or seconds <= 0:
            raise UserError(f"a budget is more than 0 seconds, not {seconds:g}")
        change = Change(self._total, float(seconds), why)
        self._total = float(seconds)
        self._reckon()
        if change.after != change.before:
            for listener in list(self.listeners):
                listener(change)

    def stop(self, why: str) -> None:
        self.stopped = why

    def poll(self) -> None:
        """Process events of the scheduler, now and then: time here, the rest as `news`."""
        if self.grants is None or (now := time.monotonic()) < self._next_poll:
            return
        self._next_poll = now + _POLL
        for event in self.grants.events():
            if event.kind in ("extend", "shrink"):
                self._granted(event)
            else:
                if event.kind == "preempt":
                    self.stop(event.why or "the scheduler wants the GPUs back")
                self.news.append(event)

    def _granted(self, event: GrantEvent) -> None:
        if event.deadline is not None and isinstance(self.clock, WallClock):
            self._deadline = event.deadline
            self.set_total(max(self.used + event.deadline - time.time(), _EPSILON), event.why)
        elif event.budget and isinstance(self.clock, WallClock):
            self.set_total(event.budget, event.why)
        elif event.budget and self._granted_before:
            self.set_total(self._total * event.budget / self._granted_before, event.why)
        self._granted_before = event.budget

    def _at(self, now: float) -> float:
        return self.used if now != now else self._carried + now - self._since

    def _reckon(self) -> None:
        """Compute what is kept, and when the last step must have ended."""
        self._reserve = max(self._fixed, sum(self.kept(name) for name in self._kept))
        margin = min(MARGIN * self._total, _MOST) + min(getattr(self.clock, "jitter", 0.0), _JITTER * self._total)
        if self.exact or math.isinf(self._total):
            margin = 0.0
        self._end = max(0.0, self._total - self._reserve - margin)

    def state(self) -> dict[str, Any]:
        """As plain values; the clock does not run in them."""
        return {
            "used": self.used,
            "total": self._total,
            "steps": self.steps,
            "cost": self._cost,
            "times": self.times.state(),
            "kept": {name: list(seconds) for name, seconds in self._kept.items()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a state: what was used then is used now, and the clock stands until the next step."""
        self._carried, self._since, self._began = float(state["used"]), math.nan, math.nan
        if isinstance(self.clock, VirtualClock):  # a sum in parts would differ in its last bit
            self.clock.turn_to(self._carried)
            self._carried, self._since = 0.0, 0.0
        self._total, self.steps, self._cost = float(state["total"]), int(state["steps"]), float(state["cost"])
        self.times.load_state(state["times"])
        self._kept = {name: deque(seconds, maxlen=3) for name, seconds in state["kept"].items()}
        self._aside = 0.0
        self._meet()
        self._reckon()

    def _meet(self) -> None:
        """Respect the job's own deadline, too, whose time runs already."""
        if math.isfinite(self._deadline):
            self.start()
            self._total = max(min(self._total, self.used + self._deadline - time.time()), _EPSILON)

    @classmethod
    def from_environment(
        cls,
        default: float | None = None,
        *,
        clock: Clock | str | None = None,
        reserve: float = 0.0,
        grants: Grants | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Budget:
        """The grant of this job: GPUYARD_BUDGET and GPUYARD_DEADLINE, and later events (by `grants`)."""
        environment = os.environ if environment is None else environment
        seconds, deadline = _number(environment, "GPUYARD_BUDGET"), _number(environment, "GPUYARD_DEADLINE")
        remaining = None if deadline is None else deadline - time.time()
        total = seconds if seconds is not None else remaining if remaining is not None else default
        if total is None:
            raise UserError("no budget is granted: submit the job with --time, or set GPUYARD_BUDGET to seconds")
        budget = cls(total, clock, reserve=reserve, grants=grants or _grants(environment))
        if remaining is not None and isinstance(budget.clock, WallClock):
            budget.start()
            budget._carried, budget._deadline = max(0.0, total - remaining), time.time() + remaining
        return budget


def _number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise UserError(f"{name} is '{text}', which is no number of seconds") from None


def _grants(environment: Mapping[str, str]) -> Grants | None:
    if not environment.get("GPUYARD_CONTROL"):
        return None
    from gpuyard import grants

    return grants.Grants.from_environment()
