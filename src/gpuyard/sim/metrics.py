"""Exact numbers about a schedule. Times are seconds; every definition is in `DEFINITIONS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuyard.sim.result import Result
from gpuyard.sim.trace import Floats

SHORT = 10.0  # run times below this count as this long in the bounded slowdown, so that trifles do not dominate it

DEFINITIONS = {
    "jobs": "jobs in the trace, after its own cleaning",
    "completed": "jobs that ran to their end",
    "rejected": "jobs that can never run on this cluster",
    "jct": "job completion time (turnaround): end - submit",
    "wait": "completion time less the true run time",
    "slowdown": f"bounded slowdown: max(1, JCT / max(run, {SHORT:g} s))",
    "makespan": "last end - first submit",
    "throughput": "completed jobs per second of makespan",
    "utilization": "share of all GPU time, over the makespan, that jobs held",
    "energy_kwh": "idle power for all GPUs over the makespan, and the difference to busy power while jobs held them",
    "fairness": "Jain's index over users of their mean run / JCT: 1 is even; none where the trace names no users",
    "preemptions": "how often a running job was stopped to run again later",
    "deadline_missed": "jobs that ended after their deadline or never ran; none where no job has a deadline",
    "tardiness": "how long after its deadline a job ended, 0 if before it; over completed jobs that have one",
    "jobs_per_second": "jobs simulated per second of wall time, metrics included, reading not",
}


@dataclass(frozen=True, slots=True)
class Power:
    """A simple model of a GPU's power draw, in watts: when idle, and when held by a job."""

    idle: float = 50.0
    busy: float = 300.0


class Delays(NamedTuple):
    """What each completed job went through, in seconds; the slowdown has no unit."""

    jct: Floats
    wait: Floats
    slowdown: Floats


def delays(result: Result) -> Delays:
    done = result.completed
    run, end = result.trace.run[done], result.end[done]
    jct = end - result.trace.submit[done]
    # What is left of adding and taking away in floating point is not a wait.
    wait = np.where(jct - run > 16 * np.spacing(np.abs(end)), jct - run, 0.0)
    return Delays(jct, wait, np.maximum(jct / np.maximum(run, SHORT), 1.0))


def measure(result: Result, power: Power | None = None) -> dict[str, Any]:
    trace, done = result.trace, result.completed
    jct, wait, slowdown = delays(result)
    run = trace.run[done]
    makespan = float(result.end[done].max() - trace.submit.min()) if len(done) else None
    return {
        "jobs": len(trace),
        "completed": len(done),
        "rejected": len(result.rejected),
        **_spread("jct", jct),
        **_spread("wait", wait),
        "turnaround_mean": float(jct.mean()) if len(jct) else None,
        **_spread("slowdown", slowdown),
        "makespan": makespan,
        "throughput": len(done) / makespan if makespan else None,
        **_usage(result, makespan, power or Power()),
        "fairness": jain(by_user([trace.users[i] for i in done], run / jct)) if any(trace.users) else None,
        "preemptions": int(result.preemptions.sum()),
        **_deadlines(result),
    }


def _deadlines(result: Result) -> dict[str, float | None]:
    some = result.trace.deadline < np.inf
    end, late = result.end[some], (result.end - result.trace.deadline)[some]  # nan: never ran
    late = np.where(late <= 16 * np.spacing(np.abs(end)), 0.0, late)
    tardiness = _spread("tardiness", late[~np.isnan(late)])
    return {
        "deadline_missed": int((late != 0).sum()) if len(late) else None,
        **{key: tardiness[key] for key in ("tardiness_mean", "tardiness_max")},
    }


def _spread(name: str, values: Floats) -> dict[str, float | None]:
    names = [f"{name}_{n}" for n in ("mean", "median", "p95", "p99", "max")]
    if not len(values):
        return dict.fromkeys(names)
    numbers = (values.mean(), *np.percentile(values, [50, 95, 99]), values.max())
    return {n: float(v) for n, v in zip(names, numbers, strict=True)}


def _usage(result: Result, makespan: float | None, power: Power) -> dict[str, float | None]:
    if not makespan:
        return {"utilization": None, "energy_kwh": None, "gpu_seconds": 0.0}
    held = _held(result)
    total = result.cluster.gpus * makespan
    joules = total * power.idle + held * (power.busy - power.idle)
    return {"utilization": held / total, "energy_kwh": joules / 3.6e6, "gpu_seconds": held}


def _held(result: Result) -> float:
    """GPU-seconds that jobs held; shares by memory and by compute on one GPU never count as more than the GPU."""
    segments = result.segments
    share = result.share[segments.job]
    if not len(segments) or share.min() >= 1:
        return float((segments.end - segments.start).sum())
    gpu = np.concatenate((segments.gpu, segments.gpu))
    time = np.concatenate((segments.start, segments.end))
    change = np.concatenate((share, -share))
    order = np.lexsort((time, gpu))
    level = np.minimum(np.cumsum(change[order]), 1.0)[:-1]  # each GPU's changes add up to 0
    span = np.where(gpu[order][1:] == gpu[order][:-1], np.diff(time[order]), 0.0)
    return float((np.maximum(level, 0.0) * span).sum())


def by_user(users: list[str], values: Floats) -> Floats:
    names, index = np.unique(np.array(users, dtype=object).astype(str), return_inverse=True)
    if not len(names):
        return np.empty(0)
    return np.asarray(np.bincount(index, weights=values) / np.bincount(index))


def jain(values: Floats) -> float | None:
    """Jain's index: 1 if all are equal, 1/n if one has everything."""
    return float(values.sum() ** 2 / (len(values) * (values**2).sum())) if len(values) else None
