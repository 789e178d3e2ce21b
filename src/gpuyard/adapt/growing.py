"""A training's network grows and shrinks here, by `gpuyard.adapt.ops`; and what growing would cost is found out."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from gpuyard.adapt import ops
from gpuyard.adapt.budget import Budget
from gpuyard.adapt.situation import UNKNOWN, Option
from gpuyard.adapt.states import load_random_state, random_state

TRIED = 3
"""Steps that a grown copy is timed by, after one that is not counted."""
AFFORDABLE = 0.02
"""Of what is left: what finding out about prices may take."""

OptimizerOf = Callable[[Any], Optimizer]


def adam(parameters: Any) -> Optimizer:
    """The optimizer if none is said."""
    return Adam(parameters, lr=1e-3)


def parameters(model: nn.Module) -> int:
    """How many numbers a network has to learn."""
    return sum(one.numel() for one in model.parameters())


def grow(model: nn.Module, option: Option, example: Any, optimizer: Optimizer) -> None:
    """Do what was decided, in place."""
    operation = ops.widen if option.op == "widen" else ops.deepen
    operation(model, option.site, example=example, optimizer=optimizer)


@dataclass(frozen=True)
class Price:
    """What growing somewhere would cost."""

    cost_ratio: float
    params_ratio: float


class Prices:
    """What each option costs: by a cost function, or by timing a few steps of a grown copy. Remembered by structure."""

    def __init__(
        self,
        optimizer: OptimizerOf,
        loss: Callable[[Any, Any], Tensor],
        cost: Callable[[nn.Module], float] | None,
        known: dict[str, Price] | None = None,
    ) -> None:
        self._optimizer, self._loss, self._cost = optimizer, loss, cost
        self.known: dict[str, Price] = {} if known is None else known
        self._seconds: dict[str, float] = {}

    def options(
        self, model: nn.Module, example: Any, batch: tuple[Any, Any], budget: Budget, names: tuple[str, ...]
    ) -> tuple[Option, ...]:
        """All that could be done now, with its price."""
        log = ops.growth_log(model)
        found = [site for site in ops.sites(model, example, ops=names) if not site.why_not and not site.head]
        structure = json.dumps(log, sort_keys=True)
        missing = [site for site in found if f"{structure} {site.op} {site.name}" not in self.known]
        if missing:
            timed = not budget.exact and self._affordable(len(missing), budget)
            before = random_state()  # a copy's dropout must not shift everybody's random numbers
            for site in missing:
                price = self._price(model, site, example, batch, structure, timed)
                if timed or budget.exact:
                    self.known[f"{structure} {site.op} {site.name}"] = price
            load_random_state(before)
        return tuple(
            Option(
                number,
                site.name,
                site.op,
                self._known(structure, site).cost_ratio,
                site.position,
                sum(1 for entry in log if entry.get("site") in (site.name, site.origin)),
                self._known(structure, site).params_ratio,
                site.kind,
            )
            for number, site in enumerate(found)
        )

    def _known(self, structure: str, site: Any) -> Price:
        return self.known.get(f"{structure} {site.op} {site.name}", Price(UNKNOWN, UNKNOWN))

    def _affordable(self, number: int, budget: Budget) -> bool:
        """Whether timing so many copies takes little of what is left; a grown one may take twice as long."""
        steps = (TRIED + 1) * (2 * number + 1)
        return steps * budget.step_time <= AFFORDABLE * budget.left

    def _price(self, model: nn.Module, site: Any, example: Any, batch: Any, structure: str, timed: bool) -> Price:
        grown = copy.deepcopy(model)
        operation = ops.widen if site.op == "widen" else ops.deepen
        operation(grown, site.name, example=example, verify=False)
        ratio = UNKNOWN
        if timed:
            if structure not in self._seconds:
                self._seconds[structure] = self._timed(copy.deepcopy(model), batch)
            ratio = self._timed(grown, batch) / max(self._seconds[structure], 1e-9)
        elif self._cost is not None:
            ratio = self._cost(grown) / self._cost(model)
        return Price(ratio, parameters(grown) / max(1, parameters(model)))

    def _timed(self, model: nn.Module, batch: tuple[Any, Any]) -> float:
        """What a step of it takes: the quickest of a few, since what disturbs only makes them slower."""
        inputs, targets = batch
        optimizer, best = self._optimizer(model.parameters()), math.inf
        for number in range(TRIED + 1):
            began = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
            self._loss(outputs, targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                best = min(best, time.perf_counter() - began)
        return best
