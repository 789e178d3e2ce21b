"""When a decider is asked: at given times, or once there is more to be had and then before every epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.adapt.budget import Budget
from gpuyard.errors import UserError

CHANGES = ("up", "down")
_HAIR = 1e-9


@dataclass(frozen=True)
class Asking:
    """Fractions of the budget, or times; with neither, `most` times after resources went up, an epoch apart."""

    fractions: tuple[float, ...] = ()
    times: tuple[float, ...] = ()
    most: int = 3

    def __post_init__(self) -> None:
        if any(not 0 <= fraction < 1 for fraction in self.fractions):
            raise UserError("decisions are made at fractions of the budget from 0 to below 1")
        if any(not time >= 0 for time in self.times):
            raise UserError("decisions are made at times from 0 on")
        if self.most < 0:
            raise UserError(f"a decider is asked 0 times or more, not {self.most}")

    @property
    def by_the_clock(self) -> bool:
        """Whether it is known beforehand when."""
        return bool(self.fractions or self.times)

    @property
    def decisions(self) -> int:
        """How many there are, at most."""
        return len(self.fractions) + len(self.times) if self.by_the_clock else self.most


@dataclass(frozen=True)
class Simulated:
    """A change of resources that is told by the job's own file, in place of a scheduler."""

    time: float
    change: str


def simulated(changes: Sequence[Mapping[str, Any]]) -> tuple[Simulated, ...]:
    """Such changes in order of time, checked."""
    found = []
    for one in changes:
        time, change = one.get("time"), one.get("change")
        if not isinstance(time, int | float) or not time >= 0:
            raise UserError(f"a gpu_change needs a time from 0 on, not {time!r}")
        if change not in CHANGES:
            raise UserError(f"a gpu_change is 'up' or 'down', not {change!r}")
        found.append(Simulated(float(time), str(change)))
    return tuple(sorted(found, key=lambda one: one.time))


class Agenda:
    """What comes when: the next decision, change of resources and evaluation. All but the settings is state."""

    def __init__(self, asking: Asking, changes: tuple[Simulated, ...], every: float | None) -> None:
        if every is not None and not every > 0:
            raise UserError(f"evaluate_every is a part of the budget above 0, or None, not {every:g}")
        self.asking, self._changes, self._every = asking, changes, every
        self.asked = 0
        """Decisions so far."""
        self._changed = 0
        self._ask_step = math.inf
        self.evaluated = 0.0
        """When the last regular evaluation was due."""
        self.due_time, self.due_step = 0.0, math.inf

    def plan(self, budget: Budget, spacing: float = 0.0) -> None:
        """Find out when the next thing is due; evaluations are at least `spacing` apart."""
        due = [self._evaluation(budget, spacing), self._point(budget)]
        if self._changed < len(self._changes):
            due.append(self._changes[self._changed].time)
        self.due_time, self.due_step = min(due) - _HAIR * budget.total, self._ask_step

    def _evaluation(self, budget: Budget, spacing: float) -> float:
        if self._every is None:
            return math.inf
        return self.evaluated + max(self.interval(budget), spacing)

    def interval(self, budget: Budget) -> float:
        """How far apart evaluations are meant to be."""
        return math.inf if self._every is None else self._every * budget.total

    def _point(self, budget: Budget) -> float:
        asking = self.asking
        points = sorted([*(fraction * budget.total for fraction in asking.fractions), *asking.times])
        return points[self.asked] if self.asked < len(points) else math.inf

    def change(self, budget: Budget) -> str:
        """The change of resources that is due, once; empty if none is."""
        due = self._changes[self._changed].time if self._changed < len(self._changes) else math.inf
        if budget.used >= due - _HAIR * budget.total:
            self._changed += 1
            return self._changes[self._changed - 1].change
        return ""

    def resources(self, change: str, step: int) -> None:
        """Resources changed: ask from now on, or no more."""
        if not self.asking.by_the_clock:
            self._ask_step = step if change == "up" and self.asked < self.asking.most else math.inf

    @property
    def asks(self) -> bool:
        """Whether a decision follows from what is to be had."""
        return self._ask_step < math.inf

    def question(self, budget: Budget, step: int) -> bool:
        """Whether a decision is due."""
        return step >= self._ask_step or budget.used >= self._point(budget) - _HAIR * budget.total

    def answered(self, step: int, epoch: int) -> None:
        """It was made; the next may come after as many steps as an epoch has."""
        self.asked += 1
        if self._ask_step < math.inf:
            self._ask_step = step + epoch if self.asked < self.asking.most else math.inf

    def evaluation(self, budget: Budget, spacing: float) -> bool:
        """Whether an evaluation is due; it then counts as made."""
        used = budget.used
        if used < self._evaluation(budget, spacing) - _HAIR * budget.total:
            return False
        step = (self._every or 1.0) * budget.total
        self.evaluated = max(self.evaluated, step * math.floor(used / step + _HAIR))
        return True

    def state(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "asked": self.asked,
            "changed": self._changed,
            "ask_step": self._ask_step,
            "evaluated": self.evaluated,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on where that was."""
        self.asked, self._changed = state["asked"], state["changed"]
        self._ask_step, self.evaluated = state["ask_step"], state["evaluated"]
