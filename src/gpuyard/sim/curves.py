"""What plots draw: quantities over time and distributions, in so few numbers that processes can hand them around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuyard.sim.result import Result, Segments
from gpuyard.sim.trace import Floats

MAX_STEPS = 1000
MAX_POINTS = 600


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over time since the first submit: each value holds from its time to the next one."""

    times: Floats
    values: Floats
    averaged: bool = False
    """Whether values are means over equal steps, and not the quantity itself."""

    @property
    def span(self) -> float:
        """Where the curve ends."""
        return float(self.times[-1]) if len(self.times) else 0.0

    def means(self, span: float, bins: int) -> Curve:
        """Time-weighted means in equal bins of [0, span]."""
        if not len(self.times) or span <= 0:
            return self
        area = np.concatenate(([0.0], np.cumsum(np.diff(self.times) * self.values[:-1])))
        edges = np.linspace(0.0, span, bins + 1)
        means = np.diff(np.interp(edges, self.times, area)) / np.diff(edges)
        return Curve(edges, np.append(means, means[-1]), averaged=True)

    def compact(self) -> Curve:
        """The same curve, or means of it where it has too many steps to be seen or sent."""
        return self if len(self.times) <= MAX_STEPS else self.means(self.span, MAX_STEPS)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"seconds": _rounded(self.times), "values": _rounded(self.values), "averaged": self.averaged}


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution, as points of its cumulative curve: this share of all values is at most so large."""

    values: Floats
    shares: Floats
    count: int

    @classmethod
    def of(cls, sample: Floats) -> Spread:
        """Of a sample; of a large one, points at equal distances and the ends."""
        ordered, shares = np.sort(sample), np.arange(1, len(sample) + 1) / max(len(sample), 1)
        if len(sample) > MAX_POINTS:
            pick = np.linspace(0, len(sample) - 1, MAX_POINTS).round().astype(np.int64)
            ordered, shares = ordered[pick], shares[pick]
        return cls(ordered, shares, len(sample))

    @classmethod
    def pooled(cls, parts: Sequence[Spread]) -> Spread:
        """All values of several samples together."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        weights = np.concatenate([np.diff(part.shares, prepend=0.0) * part.count for part in parts])
        order = np.argsort(values, kind="stable")
        count = sum(part.count for part in parts)
        shares = np.cumsum(weights[order]) / max(count, 1)
        pick = np.unique(np.linspace(0, len(order) - 1, MAX_POINTS).round().astype(np.int64)) if len(order) else order
        return cls(values[order][pick], shares[pick], count)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"values": _rounded(self.values), "shares": _rounded(self.shares), "count": self.count}


def busy(result: Result) -> Curve:
    """Share of the GPUs in use; a job on part of a GPU counts as that part."""
    held, origin = result.segments, _origin(result)
    share = result.share[held.job] / result.cluster.gpus
    times = np.concatenate(([0.0], held.start - origin, held.end - origin))
    times, level = _steps(times, np.concatenate(([0.0], share, -share)))
    return Curve(times, np.minimum(level, 1.0))  # shares by memory beside shares by compute can add up to more


def waiting(result: Result) -> Curve:
    """Jobs that are submitted and not running, so a preempted job waits again; rejected jobs never do."""
    runs = _runs(result)
    admitted = np.ones(len(result.trace), dtype=bool)
    admitted[list(result.rejected)] = False
    arrive, leave = result.trace.submit[admitted], result.end[result.completed]
    groups = ((arrive, 1.0), (runs.start, -1.0), (runs.end, 1.0), (leave, -1.0))
    times = np.concatenate([times for times, _ in groups]) - _origin(result)
    changes = np.concatenate([np.full(len(times), change) for times, change in groups])
    return Curve(*_steps(np.append(times, 0.0), np.append(changes, 0.0)))


def _origin(result: Result) -> float:
    return float(result.trace.submit.min()) if len(result.trace) else 0.0


def _steps(times: Floats, changes: Floats) -> tuple[Floats, Floats]:
    """Values from each distinct time on, of a quantity that changes at these times."""
    order = np.argsort(times, kind="stable")
    times, total = times[order], np.cumsum(changes[order])
    last = np.append(np.diff(times) > 0, True)[: len(times)]
    # Shares like 0.1 do not add up to nothing again once they are taken away.
    return times[last], np.round(total[last], 9) + 0.0


def _runs(result: Result) -> Segments:
    """The segments with one entry per job and slice, however many GPUs the job held."""
    held = result.segments
    if not (result.trace.gpus > 1).any():
        return held
    order = np.lexsort((held.end, held.start, held.job))
    columns = [column[order] for column in (held.job, held.start, held.end)]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    kept = order[new]
    return Segments(held.job[kept], held.gpu[kept], held.start[kept], held.end[kept])


def _rounded(values: Floats) -> list[float]:
    """Six digits, which is more than any plot shows."""
    return [float(f"{value:.6g}") for value in values.tolist()]
