"""Schedules and comparisons on disk: tables for programs, plots for people."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuyard.files import cell, csv_text, write_atomically
from gpuyard.sim.compare import Comparison
from gpuyard.sim.result import Result
from gpuyard.sim.trace import Floats, Trace
from gpuyard.sim.traces import describe
from gpuyard.units import format_duration


def write_result(result: Result, metrics: dict[str, Any], directory: Path) -> None:
    from gpuyard.sim import schedule_plots
    from gpuyard.sim.summary import summarise

    write_schedule(result, metrics, directory)
    summary = summarise(result, metrics)
    schedule_plots.save(schedule_plots.gantt(result), directory, "gantt")
    schedule_plots.save(schedule_plots.utilisation([summary]), directory, "utilisation")
    schedule_plots.save(schedule_plots.queue_length([summary]), directory, "queue")
    schedule_plots.save(schedule_plots.cdfs([summary]), directory, "cdf")


def write_schedule(result: Result, metrics: dict[str, Any], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    labels, trace, held = result.cluster.labels(), result.trace, result.segments
    names, ends = [labels[gpu] for gpu in result.placements.gpus.tolist()], result.placements.ends.tolist()
    jobs = zip(
        trace.ids, numbers(trace.submit), numbers(result.start), numbers(result.end),
        [" ".join(names[first:end]) for first, end in zip([0, *ends], ends, strict=False)],
        result.preemptions.tolist(), [result.rejected.get(i, "") for i in range(len(trace))], strict=True,
    )  # fmt: skip
    header = ("job", "submit", "start", "end", "gpus", "preemptions", "rejected")
    write_atomically(directory / "jobs.csv", csv_text(header, jobs).encode())
    segments = zip(
        [trace.ids[job] for job in held.job.tolist()], [labels[gpu] for gpu in held.gpu.tolist()],
        numbers(held.start), numbers(held.end), strict=True,
    )  # fmt: skip
    write_atomically(directory / "segments.csv", csv_text(("job", "gpu", "start", "end"), segments).encode())
    write_atomically(directory / "metrics.json", _json(metrics))


def numbers(values: Floats) -> list[str]:
    """`format_number` of many at once; an empty text for what is not a number."""
    # Lists and not arrays: numpy's own texts of numbers are slower than the interpreter's.
    return ["" if v != v else str(int(v)) if v.is_integer() and abs(v) < 1e15 else repr(v) for v in values.tolist()]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def write_comparison(
    comparison: Comparison, trace: Trace, directory: Path, command: str, *, when: datetime | None = None
) -> Path:
    """A folder with `report.html`, the plots, and their numbers as JSON and CSV; returns the report."""
    from gpuyard.sim.comparison_report import draw, write_report

    directory.mkdir(parents=True, exist_ok=True)
    figures = draw(comparison)
    for name, figure in figures.items():
        write_atomically(directory / f"{name}.png", figure.png)
        write_atomically(directory / f"{name}.svg", figure.svg)
    write_atomically(directory / "results.json", _json(comparison.rows))
    write_table(directory / "results.csv", comparison.rows)
    curves = [summary.plain() for summary in comparison.summaries]
    write_atomically(directory / "curves.json", json.dumps(curves).encode() + b"\n")
    _write_groups(directory, comparison)
    return write_report(
        directory / "report.html",
        title=f"GPU scheduling policies on {Path(trace.source).name}",
        command=command,
        trace_facts=_facts(trace),
        comparison=comparison,
        figures=figures,
        notes=_notes(comparison, trace),
        when=when,
    )


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The metrics as CSV; an interval becomes two columns."""
    flat = [
        {
            name: value
            for key, given in row.items()
            if not isinstance(given, dict)
            for name, value in _columns(key, given).items()
        }
        for row in rows
    ]
    names = list(dict.fromkeys(name for row in flat for name in row))
    write_atomically(path, csv_text(names, ([cell(row.get(name)) for name in names] for row in flat)).encode())


def _columns(key: str, value: Any) -> dict[str, Any]:
    return {f"{key}_low": value[0], f"{key}_high": value[1]} if isinstance(value, list) else {key: value}


def _write_groups(directory: Path, comparison: Comparison) -> None:
    """`users.csv`: waits and slowdowns of each user under each policy."""
    rows = [{"policy": s.policy, **row} for s in comparison.summaries for row in s.groups.plain()]
    if rows:
        write_table(directory / f"{comparison.summaries[0].groups.kind}s.csv", rows)


def folder(policy: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=@-]+", "_", policy).strip("._") or "policy"


def _facts(trace: Trace) -> dict[str, Any]:
    facts: dict[str, Any] = {"users": 0, "gpu_sizes": {}, "run": {"mean": 0.0}} | describe(trace)
    dates = [facts[key][:10] for key in ("first_date", "last_date") if key in facts]
    return {
        "trace": Path(trace.source).name,
        "jobs": len(trace),
        **({"submitted": " to ".join(dict.fromkeys(dates))} if dates else {}),
        "users": facts["users"] or "not said",
        "GPUs per job": sizes_text(facts["gpu_sizes"]),
        "mean run time": format_duration(facts["run"]["mean"]),
    }


def sizes_text(counts: dict[int, int]) -> str:
    """`1 (80% of jobs), 8 (15%), up to 64`: the most frequent ones."""
    total = sum(counts.values())
    frequent = sorted(sorted(counts, key=lambda size: -counts[size])[:5])
    texts = [f"{size} ({_share(counts[size] / total)}{' of jobs' if not k else ''})" for k, size in enumerate(frequent)]
    largest = max(counts, default=0)
    return ", ".join(texts + ([f"up to {largest:,}"] if largest not in frequent and frequent else [])) or "none"


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.1 or part == 0 else f"{part:.1%}" if part >= 0.001 else "<0.1%"


def _notes(comparison: Comparison, trace: Trace) -> list[str]:
    notes = ["GPUs are simulated: the schedules are exact, but no job was run and no power was measured."]
    if trace.dropped:
        dropped = ", ".join(f"{count:,} ({why})" for why, count in trace.dropped.items())
        notes.append(f"Left out when the trace was read: {dropped}.")
    for summary in comparison.summaries[:1]:
        if summary.rejected:
            job, why = summary.rejected[0]
            count = summary.metrics["rejected"]
            notes.append(f"{count:,} jobs can never run on this cluster and were rejected (job {job} {why}).")
    return notes
