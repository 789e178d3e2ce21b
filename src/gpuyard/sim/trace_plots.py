"""Figures of a trace itself: when jobs arrive, what they ask for over time, how long they run, how wide they are."""

from __future__ import annotations

import math
from datetime import UTC
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpuyard.figures.axes import count_axis, elapsed_axis, label_x, percent_axis, time_ticks, time_unit
from gpuyard.figures.style import BLUE, ORANGE, PALE, RED, clipped, new_figure, save, styled
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
    """Jobs submitted, in equal steps of time."""
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
    """GPUs in use if every job started as soon as it came: above the machine's size, jobs have to wait."""
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
    """How many jobs run how long, on a logarithmic axis, and the share that runs no longer."""
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
    """How many jobs ask for how many GPUs, beside the GPU time that they take."""
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
    """Times as the axis counts them: dates are days since 1970."""
    if are_dates(first, last):
        return times / 86400.0
    return (times - first) / time_unit(last - first)[0]


def _wanted(trace: Trace, edges: Floats) -> Floats:
    """Mean GPUs in each step, from the GPU time that has been asked for up to each edge."""
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
    """Sizes, or powers of two where there are many, with jobs and GPU time of each."""
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
    label_x(axes, ticks)


def _percent(value: float) -> str:
    """Empty below a thousandth: such a bar is not seen, and its text would touch the next."""
    return f"{value:.0%}" if value >= 0.1 else f"{value:.1%}" if value >= 0.001 else ""
