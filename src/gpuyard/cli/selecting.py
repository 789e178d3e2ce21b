"""Options that say which jobs of a trace are used, and the one way to load them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpuyard.sim.trace import Trace

TraceArg = Annotated[
    str, typer.Argument(metavar="TRACE", help="The trace: a file (compressed is fine), or - for stdin.")
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="The trace's format, if it is not recognised; gavel:k80 names a GPU type."),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="NAME=VALUE", help="Only jobs with that; !=, <, <=, >, >= too. May be repeated."),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only jobs submitted from then on: a UTC date, or seconds."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only jobs submitted before then.")]
Slice = Annotated[
    str | None,
    typer.Option("--slice", metavar="START:COUNT", help="Only COUNT jobs from START on, of those that are left."),
]


def load_trace(
    path: str,
    format: str | None = None,
    where: list[str] | None = None,
    since: str | None = None,
    until: str | None = None,
    slice_: str | None = None,
) -> Trace:
    """Read a trace and keep the jobs that were asked for; the slice is taken last."""
    from gpuyard.sim.select import select
    from gpuyard.sim.traces import read

    jobs = select(read(path, format), where or (), since, until)
    return jobs if slice_ is None else jobs.slice(slice_)
