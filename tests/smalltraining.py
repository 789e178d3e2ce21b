"""A small training that tests of adaptation share: quick on one core, with dropout so that random numbers matter."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.clocks import Clock
from gpuyard.adapt.decisions import Asking, Decision, Situation, grow, nothing
from gpuyard.adapt.training.trainer import BudgetedTrainer

torch.set_num_threads(1)


def network(seed: int = 1) -> nn.Module:
    """A small network with something of everything."""
    torch.manual_seed(seed)
    first = [nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*first, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


def data(number: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points, and which of four directions each is nearest to."""
    inputs = torch.randn(number, 12, generator=torch.Generator().manual_seed(seed))
    directions = torch.randn(12, 4, generator=torch.Generator().manual_seed(99))
    return inputs, (inputs @ directions).argmax(1)


def price(model: nn.Module) -> float:
    """The larger the network, the dearer its steps; the one above costs about 1."""
    return sum(one.numel() for one in model.parameters()) / 600


def adam(parameters: Any) -> torch.optim.Optimizer:
    """Quick to learn what is easy."""
    return torch.optim.Adam(parameters, lr=1e-2)


class PassingClock:
    """Passes by itself, as a real one does, but the same way every time: a bit, more or less, at every look at it."""

    exact, jitter = False, 0.002

    def __init__(self, tick: float = 0.001) -> None:
        self._now, self._tick, self._random = 0.0, tick, random.Random(1)

    def now(self) -> float:
        self._now += self._tick * self._random.uniform(0.5, 1.5)
        return self._now

    def charge(self, cost: float) -> None:
        """Time passes by itself."""


class Choose:
    """Decides as a test says: numbers of options in turn, then nothing."""

    def __init__(self, *actions: int) -> None:
        self.actions, self.seen = list(actions), list[Situation]()

    def decide(self, situation: Situation) -> Decision:
        self.seen.append(situation)
        action = self.actions[situation.decision] if situation.decision < len(self.actions) else situation.nothing
        if action >= situation.nothing:
            return nothing(situation, "as told")
        return grow(situation, situation.options[action], "as told")


def training(total: float = 120.0, clock: Clock | str = "virtual", *actions: int, **settings: Any) -> BudgetedTrainer:
    """A training that decides at a quarter and at half of its budget."""
    chosen: dict[str, Any] = {
        "decider": Choose(*actions),
        "asking": Asking(fractions=(0.25, 0.5)),
        "cost": price,
        "optimizer": adam,
        "batch_size": 32,
        **settings,
    }
    return BudgetedTrainer(network(), data(400), data(200, 1), Budget(total, clock), **chosen)


def same(one: BudgetedTrainer, other: BudgetedTrainer) -> bool:
    """Whether two trainings came to the very same, to the last bit."""
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    told = [(event["event"], event["step"], event["time"], event.get("accuracy")) for event in one.log.history]
    heard = [(event["event"], event["step"], event["time"], event.get("accuracy")) for event in other.log.history]
    return (
        list(ours) == list(theirs)
        and all(torch.equal(ours[name], theirs[name]) for name in ours)
        and told == heard
        and one.steps == other.steps
    )
