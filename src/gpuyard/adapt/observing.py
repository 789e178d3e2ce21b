"""What a decider gets to see of a training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gpuyard.adapt import curves, ops
from gpuyard.adapt.situation import UNKNOWN, Decision, Option, Situation

if TYPE_CHECKING:
    from gpuyard.adapt.trainer import BudgetedTrainer


def headroom(device: torch.device) -> float:
    """The share of the GPU's memory that is free; 1 where there is no GPU."""
    if device.type != "cuda":
        return 1.0
    free, total = torch.cuda.mem_get_info(device)
    return free / total


def situation(trainer: BudgetedTrainer, options: tuple[Option, ...]) -> Situation:
    """A training as it is now, with what could be done."""
    budget, examiner = trainer.budget, trainer.examiner
    by_fraction = [(time / budget.total, accuracy) for time, accuracy in examiner.points]
    step = trainer.step_cost if budget.exact else budget.step_time
    left = budget.end - budget.used
    return Situation(
        time_left=budget.left,
        time_total=budget.total,
        steps_left=max(0.0, left / step) if step > 0 else UNKNOWN,
        steps_done=float(trainer.steps),
        accuracy=examiner.accuracy,
        slope=curves.slope(by_fraction),
        headroom=headroom(trainer.device),
        grown=len(ops.growth_log(trainer.model)),
        decision=trainer.agenda.asked,
        decisions=trainer.agenda.asking.decisions,
        noise=curves.noise(examiner.points, examiner.samples),
        loss_gap=examiner.loss - trainer.train_loss,
        options=options,
    )


def foreseen(trainer: BudgetedTrainer, options: tuple[Option, ...]) -> float:
    """What growing now would add to the accuracy at the deadline, by the decider's own account; 0 if it tells none."""
    if not options or not getattr(trainer.decider, "foresees", False):
        return 0.0
    assert trainer.decider is not None
    decision = trainer.decider.decide(situation(trainer, options))
    gain = decision.predicted_gain if decision.option is not None else 0.0
    return gain if math.isfinite(gain) else 0.0


def report(trainer: BudgetedTrainer) -> dict[str, Any]:
    """What the scheduler is told now and then: what a step takes, and what a second of more GPU would bring.

    That is what the network gains as it is, or what growing would add, spread over what is left: whichever is more.
    """
    budget, examiner = trainer.budget, trainer.examiner
    seconds = budget.step_time
    growing = trainer.foreseen / max(budget.left, 1.0)
    return {
        "step_seconds": seconds if math.isfinite(seconds) else None,
        "gain_per_second": max(curves.gain_per_second(examiner.points, budget.total), growing),
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
