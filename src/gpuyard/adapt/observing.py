"""What a decider gets to see of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gpuyard.adapt import curves, ops
from gpuyard.adapt.situation import UNKNOWN, Option, Situation

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
