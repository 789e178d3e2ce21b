"""Figures of simulation results: Gantt chart, curves over time, distributions, ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from gpuyard.sim.figures import clean, first_submit, new_figure, save, shorten, styled, time_unit
from gpuyard.sim.gantt import gantt
from gpuyard.sim.result import Result, Segments
from gpuyard.sim.trace import Floats
from gpuyard.units import format_duration

__all__ = ["by_mean_jct", "cdfs", "gantt", "queue_length", "ranking", "save", "utilisation"]

HIGHER_IS_BETTER = frozenset({"completed", "throughput", "utilization", "fairness"})
DURATIONS = frozenset({"jct_mean", "jct_median", "jct_p95", "jct_p99", "wait_mean", "wait_p99", "wait_max", "makespan"})
METRIC_NAMES = {
    "jct_mean": "mean job completion time",
    "jct_median": "median job completion time",
    "jct_p95": "95th percentile of job completion time",
    "jct_p99": "99th percentile of job completion time",
    "wait_mean": "mean waiting time",
    "wait_p99": "99th percentile of waiting time",
    "wait_max": "longest wait",
    "slowdown_mean": "mean slowdown",
    "energy_kwh": "energy (kWh)",
}
MAX_BINS = 1000
FEW_BINS = 48
MAX_NAMED = 24  # more lines than this cannot be told apart, whatever their style
MAX_BARS = 60
_EMPHASISED = 3
_CROWDED = 8
_COLOURS = ("#1f6fb4", "#d1493f", "#2f9e44", "#ee8a12", "#8a56ac", "#7a5238", "#12a5b8", "#444444")
_STYLES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (4, 1.4, 1, 1.4)), (0, (1.2, 1.2)))
_TICKS = (
    (0.001, "1 ms"), (0.01, "10 ms"), (0.1, "0.1 s"), (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"),
    (600.0, "10 min"), (3600.0, "1 h"), (21600.0, "6 h"), (86400.0, "1 d"), (864e3, "10 d"), (864e4, "100 d"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Line:
    """How one result is drawn, the same in every figure."""

    result: Result
    label: str
    """Empty: not named on its own."""
    options: dict[str, Any]


def utilisation(results: Sequence[Result]) -> Figure:
    """Share of the GPUs in use over time; a job on part of a GPU counts as that part."""
    curves = [_busy_steps(result) for result in results]
    with styled():
        # Utilisation jumps at every start and end: a few such lines over each other hide one another.
        bins = MAX_BINS if len(results) == 1 else FEW_BINS
        figure, axes = _over_time(results, curves, "GPUs in use", bins)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_ylim(0, 1.04)
        return figure


def queue_length(results: Sequence[Result]) -> Figure:
    """Jobs waiting over time: submitted and not running, so a preempted job waits again."""
    with styled():
        figure, axes = _over_time(results, [_waiting_steps(result) for result in results], "Jobs waiting")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        return figure


def cdfs(results: Sequence[Result]) -> Figure:
    """Distribution of completion times and of waiting times, one line per policy."""
    with styled():
        lines = _lines(results)
        figure = _line_figure(lines)
        left, right = figure.subplots(1, 2, sharey=True)
        _cdf_panel(left, lines, f"Job completion time{_alone(lines)}", [r.end - r.trace.submit for r in results])
        _cdf_panel(right, lines, "Waiting time", [_waits(r) for r in results])
        left.set_ylabel("Share of completed jobs")
        left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _legend(figure, lines)
        return figure


def ranking(rows: Sequence[dict[str, Any]], metric: str = "jct_mean") -> Figure:
    """Horizontal bars of one metric per policy, the best at the top; a policy without a value comes last."""
    sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
    order = sorted(rows, key=lambda row: (math.isnan(_number(row, metric)), sign * _number(row, metric)))
    shown = order[:MAX_BARS]
    values = np.array([_number(row, metric) for row in shown])
    finite = values[np.isfinite(values)]
    divisor, unit = time_unit(float(finite.max(initial=0.0))) if metric in DURATIONS else (1.0, "")
    name = METRIC_NAMES.get(metric, metric)
    with styled():
        figure = new_figure(9, 1.1 + 0.27 * max(len(shown), 2))
        axes = figure.subplots()
        colours = [_COLOURS[0] if value == values[0] else "#a9bfd4" for value in values]
        bars = axes.barh(range(len(shown)), np.nan_to_num(values) / divisor, color=colours, height=0.72)
        axes.bar_label(bars, [_value_text(v, metric) for v in values], padding=4, fontsize=8)
        axes.set_yticks(range(len(shown)), [clean(shorten(str(row["policy"]), 40)) for row in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.margins(x=0.16)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{name} ({unit})" if unit else name)
        better = "higher" if sign < 0 else "lower"
        cut = "" if len(shown) == len(order) else f", the best {len(shown)} of {len(order)}"
        axes.set_title(f"Policies by {name}{cut} ({better} is better)", loc="left")
        return figure


def by_mean_jct(results: Sequence[Result]) -> list[int]:
    """Positions of the results, the lowest mean completion time first; without any completed job, last."""

    def key(i: int) -> tuple[float, int]:
        done = results[i].completed
        jct = results[i].end[done] - results[i].trace.submit[done]
        return (float(jct.mean()) if len(done) else math.inf, i)

    return sorted(range(len(results)), key=key)


def _lines(results: Sequence[Result]) -> list[_Line]:
    """Styles by rank, in the order of `results`: a policy looks alike in all figures of a comparison."""
    crowded = len(results) > _CROWDED
    found: dict[int, _Line] = {}
    for rank, i in enumerate(by_mean_jct(results)):
        named = len(results) <= MAX_NAMED or rank < MAX_NAMED - 1
        options: dict[str, Any] = {
            "color": _COLOURS[rank % len(_COLOURS)] if named else "#c4c4c4",
            "linestyle": _STYLES[rank // len(_COLOURS) % len(_STYLES)] if named else "-",
            "linewidth": 1.5 if not crowded else 2.0 if rank < _EMPHASISED else 0.9,
            "alpha": 1.0 if not crowded or rank < _EMPHASISED else 0.65,
            "zorder": 3.0 - rank / len(results),
        }
        label = clean(shorten(results[i].policy, 36)) if named else ""
        found[i] = _Line(results[i], label, options)
    return [found[i] for i in range(len(results))]


def _line_figure(lines: Sequence[_Line]) -> Figure:
    # One line of legend takes 0.175 inches; a legend longer than the figure would be cut off.
    return new_figure(11, max(4.2, 0.5 + 0.175 * min(len(lines), MAX_NAMED)))


def _alone(lines: Sequence[_Line]) -> str:
    """The policy, for a title: a single line needs no legend."""
    return f": {lines[0].label}" if len(lines) == 1 else ""


def _legend(figure: Figure, lines: Sequence[_Line]) -> None:
    ranked = sorted(lines, key=lambda line: -line.options["zorder"])
    handles = [Line2D([], [], label=line.label, **line.options) for line in ranked if line.label]
    if unnamed := [line for line in ranked if not line.label]:
        handles.append(Line2D([], [], label=f"{len(unnamed)} others", **unnamed[0].options))
    if len(handles) < 2:
        return
    legend = figure.legend(
        handles=handles, loc="outside right upper", frameon=False, fontsize=8, handlelength=2.6,
        title="Best mean JCT first", title_fontsize=8, alignment="left",
    )  # fmt: skip
    if len(lines) > _CROWDED:
        for text in legend.get_texts()[:_EMPHASISED]:
            text.set_fontweight("bold")


def _over_time(
    results: Sequence[Result], curves: Sequence[tuple[Floats, Floats]], name: str, bins: int = MAX_BINS
) -> tuple[Figure, Axes]:
    span = max([0.0, *(float(t[-1]) for t, _ in curves if len(t))])
    divisor, unit = time_unit(span)
    lines = _lines(results)
    figure = _line_figure(lines)
    axes = figure.subplots()
    binned = max([0, *(len(times) for times, _ in curves)]) > bins
    for line, (times, values) in zip(lines, curves, strict=True):
        x, y = _average(times, values, span, bins) if binned else (times, values)
        axes.plot(x / divisor, y, drawstyle="steps-post", label=line.label or "_", **line.options)
    width = format_duration(span / bins)
    note = f" (averaged over steps of {width})" if binned else ""
    axes.set_title(f"{name} over time{_alone(lines)}{note}", loc="left")
    axes.set_xlabel(f"Time since the first submit ({unit})")
    axes.set_ylabel(name)
    axes.set_xlim(0, span / divisor or 1.0)
    axes.grid()
    _legend(figure, lines)
    return figure, axes


def _steps(times: Floats, changes: Floats) -> tuple[Floats, Floats]:
    """Values from each distinct time on, of a quantity that changes at these times."""
    order = np.argsort(times, kind="stable")
    times, total = times[order], np.cumsum(changes[order])
    last = np.append(np.diff(times) > 0, True)[: len(times)]
    # Shares like 0.1 do not add up to nothing again once they are taken away.
    return times[last], np.round(total[last], 9) + 0.0


def _busy_steps(result: Result) -> tuple[Floats, Floats]:
    held = result.segments
    share = result.share[held.job] / result.cluster.gpus
    times = np.concatenate(([0.0], held.start - first_submit(result), held.end - first_submit(result)))
    times, level = _steps(times, np.concatenate(([0.0], share, -share)))
    return times, np.minimum(level, 1.0)  # shares by memory beside shares by compute can add up to more


def _runs(result: Result) -> Segments:
    """The segments with one entry per job and slice, however many GPUs the job held."""
    held = result.segments
    order = np.lexsort((held.end, held.start, held.job))
    columns = [column[order] for column in (held.job, held.start, held.end)]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    kept = order[new]
    return Segments(held.job[kept], held.gpu[kept], held.start[kept], held.end[kept])


def _waiting_steps(result: Result) -> tuple[Floats, Floats]:
    origin, runs = first_submit(result), _runs(result)
    admitted = np.ones(len(result.trace), dtype=bool)
    admitted[list(result.rejected)] = False
    arrive, leave = result.trace.submit[admitted], result.end[result.completed]
    groups = ((arrive, 1.0), (runs.start, -1.0), (runs.end, 1.0), (leave, -1.0))
    times = np.concatenate([times for times, _ in groups]) - origin
    changes = np.concatenate([np.full(len(times), change) for times, change in groups])
    return _steps(np.append(times, 0.0), np.append(changes, 0.0))


def _average(times: Floats, values: Floats, span: float, bins: int) -> tuple[Floats, Floats]:
    """Time-weighted means in equal bins of [0, span]."""
    area = np.concatenate(([0.0], np.cumsum(np.diff(times) * values[:-1])))
    edges = np.linspace(0.0, span, bins + 1)
    means = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return edges, np.append(means, means[-1])


def _waits(result: Result) -> Floats:
    """Completion time less run time, as the metrics have it."""
    return np.maximum(result.end - result.trace.submit - result.trace.run, 0.0)


def _cdf_panel(axes: Axes, lines: Sequence[_Line], name: str, samples: Sequence[Floats]) -> None:
    kept = [np.sort(sample[~np.isnan(sample)]) for sample in samples]
    scale = _time_scale(axes, np.concatenate([*kept, np.empty(0)]))
    for line, sample in zip(lines, kept, strict=True):
        if not len(sample):
            continue
        height = np.arange(1, len(sample) + 1) / len(sample)
        if len(sample) > 2 * MAX_BINS:
            pick = np.linspace(0, len(sample) - 1, 2 * MAX_BINS).astype(np.int64)
            sample, height = sample[pick], height[pick]
        x, y = np.append(sample[:1], sample) / scale, np.append(0.0, height)
        axes.plot(x, y, drawstyle="steps-post", label=line.label or "_", **line.options)
    axes.set_title(name, loc="left")
    axes.set_ylim(0, 1.02)
    axes.grid()


def _time_scale(axes: Axes, sample: Floats) -> float:
    """Set up the x axis for these times; returns what to divide them by."""
    positive = sample[sample > 0]
    low, high = float(positive.min(initial=math.inf)), float(positive.max(initial=0.0))
    if len(positive) == 0 or high / low <= 100:
        divisor, unit = time_unit(high)
        axes.set_xlabel(f"Time ({unit})")
        axes.set_xlim(0, high / divisor * 1.02 or 1.0)
        return divisor
    ticks = _spread([tick for tick in _TICKS if low / 1.2 <= tick[0] <= high * 1.2], math.log10(high / low))
    if len(positive) < len(sample):
        threshold = 10.0 ** math.floor(math.log10(max(low, high * 1e-5)))
        axes.set_xscale("symlog", linthresh=threshold, linscale=0.4)
        ticks = [(0.0, "0"), *(tick for tick in ticks if tick[0] >= threshold)]
        axes.set_xlim(0, high * 1.3)
    else:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
    axes.xaxis.set_major_locator(FixedLocator([at for at, _ in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([text for _, text in ticks])
    axes.set_xlabel("Time (log scale)")
    return 1.0


def _spread(ticks: list[tuple[float, str]], decades: float) -> list[tuple[float, str]]:
    """The ticks without those whose text would touch that of the one before."""
    kept = ticks[:1]
    for tick in ticks[1:]:
        if math.log10(tick[0] / kept[-1][0]) >= 0.1 * decades:
            kept.append(tick)
    return kept


def _number(row: dict[str, Any], metric: str) -> float:
    value = row.get(metric)
    return math.nan if value is None or not math.isfinite(value) else float(value)


def _value_text(value: float, metric: str) -> str:
    if math.isnan(value):
        return "no value"
    if metric in DURATIONS:
        return format_duration(value)
    return f"{value:.1%}" if metric == "utilization" else f"{value:,.4g}"
