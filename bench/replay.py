"""Speed of the simulator on made-up workloads, in jobs per second and relative to a calibration loop.

Machines are noisy, so the loop (a fixed amount of interpreter work) is timed in the same run, and `relative` is jobs
simulated in the time of one loop: compare that between runs, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import time

from gpuyard.core.model import Cluster
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.workload import generate_poisson

CASES = ("fcfs", "sjf", "wfp3", "fcfs@easy", "fcfs@skip", "srtf", "srsf", "las")


def calibrate() -> float:
    """Seconds that a fixed amount of interpreter work takes now; the best of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        table: dict[int, int] = {}
        for i in range(200_000):
            table[i & 1023] = table.get(i & 1023, 0) + i
        times.append(time.perf_counter() - began)
    return min(times)


def measure(policy: str, jobs: int, load: float, cluster: Cluster, placement: str) -> dict[str, float | str | int]:
    """One policy on one workload."""
    trace = generate_poisson(1, jobs=jobs, gpus=cluster.gpus, load=load)
    loop = calibrate()
    _, metrics = simulate(trace, cluster, policy, Options(placement=placement, estimate="requested"))
    speed = metrics["jobs_per_second"]
    return {"policy": policy, "jobs": jobs, "load": load, "jobs_per_second": round(speed), "relative": speed * loop}


def main() -> None:
    """Print a table, or JSON with --json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--load", type=float, nargs="+", default=[0.7, 1.2])
    parser.add_argument("--nodes", default="8x8")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cluster = Cluster.parse(arguments.nodes)
    rows = [
        measure(policy, jobs, load, cluster, "consolidate")
        for policy in CASES
        for jobs in arguments.jobs
        for load in arguments.load
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'policy':<12}{'jobs':>8}{'load':>6}{'jobs/s':>9}{'relative':>10}")
    for row in rows:
        print(f"{row['policy']:<12}{row['jobs']:>8}{row['load']:>6}{row['jobs_per_second']:>9}{row['relative']:>10.1f}")


if __name__ == "__main__":
    main()
