"""The demo's ten jobs, its live table, and its report with what other policies would have done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpuyard
from gpuyard.api.types import OVER
from gpuyard.cli.terminal.live_view import LiveView
from gpuyard.cli.terminal.styled_lines import Cell, Column, Line, Piece, clip, table
from gpuyard.cli.terminal.text_table import indices, instant, print_table
from gpuyard.errors import GpuyardError
from gpuyard.units import format_duration, format_size, parse_size

if TYPE_CHECKING:
    from gpuyard.api.types import Job, Wishes
    from gpuyard.client.client import Client
    from gpuyard.sim.compare import Comparison
    from gpuyard.sim.result import Result


KINDS = {
    "cnn": "convolutional network",
    "recurrent": "recurrent network",
    "matmul": "matrix product",
    "boosted_trees": "boosted trees",
}
"""What is behind the name of an example."""
_LONGEST = 300.0  # time limit in seconds, for very slow machines
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class PlannedJob:
    name: str
    kind: str
    epochs: int
    wishes: Wishes
    at: float = 0.0  # seconds after the first job
    expected: str = "succeeded"

    def submit(self, client: Client, directory: Path, seed: int) -> str:
        script = examples() / f"{self.kind}.py"
        command = [sys.executable, str(script), "--epochs", str(self.epochs), "--seed", str(seed)]
        environment = dict(os.environ) | _ONE_THREAD
        wishes: Wishes = {"name": self.name, "time_limit": _LONGEST, "grace": 2.0, **self.wishes}
        return client.submit(command, directory=directory, environment=environment, **wishes)


_SHARE = int(parse_size("5G"))
PLAN = (
    PlannedJob("cnn-base", "cnn", 11, {"gpus": 2, "estimate": 20.0}),
    PlannedJob("recurrent-base", "recurrent", 13, {"gpus": 2, "estimate": 20.0}),
    PlannedJob("matmul-four", "matmul", 11, {"gpus": 4, "estimate": 5.0}),
    PlannedJob("cnn-wide", "cnn", 6, {"gpus": 6, "estimate": 10.0}, at=0.2),
    PlannedJob("recurrent-long", "recurrent", 13, {"gpus": 2, "estimate": 30.0}, at=0.4),
    PlannedJob("trees-1", "boosted_trees", 40, {"gpu_memory": _SHARE, "estimate": 4.0}, at=0.6),
    PlannedJob("trees-2", "boosted_trees", 50, {"gpu_memory": _SHARE, "estimate": 4.0}, at=0.6),
    PlannedJob("trees-3", "boosted_trees", 60, {"gpu_memory": _SHARE, "estimate": 4.0}, at=0.6),
    PlannedJob("matmul-urgent", "matmul", 9, {"gpus": 2, "priority": 10.0, "estimate": 5.0}, at=1.0),
    PlannedJob("too-long", "matmul", 1_000_000, {"gpus": 2, "time_limit": 3.0}, at=1.2, expected="timeout"),
)
"""Who comes when. Some have to wait, three share a GPU, one goes ahead of the others, and one runs out of time."""


def wants(job: Job) -> str:
    """`2 GPUs`, `5G of a GPU`, with priority and time limit."""
    count, memory = job["gpu_count"], job["gpu_memory"]
    text = f"{count} GPU{'s' * (count != 1)}" if memory is None else f"{format_size(memory)} of a GPU"
    if job["priority"]:
        text += f", prio {job['priority']:g}"
    if job["time_limit"] not in (None, _LONGEST):
        text += f", max {format_duration(job['time_limit'] or 0.0)}"
    return text


def examples() -> Path:
    """The folder of the examples: in the installed package, or beside a working copy."""
    package = Path(gpuyard.__file__).resolve().parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "matmul.py").is_file():
            return folder
    raise GpuyardError(f"there are no examples in {package}; install gpuyard anew")


_COLOURS = {"running": "bold green", "succeeded": "blue", "queued": "yellow"}


@dataclass(frozen=True, slots=True)
class Scene:
    gpus: int
    jobs: Sequence[Job]
    last_lines: Mapping[str, str]  # the last line that each job has printed, by its id
    pending: int
    over: int  # ended jobs, also those that `jobs` no longer has
    began: str  # when the first job was submitted


def demo_view(live: bool = True) -> LiveView[Scene]:
    return LiveView(_picture, _Changes().lines, live=live)


@dataclass(slots=True)
class _Changes:
    states: dict[str, str] = field(default_factory=dict)

    def lines(self, scene: Scene) -> Iterator[str]:
        changed = [job for job in scene.jobs if self.states.get(job["id"]) != job["state"]]
        for job in sorted(changed, key=_since):
            self.states[job["id"]] = job["state"]
            seconds = (instant(_since(job)) - instant(scene.began)).total_seconds()
            yield f"{seconds:5.1f}s  {_label(job):<15} {job['state']:<10} {_detail(job, scene)}".rstrip()


def _label(job: Job) -> str:
    name = job["name"] or job["id"]
    return name if job["task"] is None else f"{name} {job['task']}"


def _since(job: Job) -> str:
    return job["ended_at"] or job["started_at"] or job["submitted_at"]


def _detail(job: Job, scene: Scene) -> str:
    if job["state"] == "running":
        return f"on GPU {indices(job['gpus'])}"
    if job["state"] == "queued":
        return wants(job) + (f"; {job['reason']}" if job["reason"] else "")
    return job["reason"] or scene.last_lines.get(job["id"], "")


def _picture(scene: Scene, width: int) -> list[Line]:
    jobs = scene.jobs
    last_lines = [job["reason"] or scene.last_lines.get(job["id"], "") for job in jobs]
    columns = [
        Column("JOB", [Cell(_label(job)) for job in jobs], 14, 9, beside=14),
        Column("WANTS", [Cell(wants(job)) for job in jobs], 14, 5, beside=14),
        Column("STATE", [Cell(job["state"], _COLOURS.get(job["state"], "red")) for job in jobs], 9, 8, beside=9),
        Column("GPUS", [Cell(indices(job["gpus"])) for job in jobs], 5, 7, beside=5),
        Column("LAST LINE, OR WHY IT WAITS", [Cell(text) for text in last_lines], 10, 6, most=500, grows=True),
    ]
    head, rows = table(columns, width)
    return [*(clip([Piece(line)], width) for line in _gpu_lines(scene)), [Piece(head, "title")], *rows]


def _gpu_lines(scene: Scene) -> Iterator[str]:
    running = [job for job in scene.jobs if job["state"] == "running"]
    waiting = sum(job["state"] not in OVER for job in scene.jobs) - len(running)
    for gpu in range(scene.gpus):
        names = [_label(job) for job in running if gpu in job["gpus"]]
        yield f"GPU {gpu}  {' + '.join(names) or 'idle'}"
    yield ""
    yield f"{scene.over} jobs are over, {len(running)} run, {waiting} wait" + (
        f", {scene.pending} are still to come" if scene.pending else ""
    )
    yield ""


OURS = "priority@easy"  # the policy of the demo's daemon
_OTHERS = ("fcfs", "fcfs@easy", "sjf", "sjf@easy", "wfp3@easy", "best-fit")
_KIND_OF = {planned.name: KINDS[planned.kind] for planned in PLAN}


def print_summary(jobs: Sequence[Job], last_lines: Mapping[str, str]) -> None:
    """A table of the jobs; END is the last line of output, or what went wrong."""
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
                last_lines[job["id"]] if job["state"] == "succeeded" else job["reason"] or job["state"],
            )
            for job in jobs
        ),
    )


def _seconds(begin: str | None, end: str | None) -> str:
    return f"{(instant(end) - instant(begin)).total_seconds():.1f}s" if begin and end else "-"


def what_happened(store: Path) -> Result:
    """The schedule from the daemon's log, with names of jobs, from second 0 on."""
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
    """Write `gantt.png` and `gantt.svg`, `history.csv` as a trace, and the schedule; returns the metrics."""
    from gpuyard.sim import schedule_plots
    from gpuyard.sim.metrics import measure
    from gpuyard.sim.result_files import write_schedule
    from gpuyard.sim.traces import write

    write(result.trace, out / "history.csv", "gpuyard")
    metrics = measure(result)
    write_schedule(result, metrics, out)
    states = result.trace.labels["state"]
    names = [
        name if state == "succeeded" else f"{name}: {state}"
        for name, state in zip(result.trace.ids, states, strict=True)
    ]
    chart = schedule_plots.gantt(
        replace(result, trace=replace(result.trace, ids=names)), kinds=[_KIND_OF[name] for name in result.trace.ids]
    )
    schedule_plots.save(chart, out, "gantt")
    return metrics


def what_if(result: Result, out: Path) -> Comparison:
    from gpuyard.cli.simulator.compare import print_ranking, run_all, write_comparison
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
