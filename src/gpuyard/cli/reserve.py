"""`gpuyard reserve`, `reservations` and `unreserve`: GPUs for some people at a certain time."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.accounts import warn_of_unknown
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard
from gpuyard.errors import UserError
from gpuyard.units import parse_duration, parse_indices


@shared
def reserve(
    yard: Yard,
    gpus: Annotated[str, typer.Argument(metavar="GPUS", help="Which GPUs, as in 0-1 or 0,3.")],
    begin: Annotated[
        str, typer.Option("--begin", metavar="WHEN", help="From when on, as in 'fri 14:00' or now+1hour.")
    ] = "now",
    end: Annotated[str | None, typer.Option("--end", metavar="WHEN", help="Until when, as in 16:00.")] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="Or for how long, as in 2h.")
    ] = None,
    name: Annotated[str, typer.Option("--name", "-n", metavar="NAME", help="What to call it (r1, r2, ...).")] = "",
    user: Annotated[
        list[str] | None, typer.Option("--user", metavar="U", help="Who may use them then (you); may be repeated.")
    ] = None,
    nobody: Annotated[bool, typer.Option("--nobody", help="Nobody's jobs: for work outside of the queue.")] = False,
    json: Json = False,
) -> None:
    """Keep GPUs for some people at a certain time."""
    if user and nobody:
        raise UserError("--user and --nobody exclude each other")
    begins, ends = _span(begin, end, duration)
    users = [] if nobody else user
    client = yard.client()
    found = client.reserve(parse_indices(gpus), begins, ends, name=name, users=users)
    warn_of_unknown(client, users or ())
    if json:
        output.print_json(found)
        return
    print(found["name"])
    output.say(_told(found))
    if found["in_the_way"]:
        jobs = ", ".join(found["in_the_way"])
        output.say(f"gpuyard: warning: job {jobs} may still run there then, and nobody will stop it")


@shared
def reservations(yard: Yard, json: Json = False) -> None:
    """List the reservations that are not over."""
    from gpuyard.cli.table import clock, instant, now, print_rows, print_table

    found = yard.client().reservations()
    if json:
        print_rows(found)
    elif not found:
        output.say("no GPU is reserved")
    else:
        heads = ("NAME", "GPUS", "BEGIN", "END", "FOR", "")
        marks = ["now" if instant(r["begin_at"]) <= now() else "" for r in found]
        rows = [
            (r["name"], _gpus(r), clock(r["begin_at"]), clock(r["end_at"]), _users(r), mark)
            for r, mark in zip(found, marks, strict=True)
        ]
        print_table(heads, rows)


@shared
def unreserve(yard: Yard, name: Annotated[str, typer.Argument(metavar="NAME", help="Which reservation.")]) -> None:
    """Give a reservation up."""
    yard.client().unreserve(name)
    output.say(f"reservation {name} is given up")


def _span(begin: str, end: str | None, duration: str | None) -> tuple[float, float]:
    from gpuyard.times import parse_when

    if (end is None) == (duration is None):
        raise UserError("say until when: either --end, as in 16:00, or --duration, as in 2h")
    begins = parse_when(begin, time.time())
    if duration is not None:
        return begins, begins + parse_duration(duration)
    return begins, parse_when(str(end), begins)


def _told(found: dict[str, Any]) -> str:
    from gpuyard.cli.table import clock

    span = f"from {clock(found['begin_at'])} to {clock(found['end_at'])}"
    gpus = f"GPUs {_gpus(found)} are" if len(found["gpus"]) > 1 else f"GPU {_gpus(found)} is"
    return f"{gpus} reserved for {_users(found)} {span}"


def _gpus(found: dict[str, Any]) -> str:
    return ", ".join(map(str, found["gpus"]))


def _users(found: dict[str, Any]) -> str:
    return ", ".join(found["users"]) or "nobody"
