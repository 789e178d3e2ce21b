"""`gpuyard ps` and `gpuyard history`: lists of open and of finished jobs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
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

_OPEN, _ENDED = ("queued", "held", "running"), ("succeeded", "failed", "cancelled", "timeout", "oom", "interrupted")
_MOST_COMMAND = 40  # columns of a command in a table on a terminal
_SLURMS = {"pending": "waiting", "pd": "waiting", "r": "running", "completed": "succeeded", "cd": "succeeded"}

State = Annotated[
    str | None, option("--state", "S", f"Only these: waiting (queued or held) {' '.join((*_OPEN, *_ENDED))}.")
]
EndState = Annotated[str | None, option("--state", "S", f"Only these: {' '.join(_ENDED)}.")]
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
    wide: Annotated[bool, option("--wide", "-w", "The commands as well, and no line is wrapped.")] = False,
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
    commands = None
    if wide:
        rows = client.jobs(all=all_, state=state, user=user, name=name, tag=tag, limit=limit, fold=fold)
        commands = {job["id"]: _command(job) for job in rows}
    print_jobs(jobs, now, shown, commands)
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


def _command(job: Job) -> str:
    return shlex.join(job["command"]) or "-"


def print_jobs(jobs: Columns, now: float, shown: int, commands: Mapping[str, str] | None = None) -> None:
    from gpuyard.cli.terminal.text_table import how_far, indices, print_table, share, span

    starts, ends = jobs["started"], jobs["ended"]
    columns: tuple[Iterable[str], ...] = (
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
        [
            span(start and start - before, end or now)
            for start, end, before in zip(starts, ends, jobs.get("ran_before") or [0.0] * len(starts), strict=True)
        ],
        [
            reason or how_far(progress, None if end is None else end - now, by)
            for reason, progress, end, by in zip(*(jobs[key] for key in _STANDING), strict=True)
        ],
    )
    heads: tuple[str, ...] = ("ID", "NAME", "USER", "STATE", "GPUS", "ON", "WAITED", "RAN", "REASON")
    if commands is not None:
        columns, heads = (*columns, [commands.get(id, "-") for id in jobs["id"]]), (*heads, "COMMAND")
    print_table(heads, islice(zip(*columns, strict=True), shown), wide=commands is not None)


def check_state(states: str | None, known: tuple[str, ...] = ("waiting", *_OPEN, *_ENDED)) -> None:
    for state in states.split(",") if states is not None else ():
        if state not in known:
            near = suggest(_SLURMS.get(state.lower(), state), known)
            raise UserError(f"there is no state '{state}'{near} (the states are {', '.join(known)})")


@option_groups
def history(
    daemon: DaemonOptions,
    limit: Annotated[int, option("--limit", "-n", "N", "At most so many.", min=1)] = 50,
    state: EndState = None,
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

    check_state(state, _ENDED)
    begin = None if since is None else past_time(since).isoformat()
    jobs = daemon.client().history(limit=limit, user=user, state=state, name=name, tag=tag, since=begin)
    heads = ("ID", "NAME", "USER", "STATE", "EXIT", "GPUS", "ON", "ENDED", "RAN", "COMMAND", "REASON")
    print_list(jobs, json, heads, _row, "no job is over", heads_if_empty=True)


def _row(job: Job) -> tuple[str, ...]:
    from gpuyard.cli.terminal.text_table import clock, cut, indices, now, ran, share

    command = _command(job)
    code = "-" if job["exit_code"] is None else str(job["exit_code"])
    return (
        job["id"], job["name"] or "-", job["user"], job["state"], code, share(job["gpu_count"], job["gpu_memory"]),
        indices(job["gpus"]), clock(job["ended_at"]), ran(job, now()),
        cut(command, _MOST_COMMAND) if sys.stdout.isatty() else command, job["reason"] or "",
    )  # fmt: skip
