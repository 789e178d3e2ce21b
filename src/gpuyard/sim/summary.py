"""What is kept of a simulation once it is over: its metrics, and small curves to draw instead of whole schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuyard.sim.curves import Curve, Spread, busy, waiting
from gpuyard.sim.metrics import Delays, delays
from gpuyard.sim.pools import DEFAULT_LABEL
from gpuyard.sim.result import Result
from gpuyard.sim.trace import Floats, Ints, Trace

CHARTED_JOBS = 400
CHARTED_SEGMENTS = 4_000
CHARTED_GPUS = 128
"""Schedules up to these sizes are kept whole, for a Gantt chart."""
EXAMPLES = 3
BASELINE = "fcfs"
MAX_GROUPS = 1000


@dataclass(frozen=True, slots=True)
class Groups:
    """How users were served (or, where a trace names none, the groups of a label): sums over their completed jobs."""

    kind: str
    """`user`, or the label."""
    names: list[str]
    jobs: Ints
    gpu_seconds: Floats
    """Run time times GPUs, shares counted as such: the same under every policy."""
    wait: Floats
    slowdown: Floats

    def __len__(self) -> int:
        return len(self.names)

    @property
    def mean_wait(self) -> Floats:
        """Of each group's jobs."""
        return self.wait / self.jobs

    @property
    def mean_slowdown(self) -> Floats:
        """Of each group's jobs."""
        return self.slowdown / self.jobs

    @classmethod
    def merged(cls, parts: Sequence[Groups]) -> Groups:
        """Of several runs: sums over all of them."""
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
        """For JSON and CSV: one row per group, means instead of sums."""
        columns = zip(
            self.names, self.jobs.tolist(), (self.gpu_seconds / 3600.0).tolist(),
            self.mean_wait.tolist(), self.mean_slowdown.tolist(), strict=True,
        )  # fmt: skip
        keys = (self.kind, "jobs", "gpu_hours", "wait_mean", "slowdown_mean")
        return [dict(zip(keys, row, strict=True)) for row in columns]


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy's run (or several runs of it, taken together)."""

    policy: str
    metrics: dict[str, Any]
    settings: dict[str, Any]
    utilisation: Curve
    queue: Curve
    jct: Spread
    wait: Spread
    slowdown: Spread
    groups: Groups
    rejected: list[tuple[str, str]]
    """The first few rejected jobs, each with the reason."""
    chart: Result | None = None
    """The whole schedule, where it is small enough to be drawn."""

    def plain(self) -> dict[str, Any]:
        """For JSON: everything but the schedule."""
        curves = {name: getattr(self, name).plain() for name in ("utilisation", "queue", "jct", "wait", "slowdown")}
        return {"policy": self.policy, **curves, f"{self.groups.kind}s": self.groups.plain()}


def baseline(summaries: Sequence[Summary]) -> Summary | None:
    """What others are held against: plain first come, first served, or else the best variant of it."""
    variants = [summary for summary in summaries if summary.policy.split("@")[0] == BASELINE]
    return next((summary for summary in variants if summary.policy == BASELINE), next(iter(variants), None))


def summarise(result: Result, metrics: dict[str, Any] | None = None) -> Summary:
    """The summary of one run."""
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
    """Whom to tell apart: users, or else virtual clusters, where the trace has either."""
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
