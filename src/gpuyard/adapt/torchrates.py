"""A rate plan as one of torch's schedulers."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import distributed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.rates import RatePlan

T = TypeVar("T")


def set_rates(optimizer: Optimizer, scale: float) -> None:
    """Give every group its part of the full rate, which is the one that it has at first."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * scale


def agreed(value: T) -> T:
    """The value of the first of several training processes: clocks differ, and all must do the same."""
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return value
    shared: list[Any] = [value]
    distributed.broadcast_object_list(shared, src=0)
    first: T = shared[0]
    return first


class BudgetLR(LRScheduler):
    """Sets the rate of the step that `budget.step()` has just let begin; call `step()` right after that.

    while budget.step():
        scheduler.step()
        train_one_batch()
    """

    def __init__(self, optimizer: Optimizer, budget: Budget, plan: RatePlan | None = None) -> None:
        self.budget, self.plan = budget, plan or RatePlan()
        self._scale = 1.0
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        return [rate * self._scale for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Set them; torch's own way would have the optimizer go first."""
        if self.budget.steps:
            self._scale = self.plan.scale(self.budget)
        set_rates(self.optimizer, self._scale)
        self.last_epoch += 1
        self._last_lr = self.get_lr()

    def state_dict(self) -> dict[str, Any]:
        """With the budget: what was used, too, belongs to it."""
        return {
            "plan": self.plan.state(),
            "budget": self.budget.state(),
            "scale": self._scale,
            "steps": self.last_epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.plan.load_state(state_dict["plan"])
        self.budget.load_state(state_dict["budget"])
        self._scale, self.last_epoch = state_dict["scale"], state_dict["steps"]
        self._last_lr = self.get_lr()
