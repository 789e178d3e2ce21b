"""Seconds that a comparison of all policies takes, stage by stage: reading, simulating, report.

`python bench/compare.py PHILLY.csv.gz --nodes 96x8` is the case that has to stay under a minute on two cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from gpuyard.core.model import Cluster
from gpuyard.core.policies import ALIASES, POLICIES
from gpuyard.policies.resolver import split_list
from gpuyard.sim.compare import compare
from gpuyard.sim.result_files import write_comparison
from gpuyard.sim.simulate import Options
from gpuyard.sim.traces import read


def main() -> None:
    """Print the seconds of each stage, and the slowest policies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--nodes", default="96x8")
    parser.add_argument("--policies", nargs="*")
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args()
    names = split_list(arguments.policies or []) or [*POLICIES, *(name for name in ALIASES if name != "fifo")]
    stages = [("start", time.perf_counter())]
    trace = read(arguments.trace)
    stages.append(("read", time.perf_counter()))
    options = Options(placement="consolidate", lenient=True)
    found = compare(trace, Cluster.parse(arguments.nodes), names, options, jobs=arguments.jobs)
    stages.append(("simulate and summarise", time.perf_counter()))
    with tempfile.TemporaryDirectory() as folder:
        write_comparison(found, trace, Path(folder), "bench")
    stages.append(("report", time.perf_counter()))
    for (_, before), (name, after) in pairwise(stages):
        print(f"{name:<24}{after - before:8.2f} s")
    print(f"{'in all':<24}{stages[-1][1] - stages[0][1]:8.2f} s for {len(names)} policies on {len(trace):,} jobs")
    slowest = sorted(found.rows, key=lambda row: row["jobs_per_second"])[:5]
    print("slowest: " + ", ".join(f"{row['policy']} {len(trace) / row['jobs_per_second']:.2f} s" for row in slowest))
    for policy, why in found.failures.items():
        print(f"failed: {policy}: {why}")


if __name__ == "__main__":
    main()
