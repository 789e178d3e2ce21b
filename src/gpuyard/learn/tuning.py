"""A rule that is tuned and not trained: how much length, width and waiting count, found by the same search.

It is what a careful admin could have come up with, and so what a network has to be compared with, too.
"""

from __future__ import annotations

import numpy as np
from cmaes import CMA

from gpuyard.learn.features import NAMES
from gpuyard.learn.network import Network, untrained
from gpuyard.learn.search import Baseline, Trials, fitness
from gpuyard.sim.trace import Floats

TUNED = ("length", "width", "patience", "standing")
GENERATIONS, POPULATION = 4, 8


def tuned_rule(trials: Trials, baseline: Baseline, starvation: float, seed: int) -> Network:
    """The best rule that was found on these windows."""
    start = untrained("sjf", 0, starvation, np.random.default_rng(seed))
    search = CMA(np.zeros(len(TUNED)), 0.5, seed=seed, population_size=POPULATION)
    for _ in range(GENERATIONS):
        asked = [search.ask() for _ in range(POPULATION)]
        tried = trials.outcomes([_rule(start, x).weights for x in asked])
        search.tell([(x, fitness(o, baseline.cost, baseline.p99).value) for x, o in zip(asked, tried, strict=True)])
    return _rule(start, search.mean)


def _rule(start: Network, found: Floats) -> Network:
    parameters = start.parameters.copy()
    parameters[[NAMES.index(name) for name in TUNED]] = found
    return Network(start.base, 0, start.starvation, parameters)
