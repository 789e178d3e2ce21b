"""What an experiment showed, as a table of at most a hundred columns, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.experiments.measures import REPORTED, waited
from gpuyard.experiments.model import RunResult
from gpuyard.units import format_number

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
    """The table: a line for each scheduler, an empty one between over-provisionings."""
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
    """How many times as fast as under the first scheduler all was done: a column for each over-provisioning."""
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
    """A number for a cell; the smaller it is, the more its decimals matter."""
    if value is None:
        return "-"
    if decimals is None:
        decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    padded = [cell.ljust(w) if n == 1 else cell.rjust(w) for n, (cell, w) in enumerate(zip(cells, widths, strict=True))]
    return " ".join(padded).rstrip()


def jobs_csv(results: Sequence[RunResult]) -> str:
    """A line for each job of each run; numbers that jobs reported are columns, and so is what only clusters know."""
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
    """The table with all its numbers."""
    return _csv(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


def _csv(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return format_number(round(value, 6)) if isinstance(value, float) else str(value)
