"""The search itself: a population of weights (CMA-ES), tried on all windows in parallel processes.

Every candidate is paired with the best heuristic of each window. Its fitness is the mean logarithm of the ratio of
their costs, and a tail: the ratio of the means, which a few bad windows decide, and that of the waits which one job in
a hundred exceeds, once it is beyond a limit.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from cmaes import CMA

from gpuyard.core.planner import ordered
from gpuyard.core.policy import Policy
from gpuyard.learn.arena import Arena, Outcome, Stats, heuristic_weights, longer_waits
from gpuyard.learn.trace_windows import Window
from gpuyard.policies.features import COLUMNS, NAMES, features
from gpuyard.policies.network import BASES, JOB_FEATURES, Network, key, score, untrained
from gpuyard.sim.parallel import available_cpus, start_method
from gpuyard.sim.replay import replay
from gpuyard.sim.trace import Floats

MEAN_COUNTS = 0.3  # weight of the ratio of means, beside the mean logarithm of ratios
LONGEST = 1.3  # how much longer the 99th percentile of waits may be at no cost; beyond, all of it counts


class Fitness(NamedTuple):
    """A candidate compared with the best heuristic of each window; below 1, or 0, it is better."""

    value: float  # the objective of the search; less is better
    ratio: float  # the geometric mean of the ratios of costs
    mean_ratio: float  # the ratio of the means


@dataclass(frozen=True, slots=True)
class Baseline:
    """Results of heuristics in each window, by name; and the best of each window."""

    costs: dict[str, Floats]
    p99s: dict[str, Floats]

    @property
    def best(self) -> str:
        return min(self.costs, key=lambda name: float(np.log(self.costs[name]).mean()))

    @property
    def cost(self) -> Floats:
        least: Floats = np.min(list(self.costs.values()), axis=0)
        return least

    @property
    def p99(self) -> Floats:
        """The 99th percentile of waits in each window, under the heuristic that is best over all."""
        return self.p99s[self.best]


def fitness(outcomes: Sequence[Outcome], cost: Floats, p99: Floats, longest: float = LONGEST) -> Fitness:
    costs, waits = np.array([o.cost for o in outcomes]), np.array([o.p99 for o in outcomes])
    logs = float(np.log(costs / cost).mean())
    mean_ratio = float(costs.sum() / cost.sum())
    value = logs + MEAN_COUNTS * np.log(mean_ratio) + max(np.log(longer_waits(waits, p99) / longest), 0.0)
    return Fitness(float(value), float(np.exp(logs)), mean_ratio)


_arenas: list[Arena] = []


def _begin(windows: Sequence[Window], objective: str) -> None:
    global _arenas
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _arenas = [Arena(window, objective) for window in windows]


def _stats(arena: Arena, weights: Floats) -> Stats:
    return arena.stats(arena.waits(weights))


def _simulated(arena: Arena, policy: str) -> Stats:
    return arena.stats(arena.simulated(policy))


def _try(task: tuple[Callable[[Arena, Any], Any], Any, range]) -> list[Any]:
    function, candidate, which = task
    return [function(_arenas[i], candidate) for i in which]


class Trials:
    def __init__(self, windows: Sequence[Window], objective: str, processes: int | None = None) -> None:
        self.count = len(windows)
        self._processes = min(processes or available_cpus(), 8)
        self._pool: Any = None
        if self._processes > 1:
            # What is compiled must be loaded before there are several: else each of them would.
            Arena(windows[0], objective).outcome(heuristic_weights("fcfs"))
            context = multiprocessing.get_context(start_method())
            self._pool = context.Pool(self._processes, _begin, (windows, objective))
        else:
            self._arenas = [Arena(window, objective) for window in windows]

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.terminate() if error is not None else self._pool.close()
            self._pool.join()

    def outcomes(self, candidates: Sequence[Floats]) -> list[list[Outcome]]:
        return self._all(Arena.outcome, candidates)

    def stats(self, candidates: Sequence[Floats]) -> list[list[Stats]]:
        return self._all(_stats, candidates)

    def simulated(self, policies: Sequence[str]) -> list[list[Stats]]:
        return self._all(_simulated, policies)

    def _all(self, function: Callable[[Arena, Any], Any], candidates: Sequence[Any]) -> list[list[Any]]:
        if self._pool is None:
            return [[function(arena, candidate) for arena in self._arenas] for candidate in candidates]
        # In parts, so that no process waits long for the last.
        part = max(1, -(-self.count // max(1, -(-4 * self._processes // len(candidates)))))
        parts = [range(begin, min(begin + part, self.count)) for begin in range(0, self.count, part)]
        found = iter(self._pool.map(_try, [(function, c, which) for c in candidates for which in parts], chunksize=1))
        return [[one for _ in parts for one in next(found)] for _ in candidates]

    def baseline(self) -> Baseline:
        found = dict(zip(BASES, self.outcomes([heuristic_weights(name) for name in BASES]), strict=True))
        return Baseline(
            {name: np.array([o.cost for o in outcomes]) for name, outcomes in found.items()},
            {name: np.array([o.p99 for o in outcomes]) for name, outcomes in found.items()},
        )


LEAST_WAITING = 2  # queues in which there is something to choose


def sample_queues(network: Network, windows: Sequence[Window], most: int, rng: np.random.Generator) -> list[Floats]:
    """Queues that a network ranked, each a row per column of `COLUMNS`; at most `most` of each window."""
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


RIDGE = 1.0
SPREAD = 2.0  # mean distance of the scores of a queue's jobs


def clone_heuristic(network: Network, heuristic: str, queues: Sequence[Floats]) -> Network:
    """The network with a linear part that orders these queues about like another heuristic."""
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


TUNED = ("length", "width", "patience", "standing")
GENERATIONS, POPULATION = 4, 8


def tuned_rule(trials: Trials, baseline: Baseline, starvation: float, seed: int) -> Network:
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
