"""`gpuyard history`: what is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.ps import Name, State, Tag, User, check_state
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.client import Job


@shared
def history(
    yard: Yard,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 50,
    state: State = None,
    user: User = None,
    name: Name = None,
    tag: Tag = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="Ended since: a date, a time, or 24h for a day ago.")
    ] = None,
    json: Json = False,
) -> None:
    """List the jobs that are over, the newest first."""
    from gpuyard.cli.table import print_rows, print_table

    check_state(state)
    begin = None if since is None else instant_of(since)
    jobs = yard.client().history(limit=limit, user=user, state=state, name=name, tag=tag, since=begin)
    if json:
        print_rows(jobs)
        return
    print_table(("ID", "NAME", "USER", "STATE", "EXIT", "GPUS", "ON", "ENDED", "RAN", "REASON"), map(_row, jobs))
    if not jobs:
        output.say("no job is over")


def _row(job: Job) -> tuple[str, ...]:
    from gpuyard.cli.table import clock, elapsed, indices, now, share

    return (
        job["id"],
        job["name"] or "-",
        job["user"],
        job["state"],
        "-" if job["exit_code"] is None else str(job["exit_code"]),
        share(job["gpu_count"], job["gpu_memory"]),
        indices(job["gpus"]),
        clock(job["ended_at"]),
        elapsed(job["started_at"], job["ended_at"], now()),
        job["reason"] or "",
    )


def instant_of(text: str, option: str = "--since") -> str:
    """ISO-8601 with a zone, from what people write; a time of day alone is the last such."""
    from datetime import UTC, datetime, timedelta

    from gpuyard.cli.table import instant
    from gpuyard.times import last_clock
    from gpuyard.units import parse_duration

    try:
        if (found := last_clock(text, datetime.now().astimezone())) is not None:
            return found.isoformat()  # before lengths of time, of which 14:00 is one of 14 minutes
        try:
            return (datetime.now(UTC) - timedelta(seconds=parse_duration(text))).isoformat()
        except (UserError, OverflowError):
            return instant(text).isoformat()
    except ValueError as error:
        raise UserError(f"{option} '{text}' is no time; write 2026-11-03, '2026-11-03 14:00', 14:00 or 24h") from error
