"""What a simulation gives back: which job ran when and on which GPUs, in arrays and as the bars of a Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from gpuyard.core.model import Cluster
from gpuyard.sim.trace import Flags, Floats, Ints, Trace


@dataclass(frozen=True, slots=True)
class Segments:
    """Every stretch of time that a job held a GPU: one entry per job, GPU and slice."""

    job: Ints  # position in the result's trace
    gpu: Ints  # GPU number over the whole cluster; `Cluster.label` writes it as node:index
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.job)

    @classmethod
    def none(cls) -> Segments:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))

    @classmethod
    def join(cls, parts: Sequence[Segments]) -> Segments:
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("job", "gpu", "start", "end"))
        )


class Placements(Sequence[tuple[int, ...]]):
    """The GPUs of each job, as tuples; kept in two arrays, since there may be millions of them."""

    def __init__(self, gpus: Ints, ends: Ints) -> None:
        self.gpus = gpus  # those of one job after another
        self.ends = ends  # where each job's end

    @classmethod
    def of(cls, tuples: Sequence[tuple[int, ...]]) -> Placements:
        ends = np.cumsum(np.fromiter(map(len, tuples), dtype=np.int64, count=len(tuples)))
        return cls(np.array([gpu for gpus in tuples for gpu in gpus], dtype=np.int64), ends)

    @property
    def sizes(self) -> Ints:
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
    policy: str  # in full, as text: `sjf@easy@first`
    start: Floats  # first start; NaN for a rejected job
    end: Floats
    preemptions: Ints
    placements: Placements  # GPUs of the last attempt; empty for a rejected job
    rejected: dict[int, str]  # position in the trace: why the job can never run here
    segments: Segments
    settings: dict[str, Any] = field(default_factory=dict)
    """What else decided the schedule: estimate, quantum, restart cost, round, seed."""
    wall_seconds: float = 0.0

    @property
    def completed(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        return np.flatnonzero(~np.isnan(self.end))

    @property
    def share(self) -> Floats:
        trace = self.trace
        by_memory = np.minimum(trace.memory / self.cluster.memory, 1.0)
        return np.where(trace.compute > 0, trace.compute / 100.0, by_memory)


_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Bars:
    """Rectangles within GPU rows: `low` and `height` are parts of a row, from its floor."""

    job: Ints
    gpu: Ints
    start: Floats
    end: Floats
    low: Floats
    height: Floats

    def __len__(self) -> int:
        return len(self.job)


@dataclass(frozen=True, slots=True)
class ShownBars:
    segments: Segments
    since: float
    until: float  # the window of time, since the first submit
    gpus: int  # how many are shown, from the first
    last: float  # when the last job ends, since the first submit


def first_submit(result: Result) -> float:
    return float(result.trace.submit.min()) if len(result.trace) else 0.0


def stack_bars(segments: Segments, share: Floats, origin: float) -> Bars:
    """Bars of the segments, at times since `origin`: jobs on a GPU at the same time lie above each other."""
    order = np.lexsort((segments.job, segments.start, segments.gpu))
    job, gpu = segments.job[order], segments.gpu[order]
    start, end = segments.start[order] - origin, segments.end[order] - origin
    alone = _alone(gpu, start, end)
    pieces = [(int(i), 0.0, float(share[job[i]])) for i in np.flatnonzero(alone)]
    stacked = np.flatnonzero(~alone)
    for row in np.split(stacked, np.flatnonzero(np.diff(gpu[stacked])) + 1):
        pieces += _stack_row(row, start, end, share[job])
    index = np.array([i for i, _, _ in pieces], dtype=np.int64)
    low = np.array([low for _, low, _ in pieces])
    height = np.array([height for _, _, height in pieces])
    return Bars(job[index], gpu[index], start[index], end[index], low, height)


def _alone(gpu: Ints, start: Floats, end: Floats) -> Flags:
    n = len(gpu)
    if n == 0:
        return np.zeros(0, dtype=bool)
    # Shifting each GPU's times beyond the last one's lets a single running maximum serve all GPUs.
    span = float(end.max() - start.min()) + 1.0
    starts, ends = start + gpu * span, end + gpu * span
    tolerance = span * (int(gpu.max()) + 1) * 1e-12
    meets_earlier = np.append(False, starts[1:] < np.maximum.accumulate(ends)[:-1] - tolerance)
    meets_next = np.append(meets_earlier[1:], False)
    return np.asarray(~(meets_earlier | meets_next), dtype=bool)


def _stack_row(row: npt.NDArray[np.intp], start: Floats, end: Floats, share: Floats) -> list[tuple[int, float, float]]:
    """(segment, low, height) on one GPU; a share that fits no single gap is spread over several."""
    taken: list[tuple[float, float, float]] = []
    pieces: list[tuple[int, float, float]] = []
    top = 1.0
    for i in row:
        taken = sorted(t for t in taken if t[2] > start[i] + _EPSILON)
        for low, height in _gaps(taken, float(share[i])):
            taken.append((low, low + height, float(end[i])))
            pieces.append((int(i), low, height))
            top = max(top, low + height)
    # Memory shares and compute shares may add up to more than one GPU: then the row is drawn to scale.
    return [(i, low / top, height / top) for i, low, height in pieces]


def _gaps(taken: list[tuple[float, float, float]], need: float) -> list[tuple[float, float]]:
    """Free (low, height) pieces that add up to `need`: one piece if any gap is large enough."""
    free: list[tuple[float, float]] = []
    floor = 0.0
    for low, high, _ in taken:
        if low - floor > _EPSILON:
            free.append((floor, low - floor))
        floor = max(floor, high)
    free.append((floor, max(1.0 - floor, 0.0)))
    if fitting := [gap for gap in free if gap[1] >= need - _EPSILON]:
        return [(min(fitting, key=lambda gap: gap[1])[0], need)]
    found: list[tuple[float, float]] = []
    for low, height in free[:-1]:
        found.append((low, min(height, need)))
        need -= found[-1][1]
        if need <= _EPSILON:
            return found
    return [*found, (free[-1][0], need)]


def shown_bars(result: Result, rows: int, most: int) -> ShownBars:
    """What fits into `rows` rows and `most` segments: the first GPUs, and the window with the most work."""
    all_, origin = result.segments, first_submit(result)
    last = float(all_.end.max()) - origin if len(all_) else 1.0
    kept = _pick(all_, (all_.end > all_.start) & (all_.gpu < rows))
    low, high = 0.0, last
    if len(kept) > most:
        low, high = _busiest(kept.start - origin, kept.end - origin, last, most)
        kept = _pick(kept, (kept.end - origin > low) & (kept.start - origin < high))
    return ShownBars(kept, low, max(high, low + _EPSILON), min(rows, result.cluster.gpus), last)


def _pick(segments: Segments, keep: Flags) -> Segments:
    return Segments(segments.job[keep], segments.gpu[keep], segments.start[keep], segments.end[keep])


def _busiest(start: Floats, end: Floats, last: float, most: int) -> tuple[float, float]:
    width = last * most / len(start)
    starts, ends = np.sort(start), np.sort(end)
    while True:
        low = np.linspace(0.0, last - width, 1000)
        work = _work_before(starts, ends, low + width) - _work_before(starts, ends, low)
        best = float(low[int(np.argmax(work))])
        inside = np.searchsorted(starts, best + width) - np.searchsorted(ends, best, side="right")
        if inside <= most or width < last * 1e-6:
            return best, best + width
        width *= 0.8


def _work_before(starts: Floats, ends: Floats, times: Floats) -> Floats:
    """GPU time spent before each of these times: sum of min(end, t) - min(start, t)."""

    def clipped(sorted_: Floats) -> Floats:
        sums = np.concatenate(([0.0], np.cumsum(sorted_)))
        below = np.searchsorted(sorted_, times)
        return np.asarray(sums[below] + (len(sorted_) - below) * times)

    return clipped(ends) - clipped(starts)
