"""Speed of the simulator: jobs per second of the kernel and of replay, and how time grows with jobs.

Machines are noisy, so a fixed amount of interpreter work is timed in the same run: `relative` is jobs simulated in
the time of one such loop. Compare that, and the ratio of kernel to replay, between runs; not the seconds.

`--trace philly.csv.gz --nodes 96x8` measures a real trace instead. `--out FILE` keeps the numbers, and
`--against FILE` shows how they have changed.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from gpuyard.core.model import Cluster
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import read
from gpuyard.sim.workload import generate_poisson

KINDS = {
    "static": ("fcfs", "sjf", "fcfs@skip", "fcfs@easy"),
    "dynamic": ("wfp3", "fair"),
    "preemptive": ("srtf", "srsf", "las"),
}
REPLAYED = 2_000
"""Replay is timed on so many jobs at most: it takes its time."""


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


def measure(trace: Trace, cluster: Cluster, policy: str, engine: str, loop: float) -> dict[str, Any]:
    """One policy on one workload with one engine; the kernel is loaded, or compiled, before the clock starts."""
    _, metrics = simulate(trace, cluster, policy, Options(placement="consolidate", engine=engine))
    speed = metrics["jobs_per_second"]
    return {
        "policy": policy, "engine": metrics["engine"], "jobs": len(trace), "jobs_per_second": round(speed),
        "relative": round(speed * loop, 1),
    }  # fmt: skip


def speeds(sizes: list[int], loads: list[float], cluster: Cluster, loop: float) -> list[dict[str, Any]]:
    """Every kind of policy at every size and load, compiled and interpreted."""
    rows: list[dict[str, Any]] = []
    for kind, policies in KINDS.items():
        for load in loads:
            for jobs, engine in [*((size, "kernel") for size in sizes), (REPLAYED, "replay")]:
                trace = generate_poisson(1, jobs=jobs, gpus=cluster.gpus, load=load).by_arrival()
                about = {"kind": kind, "load": load}
                rows += [about | measure(trace, cluster, policy, engine, loop) for policy in policies]
    return rows


def growth(sizes: list[int], cluster: Cluster) -> list[dict[str, Any]]:
    """Seconds and memory of FCFS from ten thousand to a million jobs on a large cluster."""
    rows: list[dict[str, Any]] = []
    for jobs in sizes:
        trace = generate_poisson(1, jobs=jobs, gpus=cluster.gpus, load=0.9).by_arrival()
        seconds = min(
            simulate(trace, cluster, "fcfs", Options(placement="consolidate", engine="kernel"))[0].wall_seconds
            for _ in range(3)
        )
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        times = round(seconds / rows[-1]["seconds"], 2) if rows else None
        rows.append(
            {"jobs": jobs, "gpus": cluster.gpus, "seconds": seconds, "times_the_last": times, "peak_mb": round(memory)}
        )
    return rows


def real(path: str, cluster: Cluster, loop: float) -> list[dict[str, Any]]:
    """Every policy on a real trace, with the kernel; the better of two."""
    trace = read(path).by_arrival()
    policies = [(kind, policy) for kind, names in KINDS.items() for policy in names]
    return [
        max(
            ({"kind": kind} | measure(trace, cluster, policy, "kernel", loop) for _ in range(2)),
            key=lambda row: row["jobs_per_second"],
        )
        for kind, policy in policies
    ]


def show(rows: list[dict[str, Any]], before: dict[str, float]) -> None:
    """A table of speeds, with the change where there is something to compare with."""
    print(f"{'kind':<11}{'policy':<12}{'engine':<8}{'load':>5}{'jobs':>9}{'jobs/s':>11}{'relative':>10}{'change':>8}")
    for row in rows:
        old = before.get(_name(row))
        change = f"{row['relative'] / old - 1:+.0%}" if old else ""
        load = row.get("load", "")
        print(
            f"{row['kind']:<11}{row['policy']:<12}{row['engine']:<8}{load:>5}{row['jobs']:>9,}"
            f"{row['jobs_per_second']:>11,}{row['relative']:>10,.0f}{change:>8}"
        )


def _name(row: dict[str, Any]) -> str:
    return " ".join(str(row.get(key, "")) for key in ("kind", "policy", "engine", "load", "jobs"))


def main() -> None:
    """Measure, print, and keep the numbers if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--load", type=float, nargs="+", default=[0.7, 1.2])
    parser.add_argument("--nodes", default="32x8")
    parser.add_argument("--trace", help="measure this trace instead of made-up workloads")
    parser.add_argument("--growth", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    loop, cluster = calibrate(), Cluster.parse(arguments.nodes)
    if arguments.trace:
        found: dict[str, Any] = {"speeds": real(arguments.trace, cluster, loop), "growth": []}
    else:
        rows = speeds(arguments.jobs, arguments.load, cluster, loop)
        found = {"speeds": rows, "growth": growth(arguments.growth, Cluster((8,) * 512))}
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    before = json.loads(arguments.against.read_text())["speeds"] if arguments.against else []
    show(found["speeds"], {_name(row): row["relative"] for row in before})
    for row in found["growth"]:
        times = f", {row['times_the_last']} x the time of the size before" if row["times_the_last"] else ""
        print(f"{row['jobs']:>9,} jobs on {row['gpus']:,} GPUs: {row['seconds']:.3f} s, {row['peak_mb']:,} MB{times}")


if __name__ == "__main__":
    main()
