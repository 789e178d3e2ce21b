"""What the scheduler is told of a training in its queue: how it does, and what was decided."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from gpuyard.adapt import curves
from gpuyard.adapt.observing import situation
from gpuyard.adapt.situation import Decision

if TYPE_CHECKING:
    from gpuyard.adapt.trainer import BudgetedTrainer

OFTEN = 2.0
"""Seconds between reports."""
FORESEEN = 3.0
"""Seconds, at least, between looks at what growing would bring."""

LEAST_LEFT = 0.25
"""Of the budget: over less than that no gain is spread, or it would seem ever larger towards the end."""


class Reports:
    """Tells the scheduler now and then how a training does."""

    def __init__(self, trainer: BudgetedTrainer) -> None:
        self._trainer = trainer
        self._told_at = self._foresee_at = -math.inf
        self._growing = 0.0
        """What growing would add to the accuracy at the deadline, by the decider's own account."""

    @property
    def due(self) -> float:
        """When it is told next, on the monotonic clock; never where there is no scheduler."""
        return self._told_at + OFTEN if self._trainer.budget.grants is not None else math.inf

    def tell(self) -> None:
        """Tell what a step takes, and what a second of more GPU would bring."""
        now = self._told_at = time.monotonic()
        if self._trainer.budget.grants is None:
            return
        if now >= self._foresee_at and self._may_grow():
            self._growing = self._foreseen()
            self._foresee_at = now + max(FORESEEN, 20 * (time.monotonic() - now))
        self._trainer.budget.grants.report(**self._facts())

    def _may_grow(self) -> bool:
        """Whether a decider that is offered something would still be asked."""
        trainer = self._trainer
        asking = trainer.agenda.asking
        known = len(trainer.examiner.points) >= 2 and not trainer.finished
        return known and not asking.by_the_clock and trainer.agenda.asked < asking.most

    def _foreseen(self) -> float:
        """What the decider expects of growing now; 0 if it would not, or tells nothing of the kind."""
        trainer = self._trainer
        if trainer.decider is None or not getattr(trainer.decider, "foresees", False):
            return 0.0
        options = trainer.options()
        if not options:
            return 0.0
        decision = trainer.decider.decide(situation(trainer, options))
        gain = decision.predicted_gain if decision.option is not None else 0.0
        return gain if math.isfinite(gain) else 0.0

    def _facts(self) -> dict[str, Any]:
        """What the network gains as it is, or what growing would add, spread over what is left: whichever is more.

        A network that will not grow any more has no use for a GPU that is lent.
        """
        trainer = self._trainer
        budget, examiner = trainer.budget, trainer.examiner
        seconds = budget.step_time
        growing = self._growing / max(budget.left, LEAST_LEFT * budget.total)
        gain = max(curves.gain_per_second(examiner.points, budget.total), growing) if self._may_grow() else 0.0
        return {
            "step_seconds": seconds if math.isfinite(seconds) else None,
            "gain_per_second": gain,
            "noise": curves.noise(examiner.points, examiner.samples) / budget.total if examiner.points else None,
            "accuracy": examiner.accuracy if examiner.points else None,
            "parameters": trainer.parameters,
        }


def decided(trainer: BudgetedTrainer, decision: Decision, before: int, failure: str) -> dict[str, Any]:
    """What the scheduler is told of a decision; if it had offered something, whether that is used."""
    option = None if failure else decision.option
    return {
        "decision": f"{option.op} {option.site}" if option else "nothing",
        "reason": failure or decision.reason,
        "accepted": option is not None if trainer.lent else None,
        "parameters_before": before,
        "parameters": trainer.parameters,
        "cost_ratio": option.cost_ratio if option and math.isfinite(option.cost_ratio) else None,
        "predicted_gain": decision.predicted_gain if math.isfinite(decision.predicted_gain) else None,
    }


def declined(trainer: BudgetedTrainer) -> dict[str, Any]:
    """What the scheduler is told of an offer that comes too late to be decided about."""
    return {
        "decision": "nothing",
        "reason": "its decisions are made: it grows no more",
        "accepted": False,
        "parameters_before": trainer.parameters,
        "parameters": trainer.parameters,
    }
