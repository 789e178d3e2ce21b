"""`gpuyard logs`: what a job wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.cli.following import Log, follow, log_of, write
from gpuyard.cli.sharing import shared
from gpuyard.cli.yard import JobId, Yard

_PIECE = 2**16
"""Bytes that are read at first to find the last lines."""


@shared
def logs(
    yard: Yard,
    job: JobId,
    follow_: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N lines.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, metavar="N", help="Of its Nth attempt (the last).")
    ] = None,
    error: Annotated[
        bool, typer.Option("--error", "-e", help="Its errors, if they go to a file of their own.")
    ] = False,
) -> None:
    """Print a job's output."""
    client = log_of(yard.client(), job, error=error)
    if tail is None:
        offset = _copy(client, job, attempt)
    else:
        text, offset = last_lines(client, job, tail, attempt)
        write(text)
    if follow_:
        follow(client, job, offset, attempt)


def _copy(client: Log, job: str, attempt: int | None) -> int:
    """Write all there is by now; the offset of its end."""
    offset = 0
    while True:
        part = client.log(job, offset, attempt=attempt)
        write(part.data)
        offset = part.next_offset
        if not part.data:
            return offset


def last_lines(client: Log, job: str, count: int, attempt: int | None = None) -> tuple[bytes, int]:
    """The last lines of a job's output, and the offset of its end: read backwards, as far as needed."""
    part = client.log(job, -_PIECE, size=_PIECE, attempt=attempt)
    text, end = part.data, part.next_offset
    start = end - len(text)
    size = _PIECE
    while start > 0 and text.rstrip(b"\n").count(b"\n") < count:
        size = min(2 * size, 2**24, start)
        text = client.log(job, start - size, size=size, attempt=attempt).data + text
        start -= size
    found = text.splitlines(keepends=True) if count else []
    return b"".join(found[-count:]), end
