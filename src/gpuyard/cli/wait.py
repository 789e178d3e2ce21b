"""`gpuyard wait`: until jobs are over."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import shared
from gpuyard.cli.yard import JobIds, Yard

if TYPE_CHECKING:
    from gpuyard.client import Client, Job


@shared
def wait(
    yard: Yard,
    jobs: JobIds,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after that, with exit code 124.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the jobs as JSON.")] = False,
) -> None:
    """Wait until jobs are over; the exit code tells how they ended."""
    from gpuyard.cli.following import exit_code
    from gpuyard.cli.submit import duration
    from gpuyard.cli.table import print_rows

    client = yard.client()
    found = [client.job(id) for id in dict.fromkeys(jobs)]  # a wrong id is told at once
    found, in_time = _await(client, found, duration("--timeout", timeout), quiet=json)
    if json:
        print_rows(found)
    if not in_time:
        raise typer.Exit(124)
    if len(found) == 1:
        raise SystemExit(exit_code(found[0]))  # not typer.Exit: 130 would be taken for our own interruption
    raise typer.Exit(int(any(job["state"] != "succeeded" for job in found)))


def _await(client: Client, jobs: list[Job], timeout: float | None, quiet: bool) -> tuple[list[Job], bool]:
    """The jobs as they are at the end, and whether all were over in time."""
    from gpuyard.cli.following import told
    from gpuyard.client import OVER
    from gpuyard.patience import patiently

    end = None if timeout is None else time.monotonic() + timeout
    found = []
    for job in jobs:
        while job["state"] not in OVER and (end is None or time.monotonic() < end):
            left = 30.0 if end is None else end - time.monotonic()
            job = patiently(client.job, job["id"], wait=left, say=output.say)
            time.sleep(0.0 if job["state"] in OVER else 0.02)
        found.append(job)
        if not quiet:
            output.say(told(job))
    return found, all(job["state"] in OVER for job in found)
