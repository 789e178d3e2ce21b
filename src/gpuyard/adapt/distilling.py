"""When resources are taken back: a smaller network that learns from the larger one for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpuyard.adapt import ops
from gpuyard.adapt.ops.shrinking import FADING, WEIGHT
from gpuyard.adapt.states import carry_over, copied, optimizer_state

if TYPE_CHECKING:
    from gpuyard.adapt.trainer import BudgetedTrainer

LEAST = 0.01
"""Once it counts no more than this it is let go."""
FORWARD = 1 / 3
"""Of a step: what the larger network's part costs, which is not trained any more."""


class Teacher:
    """The larger network, as long as it is listened to."""

    def __init__(self, model: nn.Module, epoch: int, steps: int = 0) -> None:
        self.model, self._epoch, self._steps = model.eval().requires_grad_(False), max(1, epoch), steps

    @property
    def weight(self) -> float:
        """What its word counts now."""
        return WEIGHT * FADING ** (self._steps // self._epoch)

    def blend(self, loss: Tensor, outputs: Any, inputs: Any) -> Tensor:
        """The loss of a step, partly by how far the outputs are from the larger network's."""
        weight = self.weight
        self._steps += 1
        with torch.no_grad():
            told = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        return (1.0 - weight) * loss + weight * ops.distillation(outputs, told)

    @property
    def an_epoch_on(self) -> bool:
        """Whether the first epoch has just ended."""
        return self._steps == self._epoch

    def done(self) -> bool:
        """Whether nobody listens any more."""
        return self.weight < LEAST

    def price(self, cost: Callable[[nn.Module], float] | None) -> float:
        """What it adds to the price of a step."""
        return FORWARD * (1.0 if cost is None else cost(self.model))

    def state(self) -> dict[str, Any]:
        """All of it as tensors and plain values."""
        return {
            "growth": ops.growth_log(self.model),
            "model": copied(dict(self.model.state_dict())),
            "epoch": self._epoch,
            "steps": self._steps,
        }


def smaller(trainer: BudgetedTrainer, growths: int) -> tuple[nn.Module, Optimizer, Teacher]:
    """The network before it grew so many times, an optimizer with what it can keep, and the larger one as a teacher."""
    before = optimizer_state(trainer.optimizer, trainer.model)
    student = ops.shrink(trainer.model, growths)
    optimizer = trainer.make_optimizer(student.parameters())
    carry_over(optimizer, student, before)
    for group, old in zip(optimizer.param_groups, before["groups"], strict=False):
        group["initial_lr"] = old["options"].get("initial_lr", group["lr"])
    return student, optimizer, Teacher(trainer.model, trainer.batches.per_epoch)
