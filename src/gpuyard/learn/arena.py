"""One window of a trace on the compiled simulator, run many times under different weights."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuyard.core.planner import ordered
from gpuyard.errors import UserError, suggest
from gpuyard.learn.trace_windows import Window
from gpuyard.policies.network import untrained
from gpuyard.sim.kernel.driver import Rerun
from gpuyard.sim.metrics import SHORT, Power, by_user, jain
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Floats

OBJECTIVES = {
    "slowdown": "the mean bounded slowdown",
    "jct": "the mean time from submission to end",
    "wait": "the mean wait",
    "utilization": "GPU time that is left unused until all jobs are done",
    "energy": "energy, which GPUs need also while they are idle",
}  # what a policy may be trained for: less is better
NEVER = 1e9  # seconds that a job counts as waiting for which a policy has no number
TRIFLE = 10.0  # seconds that are added to waits before they are compared: a wait of a second is as good as none


PATIENCE = 600.0  # the same for the longest waits of a window: shorter ones do not matter


class Outcome(NamedTuple):
    cost: float  # by the objective; less is better
    p99: float  # the wait that one in a hundred exceeds


class Stats(NamedTuple):
    cost: float
    wait_mean: float
    wait_median: float
    wait_p99: float
    wait_max: float
    fairness: float | None  # Jain's index over users of their mean run / JCT; None where the trace names none


def check_objective(name: str) -> str:
    if name not in OBJECTIVES:
        raise UserError(f"there is no objective '{name}'{suggest(name, OBJECTIVES)} ({', '.join(OBJECTIVES)})")
    return name


class Arena:
    def __init__(self, window: Window, objective: str) -> None:
        self.window, self._objective = window, objective
        problem, counted = window.problem, window.counted
        network = untrained("fcfs", 0, NEVER, np.random.default_rng(0))
        planner = ordered(network.policy(), problem.discipline, problem.placement)
        self._rerun = Rerun(problem.trace, problem.cluster, planner, problem.estimates)
        self._counted = counted
        self._submit, self._run = problem.trace.submit[counted], problem.trace.run[counted]
        self._users = [problem.trace.users[i] for i in counted]
        self._gpus = problem.trace.gpus[counted]
        self._capacity = problem.cluster.gpus

    def waits(self, weights: Floats) -> Floats:
        """Seconds that each job that counts waits."""
        waits = self._rerun.starts(weights)[self._counted] - self._submit
        return np.where(np.isnan(waits), NEVER, np.maximum(waits, 0.0))

    def outcome(self, weights: Floats) -> Outcome:
        waits = self.waits(weights)
        return Outcome(self.cost(waits), p99(waits))

    def stats(self, waits: Floats) -> Stats:
        users = self._users
        fairness = None
        if any(users):
            fairness = jain(by_user(users, self._run / (waits + self._run)))
        return Stats(
            self.cost(waits), float(waits.mean()), float(np.median(waits)), p99(waits), float(waits.max()), fairness
        )

    def simulated(self, policy: str) -> Floats:
        """Waits of the jobs that count under any policy, also a preemptive one."""
        problem = self.window.problem
        options = Options(discipline=problem.discipline, placement=problem.placement, lenient=True, engine="kernel")
        trace = replace(problem.trace, requested=problem.estimates)
        result, _ = simulate(trace, problem.cluster, policy, replace(options, estimate="requested"))
        waits = result.end[self._counted] - self._submit - self._run
        return np.where(np.isnan(waits), NEVER, np.maximum(waits, 0.0))

    def cost(self, waits: Floats) -> float:
        run = self._run
        if self._objective == "slowdown":
            return float(np.maximum((waits + run) / np.maximum(run, SHORT), 1.0).mean())
        if self._objective == "jct":
            return float((waits + run).mean())
        if self._objective == "wait":
            return float(waits.mean()) + TRIFLE
        span = float((self._submit + waits + run).max() - self._submit[0])
        if self._objective == "utilization":
            return span * self._capacity - float((run * self._gpus).sum())
        power = Power()
        return span * self._capacity * power.idle + float((run * self._gpus).sum()) * (power.busy - power.idle)


def p99(waits: Floats) -> float:
    at = min(int(0.99 * len(waits)), len(waits) - 1)
    return float(np.partition(waits, at)[at])


def longer_waits(ours: Floats, theirs: Floats) -> float:
    """Ratio of the longest waits, as a geometric mean over windows; short ones do not matter."""
    return float(np.exp(np.log((ours + PATIENCE) / (theirs + PATIENCE)).mean()))


def heuristic_weights(name: str) -> Floats:
    return untrained(name, 0, NEVER, np.random.default_rng(0)).weights
