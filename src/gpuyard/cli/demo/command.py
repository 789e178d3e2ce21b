"""The command: a yard of its own, its jobs, and the report."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.demo.yard import GPUS, MEMORY, yard
from gpuyard.cli.options import Seed

if TYPE_CHECKING:
    from gpuyard.cli.demo.jobs import Planned
    from gpuyard.cli.demo.screen import Show
    from gpuyard.client import Client, Job

_LOOK = 0.2
"""Seconds between two looks at the queue."""

Out = Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Where the report of --exit goes.")]


def demo(
    exit_: Annotated[
        bool, typer.Option("--exit", help="For scripts: ten jobs, plain lines, a report; it ends by itself.")
    ] = False,
    out: Out = Path("demo-report"),
    seed: Seed = 1,
) -> None:
    """Let a queue live on 8 simulated GPUs, with its page, until Ctrl-C; or run ten jobs and draw what happened."""
    if exit_:
        _ten_jobs(out, seed)
    else:
        _living_queue(seed)


def _living_queue(seed: int) -> None:
    """Jobs that keep coming; on a terminal a live table, elsewhere a line for every change."""
    from gpuyard.cli.demo import screen
    from gpuyard.cli.demo.living import Living

    with yard() as (client, folder):
        _introduce(client, folder)
        shown = screen.live() if sys.stdout.isatty() else nullcontext(screen.Lines().show)
        with shown as show:
            Living.begin(client, folder, seed).go_on(show, GPUS)


def _introduce(client: Client, folder: Path) -> None:
    """Where to look, and what there is to see."""
    print(
        f"Open {client.status()['url']}/ in a browser.\n\n"
        f"{GPUS} simulated GPUs of {MEMORY} each: no real GPU is used. The jobs are real\n"
        "processes, which print what a training prints, and sleep. In another terminal:\n\n"
        f"    gpuyard --data-dir {folder} top\n\n"
        "Ctrl-C ends it, and leaves nothing behind.\n",
        flush=True,
    )


def _ten_jobs(out: Path, seed: int) -> None:
    """Jobs that compute, what they did, and what other policies would have made of it."""
    from gpuyard.cli.demo import report, screen
    from gpuyard.cli.demo.jobs import PLAN

    out.mkdir(parents=True, exist_ok=True)
    with yard() as (client, folder):
        print(
            f"The page is at {client.status()['url']}/ while this lasts.\n\n"
            f"{GPUS} simulated GPUs of {MEMORY} each: no real GPU is used. The jobs are real\n"
            "processes that train small models with numpy, on the CPU of this machine.\n"
            "This takes half a minute; Ctrl-C ends it.\n",
            flush=True,
        )
        jobs, said = _run(client, folder, PLAN, seed, screen.Lines().show)
        _keep_logs(client, jobs, out / "logs")
        happened = report.what_happened(folder / "gpuyard.db")
    report.print_summary(jobs, said)
    metrics = report.write_happened(happened, out)
    report.print_end(metrics, report.what_if(happened, out), out)
    _check(jobs, PLAN)


def _check(jobs: Sequence[Job], plan: Sequence[Planned]) -> None:
    """Fail if a job did not end as it was meant to."""
    expected = {planned.name: planned.expected for planned in plan}
    wrong = [job for job in jobs if job["state"] != expected[job["name"] or ""]]
    for job in wrong:
        output.say(f"gpuyard: error: {job['name']} is {job['state']}: {job['reason'] or 'see its output'}")
    if wrong:
        raise typer.Exit(1)


def _run(
    client: Client, folder: Path, plan: Sequence[Planned], seed: int, show: Show
) -> tuple[list[Job], dict[str, str]]:
    """Submit the jobs as their time comes, and show the queue until all are over; the last line of each, by its id."""
    from gpuyard.cli.demo.screen import Scene
    from gpuyard.client import OVER

    began = time.monotonic()
    ids: list[str] = []
    said: dict[str, str] = {}
    over: set[str] = set()
    while len(over) < len(plan):
        while len(ids) < len(plan) and time.monotonic() - began >= plan[len(ids)].at:
            ids.append(plan[len(ids)].submit(client, folder, seed))
        jobs = sorted(client.jobs(all=True), key=lambda job: ids.index(job["id"]))
        said |= {job["id"]: last_line(client, job["id"]) for job in jobs if job["attempt"] and job["id"] not in over}
        over = {job["id"] for job in jobs if job["state"] in OVER}
        show(Scene(GPUS, jobs, said, len(plan) - len(ids), len(over), jobs[0]["submitted_at"]))
        time.sleep(_LOOK)
    return jobs, said


def last_line(client: Client, job: str) -> str:
    """What a job printed last."""
    lines = client.log(job, -200).data.decode(errors="replace").splitlines()
    return _plain(lines[-1]) if lines else ""


def _plain(line: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def _keep_logs(client: Client, jobs: Sequence[Job], folder: Path) -> None:
    """Keep what the jobs have printed; the yard itself is thrown away."""
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        (folder / f"{job['name']}.txt").write_bytes(client.log(job["id"]).data)
