"""What a simulation gives back: who ran when and where, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

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


class Placements(Sequence[tuple[int, ...]]):
    """The GPUs of each job, as tuples; kept in two arrays, since there may be millions of them."""

    def __init__(self, gpus: Ints, ends: Ints) -> None:
        self.gpus = gpus
        """Those of one job after another."""
        self.ends = ends
        """Where each job's end."""

    @classmethod
    def of(cls, tuples: Sequence[tuple[int, ...]]) -> Placements:
        """From tuples."""
        ends = np.cumsum(np.fromiter(map(len, tuples), dtype=np.int64, count=len(tuples)))
        return cls(np.array([gpu for gpus in tuples for gpu in gpus], dtype=np.int64), ends)

    @property
    def sizes(self) -> Ints:
        """How many GPUs each job has."""
        return np.diff(self.ends, prepend=0)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, i: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, i: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, i: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError("no such job")
        i %= len(self)
        return tuple(self.gpus[self.ends[i - 1] if i else 0 : self.ends[i]].tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Placements):
            return np.array_equal(self.ends, other.ends) and np.array_equal(self.gpus, other.gpus)
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Placements({list(self)!r})"


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
    placements: Placements
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
