"""Figures of simulations: curves over time, distributions, how users were served, and a ranking of policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gpuyard.figures.axes import (
    count_axis,
    elapsed_axis,
    label_axis,
    label_rows,
    log_time_axis,
    percent_axis,
    room_for,
    time_unit,
)
from gpuyard.figures.html_page import number
from gpuyard.figures.style import (
    BLUE,
    COLOURS,
    DARK,
    DASHED,
    LIGHT,
    PALE,
    RED,
    capital,
    clean,
    figure_title,
    legend_beside,
    new_figure,
    save,
    shorten,
    styled,
)
from gpuyard.sim.gantt import gantt
from gpuyard.sim.summary import MAX_STEPS, Curve, Spread, Summary, baseline
from gpuyard.sim.trace import Floats
from gpuyard.units import format_duration

__all__ = ["by_group", "cdfs", "gantt", "queue_length", "ranking", "save", "utilisation"]

HIGHER_IS_BETTER = frozenset({"completed", "throughput", "utilization", "fairness"})
_STATISTICS = {
    "mean": "mean {}",
    "median": "median {}",
    "p95": "95th percentile of {}",
    "p99": "99th percentile of {}",
    "max": "longest {}",
}
_TIMES = {"jct": "job completion time", "wait": "waiting time", "tardiness": "tardiness"}
DURATIONS = frozenset(f"{time}_{key}" for time in _TIMES for key in _STATISTICS) | {"turnaround_mean", "makespan"}
METRIC_NAMES = {
    **{f"{time}_{key}": text.format(name) for time, name in _TIMES.items() for key, text in _STATISTICS.items()},
    **{f"slowdown_{key}": text.format("bounded slowdown") for key, text in _STATISTICS.items()},
    "slowdown_max": "largest bounded slowdown",
    "turnaround_mean": "mean job completion time",
    "throughput": "jobs completed per second",
    "utilization": "share of GPU time in use",
    "energy_kwh": "energy (kWh)",
    "gpu_seconds": "GPU-seconds",
    "deadline_missed": "missed deadlines",
    "fairness": "fairness between users (1 is even)",
    "jobs_per_second": "jobs simulated per second",
}
FEW_BINS = 48
SOME_BINS = 240
MAX_BARS = 60
MAX_DOTS = 60
_CROWDED = 8
_EMPHASISED = 6  # lines in colour, where there are more than can be told apart; the others are grey
_PANELS = 6
_SHARED = "_"
_GREY = "#b9bec5"
_WIDE_PANEL = 500.0  # points from left to right of a panel by itself, beside the names of policies


@dataclass(frozen=True, slots=True)
class _Line:
    label: str  # empty: not named on its own; `_SHARED`: under the name of another with the same schedule
    options: dict[str, Any]


def utilisation(summaries: Sequence[Summary]) -> Figure:
    """Share of the GPUs in use over time; of several policies, the best and the baseline in a panel each."""
    with styled():
        if len(summaries) > 1:
            return _utilisation_panels(summaries)
        figure, axes = _over_time(summaries, [s.utilisation for s in summaries], "GPUs in use", MAX_STEPS)
        _share_axis(axes)
        return figure


def _utilisation_panels(summaries: Sequence[Summary]) -> Figure:
    # Utilisation jumps at every start and end: such lines over each other hide one another, so each gets a panel.
    lines = _lines(summaries)
    span = max(s.utilisation.span for s in summaries)
    divisor, unit = time_unit(span)
    shown = [k for k, line in enumerate(lines) if line.label not in ("", _SHARED)][:_PANELS]
    if (base := baseline(summaries)) is not None and (k := list(summaries).index(base)) not in shown:
        shown = [*shown[: _PANELS - 1], *([k] if lines[k].label != _SHARED else [])]
    curves = [s.utilisation.means(span, FEW_BINS) for s in summaries]
    figure = new_figure(11, 1.0 + 1.75 * -(-len(shown) // 2))
    panels = figure.subplots(-(-len(shown) // 2), 2, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, k in zip(panels, shown, strict=False):
        for curve in curves:
            axes.plot(curve.times / divisor, curve.values, drawstyle="steps-post", color=_GREY, linewidth=0.5, zorder=1)
        colour, own = lines[k].options["color"], curves[k]
        axes.fill_between(own.times / divisor, own.values, step="post", color=colour, alpha=0.18, linewidth=0)
        axes.plot(own.times / divisor, own.values, drawstyle="steps-post", color=colour, linewidth=1.6)
        axes.set_title(lines[k].label, loc="left")
        axes.set_xlim(0, span / divisor or 1.0)
        axes.grid()
        _share_axis(axes)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
        panels[len(shown) - 2].tick_params(labelbottom=True)  # the panel below it is hidden, with its times
    figure.supxlabel(
        f"Time since the first submit ({unit}); averaged over {format_duration(span / FEW_BINS)}", fontsize=9
    )
    figure_title(figure, "GPUs in use over time (grey: all policies)")
    return figure


def _share_axis(axes: Axes) -> None:
    percent_axis(axes.yaxis)
    axes.set_ylim(0, 1.04)


def queue_length(summaries: Sequence[Summary]) -> Figure:
    with styled():
        bins = MAX_STEPS if len(summaries) == 1 else SOME_BINS
        figure, axes = _over_time(summaries, [s.queue for s in summaries], "Jobs waiting", bins)
        count_axis(axes)
        return figure


def cdfs(summaries: Sequence[Summary]) -> Figure:
    """Distributions of completion times, waiting times and slowdowns, one line per policy."""
    with styled():
        lines = _lines(summaries)
        figure = new_figure(12.5 if len(lines) > 1 else 11, 4.2)
        left, middle, right = figure.subplots(1, 3, sharey=True)
        room = _panel_width(lines)
        for axes, name, spreads in (
            (left, f"Completion time{_alone(lines)}", [s.jct for s in summaries]),
            (middle, "Waiting time", [s.wait for s in summaries]),
        ):
            scale = _time_scale(axes, np.concatenate([*(s.values for s in spreads), np.empty(0)]), room)
            _cdf_panel(axes, lines, name, spreads, scale)
        _cdf_panel(right, lines, "Bounded slowdown", [s.slowdown for s in summaries], 1.0)
        _factor_scale(right, [s.slowdown.values for s in summaries], room)
        right.set_xlabel("Times as long as alone (log scale)")
        left.set_ylabel("Share of completed jobs")
        percent_axis(left.yaxis)
        _legend(figure, lines)
        return figure


def by_group(summaries: Sequence[Summary]) -> Figure:
    """How evenly users are served: a dot per user and policy, larger for those with more GPU time."""
    shown = summaries[:MAX_BARS]
    kind = shown[0].groups.kind
    names = f"{kind}s" if len(kind) > 2 else f"{kind.upper()}s"
    with styled():
        figure = new_figure(9, 1.2 + 0.27 * max(len(shown), 2))
        axes = figure.subplots()
        for row, summary in enumerate(shown):
            groups, slowdown = summary.groups, summary.groups.mean_slowdown
            share = groups.gpu_seconds / max(float(groups.gpu_seconds.max(initial=0.0)), 1e-9)
            axes.plot([slowdown.min(), slowdown.max()], [row, row], color=LIGHT, linewidth=3, zorder=1)
            axes.scatter(
                slowdown[:MAX_DOTS], np.full(len(slowdown[:MAX_DOTS]), row), s=8 + 60 * share[:MAX_DOTS],
                color=BLUE, alpha=0.45, linewidths=0, zorder=2,
            )  # fmt: skip
            axes.plot(np.median(slowdown), row, marker="|", color=RED, markersize=11, markeredgewidth=2)
        label_rows(axes, [s.policy for s in shown])
        _factor_scale(axes, [s.groups.mean_slowdown for s in shown], _WIDE_PANEL)
        axes.set_xlabel("Mean bounded slowdown (log scale)")
        axes.set_title(f"Slowdown of {names}: a dot each, sized by GPU time; the bar is their median", loc="left")
        return figure


def ranking(rows: Sequence[dict[str, Any]], metric: str = "jct_mean") -> Figure:
    """Horizontal bars of one metric per policy, the best at the top; a policy without a value comes last."""
    sign = -1.0 if metric in HIGHER_IS_BETTER else 1.0
    order = sorted(rows, key=lambda row: (math.isnan(number(row.get(metric))), sign * number(row.get(metric))))
    shown = order[:MAX_BARS]
    values = np.array([number(row.get(metric)) for row in shown])
    finite = values[np.isfinite(values)]
    divisor, unit = time_unit(float(finite.max(initial=0.0))) if metric in DURATIONS else (1.0, "")
    name = METRIC_NAMES.get(metric, metric)
    with styled():
        figure = new_figure(9, 1.1 + 0.27 * max(len(shown), 2))
        axes = figure.subplots()
        colours = [BLUE if value == values[0] else PALE for value in values]
        bars = axes.barh(range(len(shown)), np.nan_to_num(values) / divisor, color=colours, height=0.72)
        sure = _draw_intervals(axes, shown, metric, divisor)
        texts = [_value_text(v, metric) for v in values]
        # Past the end of the whisker, not across it.
        reach = [max(0.0, high - value) for value, (_, high) in zip(values, _intervals(shown, metric), strict=True)]
        for row, (bar, text) in enumerate(zip(bars, texts, strict=True)):
            axes.annotate(
                text, (bar.get_width() + reach[row] / divisor, row), (5, 0), textcoords="offset points",
                va="center", fontsize=8,
            )  # fmt: skip
        label_rows(axes, [str(row["policy"]) for row in shown])
        axes.set_xlim(0)
        axes.margins(x=0.16)
        axes.set_xlabel(capital(f"{name} ({unit})" if unit else name))
        better = "higher" if sign < 0 else "lower"
        cut = "" if len(shown) == len(order) else f", the best {len(shown)} of {len(order)}"
        whiskers = "; whiskers: 95% confidence" if sure else ""
        axes.set_title(f"Policies by {name}{cut} ({better} is better{whiskers})", loc="left")
        return figure


def _intervals(rows: Sequence[dict[str, Any]], metric: str) -> list[tuple[float, float]]:
    """Each row's confidence interval; its value twice where it has none."""
    found = []
    for row in rows:
        value = number(row.get(metric))
        low, high = row.get(f"{metric}_ci") or (value, value)
        found.append((low, high) if math.isfinite(value) else (0.0, 0.0))
    return found


def _draw_intervals(axes: Axes, rows: Sequence[dict[str, Any]], metric: str, divisor: float) -> bool:
    drawn = False
    for y, (low, high) in enumerate(_intervals(rows, metric)):
        if high > low:
            axes.errorbar(
                (low + high) / 2 / divisor, y, xerr=(high - low) / 2 / divisor, color=DARK, capsize=2.5,
                linewidth=1, capthick=1,
            )  # fmt: skip
            drawn = True
    return drawn


def _lines(summaries: Sequence[Summary]) -> list[_Line]:
    """Styles by rank, which is the order given: a policy looks alike in all figures of a comparison.

    Policies that came to the same schedule share a line: of lines over each other only one colour would be seen.
    """
    alike: dict[bytes, list[Summary]] = {}
    for summary in summaries:
        alike.setdefault(_fingerprint(summary), []).append(summary)
    crowded, base = len(alike) > _CROWDED, baseline(summaries)
    styles: dict[str, _Line] = {}
    for rank, (first, *others) in enumerate(alike.values()):
        names = [first.policy, *(other.policy for other in others)]
        label = clean(shorten(" = ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else ""), 44))
        if not crowded or rank < _EMPHASISED:
            options = {"color": COLOURS[rank], "linewidth": 1.8 if crowded else 1.5, "zorder": 4.0 - rank / 10}
        elif base is not None and base.policy in names:
            options = {"color": DARK, "linewidth": 1.5, "linestyle": DASHED, "zorder": 3.0}
        else:
            label, options = "", {"color": _GREY, "linewidth": 0.8, "zorder": 2.0}
        styles[first.policy] = _Line(label, options)
        styles |= {other.policy: _Line(_SHARED, options) for other in others}
    return [styles[summary.policy] for summary in summaries]


def _fingerprint(summary: Summary) -> bytes:
    return b"|".join(values.tobytes() for values in (summary.jct.values, summary.queue.times, summary.queue.values))


def _alone(lines: Sequence[_Line]) -> str:
    """The policy, for a title: a single line needs no legend."""
    return f": {lines[0].label}" if len(lines) == 1 else ""


def _legend(figure: Figure, lines: Sequence[_Line]) -> None:
    handles = [Line2D([], [], label=line.label, **line.options) for line in lines if line.label not in ("", _SHARED)]
    if unnamed := [line for line in lines if not line.label]:
        handles.append(Line2D([], [], label=f"{len(unnamed)} others", **unnamed[0].options))
    if len(handles) < 2:
        return
    legend_beside(figure, handles=handles, handlelength=2.6, title="Best mean JCT first")


def _over_time(summaries: Sequence[Summary], curves: Sequence[Curve], name: str, bins: int) -> tuple[Figure, Axes]:
    span = max([0.0, *(curve.span for curve in curves)])
    lines = _lines(summaries)
    figure = new_figure(11, 4.2)
    axes = figure.subplots()
    divisor = elapsed_axis(axes, 0.0, span)
    binned = any(curve.averaged or len(curve.times) > bins for curve in curves)
    for line, curve in zip(lines, curves, strict=True):
        if line.label == _SHARED:
            continue
        shown = curve.means(span, bins) if binned and (len(curves) > 1 or not curve.averaged) else curve
        axes.plot(shown.times / divisor, shown.values, drawstyle="steps-post", label=line.label or "_", **line.options)
    note = f" (averaged over steps of {format_duration(span / bins)})" if binned else ""
    axes.set_title(f"{name} over time{_alone(lines)}{note}", loc="left")
    axes.set_ylabel(name)
    axes.grid()
    _legend(figure, lines)
    return figure, axes


def _cdf_panel(axes: Axes, lines: Sequence[_Line], name: str, spreads: Sequence[Spread], scale: float) -> None:
    for line, spread in zip(lines, spreads, strict=True):
        if len(spread.values) and line.label != _SHARED:
            x, y = np.append(spread.values[:1], spread.values) / scale, np.append(0.0, spread.shares)
            axes.plot(x, y, drawstyle="steps-post", label=line.label or "_", **line.options)
    axes.set_title(name, loc="left")
    axes.set_ylim(0, 1.02)
    axes.grid()


def _panel_width(lines: Sequence[_Line]) -> float:
    legend = 0.75 + 0.065 * max(19, *(len(line.label) for line in lines)) if len(lines) > 1 else 0.0
    return ((12.5 if len(lines) > 1 else 11.0) - 0.7 - legend) / 3 * 72


def _time_scale(axes: Axes, sample: Floats, width: float) -> float:
    """Set up the x axis for these times; returns their divisor."""
    positive = sample[sample > 0]
    low, high = float(positive.min(initial=math.inf)), float(positive.max(initial=0.0))
    if len(positive) == 0 or high / low <= 100:
        divisor, unit = time_unit(high)
        axes.set_xlabel(f"Time ({unit})")
        axes.set_xlim(0, high / divisor * 1.02 or 1.0)
        return divisor
    linear = 10.0 ** math.floor(math.log10(max(low, high * 1e-5))) if len(positive) < len(sample) else None
    log_time_axis(axes, low, high, width, linear=linear)
    axes.set_xlabel("Time (log scale)")
    return 1.0


def _factor_scale(axes: Axes, samples: Sequence[Floats], width: float) -> None:
    """A logarithmic axis for numbers from 1 on, with ticks that read as numbers."""
    high = max([2.0, *(float(sample.max(initial=1.0)) for sample in samples)])
    axes.set_xscale("log")
    axes.set_xlim(0.96, high * 1.15)
    choices = [
        [
            (at, f"{at:,.0f}" if at >= 10 else f"{at:g}")
            for power in powers
            for base in bases
            if (at := base * 10.0**power) <= high * 1.1
        ]
        for powers, bases in _FACTOR_TICKS
    ]
    # The finest that fits as a whole: some numbers left out here and there would look like a mistake.
    label_axis(axes.xaxis, next((ticks for ticks in choices if room_for(axes, ticks, width)), choices[-1]))


_FACTOR_TICKS: tuple[tuple[range, tuple[float, ...]], ...] = (
    (range(9), (1, 1.2, 1.5, 2, 3, 4, 5, 7)),
    (range(9), (1, 1.5, 2, 3, 5)),
    (range(9), (1, 2, 5)),
    (range(9), (1,)),
    (range(0, 9, 2), (1,)),
    (range(0, 9, 4), (1,)),
)


def _value_text(value: float, metric: str) -> str:
    if math.isnan(value):
        return "no value"
    if metric in DURATIONS:
        return format_duration(value)
    return f"{value:.1%}" if metric == "utilization" else f"{value:,.4g}"
