"""What the daemon tells of what GPUs did, as types."""

from __future__ import annotations

from typing import Literal, TypedDict


class RecordedValues(TypedDict):
    """One metric, value by value; None is a gap."""

    mean: list[float | None]
    min: list[float | None] | None
    """The least of each span; None where every value is a single look."""
    max: list[float | None] | None


class RecordedGpu(TypedDict):
    """What one GPU did."""

    index: int
    uuid: str
    name: str
    memory_total: int | None
    at: list[float]
    """When each value was, in seconds since the epoch, the oldest first; of a span, when it began."""
    metrics: dict[str, RecordedValues]


class RecordedJob(TypedDict):
    """What one attempt of a job used of one GPU."""

    id: str
    attempt: int
    gpu: int
    at: list[float]
    metrics: dict[str, RecordedValues]


class RecordedMark(TypedDict):
    """An instant, or a span, that is worth a line: a job on a GPU, or an error of one."""

    at: float
    until: float | None
    """None for an instant, and for a job that still runs."""
    label: str
    gpu: int | None
    job: str | None


_Bounds = TypedDict("_Bounds", {"from": str, "to": str})


class Recorded(_Bounds):
    """What GPUs did in a span of time, and jobs on them."""

    start: float
    """When the span begins, in seconds since the epoch."""
    end: float
    period: float
    """Seconds from one value to the next, about; of an idle GPU there may be fewer."""
    level: Literal["samples", "minutes", "hours"]
    """How fine that is still kept."""
    simulated: bool
    """Whether these GPUs, their power and all else, exist in a program only."""
    gpus: list[RecordedGpu]
    jobs: list[RecordedJob]
    marks: list[RecordedMark]
    energy_wh: float | None
    """What these GPUs drew; of a job, its own part of it. None where power is not told."""
    gpu_hours: float
    """For how long jobs had these GPUs, each counted once; of a job, what it had."""
    warnings: list[str]
    """What could not be had, and why."""
