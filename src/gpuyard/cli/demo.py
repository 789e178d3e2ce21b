"""`gpuyard demo`: everything once, on a made-up workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.compare import chosen_policies, print_ranking, run_all, write_comparison
from gpuyard.cli.options import Seed


def demo(
    exit_: Annotated[bool, typer.Option("--exit", help="End when done, without waiting for anybody.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Where the report goes.")] = Path(
        "demo-report"
    ),
    seed: Seed = 1,
) -> None:
    """Compare all policies on 4 simulated GPUs and a seeded workload, and write a report."""
    from gpuyard.core.model import Cluster
    from gpuyard.sim.simulate import Options
    from gpuyard.sim.traces import write
    from gpuyard.sim.workload import generate_tasks

    jobs = generate_tasks(seed)
    out.mkdir(parents=True, exist_ok=True)
    workload = out / "workload.csv"
    write(jobs, workload, "gpuyard")
    output.say(f"{len(jobs)} made-up training tasks on 4 simulated GPUs (no real GPU is used); seed {seed}")
    found = run_all(jobs, Cluster((4,)), chosen_policies(None), Options(seed=seed, lenient=True))
    print_ranking(found)
    report = write_comparison(found, jobs, out, f"gpuyard compare {workload} --gpus 4 --seed {seed} --out {out}")
    lost = [*found.failures, *(row["policy"] for row in found.rows if row["completed"] != len(jobs))]
    if lost:
        output.say(f"some tasks did not complete under {', '.join(lost)}")
        raise typer.Exit(1)
    best, worst = found.rows[0], found.rows[-1]
    print(
        f"\nBest: {best['policy']} completes a task in {output.duration(best['jct_mean'])} on average; "
        f"{worst['policy']} takes {output.duration(worst['jct_mean'])}."
    )
    print(f"Report: {report} (open it in a browser)")
    print(f"Try your own: gpuyard compare {workload} --gpus 4 --policies sjf,sjf@easy,./mine.py:my_policy")
