"""Made-up recordings of growing networks: a gain that needs steps to come, and costs steps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gpuyard.adapt.agent.decision_trees import Table
from gpuyard.adapt.decisions import Option, Situation


@dataclass(frozen=True)
class World:
    """One environment: a network, data and a budget."""

    name: str
    steps: float
    """At the first time of a step."""
    points: tuple[float, ...]
    """Shares of the budget after which is decided."""
    costs: tuple[float, ...]
    """Time of a step after growing at each site, relative to before."""
    gains: tuple[float, ...]
    """Of error, that each site takes away in the long run."""
    payback: float = 800.0
    """Steps after which a growth has shown 63 % of its gain."""
    floor: float = 0.25
    slowness: float = 120.0
    noise: float = 0.006

    def run(self, actions: Sequence[int], rng: np.random.Generator) -> tuple[float, list[Situation]]:
        """The accuracy at the end, and what was seen before each action."""
        pace, at, done = 1.0, 0.0, 0.0
        grown: list[tuple[int, float]] = []
        seen = []
        for k, (action, point) in enumerate(zip(actions, self.points, strict=True)):
            done += (point - at) * self.steps / pace
            at = point
            seen.append(self._seen(k, at, done, pace, grown, rng))
            if action < len(self.costs):
                pace *= self.costs[action] ** (0.8 ** len(grown))
                grown.append((action, done))
        done += (1.0 - at) * self.steps / pace
        return self._accuracy(done, grown) + rng.normal(0.0, self.noise), seen

    def _accuracy(self, done: float, grown: Sequence[tuple[int, float]]) -> float:
        error = self.floor + 0.65 / math.sqrt(1.0 + done / self.slowness)
        for k, (site, since) in enumerate(grown):
            error -= self.gains[site] * 0.6**k * (1.0 - math.exp(-(done - since) / self.payback))
        return 1.0 - error

    def _seen(
        self, k: int, at: float, done: float, pace: float, grown: list[tuple[int, float]], rng: np.random.Generator
    ) -> Situation:
        now, before = (self._accuracy(d, grown) for d in (done, max(done - 0.05 * self.steps / pace, 0.0)))
        options = tuple(
            Option(
                s, f"layer{s}", cost_ratio=cost ** (0.8 ** len(grown)), position=s / max(len(self.costs) - 1, 1),
                grown=sum(g == s for g, _ in grown), params_ratio=1.0 + cost / 4, kind="linear",
            )
            for s, cost in enumerate(self.costs)
        )  # fmt: skip
        return Situation(
            (1.0 - at) * self.steps, self.steps, steps_left=(1.0 - at) * self.steps / pace, steps_done=done,
            accuracy=now + rng.normal(0.0, self.noise / 2), slope=(now - before) / 0.05 + rng.normal(0.0, self.noise),
            grown=len(grown), decision=k, decisions=len(self.points), noise=self.noise,
            train_accuracy=now + 0.02, options=options,
        )  # fmt: skip


STAGES = {"early": (0.1, 0.2), "middle": (0.4, 0.5), "late": (0.75, 0.85)}
NETWORKS = {"mlp": ((0.07, 0.055, 0.03), (1.5, 1.35, 1.15)), "cnn": ((0.05, 0.06, 0.02), (1.9, 1.6, 1.1))}
"""What each site gains and costs."""


def worlds(seed: int = 0) -> list[World]:
    """Twelve environments: two networks, three budgets, and two stages of each."""
    rng = np.random.default_rng(seed)
    found = []
    for name, (gains, costs) in NETWORKS.items():
        for k, (steps, stage) in enumerate(product((300.0, 1500.0, 8000.0), ("early", "middle", "late"))):
            if k % 3 == (1 if name == "mlp" else 2):
                continue
            here = tuple(float(gain * share) for gain, share in zip(gains, rng.uniform(0.8, 1.2, 3), strict=True))
            dear = tuple(float(cost * share) for cost, share in zip(costs, rng.uniform(0.95, 1.05, 3), strict=True))
            found.append(World(f"made-{name}-B{steps:.0f}-{stage}", steps, STAGES[stage], dear, here))
    return found


def leaves(world: World, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Every sequence with every seed, as a recording has it."""
    found = []
    for seed in seeds:
        for k, actions in enumerate(product(range(len(world.costs) + 1), repeat=len(world.points))):
            accuracy, seen = world.run(actions, np.random.default_rng([seed, k]))
            found.append(
                {
                    "environment": world.name, "seed": seed, "actions": list(actions), "accuracy": accuracy,
                    "situations": [s.to_json() for s in seen], "total_time": world.steps,
                }
            )  # fmt: skip
    return found


def write_recording(path: Path, made: Sequence[World], seeds: Sequence[int] = (0, 1, 2)) -> Path:
    """A file as `gpuyard adapt record` writes it."""
    lines = [{"format": "gpuyard-adaptation", "version": 1}, *(leaf for w in made for leaf in leaves(w, seeds))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def made_tables(folder: Path, made: Sequence[World] | None = None, seeds: Sequence[int] = (0, 1, 2)) -> list[Table]:
    """The tables of made-up environments."""
    from gpuyard.adapt.agent.decision_trees import read_tables

    path = write_recording(folder / "made.jsonl", made or worlds(), seeds)
    return list(read_tables([path]).tables)
