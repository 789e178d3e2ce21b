"""What sharing GPUs costs the planner, and what it is worth.

Planning for many jobs that wait, once with shares of GPUs and once with whole ones, on the same machine: GPU by GPU is
more to look at than a number of idle ones. And the makespan of the same jobs one after the other on each GPU, and
shared by memory beside a buffer, as simulated by the core itself.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import numpy as np

from gpuyard.core.engine import Engine
from gpuyard.core.events import Exited, MemoryTaken, Placed, Started
from gpuyard.core.model import GIB, Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.simulate import simulate
from gpuyard.sim.trace import Trace

BUFFER = 0.5 * GIB
SIZES = (2.0, 3.0, 5.0, 6.5)
"""GiB that jobs ask for, in turn."""


def full_yard(policy: str, gpus: int, waiting: int, *, shares: bool) -> Engine:
    """A machine on which nobody else fits, and a queue."""
    engine = Engine(Cluster((gpus,)), make_planner(policy))
    engine.record(MemoryTaken(0.0, (BUFFER,) * gpus, BUFFER))
    for n in range(gpus + waiting if not shares else 4 * gpus + waiting):
        memory = SIZES[n % len(SIZES)] * GIB
        wish = Request(memory=memory, compute=0.0, estimate=3600.0) if shares else Request(estimate=3600.0)
        engine.submit(float(n), str(n), wish)
    run(engine, float(waiting))
    return engine


def run(engine: Engine, now: float) -> int:
    """Start what may start; how many did."""
    plan = engine.plan(now)
    for start in plan.starts:
        engine.record(Placed(now, start.job, 1, start.gpus))
        engine.record(Started(now, start.job, 1))
    return len(plan.starts)


def planning(engine: Engine, rounds: int) -> tuple[float, float]:
    """Milliseconds for a plan that starts nobody, and for one after somebody left."""
    nobody, somebody = [], []
    now = 1e6
    for _ in range(rounds):
        began = time.perf_counter()
        engine.planner.plan(Snapshot(engine.state, now))
        nobody.append(time.perf_counter() - began)
        row = int(engine.state.running.array[0])
        engine.record(Exited(now, engine.state.ids[row], engine.state.attempt[row]))
        began = time.perf_counter()
        engine.planner.plan(Snapshot(engine.state, now))
        somebody.append(time.perf_counter() - began)
        run(engine, now)
        now += 1.0
    return 1000 * median(nobody), 1000 * median(somebody)


def makespans(jobs: int, gpus: int) -> tuple[float, float]:
    """Seconds that the same jobs take one at a time on each GPU, and shared."""
    draw = np.random.default_rng(0)
    run = draw.uniform(60.0, 600.0, jobs)
    memory = draw.choice(np.array(SIZES), jobs) * GIB
    cluster = Cluster((gpus,), 16 * GIB - BUFFER)
    ends = []
    for asked in (np.zeros(jobs), memory):
        trace = Trace.of(np.zeros(jobs), run, [1] * jobs, requested=run, memory=asked)
        ends.append(float(np.nanmax(simulate(trace, cluster, "fcfs@skip@pack")[0].end)))
    return ends[0], ends[1]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=5000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--policy", default="multifactor@easy@pack")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = {}
    for kind in ("whole", "shares"):
        engine = full_yard(given.policy, given.gpus, given.waiting, shares=kind == "shares")
        results[f"{kind}_nobody_ms"], results[f"{kind}_somebody_ms"] = planning(engine, given.rounds)
    for name in ("nobody", "somebody"):
        results[f"ratio_{name}"] = results[f"shares_{name}_ms"] / results[f"whole_{name}_ms"]
    results["sequential_s"], results["shared_s"] = makespans(400, given.gpus)
    results["ratio_makespan"] = results["sequential_s"] / results["shared_s"]
    if given.json:
        print(json.dumps(results))
        return
    print(f"{given.waiting:,} jobs wait for {given.gpus} GPUs, policy {given.policy}")
    for name, what in (("nobody", "nobody can start"), ("somebody", "somebody has left")):
        whole, shares = results[f"whole_{name}_ms"], results[f"shares_{name}_ms"]
        print(f"  plan, {what}: whole {whole:.2f} ms, shares {shares:.2f} ms ({results[f'ratio_{name}']:.1f} x)")
    print(f"  400 jobs: {results['sequential_s']:,.0f} s one at a time, {results['shared_s']:,.0f} s shared "
          f"({results['ratio_makespan']:.1f} x)")  # fmt: skip


if __name__ == "__main__":
    main()
