"""Evaluation of a trained policy against every heuristic on held-out windows, and the gate that it must pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuyard.errors import UserError
from gpuyard.learn.arena import Arena, Stats, heuristic_weights, longer_waits
from gpuyard.learn.search import Trials
from gpuyard.learn.trace_windows import Problem, Window, cut, make_problem
from gpuyard.policies.network import BASES
from gpuyard.policies.trained_policy import Learned
from gpuyard.sim.trace import Floats, Trace

LEARNED, TUNED = "learned", "tuned linear"
PREEMPTIVE = ("rr", "las")  # heuristics that stop running jobs: shown, but not comparable
DRAWS = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Evaluation:
    problem: Problem
    objective: str
    windows: list[Window]
    blocks: list[int]  # which stretch of time each window is of
    stats: dict[str, list[Stats]]  # by policy, one for each window

    @property
    def heuristics(self) -> list[str]:
        """Candidates for the best heuristic: published ones without preemption."""
        return [name for name in BASES if name in self.stats]

    @property
    def best_heuristic(self) -> str:
        return min(self.heuristics, key=lambda name: float(np.log(self.costs(name)).mean()))

    def costs(self, name: str) -> Floats:
        return np.array([stats.cost for stats in self.stats[name]])

    def ratio(self, name: str, other: str) -> float:
        return float(np.exp(np.log(self.costs(name) / self.costs(other)).mean()))

    def interval(self, name: str, other: str, seed: int = 0) -> tuple[float, float]:
        """The 95 % confidence interval of that ratio."""
        logs = np.log(self.costs(name) / self.costs(other))
        return _bootstrapped(logs, np.array(self.blocks), seed)

    def mean_ratio(self, name: str, other: str) -> float:
        return float(self.costs(name).sum() / self.costs(other).sum())

    def p99_ratio(self, name: str, other: str) -> float:
        """The ratio of the 99th percentiles of waits, as a geometric mean over windows."""
        ours, theirs = (np.array([s.wait_p99 for s in self.stats[n]]) for n in (name, other))
        return longer_waits(ours, theirs)

    def hindsight(self, name: str) -> float:
        """The ratio to the best heuristic of each single window, which nobody could have known."""
        best = np.min([self.costs(other) for other in self.heuristics], axis=0)
        return float(np.exp(np.log(self.costs(name) / best).mean()))

    def row(self, name: str) -> dict[str, Any]:
        stats = self.stats[name]
        best = self.best_heuristic
        return {
            "policy": name,
            "mean": float(self.costs(name).mean()),
            "geometric_mean": float(np.exp(np.log(self.costs(name)).mean())),
            "ratio": self.ratio(name, best),
            "wait_mean": float(np.mean([s.wait_mean for s in stats])),
            "wait_median": float(np.median([s.wait_median for s in stats])),
            "wait_p99": float(np.mean([s.wait_p99 for s in stats])),
            "wait_max": float(max(s.wait_max for s in stats)),
            "fairness": _mean([s.fairness for s in stats]),
        }


def evaluate(
    learned: Learned,
    problem: Problem,
    *,
    objective: str | None = None,
    seeds: int = 5,
    size: int = 256,
    processes: int | None = None,
    preemptive: bool = True,
) -> Evaluation:
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    objective = objective or str(learned.training.get("recipe", {}).get("objective", "slowdown"))
    windows, blocks = held_out_windows(problem, seeds, size)
    candidates = {LEARNED: learned.network.weights, **{name: heuristic_weights(name) for name in BASES}}
    if tuned := learned.training.get("tuned"):
        candidates[TUNED] = np.array(tuned)
    with Trials(windows, objective, processes) as trials:
        found = dict(zip(candidates, trials.stats(list(candidates.values())), strict=True))
        if preemptive:
            found |= dict(zip(PREEMPTIVE, trials.simulated(PREEMPTIVE), strict=True))
    return Evaluation(problem, objective, windows, blocks, found)


def held_out_windows(problem: Problem, seeds: int, size: int) -> tuple[list[Window], list[int]]:
    span = problem.held_out
    size = int(np.clip(len(span) // 6, min(8, len(span)), size))
    windows = [w for seed in range(seeds) for w in cut(problem, span, size, size, seed * size // seeds)]
    return windows, [(window.start - span.begin) // size for window in windows]


def _bootstrapped(logs: Floats, blocks: np.ndarray[Any, Any], seed: int) -> tuple[float, float]:
    """An interval for the mean of logarithms, by bootstrap over blocks of windows."""
    names = np.unique(blocks)
    sums = np.array([logs[blocks == b].sum() for b in names])
    counts = np.array([(blocks == b).sum() for b in names])
    drawn = np.random.default_rng(seed).integers(0, len(names), (DRAWS, len(names)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(np.exp(low)), float(np.exp(high))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


P99_LIMIT = 1.5  # how much longer the longest waits may be than under the best heuristic


def judge(found: Evaluation) -> dict[str, Any]:
    """Whether a policy passes the gate; the verdict as its file has it."""
    best = found.best_heuristic
    low, high = found.interval(LEARNED, best)
    mean, p99 = found.mean_ratio(LEARNED, best), found.p99_ratio(LEARNED, best)
    reasons = []
    if not high < 1.0:
        reasons.append(f"it may be no better than {best}: its ratio is between {low:.3f} and {high:.3f}")
    if not mean <= 1.0:
        reasons.append(f"its mean is {mean:.3f} times that of {best}")
    if not p99 <= P99_LIMIT:
        reasons.append(f"one job in a hundred waits {p99:.2f} times as long as under {best} (at most {P99_LIMIT:g})")
    return {
        "trace": found.problem.name,
        "objective": found.objective,
        "estimate": found.problem.estimate,
        "windows": len(found.windows),
        "ratio": _rounded(found.ratio(LEARNED, best)),
        "ratio_low": _rounded(low),
        "ratio_high": _rounded(high),
        "mean_ratio": _rounded(mean),
        "p99_ratio": _rounded(p99),
        "best_heuristic": best,
        "passed": not reasons,
        "reasons": reasons,
    }


def combined_verdict(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """One verdict of several traces: all must pass. The numbers are those of the worst."""
    worst = max(verdicts, key=lambda verdict: (not verdict["passed"], verdict["ratio_high"]))
    reasons = [f"{v['trace']}: {reason}" for v in verdicts for reason in v["reasons"]]
    traces = [{k: v[k] for k in ("trace", "ratio", "ratio_high", "mean_ratio", "passed")} for v in verdicts]
    return {**worst, "passed": not reasons, "reasons": reasons, "traces": traces}


def _rounded(number: float) -> float:
    return round(number, 6)


SEQUENCES = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)
LENGTH = 1024
DISCIPLINE = "easy-shadow"


def sequences(trace: Trace) -> list[Window]:
    if len(trace) < max(SEQUENCES) + LENGTH:
        raise UserError(
            f"{trace.source} has {len(trace):,} jobs, and the protocol needs {max(SEQUENCES) + LENGTH:,}: "
            "it is made for traces such as lublin_256.swf"
        )
    if trace.capacity is None:
        raise UserError(f"{trace.source} does not say how many processors there were, which the protocol needs")
    parts = [make_problem(trace.slice(f"{start}:{LENGTH}"), discipline=DISCIPLINE) for start in SEQUENCES]
    return [Window(part, np.arange(len(part.trace)), start) for part, start in zip(parts, SEQUENCES, strict=True)]


def slowdowns(learned: Learned, trace: Trace) -> dict[str, float]:
    """The mean bounded slowdown over the ten sequences, of a trained policy and of every heuristic."""
    arenas = [Arena(window, "slowdown") for window in sequences(trace)]
    weights = {"learned": learned.network.weights, **{name: heuristic_weights(name) for name in BASES}}
    return {name: float(np.mean([arena.outcome(w).cost for arena in arenas])) for name, w in weights.items()}
