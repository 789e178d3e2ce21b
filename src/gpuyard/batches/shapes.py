"""What the daemon tells of batches, as types; times are ISO-8601, durations seconds, sizes bytes."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from gpuyard.shapes import Job


class RefusedRow(TypedDict):
    """A row that can never run here."""

    row: int
    reason: str


class Taken(TypedDict):
    """What became of jobs that were submitted as a batch."""

    ids: list[str]
    """Of those that were taken, in their order."""
    batch: str | None
    """What they are called together: the id of the first; none if all were refused."""
    refused: list[RefusedRow]
    open: bool
    """Whether this is a batch that was there before, with the same key, and nothing was submitted."""
    warnings: NotRequired[list[str]]


class RowOutcome(TypedDict):
    """How a row of a batch stands, or ended."""

    id: str
    row: int
    wave: int
    name: str
    state: str
    reason: str | None
    exit_code: int | None
    attempt: int
    gpus: list[int]
    started_at: str | None
    ended_at: str | None
    seconds: float | None
    """What its last attempt took."""
    gpu_memory: int | None
    """What it was promised of each GPU; null if it had them whole."""
    peak: int | None
    """What it used of one GPU at most; null if that was not measured."""
    ooms: int


class BatchSummary(TypedDict):
    """A batch in short."""

    batch: str
    name: str
    user: str
    state: Literal["open", "over"]
    rows: int
    """All rows of its file, those that were refused as well."""
    states: dict[str, int]
    """How many of its jobs are in each state."""
    refused: int
    submitted_at: str
    ended_at: str | None


class BatchStanding(BatchSummary):
    """A batch as it stands."""

    wave: int | None
    """The wave that is on; null if it is over."""
    waves: int
    running: list[Job]
    ended: list[RowOutcome]
    """Rows that are over, in the order in which they ended."""
    refusals: list[RefusedRow]


class Batches(TypedDict):
    """Batches, the newest first."""

    batches: list[BatchSummary]


class Wave(TypedDict):
    """Rows of a batch that start together."""

    wave: int
    rows: int
    started_at: str | None
    ended_at: str | None
    """Null while some of them are not over."""


class BatchReport(TypedDict):
    """What a batch achieved, beside running its rows one after another."""

    batch: str
    name: str
    state: Literal["open", "over"]
    rows: int
    succeeded: int
    failed: int
    """Rows that ended otherwise."""
    refused: int
    waves: list[Wave]
    makespan: float
    """Seconds from its first start to its last end."""
    sequential: float
    """Seconds that its rows take one after another."""
    speedup: float | None
    gpu_hours: float
    """Time during which GPUs had at least one of its rows on them."""
    gpu_hours_sequential: float
    gpu_hours_saved: float
    most_at_once: int
    ooms: int
    retries: int
    profiles: int
    """Jobs that tried rows out first; what they took counts as the batch's."""
    evidence: str
    """Where the times of single rows come from."""
