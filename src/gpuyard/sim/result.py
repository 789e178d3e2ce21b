"""What a simulation gives back: who ran when and where, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.sim.trace import Floats, Ints, Trace


@dataclass(frozen=True, slots=True)
class Segments:
    """Every stretch of time that a job held a GPU: one entry per job, GPU and slice."""

    job: Ints
    """Position in the result's trace."""
    gpu: Ints
    """GPU number over the whole cluster; `Cluster.label` writes it as node:index."""
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.job)

    @classmethod
    def none(cls) -> Segments:
        """Of a schedule in which nothing ran."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))

    @classmethod
    def join(cls, parts: Sequence[Segments]) -> Segments:
        """All of them, one after the other."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("job", "gpu", "start", "end"))
        )


@dataclass(frozen=True, slots=True)
class Result:
    """One policy's schedule of one trace. Arrays are parallel to `trace`, which is in arrival order."""

    trace: Trace
    cluster: Cluster
    policy: str
    """In full, as text: `sjf@easy@first`."""
    start: Floats
    """First start; NaN for a rejected job."""
    end: Floats
    preemptions: Ints
    placements: list[tuple[int, ...]]
    """GPUs of the last attempt; empty for a rejected job."""
    rejected: dict[int, str]
    """Position in the trace: why the job can never run here."""
    segments: Segments
    settings: dict[str, Any] = field(default_factory=dict)
    """What else decided the schedule: estimate, quantum, restart cost, round, seed."""
    wall_seconds: float = 0.0

    @property
    def completed(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Positions of the jobs that ran to their end."""
        return np.flatnonzero(~np.isnan(self.end))

    @property
    def share(self) -> Floats:
        """How much of each of its GPUs a job holds: 1 for a whole one."""
        trace = self.trace
        by_memory = np.minimum(trace.memory / self.cluster.memory, 1.0)
        return np.where(trace.compute > 0, trace.compute / 100.0, by_memory)
