"""A start that behaves like a heuristic: the linear part is fitted to the order in which that would have put queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuyard.learn.arena import heuristic_weights
from gpuyard.learn.features import COLUMNS, features
from gpuyard.learn.network import JOB_FEATURES, Network, key, score
from gpuyard.sim.trace import Floats

RIDGE = 1.0
SPREAD = 2.0
"""How far apart, in scores, jobs of a queue are put on average."""


def cloned(network: Network, heuristic: str, queues: Sequence[Floats]) -> Network:
    """The network with a linear part that puts these queues in about the order of another heuristic."""
    weights = heuristic_weights(heuristic)
    rows, wanted = [], []
    for queue in queues:
        numbers = score(*(*queue, weights))
        spread = float(numbers.std())
        if spread == 0.0:
            continue
        own = key(network.weights[0], *(queue[COLUMNS.index(name)] for name in ("estimate", "gpus", "submit", "wait")))
        x = np.stack(features(*queue)[:JOB_FEATURES])
        # Only differences within a queue matter.
        rows.append(x - x.mean(axis=1, keepdims=True))
        wanted.append(SPREAD * (numbers - numbers.mean()) / spread - (own - own.mean()))
    if not rows:
        return network
    x, y = np.concatenate(rows, axis=1), np.concatenate(wanted)
    linear = np.linalg.solve(x @ x.T + RIDGE * np.eye(JOB_FEATURES), x @ y)
    return replace(network, parameters=np.concatenate((linear, network.parameters[JOB_FEATURES:])))
