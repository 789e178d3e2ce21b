"""What a trained policy costs the daemon: ranking a long queue with its guard, and a whole plan.

The same queue is ranked by the base heuristic, by the network and by the network with its guard, in turns, so that they
share what the machine does meanwhile. Every instant is another, as in a daemon: nothing is found again that was known.
Beside the time on the wall there is the CPU time of the thread, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpuyard.core.events import Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.planner import ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import Policy
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.policies.features import NAMES
from gpuyard.policies.guard import guarded
from gpuyard.policies.network import Network, parameter_count
from gpuyard.policies.trained_policy import Learned

LIMIT = 1.0
"""Milliseconds that a decision on a queue of a thousand may take, at the 99th percentile."""
HEAVY = ("torch", "numba", "gymnasium")
_LOADED = """
import json, sys
import gpuyard.server.serve, gpuyard.policies.guard
print(json.dumps([name for name in sys.argv[1:] if name in sys.modules]))
"""


def queue(waiting: int) -> State:
    """A cluster of 64 GPUs with two that are idle, and a queue."""
    state, draw = State(Cluster((8,) * 8)), np.random.default_rng(0)
    for n in range(8):
        spot = tuple(range(8 * n, 8 * n + (8 if n else 6)))
        request = Request(gpus=len(spot), estimate=float(draw.uniform(1e4, 1e5)))
        apply(state, Submitted(float(n), f"r{n}", request))
        apply(state, Placed(float(n), f"r{n}", 1, spot))
        apply(state, Started(float(n), f"r{n}", 1))
    for n in range(waiting):
        gpus, estimate = int(draw.choice((1, 1, 2, 4, 8))), float(draw.lognormal(7.5, 1.5))
        apply(state, Submitted(10.0 + n, str(n), Request(gpus=gpus, estimate=estimate, user=f"u{n % 20}")))
    return state


def policies(hidden: int) -> dict[str, Policy]:
    """What is compared, the heuristic first."""
    parameters = np.random.default_rng(1).normal(0.0, 0.1, parameter_count(hidden))
    wide = np.full(len(NAMES), 100.0)
    learned = Learned(Network("saf", hidden, 1e6, parameters), -wide, wide, "easy", {})
    watched = guarded("learned:bench", learned, time.perf_counter, limit=0.0)
    return {"saf": POLICIES["saf"], "network": learned.policy("learned:bench"), "guarded": watched}


def timed(calls: dict[str, Callable[[float], Any]], rounds: int, begin: float) -> dict[str, dict[str, float]]:
    """Milliseconds of each call, in turns: percentiles on the wall, and of CPU time."""
    spent = {name: np.zeros((rounds, 2)) for name in calls}
    for n in range(rounds):
        for name, call in calls.items():
            now = begin + 0.01 * n
            began, cpu = time.perf_counter(), time.thread_time()
            call(now)
            spent[name][n] = time.perf_counter() - began, time.thread_time() - cpu
    found = {}
    for name, values in spent.items():
        (p50, cpu50), (p99, cpu99) = np.percentile(1000 * values, (50, 99), axis=0)
        found[name] = {"p50_ms": p50, "p99_ms": p99, "cpu_p50_ms": cpu50, "cpu_p99_ms": cpu99}
    return found


def measure(waiting: int, hidden: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Rankings and whole plans of one queue."""
    state, compared = queue(waiting), policies(hidden)
    rows = state.waiting.array
    for policy in compared.values():  # what is done once
        policy.rank(state, rows, 5e4)
    ranks = {name: _ranker(policy, state) for name, policy in compared.items()}
    plans = {name: _planner(policy, state) for name, policy in compared.items()}
    return {"rank": timed(ranks, rounds, 6e4), "plan": timed(plans, rounds, 7e4)}


def _ranker(policy: Policy, state: State) -> Callable[[float], Any]:
    def rank(now: float) -> Any:
        state.seen = None  # as if nobody had looked at this instant
        return policy.rank(state, state.waiting.array, now)

    return rank


def _planner(policy: Policy, state: State) -> Callable[[float], Any]:
    planner = ordered(policy, "easy", "pack")

    def plan(now: float) -> Any:
        state.seen = None
        return planner.plan(Snapshot(state, now))

    return plan


def loaded() -> list[str]:
    """Which heavy packages a daemon that serves trained policies would load."""
    done = subprocess.run([sys.executable, "-c", _LOADED, *HEAVY], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    given = parser.parse_args()
    found: dict[str, Any] = dict(measure(given.waiting, given.hidden, given.rounds))
    print(f"{given.waiting:,} jobs wait, a network of {given.hidden} units on top of saf; ms, {given.rounds:,} rounds")
    print(f"{'':16s}{'p50':>8s}{'p99':>8s}{'CPU p50':>10s}{'CPU p99':>10s}{'x saf':>8s}")
    for what, numbers in found.items():
        for name, one in numbers.items():
            ratio = one["cpu_p50_ms"] / numbers["saf"]["cpu_p50_ms"]
            print(f"{what + ' ' + name:16s}{one['p50_ms']:8.3f}{one['p99_ms']:8.3f}"
                  f"{one['cpu_p50_ms']:10.3f}{one['cpu_p99_ms']:10.3f}{ratio:8.1f}")  # fmt: skip
    p99 = found["rank"]["guarded"]["p99_ms"]
    print(f"a decision takes {p99:.3f} ms at p99 ({'within' if p99 <= LIMIT else 'beyond'} {LIMIT:g} ms)")
    found["daemon_loads"] = loaded()
    print(f"of {', '.join(HEAVY)} a daemon loads {', '.join(found['daemon_loads']) or 'none'}")
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
