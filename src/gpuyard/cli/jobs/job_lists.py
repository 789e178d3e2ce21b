"""`gpuyard ps` and `gpuyard history`: lists of open and of finished jobs."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

from gpuyard.cli.common_options import DaemonOptions, Json, option, option_groups, past_time
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError, suggest

if TYPE_CHECKING:
    from gpuyard.api.types import Columns, Job
    from gpuyard.client.client import Client


_SHOWN = 40  # waiting jobs
_REQUESTED = 200  # jobs, for a terminal

_STATES = ("queued", "held", "running", "succeeded", "failed", "cancelled", "timeout", "oom", "interrupted")

State = Annotated[str | None, option("--state", "S", f"Only these: {' '.join(_STATES)}.")]
User = Annotated[str | None, option("--user", "U", "Only this user's jobs.")]
Name = Annotated[str | None, option("--name", "N", "Only jobs of this name.")]
Tag = Annotated[str | None, option("--tag", "T", "Only jobs with this tag.")]


@option_groups
def ps(
    daemon: DaemonOptions,
    all_: Annotated[bool, option("--all", "-a", "All there are, those that are over as well.")] = False,
    state: State = None,
    user: User = None,
    name: Name = None,
    tag: Tag = None,
    json: Json = False,
) -> None:
    """List running and waiting jobs, in the order in which they are to start."""
    check_state(state)
    client = daemon.client()
    chosen = bool(all_ or state or user or name or tag)
    first = sys.stdout.isatty() and not chosen
    if json:
        from gpuyard.cli.terminal.text_table import print_rows

        print_rows(client.jobs(all=all_, state=state, user=user, name=name, tag=tag))
        return
    limit, fold = _REQUESTED if first else None, sys.stdout.isatty()
    now, jobs = client.columns(all=all_, state=state, user=user, name=name, tag=tag, limit=limit, fold=fold)
    shown, more = _first(client, jobs["state"]) if first else (len(jobs["state"]), 0)
    print_jobs(jobs, now, shown)
    if more:
        output.say(f"... and {more:,} more (gpuyard ps | less shows them all)")
    elif not shown:
        output.say("no jobs" if chosen else "no job runs or waits")


def _first(client: Client, states: list[str]) -> tuple[int, int]:
    shown = min(states.count("running") + _SHOWN, len(states))
    total = len(states)
    if total >= _REQUESTED:
        counts = client.status()["jobs"]
        total = max(total, sum(counts.get(state, 0) for state in ("running", "queued", "held")))
    return shown, total - shown


_STANDING: Final = ("reason", "progress", "expected_end", "expected_by")


def print_jobs(jobs: Columns, now: float, shown: int) -> None:
    from gpuyard.cli.terminal.text_table import how_far, indices, print_table, share, span

    starts, ends = jobs["started"], jobs["ended"]
    columns = (
        jobs["id"],
        [name or "-" for name in jobs["name"]],
        jobs["user"],
        jobs["state"],
        map(share, jobs["gpu_count"], jobs["gpu_memory"]),
        map(indices, jobs["gpus"]),
        [
            span(begin, start or end or now)
            for begin, start, end in zip(jobs["waiting_since"], starts, ends, strict=True)
        ],
        [span(start, end or now) for start, end in zip(starts, ends, strict=True)],
        [
            reason or how_far(progress, None if end is None else end - now, by)
            for reason, progress, end, by in zip(*(jobs[key] for key in _STANDING), strict=True)
        ],
    )
    rows = islice(zip(*columns, strict=True), shown)
    print_table(("ID", "NAME", "USER", "STATE", "GPUS", "ON", "WAITED", "RAN", "REASON"), rows)


def check_state(state: str | None) -> None:
    if state is not None and state not in _STATES:
        raise UserError(f"there is no state '{state}'{suggest(state, _STATES)}; the states are {', '.join(_STATES)}")


@option_groups
def history(
    daemon: DaemonOptions,
    limit: Annotated[int, option("--limit", "-n", "N", "At most so many.", min=1)] = 50,
    state: State = None,
    user: User = None,
    name: Name = None,
    tag: Tag = None,
    since: Annotated[
        str | None, option("--since", "WHEN", "Ended since: a date, a time, or 24h for a day ago.")
    ] = None,
    json: Json = False,
) -> None:
    """List the jobs that are over, the newest first."""
    from gpuyard.cli.terminal.text_table import print_list

    check_state(state)
    begin = None if since is None else past_time(since).isoformat()
    jobs = daemon.client().history(limit=limit, user=user, state=state, name=name, tag=tag, since=begin)
    heads = ("ID", "NAME", "USER", "STATE", "EXIT", "GPUS", "ON", "ENDED", "RAN", "REASON")
    print_list(jobs, json, heads, _row, "no job is over", heads_if_empty=True)


def _row(job: Job) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import clock, elapsed, indices, now, share

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
