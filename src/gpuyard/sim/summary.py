"""What is kept of a simulation: its metrics, and curves and distributions small enough to pass between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuyard.sim.metrics import Delays, delays
from gpuyard.sim.result import Result, Segments, first_submit
from gpuyard.sim.trace import Floats, Ints, Trace
from gpuyard.sim.virtual_clusters import DEFAULT_LABEL

MAX_STEPS = 1000
MAX_POINTS = 600


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over time since the first submit: each value holds from its time to the next one."""

    times: Floats
    values: Floats
    averaged: bool = False  # whether values are means over equal steps, and not the quantity itself

    @property
    def span(self) -> float:
        return float(self.times[-1]) if len(self.times) else 0.0

    def means(self, span: float, bins: int) -> Curve:
        if not len(self.times) or span <= 0:
            return self
        area = np.concatenate(([0.0], np.cumsum(np.diff(self.times) * self.values[:-1])))
        edges = np.linspace(0.0, span, bins + 1)
        means = np.diff(np.interp(edges, self.times, area)) / np.diff(edges)
        return Curve(edges, np.append(means, means[-1]), averaged=True)

    def compact(self) -> Curve:
        return self if len(self.times) <= MAX_STEPS else self.means(self.span, MAX_STEPS)

    def plain(self) -> dict[str, Any]:
        return {"seconds": _rounded(self.times), "values": _rounded(self.values), "averaged": self.averaged}


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution, as points of its cumulative curve: this share of all values is at most that large."""

    values: Floats
    shares: Floats
    count: int

    @classmethod
    def of(cls, sample: Floats) -> Spread:
        ordered, shares = np.sort(sample), np.arange(1, len(sample) + 1) / max(len(sample), 1)
        if len(sample) > MAX_POINTS:
            pick = np.linspace(0, len(sample) - 1, MAX_POINTS).round().astype(np.int64)
            ordered, shares = ordered[pick], shares[pick]
        return cls(ordered, shares, len(sample))

    @classmethod
    def pooled(cls, parts: Sequence[Spread]) -> Spread:
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
        return {"values": _rounded(self.values), "shares": _rounded(self.shares), "count": self.count}


def busy(result: Result) -> Curve:
    """Share of the GPUs in use; a job on part of a GPU counts as that part."""
    held, origin = result.segments, first_submit(result)
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
    times = np.concatenate([times for times, _ in groups]) - first_submit(result)
    changes = np.concatenate([np.full(len(times), change) for times, change in groups])
    return Curve(*_steps(np.append(times, 0.0), np.append(changes, 0.0)))


def _steps(times: Floats, changes: Floats) -> tuple[Floats, Floats]:
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
    return [float(f"{value:.6g}") for value in values.tolist()]


CHARTED_JOBS = 400
CHARTED_SEGMENTS = 4_000
CHARTED_GPUS = 128  # schedules up to these sizes are kept whole, for a Gantt chart
EXAMPLES = 3
BASELINE = "fcfs"
MAX_GROUPS = 1000


@dataclass(frozen=True, slots=True)
class Groups:
    """How users were served (or, where a trace names none, the groups of a label): sums over their completed jobs."""

    kind: str  # `user`, or the label
    names: list[str]
    jobs: Ints
    gpu_seconds: Floats  # run time times GPUs, shares counted as such: the same under every policy
    wait: Floats
    slowdown: Floats

    def __len__(self) -> int:
        return len(self.names)

    @property
    def mean_wait(self) -> Floats:
        return self.wait / self.jobs

    @property
    def mean_slowdown(self) -> Floats:
        return self.slowdown / self.jobs

    @classmethod
    def merged(cls, parts: Sequence[Groups]) -> Groups:
        if len(parts) == 1:
            return parts[0]
        names = list(dict.fromkeys(name for part in parts for name in part.names))
        place = {name: i for i, name in enumerate(names)}
        index = np.array([place[name] for part in parts for name in part.names], dtype=np.intp)

        def total(field: str) -> Floats:
            values = np.concatenate([getattr(part, field) for part in parts])
            return np.asarray(np.bincount(index, weights=values, minlength=len(names)), dtype=np.float64)

        jobs = total("jobs").astype(np.int64)
        return cls(parts[0].kind, names, jobs, total("gpu_seconds"), total("wait"), total("slowdown"))

    def plain(self) -> list[dict[str, Any]]:
        """One row per group, means instead of sums."""
        columns = zip(
            self.names, self.jobs.tolist(), (self.gpu_seconds / 3600.0).tolist(),
            self.mean_wait.tolist(), self.mean_slowdown.tolist(), strict=True,
        )  # fmt: skip
        keys = (self.kind, "jobs", "gpu_hours", "wait_mean", "slowdown_mean")
        return [dict(zip(keys, row, strict=True)) for row in columns]


@dataclass(frozen=True, slots=True)
class Summary:
    policy: str
    metrics: dict[str, Any]
    settings: dict[str, Any]
    utilisation: Curve
    queue: Curve
    jct: Spread
    wait: Spread
    slowdown: Spread
    groups: Groups
    rejected: list[tuple[str, str]]  # the first few rejected jobs, each with the reason
    chart: Result | None = None  # the whole schedule, where it is small enough to be drawn

    def plain(self) -> dict[str, Any]:
        curves = {name: getattr(self, name).plain() for name in ("utilisation", "queue", "jct", "wait", "slowdown")}
        return {"policy": self.policy, **curves, f"{self.groups.kind}s": self.groups.plain()}


def baseline(summaries: Sequence[Summary]) -> Summary | None:
    """What others are compared with: plain first come, first served, or else the best variant of it."""
    variants = [summary for summary in summaries if summary.policy.split("@")[0] == BASELINE]
    return next((summary for summary in variants if summary.policy == BASELINE), next(iter(variants), None))


def summarise(result: Result, metrics: dict[str, Any] | None = None) -> Summary:
    found = delays(result)
    return Summary(
        policy=result.policy,
        metrics=metrics if metrics is not None else {"policy": result.policy},
        settings=result.settings,
        utilisation=busy(result).compact(),
        queue=waiting(result).compact(),
        jct=Spread.of(found.jct),
        wait=Spread.of(found.wait),
        slowdown=Spread.of(found.slowdown),
        groups=_groups(result, found),
        rejected=[(result.trace.ids[row], why) for row, why in list(result.rejected.items())[:EXAMPLES]],
        chart=result if _small(result) else None,
    )


def _small(result: Result) -> bool:
    return (
        len(result.trace) <= CHARTED_JOBS
        and len(result.segments) <= CHARTED_SEGMENTS
        and result.cluster.gpus <= CHARTED_GPUS
    )


def _grouping(trace: Trace) -> tuple[str, list[str]]:
    """Users, or else virtual clusters, where the trace has either."""
    if any(trace.users) or DEFAULT_LABEL not in trace.labels:
        return "user", trace.users
    return DEFAULT_LABEL, trace.labels[DEFAULT_LABEL]


def _groups(result: Result, found: Delays) -> Groups:
    kind, names = _grouping(result.trace)
    done = result.completed
    of: dict[str, int] = {}
    index = np.array([of.setdefault(names[i], len(of)) for i in done.tolist() if names[i]], dtype=np.intp)
    named = np.array([bool(names[i]) for i in done.tolist()], dtype=bool)
    work = (result.trace.run * result.trace.gpus * result.share)[done]

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(index, weights=values[named], minlength=len(of)), dtype=np.float64)

    gpu_seconds = total(work)
    largest = np.argsort(-gpu_seconds, kind="stable")[:MAX_GROUPS]
    listed = list(of)
    return Groups(
        kind,
        [listed[i] for i in largest.tolist()],
        np.bincount(index, minlength=len(of))[largest].astype(np.int64),
        gpu_seconds[largest],
        total(found.wait)[largest],
        total(found.slowdown)[largest],
    )
