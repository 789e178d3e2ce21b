"""Numbers of runs: what jobs reported, what recordings show, summaries of schedulers, and their table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuyard.experiments.design import JobResult, RunResult
from gpuyard.files import cell, csv_text
from gpuyard.recordings.series import Recording
from gpuyard.units import format_number

WORD = "GPUYARD_RESULT"
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,63})=(\S+)")


def reported(output: bytes, job: str = "a job") -> tuple[dict[str, float], list[str]]:
    """The numbers of the last `GPUYARD_RESULT` line, and a warning for each part of it that is none."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    told = [line.removeprefix(WORD) for line in lines if line.split(None, 1)[:1] == [WORD]]
    found: dict[str, float] = {}
    warnings = []
    for part in told[-1].split() if told else ():
        match = _PAIR.fullmatch(part)
        value = _reported_number(match[2]) if match else math.nan
        if match and math.isfinite(value):
            found[match[1]] = value
        else:
            warnings.append(f"{job} reported '{part[:60]}', which is not a name, = and a number, and is left out")
    return found, warnings


def _reported_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


MEASURED = ("utilization", "memory_used", "power")  # metrics whose means are told of every run
REPORTED = ("p90", "p99")  # numbers that jobs may report of themselves which have columns of their own


def measure(result: RunResult, recording: Recording) -> RunResult:
    """Fill in the means of a recording over GPUs and time, and its energy; None where not known."""
    result.utilization = mean_of(recording, "utilization")
    result.memory_used = mean_of(recording, "memory_used")
    result.power = mean_of(recording, "power")
    total, known = _held(recording, "power")
    result.energy = total / 3600 if known > 0 else None
    return result


def mean_of(recording: Recording, metric: str) -> float | None:
    total, known = _held(recording, metric)
    return total / known if known > 0 else None


def _held(recording: Recording, metric: str) -> tuple[float, float]:
    """The integral of a metric over time, of all GPUs, and the seconds with values."""
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
    return first / other if first and other else None


def waited(job: JobResult) -> float | None:
    """Seconds from a job's arrival to its first start; None if it never began."""
    return None if job.started is None else max(0.0, job.started - job.arrived)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample's standard deviation; None of fewer than two."""
    if len(values) < 2:
        return None
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


WIDTH = 100
_LONGEST = 12
_COLUMNS = (
    ("OVER", "%"), ("SCHEDULER", ""), ("DURATION", "s"), ("WAIT (MAX)", "s"), ("JOB", "s"), ("RUN", "s"),
    ("RESTARTS", ""), ("UTIL", "%"), ("MEM", "MiB"), ("POWER", "W"), ("ENERGY", "Wh"), ("P99", "s"),
)  # fmt: skip
"""Heads, and the units below them."""
JOB_COLUMNS = (
    "scheduler", "percent", "turn", "name", "workload", "arrived", "wait", "started", "run", "ended", "restarts",
    "ooms", "state", "admitted_by",
)  # fmt: skip


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table as text: a line for each scheduler, an empty one between over-provisionings."""
    shown = _COLUMNS if any(row["p99"] is not None for row in rows) else _COLUMNS[:-1]
    cells = [_cells(row)[: len(shown)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*zip(*shown, strict=True), *cells, strict=True)]
    found = [_line(head, widths) for head in zip(*shown, strict=True)]
    for number, (row, line) in enumerate(zip(rows, cells, strict=True)):
        if number and row["percent"] != rows[number - 1]["percent"]:
            found.append("")
        found.append(_line(line, widths))
    return found


def speedups(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Speedups over the first scheduler as text: a column for each over-provisioning."""
    names = list(dict.fromkeys(row["scheduler"] for row in rows))
    if len(names) < 2:
        return []
    percents = sorted({row["percent"] for row in rows})
    known = {(row["scheduler"], row["percent"]): row["speedup"] for row in rows}
    title = f"TIMES AS FAST AS {names[0]}"
    width = max(map(len, (title, *names)))
    heads = [f"{format_number(percent)} %" for percent in percents]
    found = [" ".join([title.ljust(width), *(head.rjust(7) for head in heads)])]
    for name in names:
        cells = (_number(known.get((name, percent)), 2).rjust(7) for percent in percents)
        found.append(" ".join([name.ljust(width), *cells]))
    return found


def _cells(row: Mapping[str, Any]) -> list[str]:
    spread, memory, name = row["duration_std"], row["memory_used"], row["scheduler"]
    failed = row["jobs"] - row["succeeded"]
    return [
        format_number(row["percent"]),
        name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…",
        _number(row["duration"]) + (f" ±{_number(spread, 0 if spread >= 100 else 1)}" if spread is not None else ""),
        _number(row["wait"]) + (f" ({_number(row['wait_max'])})" if row["wait_max"] is not None else ""),
        _number(row["job"]),
        _number(row["run"]),
        str(row["restarts"]) + (f" ({row['ooms']} oom)" if row["ooms"] else "") + (f" {failed} bad" if failed else ""),
        _number(row["utilization"], 1),
        _number(None if memory is None else memory / 2**20, 0),
        _number(row["power"], 1),
        _number(row["energy"]),
        "-" if row["p99"] is None else f"{row['p99']:.4f}",
    ]


def _number(value: float | None, decimals: int | None = None) -> str:
    """A number for a cell; small ones have more decimals."""
    if value is None:
        return "-"
    if decimals is None:
        decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(w) if n == 1 else cell.rjust(w) for n, (cell, w) in enumerate(zip(cells, widths, strict=True))]
    return " ".join(padded).rstrip()


def jobs_csv(results: Sequence[RunResult]) -> str:
    """A line for each job of each run, with columns for reported numbers, and for those of clusters."""
    jobs = [job for run in results for job in run.jobs]
    cluster = ["bound", "where"] if any(job.bound is not None for job in jobs) else []
    names = list(dict.fromkeys([*REPORTED, *(key for job in jobs for key in job.reported)]))
    rows = [
        [
            run.scheduler, run.percent, run.turn, job.name, job.workload, job.arrived, waited(job), job.started,
            job.ran if job.started is not None else None, job.ended, job.restarts, job.ooms, job.state, job.admitted_by,
            *(getattr(job, name) for name in cluster), *(job.reported.get(name) for name in names),
        ]
        for run in results
        for job in run.jobs
    ]  # fmt: skip
    return _csv([*JOB_COLUMNS, *cluster, *names], rows)


def summary_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    return _csv(list(rows[0]), (row.values() for row in rows)) if rows else ""


def _csv(heads: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    return csv_text(heads, ([cell(value, 6) for value in row] for row in rows))
