"""Runs in numbers: what a recording says of GPUs on the whole, and what several runs say of a scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuyard.experiments.model import JobResult, RunResult
from gpuyard.recordings.series import Recording

MEASURED = ("utilization", "memory_used", "power")
"""Metrics whose means are told of every run."""
REPORTED = ("p90", "p99")
"""Numbers that jobs may report of themselves which have columns of their own."""


def measure(result: RunResult, recording: Recording) -> RunResult:
    """Fill in what a recording tells of a run: means over GPUs and time, and energy; None where it is unknown."""
    result.utilization = mean_of(recording, "utilization")
    result.memory_used = mean_of(recording, "memory_used")
    result.power = mean_of(recording, "power")
    total, known = _held(recording, "power")
    result.energy = total / 3600 if known > 0 else None
    return result


def mean_of(recording: Recording, metric: str) -> float | None:
    """The mean of a metric over all GPUs; each value counts for as long as it stood."""
    total, known = _held(recording, metric)
    return total / known if known > 0 else None


def _held(recording: Recording, metric: str) -> tuple[float, float]:
    """Values of all GPUs times the seconds for which they stood, and these seconds; gaps count for nothing."""
    total = seconds = 0.0
    for one in recording.of(metric):
        if one.subject.job or not len(one.at):
            continue
        last = float(one.at[-1])
        widths = np.diff(one.at, append=max(last, min(last + one.period, recording.end)))
        known = np.isfinite(one.mean)
        total += float((one.mean[known] * widths[known]).sum())
        seconds += float(widths[known].sum())
    return total, seconds


def summarise(results: Sequence[RunResult]) -> dict[str, Any]:
    """One line of the table: a scheduler at an over-provisioning, over all its repetitions."""
    first = results[0]
    jobs = [job for result in results for job in result.jobs]
    durations = [result.duration for result in results]
    return {
        "scheduler": first.scheduler,
        "percent": first.percent,
        "turns": len(results),
        "duration": mean(durations),
        "duration_std": deviation(durations),
        "wait": mean(map(waited, jobs)),
        "wait_max": max((wait for wait in map(waited, jobs) if wait is not None), default=None),
        "run": mean(job.ran for job in jobs if job.started is not None),
        "job": mean(job.ended - job.arrived for job in jobs if job.ended is not None),
        "jobs": len(jobs),
        "succeeded": sum(job.state == "succeeded" for job in jobs),
        "restarts": sum(job.restarts for job in jobs),
        "ooms": sum(job.ooms for job in jobs),
        **{f"by_{way}": sum(job.admitted_by == way for job in jobs) for way in ("fit", "history", "cbp", "pp")},
        **{name: mean(getattr(result, name) for result in results) for name in (*MEASURED, "energy")},
        **{name: mean(job.reported.get(name) for job in jobs) for name in REPORTED},
        "simulated": first.simulated,
    }


def summaries(results: Iterable[RunResult]) -> list[dict[str, Any]]:
    """The lines of the table: by over-provisioning, then in the order in which schedulers come.

    `speedup` tells how many times as fast as under the first scheduler all jobs were done.
    """
    groups: dict[tuple[float, str], list[RunResult]] = {}
    order: list[str] = []
    for result in results:
        groups.setdefault((result.percent, result.scheduler), []).append(result)
        if result.scheduler not in order:
            order.append(result.scheduler)
    keys = sorted(groups, key=lambda key: (key[0], order.index(key[1])))
    rows = [summarise(groups[key]) for key in keys]
    first = {row["percent"]: row["duration"] for row in rows if row["scheduler"] == order[0]}
    return [{**row, "speedup": _ratio(first.get(row["percent"]), row["duration"])} for row in rows]


def _ratio(first: float | None, other: float | None) -> float | None:
    """How many times as fast as the first scheduler another one was."""
    return first / other if first and other else None


def waited(job: JobResult) -> float | None:
    """Seconds from a job's arrival to its first start; None of one that never began."""
    return None if job.started is None else max(0.0, job.started - job.arrived)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def deviation(values: Sequence[float]) -> float | None:
    """How far repetitions lie apart: the sample's standard deviation; None of fewer than two."""
    if len(values) < 2:
        return None
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))
