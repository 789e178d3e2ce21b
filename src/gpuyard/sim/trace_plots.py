"""Figures and files of a trace, of sweeps over it, and of filling a cluster with it (`inflate`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpuyard.figures.axes import (
    count_axis,
    elapsed_axis,
    label_axis,
    percent_axis,
    room_for,
    time_ticks,
    time_unit,
)
from gpuyard.figures.style import (
    BLUE,
    COLOURS,
    MARKS,
    ORANGE,
    PALE,
    RED,
    capital,
    clean,
    clipped,
    legend_beside,
    new_figure,
    save,
    styled,
)
from gpuyard.files import csv_text, write_atomically
from gpuyard.sim.result_files import write_table
from gpuyard.sim.schedule_plots import DURATIONS, METRIC_NAMES
from gpuyard.sim.sweep import Axis, Sweep, Value
from gpuyard.sim.trace import Floats, Trace
from gpuyard.sim.traces.info import demand
from gpuyard.sim.traces.times import are_dates, format_time
from gpuyard.units import format_duration

_BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
_STEPS = 120
_CURVE = 600
_MOST_SIZES = 24
_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}" if float(value).is_integer() else f"{value:g}")


def write_plots(trace: Trace, directory: Path, capacity: int | None = None) -> list[str]:
    """Every figure as PNG and SVG; returns their names."""
    figures = {
        "arrivals": arrivals(trace),
        "demand": demand_over_time(trace, capacity),
        "run_times": run_times(trace),
        "gpu_sizes": gpu_sizes(trace),
    }
    for name, figure in figures.items():
        save(figure, directory, name)
    return list(figures)


def arrivals(trace: Trace) -> Figure:
    first, last = float(trace.submit.min()), float(trace.submit.max())
    with styled():
        figure, axes = _figure(trace, "Jobs submitted")
        if last <= first:
            axes.text(0.5, 0.5, f"all {len(trace):,} jobs arrive at once", ha="center", transform=axes.transAxes)
            axes.set_axis_off()
            return figure
        counts, edges = np.histogram(trace.submit, bins=_STEPS, range=(first, last))
        width = (last - first) / _STEPS
        _time_axis(axes, first, last)
        axes.stairs(counts, _positions(edges, first, last), fill=True, color=BLUE)
        axes.set_ylabel(f"Jobs in {format_duration(width)}")
        count_axis(axes)
        return figure


def demand_over_time(trace: Trace, capacity: int | None = None) -> Figure:
    """GPUs in use if every job started when it came: above the machine's size, jobs have to wait."""
    first, last = float(trace.submit.min()), float((trace.submit + trace.run).max())
    edges = np.linspace(first, last, _CURVE + 1)
    with styled():
        figure, axes = _figure(trace, "GPUs wanted, if every job started when it came")
        _time_axis(axes, first, last)
        wanted = _wanted(trace, edges)
        axes.stairs(wanted, _positions(edges, first, last), fill=True, color=PALE, edgecolor=BLUE, linewidth=0.6)
        if capacity:
            axes.axhline(capacity, color=RED, linewidth=1.2)
            axes.annotate(
                f"{capacity:,} GPUs", (0.995, capacity), xycoords=("axes fraction", "data"), xytext=(0, 3),
                textcoords="offset points", ha="right", color=RED, fontsize=8, bbox=_BOX,
            )  # fmt: skip
        axes.set_ylim(0, 1.08 * max(float(wanted.max()), float(capacity or 0), 1.0))
        axes.set_ylabel("GPUs")
        axes.yaxis.set_major_formatter(_THOUSANDS)
        return figure


def run_times(trace: Trace) -> Figure:
    """A histogram on a logarithmic axis, and the share of jobs that run no longer."""
    low, high = float(trace.run.min()), float(trace.run.max())
    low, high = (low, high) if high > low else (low / 2, high * 2)
    edges = np.geomspace(low, high, min(_STEPS // 2, max(10, int(20 * math.log10(high / low)))) + 1)
    edges[0], edges[-1] = low, high  # rounding must not lose the shortest and the longest
    counts, _ = np.histogram(trace.run, bins=edges)
    with styled():
        figure, axes = _figure(trace, "Run times")
        axes.stairs(counts, edges, fill=True, color=PALE)
        axes.set_xscale("log")
        axes.set_xlim(low / 1.1, high * 1.1)
        axes.set_ylabel("Jobs")
        count_axis(axes)
        axes.set_xlabel("Run time (log scale)")
        _duration_ticks(axes, low, high)
        share = axes.twinx()
        share.plot(
            np.sort(trace.run), np.arange(1, len(trace) + 1) / len(trace), "-", color=BLUE, drawstyle="steps-post"
        )
        share.set_ylim(0, 1.02)
        share.set_ylabel("Share of jobs that run no longer", color=BLUE)
        percent_axis(share.yaxis)
        share.spines["right"].set_visible(True)
        median = float(np.median(trace.run))
        share.axvline(median, color=RED, linewidth=1.0, linestyle=(0, (4, 2)))
        share.annotate(
            f"median {format_duration(median)}", (median, 1.0), xytext=(4, 0), textcoords="offset points",
            va="top", color=RED, fontsize=8, bbox=_BOX,
        )  # fmt: skip
        return figure


def gpu_sizes(trace: Trace) -> Figure:
    labels, counts, hours = _by_size(trace)
    places = np.arange(len(labels))
    with styled():
        figure, axes = _figure(trace, "Jobs and GPU time by GPUs per job")
        for offset, values, colour, name in ((-0.2, counts, BLUE, "jobs"), (0.2, hours, ORANGE, "GPU time")):
            share = values / max(values.sum(), 1e-300)
            bars = axes.bar(places + offset, share, width=0.4, color=colour, label=name)
            if len(labels) <= 12:
                axes.bar_label(bars, [_percent(value) for value in share], padding=2, fontsize=7)
        if len("  ".join(labels)) <= 90:
            axes.set_xticks(places, labels)
        else:
            axes.set_xticks(places, labels, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_xlabel("GPUs per job")
        axes.set_ylabel("Share")
        percent_axis(axes.yaxis)
        axes.margins(y=0.12)
        axes.set_xlim(-0.7, max(len(labels) - 0.3, 3.7))  # a single size must not fill the picture
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.1)
        return figure


def _figure(trace: Trace, title: str) -> tuple[Figure, Axes]:
    figure = new_figure(10, 4.0)
    axes = figure.subplots()
    name = clipped(Path(trace.source).name, 40)
    axes.set_title(f"{title} ({name}, {len(trace):,} job{'' if len(trace) == 1 else 's'})", loc="left")
    axes.grid(axis="y")
    return figure, axes


def _time_axis(axes: Axes, first: float, last: float) -> None:
    """Calendar dates where the times are dates, else time since the first submit."""
    if not are_dates(first, last):
        elapsed_axis(axes, 0.0, last - first)
        return
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC, show_offset=False))  # type: ignore[no-untyped-call]
    axes.set_xlabel(f"Time (UTC), {format_time(first)[:10]} to {format_time(last)[:10]}")
    axes.set_xlim(*_positions(np.array([first, last]), first, last))


def _positions(times: Floats, first: float, last: float) -> Floats:
    """Times on the axis: dates are days since 1970."""
    if are_dates(first, last):
        return times / 86400.0
    return (times - first) / time_unit(last - first)[0]


def _wanted(trace: Trace, edges: Floats) -> Floats:
    size = demand(trace)
    total = np.zeros(len(edges))
    for moment, sign in ((trace.submit, 1.0), (trace.submit + trace.run, -1.0)):
        order = np.argsort(moment, kind="stable")
        at, weight = moment[order], size[order]
        count = np.searchsorted(at, edges, side="right")
        weights, moments = np.append(0.0, np.cumsum(weight)), np.append(0.0, np.cumsum(weight * (at - edges[0])))
        total += sign * ((edges - edges[0]) * weights[count] - moments[count])
    means: Floats = np.maximum(np.diff(total) / np.diff(edges), 0.0)
    return means


def _by_size(trace: Trace) -> tuple[list[str], Floats, Floats]:
    sizes = trace.gpus
    if len(np.unique(sizes)) > _MOST_SIZES:
        sizes = np.where(sizes > 0, 2 ** np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64), 0)
        names = [str(top) if top <= 2 else f"{top // 2 + 1}-{top}" for top in np.unique(sizes).tolist()]
    else:
        names = [str(size) for size in np.unique(sizes).tolist()]
    _, groups = np.unique(sizes, return_inverse=True)
    counts = np.bincount(groups, minlength=len(names)).astype(np.float64)
    times = np.bincount(groups, weights=demand(trace) * trace.run, minlength=len(names))
    return names, counts, times.astype(np.float64)


def _duration_ticks(axes: Axes, low: float, high: float) -> None:
    ticks = time_ticks(low, high, 1.1)
    if len(ticks) < 3:
        # A short range has no room for decades: round numbers of the unit that suits it.
        divisor, unit = next(
            ((size, unit) for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")) if high >= 3 * size),
            (1.0, "s"),
        )
        steps = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(low / divisor, high / divisor)
        fine = [(at * divisor, f"{at:,.10g} {unit}") for at in steps if low / 1.1 <= at * divisor <= high * 1.1]
        ticks = fine if len(fine) > len(ticks) else ticks
    label_axis(axes.xaxis, ticks)


def _percent(value: float) -> str:
    """Empty below a thousandth: such a bar is not seen, and its text would touch the next."""
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}" if value >= 0.001 else ""


_AXIS_NAMES = {
    "load": "Load (times the trace's own arrival rate)",
    "gpus": "GPUs",
    "nodes": "Nodes x GPUs",
    "quantum": "Quantum",
    "restart-cost": "Restart cost",
    "round": "Round (s)",
    "estimate": "Estimates",
}
_TITLE_NAMES = {"gpus": "GPUs", "restart-cost": "restart cost"}
_WIDE_RANGE = 40.0
_MOST_TICKS = 12
_PANEL = 400.0  # points from left to right, beside the longest legend


def trend(found: Sweep, metric: str) -> Figure:
    """One line per policy over the varied values; with several seeds, a band of confidence."""
    name = METRIC_NAMES.get(metric, metric)
    with styled():
        figure = new_figure(9, 4.6)
        axes = figure.subplots()
        place = _value_axis(axes, found.axis)
        divisor = _metric_axis(axes, metric, name, [row[metric] for row in found.rows if row.get(metric) is not None])
        for k, policy in enumerate(found.policies):
            rows = [row for row in found.rows if row["policy"] == policy and row.get(metric) is not None]
            x = np.array([place[row["value"]] for row in rows])
            y = np.array([row[metric] for row in rows]) / divisor
            ends = np.array([row.get(f"{metric}_ci", (row[metric], row[metric])) for row in rows]).reshape(-1, 2)
            order = np.argsort(x, kind="stable")
            colour, mark = COLOURS[k % len(COLOURS)], MARKS[k // len(COLOURS) % len(MARKS)]
            label = clipped(policy, 30)
            axes.plot(x[order], y[order], color=colour, marker=mark, markersize=4, linewidth=1.6, label=label)
            axes.fill_between(x[order], *(ends[order].T / divisor), color=colour, alpha=0.15, linewidth=0)
        axes.set_title(f"{capital(name)} by {_TITLE_NAMES.get(found.axis.name, clean(found.axis.name))}", loc="left")
        axes.grid()
        legend_beside(figure)
        return figure


def _value_axis(axes: Axes, axis: Axis) -> dict[Value, float]:
    """The position of each value: at itself if it is a number, else side by side."""
    axes.set_xlabel(_AXIS_NAMES.get(axis.name, clean(axis.name)))
    if all(isinstance(value, float) for value in axis.values):
        _number_axis(axes, [float(value) for value in axis.values])
        return {value: float(value) for value in axis.values}
    ticks = [(float(k), clipped(str(value), 24)) for k, value in enumerate(axis.values)]
    axes.set_xlim(-0.06 * len(ticks), len(ticks) - 1 + 0.06 * len(ticks))
    crowded = not room_for(axes, ticks, _PANEL)
    label_axis(axes.xaxis, ticks)
    if crowded:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    return {value: float(k) for k, value in enumerate(axis.values)}


def _number_axis(axes: Axes, values: Sequence[float]) -> None:
    """A tick at every value if they fit, on a logarithmic axis if need be (64, 128, 256 ... 4096)."""
    if len(values) > _MOST_TICKS:
        return
    ticks, low, high = [(value, f"{value:,.10g}") for value in values], min(values), max(values)
    axes.set_xlim(low - 0.05 * (high - low or 1.0), high + 0.05 * (high - low or 1.0))
    if room_for(axes, ticks, _PANEL):
        label_axis(axes.xaxis, ticks)
    elif low > 0:
        axes.set_xscale("log")
        axes.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** 0.05)
        if room_for(axes, ticks, _PANEL):
            label_axis(axes.xaxis, ticks)
        axes.set_xlabel(f"{axes.get_xlabel()} (log scale)")


def _metric_axis(axes: Axes, metric: str, name: str, heights: Sequence[float]) -> float:
    """Set up the y axis for these numbers; returns their divisor."""
    low, high = min(heights, default=0.0), max(heights, default=1.0)
    if low <= 0 or high / low <= _WIDE_RANGE:
        divisor, unit = time_unit(high) if metric in DURATIONS else (1.0, "")
        axes.set_ylim(0, 1.06 * high / divisor or 1.0)
        axes.set_ylabel(capital(f"{name} ({unit})" if unit else name))
        return divisor
    axes.set_yscale("log")
    axes.set_ylim(low / 1.2, high * 1.2)
    axes.set_ylabel(capital(f"{name} (log scale)"))
    if metric in DURATIONS:
        label_axis(axes.yaxis, time_ticks(low, high))
    return 1.0


def write_sweep(found: Sweep, metric: str, document: dict[str, Any], directory: Path) -> None:
    """`sweep.csv`, `sweep.json`, and the curve as PNG and SVG."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"policy": row["policy"], found.axis.name: row["value"], **row} for row in found.rows]
    write_table(directory / "sweep.csv", [{k: v for k, v in row.items() if k != "value"} for row in rows])
    write_atomically(directory / "sweep.json", json.dumps(document, indent=2).encode() + b"\n")
    save(trend(found, metric), directory, "sweep")


def write_filling(facts: dict[str, Any], directory: Path) -> None:
    """`metrics.json`, `curve.csv`, and `curve` as PNG and SVG."""
    directory.mkdir(parents=True, exist_ok=True)
    points = ([f"{value:.4f}" for value in point] for point in facts["curve"])
    write_atomically(directory / "curve.csv", csv_text(("demand", "allocation", "fragmentation"), points).encode())
    metrics = {name: value for name, value in facts.items() if name != "curve"}
    write_atomically(directory / "metrics.json", json.dumps(metrics, indent=2).encode() + b"\n")
    save(filling(facts), directory, "curve")


def filling(facts: dict[str, Any]) -> Figure:
    demand, allocation, fragmentation = zip(*facts["curve"], strict=True)
    top = max(100.0, demand[-1])
    with styled():
        figure = new_figure(8, 4.5)
        axes = figure.subplots()
        axes.plot((0, 100, top), (0, 100, 100), color="#8a8a8a", linestyle=(0, (4, 3)), linewidth=1, label="ideal")
        axes.plot(demand, allocation, color=BLUE, label=f"allocated: {facts['allocation']:.1f} % in the end")
        axes.plot(demand, fragmentation, color=RED, label=f"fragmented: {facts['fragmentation']:.1f} % in the end")
        axes.set_title(clean(f"Filling {facts['gpus']:,} GPUs, placement {facts['placement']}"), loc="left")
        axes.set_xlabel("GPUs wanted by the jobs that have arrived (% of the cluster)")
        axes.set_ylabel("% of the cluster's GPUs")
        axes.set_xlim(0, top)
        axes.set_ylim(0, 104)
        axes.grid()
        axes.legend(loc="upper left", frameon=False)
        return figure
