"""The command: a yard of its own, its jobs, and the report."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.options import Seed
from gpuyard.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.cli.demo.jobs import Planned
    from gpuyard.cli.demo.screen import Show
    from gpuyard.client import Client, Job

_GPUS = 4
_MEMORY = "16G"
_LOOK = 0.2
"""Seconds between two looks at the queue."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Out = Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Where the report goes.")]


def demo(
    exit_: Annotated[
        bool, typer.Option("--exit", help="For scripts: plain lines also on a terminal. It ends by itself anyway.")
    ] = False,
    out: Out = Path("demo-report"),
    seed: Seed = 1,
) -> None:
    """Run training-like jobs on 4 simulated GPUs, show the queue moving, and draw what happened."""
    from gpuyard.cli.demo import report, screen
    from gpuyard.cli.demo.jobs import PLAN

    out.mkdir(parents=True, exist_ok=True)
    print(
        f"{_GPUS} simulated GPUs of {_MEMORY} each: no real GPU is used. The jobs are real\n"
        "processes that train small models with numpy, on the CPU of this machine.\n"
        "This takes half a minute; Ctrl-C ends it.\n",
        flush=True,
    )
    shown = screen.live() if sys.stdout.isatty() and not exit_ else nullcontext(screen.Lines().show)
    with _yard() as (client, folder):
        with shown as show:
            jobs, said = _run(client, folder, PLAN, seed, show)
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


@contextmanager
def _yard() -> Iterator[tuple[Client, Path]]:
    """A daemon in a directory of its own; both are gone in the end, and so is every job, whatever happens."""
    from gpuyard.cli.up import Rules, start
    from gpuyard.cli.yard import Here
    from gpuyard.client import Client

    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-demo-"))
    os.environ["GPUYARD_SINGLE_USER"] = "true"  # the daemon's: nobody else is invited
    rules = Rules(f"{_GPUS}x{_MEMORY}", "priority", "easy", "pack")
    settings = Here(str(folder), str(folder / "gpuyard.sock")).settings(**rules.flags())
    client = Client(settings.socket)
    try:
        start(settings, client, rules)
        yield client, folder
    except KeyboardInterrupt:
        output.say("interrupted: the jobs and the daemon are ended")
        raise SystemExit(130) from None
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        _clear(client)
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _clear(client: Client) -> None:
    """End what still runs, and the daemon."""
    from gpuyard.cli.up import stop
    from gpuyard.client import NoDaemon, Refused

    with suppress(GpuyardError, TimeoutError):  # whatever becomes of the jobs, the daemon has to go
        left = client.jobs()
        for job in reversed(left):  # those that wait come first: they would take the place of the others
            with suppress(Refused):  # it is over by now
                client.cancel(job["id"], grace=1.0)
        for job in left:
            client.wait(job["id"], timeout=30.0)
    with suppress(NoDaemon):
        stop(client)


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
        said |= {job["id"]: _last_line(client, job["id"]) for job in jobs if job["attempt"] and job["id"] not in over}
        over = {job["id"] for job in jobs if job["state"] in OVER}
        show(Scene(_GPUS, jobs, said, len(plan) - len(ids)))
        time.sleep(_LOOK)
    return jobs, said


def _last_line(client: Client, job: str) -> str:
    lines = client.log(job, -200).data.decode(errors="replace").splitlines()
    return lines[-1] if lines else ""


def _keep_logs(client: Client, jobs: Sequence[Job], folder: Path) -> None:
    """Keep what the jobs have printed; the yard itself is thrown away."""
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        (folder / f"{job['name']}.txt").write_bytes(client.log(job["id"]).data)
