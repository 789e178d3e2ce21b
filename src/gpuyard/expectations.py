"""What the API tells of estimates: what is known of each signature, and what is expected of a job."""

from __future__ import annotations

from typing import TypedDict


class PredictionError(TypedDict):
    """How far predictions were from the truth, as parts of it; more than 0: too much was expected."""

    count: int
    median: float
    """Of how far, either way."""
    worst: float
    bias: float
    """The mean."""


class Estimate(TypedDict):
    """What is known of jobs of one signature, by their latest runs."""

    signature: str
    command: str
    """Without what belongs to one run only; `#` stands for how many epochs there are."""
    name: str
    user: str
    runs: int
    """How many are known of in all."""
    memory: float | None
    """Bytes on each GPU that the next one is expected to need, margin included; null: nothing is known."""
    seconds: float | None
    """That it is expected to run; of one epoch, if `per_epoch`."""
    per_epoch: bool
    evidence: str | None
    memory_error: PredictionError | None
    time_error: PredictionError | None
    last_at: str
    """When the latest run ended."""


class Estimates(TypedDict):
    """What is known, the latest first."""

    estimates: list[Estimate]


class PastRun(TypedDict):
    """What one attempt took: bytes on one GPU, and seconds; null where that is not known."""

    job: str
    attempt: int
    ended_at: str
    outcome: str
    """A state, or `requeued` or `preempted`."""
    peak: int | None
    seconds: float
    alone: bool
    predicted_peak: float | None
    predicted_seconds: float | None


class Expectation(TypedDict):
    """What is expected of a job, and by what evidence."""

    signature: str
    command: str
    memory: float | None
    """Bytes on each GPU, margin included; null: nothing is known, and with `auto` it gets a GPU alone."""
    seconds: float | None
    evidence: str | None
    runs: list[PastRun]
    """Of this signature or, if there are none, of earlier versions of its script; the latest first."""


class Forgotten(TypedDict):
    """What is not known any more."""

    runs: int
