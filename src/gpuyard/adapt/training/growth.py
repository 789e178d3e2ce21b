"""Growth of a training's network: the options, their prices, and the learning curve that growth is judged by."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from gpuyard.adapt import ops
from gpuyard.adapt.budget import Budget
from gpuyard.adapt.decisions import UNKNOWN, Option
from gpuyard.adapt.ops.forward_pass import parameters
from gpuyard.adapt.training.snapshots import load_random_state, random_state

TRIED = 2  # steps that a grown copy is timed by, after one that is not counted
AFFORDABLE = 0.02  # part of the time left that finding prices may take

OptimizerOf = Callable[[Any], Optimizer]


def adam(parameters: Any) -> Optimizer:
    return Adam(parameters, lr=1e-3)


def grow(model: nn.Module, op: str, site: str, **settings: Any) -> None:
    operation = ops.widen if op == "widen" else ops.deepen
    operation(model, site, **settings)


@dataclass(frozen=True)
class Price:
    cost_ratio: float = UNKNOWN
    params_ratio: float = UNKNOWN
    timed: bool = False


class Prices:
    """The cost of each option: by a cost function, or by timing steps of a grown copy. Cached by structure."""

    def __init__(
        self,
        optimizer: OptimizerOf,
        loss: Callable[[Any, Any], Tensor],
        cost: Callable[[nn.Module], float] | None,
        known: dict[str, Price] | None = None,
    ) -> None:
        self._optimizer, self._loss, self._cost = optimizer, loss, cost
        self.known: dict[str, Price] = {} if known is None else known
        self._copying = 0.0  # time of making a grown copy, by the budget's clock
        self._seconds: dict[str, float] = {}

    def options(
        self, model: nn.Module, example: Any, batch: tuple[Any, Any], budget: Budget, names: tuple[str, ...]
    ) -> tuple[Option, ...]:
        log = ops.growth_log(model)
        structure = json.dumps(log, sort_keys=True)
        found = [site for site in ops.sites(model, example, ops=names) if not site.why_not and not site.head]
        timed = not budget.exact and self._affordable(len(found), budget, timed=True)
        keys = [f"{structure} {site.op} {site.name}" for site in found]
        asked = [k for k, key in enumerate(keys) if key not in self.known or (timed and not self.known[key].timed)]
        before = random_state() if asked else {}  # a copy's dropout must not shift the global random numbers
        for number, k in enumerate(asked):
            if not budget.exact and not self._affordable(len(asked) - number, budget):
                break
            self.known[keys[k]] = self._price(model, found[k], example, batch if timed else None, structure, budget)
        if asked:
            load_random_state(before)
        return tuple(_option(k, site, self.known.get(keys[k], Price()), log) for k, site in enumerate(found))

    def _affordable(self, number: int, budget: Budget, timed: bool = False) -> bool:
        """Whether that many copies take little of the time left; a step of a grown one may take twice as long."""
        steps = (TRIED + 1) * (2 * number + 1) * budget.step_time if timed else 0.0
        return number * self._copying + steps <= AFFORDABLE * budget.left

    def _price(self, model: nn.Module, site: Any, example: Any, batch: Any, structure: str, budget: Budget) -> Price:
        began = budget.clock.now()
        grown = copy.deepcopy(model)
        grow(grown, site.op, site.name, example=example, verify=False)
        self._copying = max(self._copying, budget.clock.now() - began)
        ratio = UNKNOWN
        if batch is not None:
            if structure not in self._seconds:
                self._seconds[structure] = self._timed(copy.deepcopy(model), batch)
            ratio = self._timed(grown, batch) / max(self._seconds[structure], 1e-9)
            ratio = max(ratio, 1.0)  # less is the clock's noise
        elif self._cost is not None:
            ratio = self._cost(grown) / self._cost(model)
        return Price(ratio, parameters(grown) / max(1, parameters(model)), batch is not None)

    def _timed(self, model: nn.Module, batch: tuple[Any, Any]) -> float:
        """Seconds of a step: the quickest of a few, since disturbances only make them slower."""
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


def _option(number: int, site: Any, price: Price, log: list[dict[str, Any]]) -> Option:
    grown = sum(1 for entry in log if entry.get("site") in (site.name, site.origin))
    return Option(number, site.name, site.op, price.cost_ratio, site.position, grown, price.params_ratio, site.kind)


RECENT = 5  # evaluations that the slope is taken from
_TIMES = tuple(2.0**power for power in range(-5, 4))  # time constants that are tried, relative to the time so far

Points = Sequence[tuple[float, float]]


def line(points: Points) -> tuple[float, float]:
    """Level at 0 and slope of a fitted line; nan if there is none."""
    number = len(points)
    if number < 2:
        return math.nan, math.nan
    mean_x, mean_y = sum(x for x, _ in points) / number, sum(y for _, y in points) / number
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread <= 0:
        return math.nan, math.nan
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return mean_y - slope * mean_x, slope


def slope(points: Points) -> float:
    """Recent accuracy per unit of time; nan with fewer than two evaluations."""
    return line(points[-RECENT:])[1]


def noise(points: Points, samples: int) -> float:
    """Standard deviation of one evaluation: by the scatter of the last ones, but no less than by chance."""
    if not points:
        return math.nan
    level = min(1.0, max(0.0, points[-1][1]))
    chance = math.sqrt(level * (1 - level) / samples) if samples else 0.0
    recent = [y for _, y in points[-8:]]
    bends = [a - 2 * b + c for a, b, c in zip(recent, recent[1:], recent[2:], strict=False)]
    scatter = math.sqrt(sum(bend * bend for bend in bends) / (6 * len(bends))) if len(bends) >= 3 else 0.0
    return max(chance, scatter)


def saturating(points: Points) -> tuple[float, float, float] | None:
    """Ceiling, height and time constant of the fitted curve `ceiling - height * exp(-time / constant)`."""
    if len(points) < 3 or points[-1][0] <= 0:
        return None
    best: tuple[float, tuple[float, float, float]] | None = None
    for relative in _TIMES:
        constant = relative * points[-1][0]
        level, steep = line([(math.exp(-x / constant), y) for x, y in points])
        if math.isnan(level):
            continue
        error = sum((level + steep * math.exp(-x / constant) - y) ** 2 for x, y in points)
        if best is None or error < best[0]:
            best = error, (level, -steep, constant)
    return None if best is None else best[1]


def gain_per_second(points: Points, end: float) -> float:
    """Accuracy that one more second after the end would add, if the curve continues; 0 if unknown."""
    found = saturating(points)
    if found is None:
        return 0.0
    _, height, constant = found
    return max(0.0, height / constant * math.exp(-end / constant))


def headroom(device: torch.device) -> float:
    """The share of the GPU's memory that is free; 1 without a GPU."""
    if device.type != "cuda":
        return 1.0
    free, total = torch.cuda.mem_get_info(device)
    return free / total
