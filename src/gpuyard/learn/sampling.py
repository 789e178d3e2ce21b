"""What a policy gets to see while it runs: queues as they were at plans, sampled from replays of some windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuyard.core.planner import ordered
from gpuyard.core.policy import Policy
from gpuyard.learn.features import COLUMNS
from gpuyard.learn.network import Network, score
from gpuyard.learn.windows import Window
from gpuyard.sim.replay import replay
from gpuyard.sim.trace import Floats

LEAST_WAITING = 2
"""Queues in which there is something to choose."""


def queues(network: Network, windows: Sequence[Window], most: int, rng: np.random.Generator) -> list[Floats]:
    """Queues that a network ranked, each a line per column of `COLUMNS`; at most so many of each window."""
    found: list[Floats] = []
    for window in windows:
        seen: list[Floats] = []

        def watch(*columns: Any, seen: list[Floats] = seen) -> Any:
            if len(columns[0]) >= LEAST_WAITING:
                seen.append(np.stack(columns[:-1]))
            return score(*columns)

        policy = Policy("watched", watch, COLUMNS, {}, weights=network.weights)
        problem = window.problem
        planner = ordered(policy, problem.discipline, problem.placement)
        replay(problem.trace, problem.cluster, planner, estimates=problem.estimates)
        chosen = rng.permutation(len(seen))[:most]
        found += [seen[i] for i in sorted(chosen)]
    return found
