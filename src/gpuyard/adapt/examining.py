"""Evaluations within a budget: what they take is measured, kept for the last one, and leaves room to end well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.evaluating import CHUNK, Score, Validation

KEPT = "evaluation"
"""The name under which a budget keeps time for it."""
ROOM = 0.03
"""Of the budget: what must be left after an evaluation, so that the learning rate still comes to its end."""
SHARE = 0.05
"""Of the time: what evaluations may take on the way. Where all samples would take more, some must do."""
GLANCE = 0.02
"""Of what is left: what an evaluation for a decision may take."""
FEWEST = 100
"""Samples that tell something."""


class Examiner:
    """Who evaluates, and knows how it went so far."""

    def __init__(self, validation: Validation, budget: Budget) -> None:
        self._validation, self._budget = validation, budget
        self.points: list[tuple[float, float]] = []
        """Time and accuracy of each evaluation."""
        self.samples, self.loss, self.step = 0, math.nan, -1
        """Of the last one: how many samples, which loss, after which step."""
        self._most = 0

    @property
    def accuracy(self) -> float:
        """The last one; nan if there is none."""
        return self.points[-1][1] if self.points else math.nan

    def plan(self, interval: float) -> float:
        """Let evaluations be so far apart; how far they have to be, if even the fewest samples take too long."""
        self._most = self._affordable(SHARE * interval)
        return self._takes(self._most) / SHARE

    def _affordable(self, seconds: float) -> int:
        """How many samples can be looked at in that time, but no fewer than tell something; 0: all."""
        whole, number = self._budget.kept(KEPT), self._validation.samples
        if whole <= seconds or not number:
            return 0
        some = max(FEWEST, int(number * seconds / whole))
        return some if some < number else 0

    def _takes(self, most: int) -> float:
        return self._budget.kept(KEPT) * (most / self._validation.samples if most else 1.0)

    def room(self) -> bool:
        """Whether the learning rate still comes to its end after an evaluation."""
        budget = self._budget
        left = budget.end - budget.used - self._takes(self._most)
        return budget.exact or left > max(ROOM * budget.total, 5 * budget.times.high)

    def probe(self, model: nn.Module) -> None:
        """Find out what an evaluation takes by a part of it; on a virtual clock it takes nothing."""
        if not self._budget.exact:
            self._timed(model, min(FEWEST, self._validation.samples))

    def _timed(self, model: nn.Module, most: int, late: Callable[[int], bool] | None = None) -> Score:
        """Evaluate, and keep as much time for the last one as all samples would take."""
        began = self._budget.clock.now()
        with self._budget.aside():
            score = self._validation.score(model, late, most)
        took = self._budget.clock.now() - began
        self._budget.keep(KEPT, took * max(1.0, self._validation.samples / score.samples))
        return score

    def examine(self, model: nn.Module, step: int, *, last: bool = False, decision: bool = False) -> Score:
        """Find out how good the network is now; at the end by all samples, as far as the time goes."""
        budget = self._budget
        began, end = budget.used, budget.total - budget.kept("checkpoint")

        def late(seen: int) -> bool:
            """Whether a further chunk would not end in time, if it takes as long as those before."""
            now = budget.used
            return now + (now - began) / seen * CHUNK > end

        most = self._affordable(GLANCE * budget.left) if decision else 0 if last else self._most
        score = self._timed(model, most, late if last and not budget.exact else None)
        self.points.append((budget.used, score.accuracy))
        self.samples, self.loss, self.step = score.samples, score.loss, step
        return score

    def state(self) -> dict[str, Any]:
        """All of it as plain values."""
        points = [list(point) for point in self.points]
        return {"points": points, "samples": self.samples, "loss": self.loss, "step": self.step}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on where that was."""
        self.points = [(time, accuracy) for time, accuracy in state["points"]]
        self.samples, self.loss, self.step = state["samples"], state["loss"], state["step"]
