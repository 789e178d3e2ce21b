"""`gpuyard acquire`: GPUs for the shell or script that asks."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import shared
from gpuyard.cli.wishes import Estimate, From, GpuMemory, Priority, Tags, duration
from gpuyard.cli.yard import OnlyHere
from gpuyard.errors import GpuyardError
from gpuyard.units import parse_indices, parse_share

Gpus = Annotated[
    int | None, typer.Option("--gpus", "-g", min=1, metavar="N", help="How many GPUs (1, or all that --from lists).")
]
Timeout = Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="Give up after that, as in 10m.")]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time", "--time-limit", "-t", metavar="TIME", help="End the lease after that, as in 90m."),
]
Pid = Annotated[
    int | None,
    typer.Option("--pid", min=1, metavar="PID", help="The process that holds the lease (the shell that asks)."),
]
Name = Annotated[str | None, typer.Option("--name", "-n", metavar="NAME", help="What to call it (its program).")]


@shared
def acquire(
    yard: OnlyHere,
    gpus: Gpus = None,
    from_: From = None,
    gpu_memory: GpuMemory = None,
    timeout: Timeout = None,
    name: Name = None,
    priority: Priority = None,
    time: TimeLimit = None,
    estimate: Estimate = None,
    tag: Tags = None,
    pid: Pid = None,
    uuids: Annotated[bool, typer.Option("--uuids", help="Print UUIDs instead of indices.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print id, indices, UUIDs and holder as JSON.")] = False,
) -> None:
    """Wait for GPUs for the shell or script that asks, and print their indices."""
    from gpuyard import leases
    from gpuyard.engines.callers import find_holder

    among = None if from_ is None else parse_indices(from_)
    lease, holder = leases.of_this_job(gpus, among), None
    if lease is None:
        client, found = yard.client(), find_holder(pid)
        holder = found.pid
        try:
            job = leases.Asking(client, output.say).obtain(
                duration("--timeout", timeout), holder=found.pid, interactive=found.interactive,
                gpus=gpus, among=among, gpu_memory=None if gpu_memory is None else parse_share(gpu_memory),
                name=name or found.name or None, priority=priority or 0.0, tags=tag or [],
                estimate=duration("--estimate", estimate, none=False), time_limit=duration("--time", time, none=False),
            )  # fmt: skip
        except TimeoutError as error:
            raise GpuyardError(str(error)) from error
        lease = leases.lease_of(client, job)
    if json:
        output.print_json({"id": lease.id, "gpus": lease.indices, "uuids": lease.uuids, "pid": holder})
    else:
        print(",".join(lease.uuids if uuids else map(str, lease.indices)))
