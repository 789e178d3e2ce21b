"""Evaluations within a budget: what they take is measured, kept for the last one, and leaves room to end well."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.evaluating import CHUNK, Score, Validation

KEPT = "evaluation"
"""The name under which a budget keeps time for it."""
ROOM = 0.03
"""Of the budget: what must be left after an evaluation, so that the learning rate still comes to its end."""
SPACING = 20.0
"""An evaluation comes no sooner after another than so many times what it takes."""


class Examiner:
    """Who evaluates, and knows how it went so far."""

    def __init__(self, validation: Validation, budget: Budget) -> None:
        self._validation, self._budget = validation, budget
        self.points: list[tuple[float, float]] = []
        """Time and accuracy of each evaluation."""
        self.samples, self.loss, self.step = 0, math.nan, -1
        """Of the last one: how many samples, which loss, after which step."""

    @property
    def accuracy(self) -> float:
        """The last one; nan if there is none."""
        return self.points[-1][1] if self.points else math.nan

    @property
    def spacing(self) -> float:
        """How far apart evaluations are, at least."""
        return SPACING * self._budget.kept(KEPT)

    def room(self) -> bool:
        """Whether the learning rate still comes to its end after an evaluation."""
        budget = self._budget
        if budget.exact:
            return True
        left = budget.end - budget.used - budget.kept(KEPT)
        return left > max(ROOM * budget.total, 5 * budget.times.high)

    def probe(self, model: nn.Module) -> None:
        """Find out what an evaluation takes by a part of it; on a virtual clock it takes nothing."""
        budget = self._budget
        if budget.exact:
            return
        began = budget.clock.now()
        with budget.aside():
            part = self._validation.score(model, most=1)
        took = budget.clock.now() - began
        budget.keep(KEPT, took * max(1.0, self._validation.samples / part.samples))

    def examine(self, model: nn.Module, step: int, *, last: bool = False) -> Score:
        """Find out how good the network is now; at the end, as far as the time goes."""
        budget = self._budget
        chunk = budget.kept(KEPT) * min(1.0, CHUNK / max(1, self._validation.samples))
        end = budget.total - budget.kept("checkpoint") - chunk
        with budget.aside(KEPT):
            late = None if budget.exact or not last else (lambda seen: budget.used > end)
            score = self._validation.score(model, late)
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
