"""Why a job waits: "no" is data, with the numbers that made it so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuyard.units import format_size

_WITHDRAWN = {"foreign": "in use by others", "unknown": "not answering"}


@dataclass(frozen=True, slots=True)
class Resources:
    """Not enough is free for the job now."""

    gpus: int
    idle: int
    expected_at: float | None = None
    """When enough is expected to be free, where the discipline reserves for it."""
    withdrawn: Mapping[str, int] = field(default_factory=dict)
    """How many GPUs cannot be used, by cause."""
    memory: float = 0.0
    """Bytes on each GPU, if it shares them."""

    def __str__(self) -> str:
        if self.memory:
            where = "1 GPU" if self.gpus == 1 else f"each of {self.gpus} GPUs"
            wants = f"needs {format_size(self.memory)} on {where}, which is not free now"
        else:
            wants = f"needs {self.gpus} GPU{'s' if self.gpus > 1 else ''}, {self.idle} idle"
            if self.gpus <= self.idle:
                wants += ", but not where it could use them"
        for cause, count in self.withdrawn.items():
            wants += f", {count} {_WITHDRAWN.get(cause, cause)}"
        return wants + (f"; expected to fit at {self.expected_at:g}" if self.expected_at is not None else "")


@dataclass(frozen=True, slots=True)
class Priority:
    """A job that goes first must start before this one may."""

    behind: str
    ahead: int
    """How many waiting jobs go first."""

    def __str__(self) -> str:
        return f"waits behind job {self.behind} ({self.ahead} job{'s' if self.ahead > 1 else ''} ahead)"


@dataclass(frozen=True, slots=True)
class Reserved:
    """The job would fit, but would take what is reserved for one that goes first."""

    behind: str
    until: float

    def __str__(self) -> str:
        return f"would fit, but could delay job {self.behind}, due at {self.until:g}"


Reason = Resources | Priority | Reserved
