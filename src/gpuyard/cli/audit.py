"""`gpuyard audit`: who did what."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.history import instant_of
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import Yard


@shared
def audit(
    yard: Yard,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="Only of this user.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="Since: a date, a time, or 24h for a day ago.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, metavar="N", help="At most so many.")] = 50,
    json: Json = False,
) -> None:
    """List who changed what through the API, and who was refused, the latest first; for admins."""
    from gpuyard.cli.table import print_rows, print_table

    begin = None if since is None else instant_of(since)
    entries = yard.client().audit(user=user, since=begin, limit=limit)
    if json:
        print_rows(entries)
        return
    print_table(("AT", "USER", "VIA", "ADDRESS", "STATUS", "JOB", "TIMES", "WHAT"), map(_row, entries))
    if not entries:
        output.say("nothing of that kind has happened")


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    from gpuyard.cli.table import instant

    return (
        instant(entry["at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        entry["user"] or "-",
        entry["via"],
        entry["address"] or "-",
        str(entry["status"]),
        entry["job"] or "-",
        str(entry["times"]),
        f"{entry['method'] or ''} {entry['path']}".strip(),
    )
