"""What the daemon tells of GPUs, as types: who is on them, what they did lately, and who was there when."""

from __future__ import annotations

from typing import TypedDict


class GpuProcess(TypedDict):
    """A process on a GPU; on a simulated one, a job in the place of its processes."""

    pid: int | None
    """None on a simulated GPU."""
    user: str | None
    """Whose it is; None if that cannot be told, as of one that has just ended."""
    name: str | None
    """What it is called, without its arguments, which may hold secrets."""
    memory: int
    """Bytes on this GPU; 0 where that is not known."""
    job: str | None
    """The job or the lease that it belongs to; None: it is foreign."""
    graphics: bool
    """Whether it only draws, as a desktop does; a little of that does not make a GPU foreign."""


class Gpu(TypedDict):
    """A GPU and who is on it."""

    index: int
    uuid: str
    name: str
    state: str
    memory_total: int | None
    memory_used: int | None
    utilization: float | None
    temperature: float | None
    power: float | None
    jobs: list[str]
    why: str | None
    processes: list[GpuProcess]
    """The largest first."""
    simulated: bool
    drained: bool
    reservation: str | None
    """The name of the reservation that it is in, or will be in next."""
    reserved_from: str | None
    reserved_until: str | None
    memory_promised: int
    """Bytes that jobs were promised; all of it, if one has it for itself; more than that, where usage counts."""
    memory_buffer: int
    """Bytes that are kept free beside jobs that share it."""
    memory_others: int
    """Bytes in use by others than our jobs, as far as that keeps shares from being started."""
    memory_left: int
    """Bytes for another job that shares it; 0 if none may be started."""
    granted: str | None
    """The job that has it on loan, until somebody needs it."""


class Machine(TypedDict):
    """The GPUs, and whether they are made up."""

    simulated: bool
    gpus: list[Gpu]


class GpuSamples(TypedDict):
    """What one GPU did, at the times that `Samples` tells; None where that is not known, as while it was lost."""

    index: int
    utilization: list[int | None]
    memory_used: list[int | None]
    """Bytes, to within a ten-millionth."""
    temperature: list[int | None]
    power: list[int | None]


class Samples(TypedDict):
    """What the GPUs did lately."""

    period: float
    """Seconds from one to the next, about."""
    at: list[float]
    """When each was taken, in seconds since the epoch, the oldest first; of a minute, when it began."""
    gpus: list[GpuSamples]


class Spans(TypedDict):
    """Who was on GPUs, a list for each column; times are seconds since the epoch."""

    job: list[str]
    name: list[str]
    user: list[str]
    kind: list[str]
    """`job` or `lease`; `grant`: the job has them on loan."""
    gpu: list[list[int]]
    begin: list[float]
    end: list[float | None]
    """None: it is still there."""
    state: list[str]
    """The job's, of its last attempt; of others how they ended: `failed`, `preempted` or `requeued`."""
    attempt: list[int]


class Usage(TypedDict):
    """Who was on which GPU when, in a span of time; those that began last come first."""

    since: float
    until: float
    gpus: int
    """How many there are."""
    more: bool
    """Whether there were more than `limit`, which are left out; the oldest are."""
    columns: Spans
