"""What is left of the demo: a table, the Gantt chart of what happened, and what other policies would have done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.cli.demo.jobs import KINDS, PLAN, wants
from gpuyard.cli.table import indices, instant, print_table

if TYPE_CHECKING:
    from gpuyard.client import Job
    from gpuyard.sim.compare import Comparison
    from gpuyard.sim.result import Result

OURS = "priority@easy"
"""The policy of the demo's yard."""
_OTHERS = ("fcfs", "fcfs@easy", "sjf", "sjf@easy", "wfp3@easy", "best-fit")
_KIND_OF = {planned.name: KINDS[planned.kind] for planned in PLAN}


def print_summary(jobs: Sequence[Job], said: Mapping[str, str]) -> None:
    """Who ran where, how long each waited and ran, and how it ended: the last line it printed, or what went wrong."""
    print("\nWhat happened:")
    print_table(
        ("JOB", "WANTED", "GPUS", "WAITED", "RAN", "END"),
        (
            (
                job["name"] or job["id"],
                wants(job),
                indices(job["gpus"]),
                _seconds(job["submitted_at"], job["started_at"]),
                _seconds(job["started_at"], job["ended_at"]),
                said[job["id"]] if job["state"] == "succeeded" else job["reason"] or job["state"],
            )
            for job in jobs
        ),
    )


def _seconds(begin: str | None, end: str | None) -> str:
    return f"{(instant(end) - instant(begin)).total_seconds():.1f}s" if begin and end else "-"


def what_happened(store: Path) -> Result:
    """The schedule out of the yard's own log, with the jobs' names, from second 0 on."""
    import numpy as np

    from gpuyard.sim.result import Segments
    from gpuyard.sim.traces import history

    found = history.schedule(store)
    trace, held, first = found.trace, found.segments, float(found.trace.submit.min())
    return replace(
        found,
        trace=replace(
            trace,
            ids=trace.labels["name"],
            submit=np.round(trace.submit - first, 3),  # milliseconds are enough for people to look at
            run=np.round(trace.run, 3),
            source="history.csv",
        ),
        policy=f"Simulated GPUs, policy {OURS}",
        start=found.start - first,
        end=found.end - first,
        segments=Segments(held.job, held.gpu, held.start - first, held.end - first),
    )


def write_happened(result: Result, out: Path) -> dict[str, Any]:
    """`gantt.png` and `gantt.svg`, `history.csv` as a trace, and who held which GPU when; returns the metrics."""
    from gpuyard.sim import plots
    from gpuyard.sim.metrics import measure
    from gpuyard.sim.traces import write
    from gpuyard.sim.writing import write_schedule

    write(result.trace, out / "history.csv", "gpuyard")
    metrics = measure(result)
    write_schedule(result, metrics, out)
    states = result.trace.labels["state"]
    names = [
        name if state == "succeeded" else f"{name}: {state}"
        for name, state in zip(result.trace.ids, states, strict=True)
    ]
    chart = plots.gantt(
        replace(result, trace=replace(result.trace, ids=names)), kinds=[_KIND_OF[name] for name in result.trace.ids]
    )
    plots.save(chart, out, "gantt")
    return metrics


def what_if(result: Result, out: Path) -> Comparison:
    """Replay the jobs under other policies: they come when they came, and run as long as they ran."""
    from gpuyard.cli.compare import print_ranking, run_all, write_comparison
    from gpuyard.sim.simulate import Options

    # A dozen jobs are replayed sooner than a process starts, or a kernel is compiled.
    options = Options(placement="pack", engine="replay", lenient=True)
    found = run_all(result.trace, result.cluster, [OURS, *_OTHERS], options, jobs=1)
    command = f"gpuyard compare {out / 'history.csv'} --gpus {result.cluster.gpus} --placement pack"
    print("\nWhat if another policy had decided? The same jobs again, in the simulator:")
    print_ranking(found)
    write_comparison(found, result.trace, out / "what-if", f"{command} --policies {','.join([OURS, *_OTHERS])}")
    return found


def print_end(metrics: dict[str, Any], found: Comparison, out: Path) -> None:
    """What is to be learned from it, and where the rest is."""
    best, ours = found.rows[0], next(row for row in found.rows if row["policy"] == OURS)
    print(
        f"\nFrom submission to end, a job took {metrics['jct_mean']:.1f}s on average.\n"
        f"The simulator says {ours['jct_mean']:.1f}s of the queue's own policy, {OURS}, "
        f"and {best['jct_mean']:.1f}s of the best one, {best['policy']}.\n\n"
        f"Gantt chart          {out / 'gantt.png'}\n"
        f"Policies compared    {out / 'what-if' / 'report.html'} (open it in a browser)\n"
        f"Output of the jobs   {out / 'logs'}\n"
        f"Try your own policy  gpuyard compare {out / 'history.csv'} --gpus {found.cluster.gpus} "
        "--policies sjf@easy,./mine.py:my_policy"
    )
