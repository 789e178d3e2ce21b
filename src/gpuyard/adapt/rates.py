"""A learning rate that ends with the budget, even if the budget changes meanwhile.

A plan has a place between 0 (begin) and 1 (end), and a shape that says how much of the full rate holds there. With time
the place moves so that it is at 1 when the budget ends: what is left of the plan shrinks as what is left of the time.
So a longer or shorter grant changes how fast the plan goes on, never the rate itself at that moment.

Linear to zero after a short warm-up is the default: it was found best, or as good as any, under fixed budgets (Li,
Yumer and Ramanan 2020; Defazio and others 2023; Bergsma and others 2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gpuyard.adapt.budget import Budget
from gpuyard.errors import UserError, suggest

CONSTANT = 0.8  # up to where `constant` holds the full rate, of what follows the warm-up
LANDING = 0.005  # the rate of steps that may be the last; all smoother ones are below already
REWARM = 0.1  # if less than this part of a longer plan's rate is left when a grant comes, the rate rises to it

SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda place: 1.0 - place,
    "cosine": lambda place: 0.5 * (1.0 + math.cos(math.pi * place)),
    "constant": lambda place: min(1.0, (1.0 - place) / (1.0 - CONSTANT)),
}
REWARMS = ("late", "always", "never")


class RatePlan:
    """How much of the full learning rate holds now: between 0 and 1, and 0 at the end of the budget."""

    def __init__(self, shape: str = "linear", *, warmup: float = 0.02, rewarm: str = "late") -> None:
        if shape not in SHAPES:
            raise UserError(f"there is no rate plan '{shape}', only {', '.join(SHAPES)}{suggest(shape, SHAPES)}")
        if not 0 <= warmup < 1:
            raise UserError(f"a warm-up is a part of the budget from 0 to below 1, not {warmup:g}")
        if rewarm not in REWARMS:
            raise UserError(f"rewarm is one of {', '.join(REWARMS)}, not '{rewarm}'")
        self.shape, self.warmup, self.rewarm = shape, warmup, rewarm
        self._curve = SHAPES[shape]
        self._place, self._time, self._total = 0.0, 0.0, math.nan
        self._rise: tuple[float, float, float] | None = None

    def scale(self, at: float | Budget) -> float:
        """The part of the full rate: at a place of the plan, or for the step that a budget has just let begin."""
        return self._planned(at) if isinstance(at, Budget) else self._at(min(1.0, max(0.0, at)))

    def restart(self, *, warm: bool = False) -> None:
        """Go back to the full rate, at once or by another warm-up, and to zero from there; as after growing."""
        self._place, self._rise = (0.0 if warm else self.warmup), None

    def _at(self, place: float) -> float:
        if place >= 1.0:
            return 0.0
        if place < self.warmup:
            return place / self.warmup
        return self._curve((place - self.warmup) / (1.0 - self.warmup))

    def _planned(self, budget: Budget) -> float:
        now, end = budget.step_end, budget.end
        if budget.total > self._total and self.rewarm != "never":
            self._extended(now, end)
        self._total = budget.total
        if now > self._time:
            if math.isfinite(end):
                self._place = 1.0 - (1.0 - self._place) * max(0.0, end - now) / max(end - self._time, 1e-300)
            self._time = now
        scale = self._at(self._place)
        if self._rise is not None:
            scale = self._risen(scale, now)
        return min(scale, LANDING) if budget.last else scale

    def _extended(self, now: float, end: float) -> None:
        """The grant is longer now. With nearly nothing left of the rate, the time would be wasted: raise it."""
        place = max(self.warmup, now / end) if end > now and math.isfinite(end) else self._place
        if place < self._place and (self.rewarm == "always" or self._at(self._place) < REWARM * self._at(place)):
            before = self._at(self._place)
            self._rise = (self._time, self._time + max(self.warmup, 0.01) * (end - self._time), before)
            self._place = place

    def _risen(self, scale: float, now: float) -> float:
        assert self._rise is not None
        since, until, before = self._rise
        if now >= until:
            self._rise = None
            return scale
        return min(scale, before + (scale - before) * max(0.0, now - since) / (until - since))

    def state(self) -> dict[str, Any]:
        return {"place": self._place, "time": self._time, "total": self._total, "rise": self._rise}

    def load_state(self, state: dict[str, Any]) -> None:
        self._place, self._time, self._total = state["place"], state["time"], state["total"]
        self._rise = None if state["rise"] is None else (state["rise"][0], state["rise"][1], state["rise"][2])
