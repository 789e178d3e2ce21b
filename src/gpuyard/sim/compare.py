"""Policies compared on one trace, with repeated seeds and windows, and confidence intervals by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.parallel import Failure, Keep, Task, Watch, run_all
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options
from gpuyard.sim.summary import Groups, Spread, Summary, summarise
from gpuyard.sim.trace import Trace

_NORMAL = 1.959963985
_TABLE = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip


class Interval(NamedTuple):
    """A mean, and where it is with 95 % confidence."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2.0


def t_95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t distribution."""
    if freedom < 1:
        raise ValueError("a spread needs at least two values")
    if freedom <= len(_TABLE):
        return _TABLE[freedom - 1]
    # The expansion of t around the normal distribution (Abramowitz & Stegun 26.7.5): right to 5 digits from 20 on.
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def interval(values: Sequence[float]) -> Interval:
    n = len(values)
    if min(values) == max(values):  # a mean by division may be off in the last digit, and so would be its spread
        return Interval(values[0], values[0], values[0])
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_95(n - 1) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


RANKED_BY = "jct_mean"
FEWEST = 3
"""Runs that an interval needs. Of two it would be 12.7 times as wide as they are apart, and say nothing."""
_COUNTS = ("jobs", "completed", "rejected")
_SETTINGS = ("gpus", "quantum", "restart_cost", "round", "seed")


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a trace by time: jobs submitted from `since` on and before `until`."""

    since: float = -np.inf
    until: float = np.inf


@dataclass(frozen=True, slots=True)
class Comparison:
    cluster: Cluster
    summaries: list[Summary]  # the best mean completion time first
    failures: dict[str, str]  # policies that could not be simulated to the end, and why
    seeds: int = 1
    windows: tuple[Window, ...] = (Window(),)
    shown: int = 0  # the window that curves over time are of: the one with the most work

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [summary.metrics for summary in self.summaries]

    @property
    def repeated(self) -> bool:
        return self.seeds > 1 or len(self.windows) > 1

    @property
    def with_intervals(self) -> bool:
        return max(self.seeds, len(self.windows)) >= FEWEST


def compare(
    trace: Trace,
    cluster: Cluster,
    policies: Sequence[str],
    options: Options | None = None,
    *,
    seeds: int = 1,
    windows: int = 1,
    jobs: int | None = None,
    progress: Watch | None = None,
    schedules: Path | None = None,
    keep: Keep[Summary] | None = None,
) -> Comparison:
    """Simulate all policies with `jobs` processes; with `schedules`, write each schedule to a folder in there.

    `seeds` repeats what is random with that many seeds; `windows` cuts the trace into that many equal stretches of
    time, each simulated by itself from an empty cluster. `keep` makes the summary of a schedule.
    """
    options = options or Options()
    parts = split(trace, windows)
    _check_repeats(seeds, windows, schedules)
    tasks = [
        Task(policy, cluster, replace(options, seed=options.seed + k), part.since, part.until)
        for policy in policies
        for part in parts
        for k in range(seeds if seeds > 1 and is_random(policy, options) else 1)
    ]
    usual = summary_of if schedules is None else partial(written_summary, schedules)
    answers = run_all(trace, tasks, keep or usual, jobs=jobs, progress=progress)
    found: dict[str, list[tuple[Task, Summary | Failure]]] = {}
    for task, answer in zip(tasks, answers, strict=True):
        found.setdefault(task.policy, []).append((task, answer))
    shown = _busiest(trace, parts)
    failures = {p: why for p, runs in found.items() if (why := _failure(runs)) is not None}
    summaries = [
        together([run for _, run in runs if isinstance(run, Summary)], len(parts), shown)
        for policy, runs in found.items()
        if policy not in failures
    ]
    ranked = sorted(summaries, key=lambda s: (s.metrics[RANKED_BY] is None, s.metrics[RANKED_BY] or 0.0))
    _differences(ranked, found)
    return Comparison(cluster, ranked, failures, seeds, parts, shown)


def _check_repeats(seeds: int, windows: int, schedules: Path | None) -> None:
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    if seeds > 1 and windows > 1:
        raise UserError("give --seeds or --windows, not both: what they tell apart cannot be added up")
    if schedules is not None and max(seeds, windows) > 1:
        raise UserError("--schedules writes one schedule per policy; leave it out with --seeds or --windows")


def summary_of(task: Task, result: Result, metrics: dict[str, Any]) -> Summary:
    return summarise(result, metrics)


def written_summary(directory: Path, task: Task, result: Result, metrics: dict[str, Any]) -> Summary:
    """`summary_of`, with the schedule in a folder named after the policy."""
    from gpuyard.sim.result_files import folder, write_schedule

    write_schedule(result, metrics, directory / folder(task.policy))
    return summarise(result, metrics)


def is_random(policy: str, options: Options) -> bool:
    """Whether the seed makes a difference: to the order, to the placement, or to the estimates."""
    planner = make_planner(
        policy, discipline=options.discipline, placement=options.placement, quantum=options.quantum, lenient=True
    )
    noisy = (options.estimate or "").startswith("noisy")
    return noisy or planner.placement == "random" or "draw" in planner.policy.columns


def split(trace: Trace, windows: int) -> tuple[Window, ...]:
    """Equal stretches of the time in which jobs are submitted, without empty ones."""
    if windows < 1:
        raise UserError(f"--windows must be at least 1, not {windows}")
    if windows == 1 or not len(trace):
        return (Window(),)
    edges = np.linspace(trace.submit.min(), trace.submit.max(), windows + 1)
    edges[-1] = np.inf
    counts, _ = np.histogram(trace.submit, edges)
    found = [Window(float(edges[k]), float(edges[k + 1])) for k in range(windows) if counts[k]]
    if len(found) < 2:
        raise UserError(f"--windows {windows}: all jobs are in one of them; the trace is too short to be cut up")
    return tuple(found)


def together(runs: Sequence[Summary], windows: int, shown: int) -> Summary:
    """One summary of all runs of a policy: means with their intervals, distributions over all, curves of one run."""
    if len(runs) == 1:
        return runs[0]
    repeats = len(runs) // windows
    shown_run = runs[shown * repeats]
    groups = Groups.merged([run.groups for run in runs])
    if repeats > 1:  # the same jobs, several times over
        groups = replace(
            groups, jobs=groups.jobs // repeats, gpu_seconds=groups.gpu_seconds / repeats,
            wait=groups.wait / repeats, slowdown=groups.slowdown / repeats,
        )  # fmt: skip
    return replace(
        shown_run,
        metrics=means([run.metrics for run in runs], repeats),
        jct=Spread.pooled([run.jct for run in runs]),
        wait=Spread.pooled([run.wait for run in runs]),
        slowdown=Spread.pooled([run.slowdown for run in runs]),
        groups=groups,
        rejected=next((run.rejected for run in runs if run.rejected), []),
        chart=shown_run.chart if windows == 1 else None,
    )


def means(rows: Sequence[dict[str, Any]], repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {"runs": len(rows)}
    for key, value in rows[0].items():
        values = [row[key] for row in rows if isinstance(row[key], int | float)]
        if key in _SETTINGS or isinstance(value, str):
            found[key] = value
        elif key in _COUNTS:
            found[key] = sum(values) // repeats
        elif len(values) > 1:
            ends = interval(values)
            found[key] = ends.mean
            if key != "jobs_per_second" and len(values) >= FEWEST:
                found[f"{key}_ci"] = _possible(key, ends)
        elif not isinstance(value, dict):
            found[key] = values[0] if values else None
    return found


def _possible(key: str, ends: Interval) -> list[float]:
    """The part of an interval in which the metric can be: t knows of no bounds, and shares are between 0 and 1."""
    least, most = 1.0 if key.startswith("slowdown") else 0.0, 1.0 if key in ("utilization", "fairness") else math.inf
    return [max(ends.low, least), min(ends.high, most)]


def _failure(runs: Sequence[tuple[Task, Summary | Failure]]) -> str | None:
    return next((run.message for _, run in runs if isinstance(run, Failure)), None)


def _busiest(trace: Trace, parts: Sequence[Window]) -> int:
    work = trace.run * trace.gpus
    return int(np.argmax([work[(trace.submit >= part.since) & (trace.submit < part.until)].sum() for part in parts]))


def _differences(ranked: Sequence[Summary], found: dict[str, list[tuple[Task, Summary | Failure]]]) -> None:
    """How much longer jobs take than under the best policy, run by run: windows differ more than policies do."""
    best = _values(found[ranked[0].policy]) if ranked else []
    for summary in ranked[1:]:
        own = _values(found[summary.policy])
        count = max(len(own), len(best))
        # A single run stands for every seed: its policy has nothing random.
        pairs = zip(own * (count // len(own)), best * (count // len(best)), strict=True)
        gaps = [value - other for value, other in pairs if value is not None and other is not None]
        if len(gaps) > 1:
            ends = interval(gaps)
            summary.metrics[f"{RANKED_BY}_diff"] = ends.mean
        if len(gaps) >= FEWEST:
            summary.metrics[f"{RANKED_BY}_diff_ci"] = [ends.low, ends.high]


def _values(runs: Sequence[tuple[Task, Summary | Failure]]) -> list[float | None]:
    return [run.metrics[RANKED_BY] for _, run in runs if isinstance(run, Summary)]
