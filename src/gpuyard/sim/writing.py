"""A schedule on disk: tables for programs, plots for people."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpuyard.sim.figures import write_atomically
from gpuyard.sim.result import Result
from gpuyard.sim.trace import Trace
from gpuyard.sim.traces import describe
from gpuyard.units import format_number


def write_result(result: Result, metrics: dict[str, Any], directory: Path, *, plots: bool) -> None:
    """`jobs.csv`, `segments.csv`, `metrics.json` and, if asked for, every plot as PNG and SVG."""
    directory.mkdir(parents=True, exist_ok=True)
    labels = result.cluster.labels()
    _write_csv(
        directory / "jobs.csv",
        ("job", "submit", "start", "end", "gpus", "preemptions", "rejected"),
        (_job_row(result, i, labels) for i in range(len(result.trace))),
    )
    segments = result.segments
    _write_csv(
        directory / "segments.csv",
        ("job", "gpu", "start", "end"),
        (
            (result.trace.ids[job], labels[gpu], format_number(start), format_number(end))
            for job, gpu, start, end in zip(
                segments.job.tolist(),
                segments.gpu.tolist(),
                segments.start.tolist(),
                segments.end.tolist(),
                strict=True,
            )
        ),
    )
    write_atomically(directory / "metrics.json", json.dumps(metrics, indent=2).encode() + b"\n")
    if plots:
        _write_plots(result, directory)


def _job_row(result: Result, i: int, labels: list[str]) -> tuple[str, ...]:
    trace = result.trace
    times = ("", "") if i in result.rejected else (format_number(result.start[i]), format_number(result.end[i]))
    gpus = " ".join(labels[gpu] for gpu in result.placements[i])
    why = result.rejected.get(i, "")
    return (trace.ids[i], format_number(trace.submit[i]), *times, gpus, str(result.preemptions[i]), why)


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def _write_plots(result: Result, directory: Path) -> None:
    from gpuyard.sim import plots

    plots.save(plots.gantt(result), directory, "gantt")
    plots.save(plots.utilisation([result]), directory, "utilisation")
    plots.save(plots.queue_length([result]), directory, "queue")
    plots.save(plots.cdfs([result]), directory, "cdf")


def write_comparison(runs: list[tuple[Result, dict[str, Any]]], trace: Trace, directory: Path, command: str) -> Path:
    """A folder with `report.html`, `results.json`, the plots, and a folder of tables for each policy."""
    from gpuyard.sim import plots
    from gpuyard.sim.report import write_report

    directory.mkdir(parents=True, exist_ok=True)
    results = [result for result, _ in runs]
    rows = [metrics for _, metrics in runs]
    for result, metrics in runs:
        write_result(result, metrics, directory / _folder(result.policy), plots=False)
    plots.save(plots.ranking(rows), directory, "ranking")
    plots.save(plots.utilisation(results), directory, "utilisation")
    plots.save(plots.queue_length(results), directory, "queue")
    plots.save(plots.cdfs(results), directory, "cdf")
    plots.save(plots.gantt(results[0]), directory, "gantt")
    write_atomically(directory / "results.json", json.dumps(rows, indent=2).encode() + b"\n")
    return write_report(
        directory / "report.html",
        title=f"GPU scheduling policies on {Path(trace.source).name}",
        command=command,
        trace_facts=_facts(trace),
        results=results,
        rows=rows,
        notes=_notes(results[0]),
    )


def _folder(policy: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=@-]+", "_", policy).strip("._") or "policy"


def _facts(trace: Trace) -> dict[str, Any]:
    facts = describe(trace)
    sizes = ", ".join(f"{count:,} x {size}" for size, count in list(facts["gpu_sizes"].items())[:6])
    more = " ..." if len(facts["gpu_sizes"]) > 6 else ""
    return {
        "trace": Path(trace.source).name,
        "jobs": len(trace),
        "users": facts["users"] or "not said",
        "GPUs per job": sizes + more,
        "mean run time (s)": round(facts["run"]["mean"], 2),
    }


def _notes(result: Result) -> list[str]:
    notes = ["GPUs are simulated: the schedules are exact, but no job was run and no power was measured."]
    if result.trace.dropped:
        dropped = ", ".join(f"{count:,} ({why})" for why, count in result.trace.dropped.items())
        notes.append(f"Left out when the trace was read: {dropped}.")
    if result.rejected:
        notes.append(f"{len(result.rejected):,} jobs can never run on this cluster and were rejected.")
    return notes
