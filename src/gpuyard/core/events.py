"""Everything that can happen to a job. State is a fold of these, and history is nothing else.

Every event says when (`at`, seconds on the driver's clock) and to which job. Events that belong to one run
of a job carry its `attempt`, so that a late report of an earlier run can be told apart and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuyard.core.model import Request


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job entered the queue."""

    at: float
    job: str
    request: Request


@dataclass(frozen=True, slots=True)
class Rejected:
    """A job was refused, because it can never run here."""

    at: float
    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """A waiting job was taken out of the running until it is released."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class Released:
    """A held job may be chosen again."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A job was given up before it was placed."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """A waiting job became the head that all others wait for; `shadow` is when it is due to fit."""

    at: float
    job: str
    shadow: float


@dataclass(frozen=True, slots=True)
class Placed:
    """GPUs were taken for a job. Written before the launch, so that a crash cannot lose the intent."""

    at: float
    job: str
    attempt: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The job's process runs; its first `overhead` seconds bring no progress (restoring a checkpoint)."""

    at: float
    job: str
    attempt: int
    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class Renewed:
    """A running job's time slice was over, and it was given another."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running job was stopped with its progress kept, and waits again."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A job's process ended."""

    at: float
    job: str
    attempt: int
    code: int = 0


Event = Submitted | Rejected | Held | Released | Cancelled | Chosen | Placed | Started | Renewed | Preempted | Exited
