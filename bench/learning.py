"""Learning against its bars: jobs per CPU-second while training, training time, what is achieved where it was held out.

    python bench/learning.py --traces DIR [--full]

Without --full only the speed of the training loop is measured. With it, policies are trained on Lublin-1 by
RLScheduler's protocol with three seeds, and on Lublin-1 and openb for held-out windows: some ten minutes.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from gpuyard.learn.arena import Arena
from gpuyard.learn.evaluation import evaluate, judge, slowdowns
from gpuyard.learn.trace_windows import draw, make_problem
from gpuyard.learn.training import Recipe, recipe_for, train
from gpuyard.policies.network import untrained
from gpuyard.sim.traces import read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GPUYARD_TRACES", "../shared/traces"))
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    lublin = Path(options.traces) / "swf" / "lublin_256.swf"
    for discipline in ("easy-shadow", "easy"):
        for hidden in (0, 4, 8):
            print(f"{discipline:12} {hidden} units: {_speed(lublin, discipline, hidden):,.0f} jobs per CPU-second")
    if options.full:
        for seed in range(3):
            _protocol(lublin, seed)
        _held_out(lublin)
        _held_out(Path(options.traces) / "openb" / "openb_pod_list_default.csv")


def _speed(path: Path, discipline: str, hidden: int) -> float:
    """What one process does in the training loop: simulate a window, and work out what it came to."""
    problem = make_problem(read(path), discipline=discipline)
    rng = np.random.default_rng(0)
    arenas = [Arena(draw(problem, problem.training, 512, 64, rng, alter=bool(i % 2)), "slowdown") for i in range(32)]
    weights = untrained("saf", hidden, 20.0, rng).weights
    arenas[0].outcome(weights)
    began, jobs = time.process_time(), 0
    while time.process_time() - began < 2.0:
        for arena in arenas:
            arena.outcome(weights)
            jobs += len(arena.window.problem.trace)
    return jobs / (time.process_time() - began)


def _protocol(path: Path, seed: int) -> None:
    trace, began = read(path), time.perf_counter()
    problem = make_problem(trace, discipline="easy-shadow")
    learned, _ = train([problem], recipe_for("easy-shadow", seed=seed))
    seconds, found = time.perf_counter() - began, slowdowns(learned, trace)
    print(f"RLScheduler's protocol, seed {seed}: {found['learned']:.2f} (f4 {found['f4']:.2f}) after {seconds:.0f} s")


def _held_out(path: Path) -> None:
    began = time.perf_counter()
    problem = make_problem(read(path))
    learned, _ = train([problem], Recipe())
    seconds, verdict = time.perf_counter() - began, judge(evaluate(learned, problem, preemptive=False))
    said = {name: verdict[name] for name in ("ratio", "ratio_low", "ratio_high", "mean_ratio", "p99_ratio", "passed")}
    print(f"{path.name}, held out after {seconds:.0f} s: {said} of {verdict['best_heuristic']}")


if __name__ == "__main__":
    main()
