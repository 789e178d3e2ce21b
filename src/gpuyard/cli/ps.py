"""`gpuyard ps`: the queue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard
from gpuyard.errors import UserError, suggest

if TYPE_CHECKING:
    from gpuyard.client import Client, Job

_SHOWN = 40
"""Waiting jobs that a terminal shows."""
_ASKED = 200
"""Jobs that are asked for when a terminal shows only the first."""

_STATES = ("queued", "held", "running", "succeeded", "failed", "cancelled", "timeout", "oom", "interrupted")

State = Annotated[str | None, typer.Option("--state", metavar="S", help=f"Only these: {' '.join(_STATES)}.")]
User = Annotated[str | None, typer.Option("--user", metavar="U", help="Only this user's jobs.")]
Name = Annotated[str | None, typer.Option("--name", metavar="N", help="Only jobs of this name.")]


@shared
def ps(
    yard: Yard,
    all_: Annotated[bool, typer.Option("--all", "-a", help="All there are, those that are over as well.")] = False,
    state: State = None,
    user: User = None,
    name: Name = None,
    json: Json = False,
) -> None:
    """List running and waiting jobs, in the order in which they are to start."""
    check_state(state)
    client = yard.client()
    brief = sys.stdout.isatty() and not (json or all_ or state or user or name)
    jobs = client.jobs(all=all_, state=state, user=user, name=name, limit=_ASKED if brief else None)
    if json:
        from gpuyard.cli.table import print_rows

        print_rows(jobs)
        return
    more = 0
    if brief:
        jobs, more = _first(client, jobs)
    print_jobs(jobs)
    if more:
        output.say(f"... and {more:,} more (gpuyard ps | less shows them all)")
    elif not jobs:
        output.say("no jobs" if all_ or state or user or name else "no job runs or waits")


def _first(client: Client, jobs: list[Job]) -> tuple[list[Job], int]:
    """Those that run and the first that wait, and how many more there are."""
    running = sum(job["state"] == "running" for job in jobs)
    shown = jobs[: running + _SHOWN]
    total = len(jobs)
    if total >= _ASKED:
        counts = client.status()["jobs"]
        total = max(total, sum(counts.get(state, 0) for state in ("running", "queued", "held")))
    return shown, total - len(shown)


def print_jobs(jobs: list[Job]) -> None:
    """The table of jobs."""
    from gpuyard.cli.table import elapsed, indices, now, print_table, share

    at = now()
    rows = (
        (
            job["id"],
            job["name"] or "-",
            job["user"],
            job["state"],
            share(job["gpu_count"], job["gpu_memory"]),
            indices(job["gpus"]),
            elapsed(job["submitted_at"], job["started_at"] or job["ended_at"], at),
            elapsed(job["started_at"], job["ended_at"], at),
            job["reason"] or "",
        )
        for job in jobs
    )
    print_table(("ID", "NAME", "USER", "STATE", "GPUS", "ON", "WAITED", "RAN", "REASON"), rows)


def check_state(state: str | None) -> None:
    """Refuse a state that no job can have."""
    if state is not None and state not in _STATES:
        raise UserError(f"there is no state '{state}'{suggest(state, _STATES)}; the states are {', '.join(_STATES)}")
