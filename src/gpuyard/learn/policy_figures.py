"""Figures of trained policies: training curves, comparisons, losses and preferences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from gpuyard.figures.axes import Tick, label_axis, label_rows, log_time_axis, percent_axis, room_for
from gpuyard.figures.style import (
    BLUE,
    DARK,
    DASHED,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PALE,
    RED,
    capital,
    clipped,
    legend_below,
    new_figure,
    styled,
)
from gpuyard.learn.arena import OBJECTIVES
from gpuyard.learn.evaluation import LEARNED, PREEMPTIVE, Evaluation
from gpuyard.learn.evaluation_summary import CLEARLY
from gpuyard.learn.explanation import UNSEEN, Explanation, Preference
from gpuyard.policies.features import GIB
from gpuyard.sim.trace import Floats

SHOWN_FEATURES = 12
_STATISTICS = (
    ("wait_median", "median", "|", DARK), ("wait_mean", "mean", "o", BLUE),
    ("wait_p99", "99th percentile", "D", ORANGE), ("wait_max", "longest", ">", RED),
)  # fmt: skip


def learning_curve(training: dict[str, Any]) -> Figure:
    curve = training.get("curve") or []
    with styled():
        figure = new_figure(9, 3.8)
        axes = figure.subplots()
        axes.axhline(1.0, color=DARK, linewidth=1, linestyle=DASHED, label="the best heuristic of each window")
        if curve:
            axes.plot([g for g, _, _ in curve], [r for _, r, _ in curve], color=PALE, linewidth=1.2,
                      label="the best candidate of a generation, on windows trained on")  # fmt: skip
        checks = [(g, c) for g, _, c in curve if c is not None]
        if checks:
            at, ratios = np.array(checks, dtype=float).T
            axes.plot(at, np.minimum.accumulate(ratios), drawstyle="steps-post", color=GREEN, linewidth=1.5,
                      label="the least check so far")  # fmt: skip
            label = "a check: the mean candidate, on windows to choose by"
            axes.plot(at, ratios, "o", color=BLUE, markersize=4.5, label=label)
        axes.set_yscale("log")
        _ratio_ticks(axes.yaxis, [1.0, *(r for _, r, _ in curve), *(c for _, c in checks)])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("Generation")
        axes.set_ylabel("Ratio of costs (log scale)")
        axes.set_title("Training: cost relative to the best heuristic of each window (below 1 is better)", loc="left")
        axes.grid()
        legend_below(figure, 2)
        return figure


def ratios(found: Evaluation) -> Figure:
    """Every policy's cost relative to the best heuristic; those that stop jobs apart."""
    rows = {name: found.ratio(name, found.best_heuristic) for name in found.stats}
    names, apart = _ordered(rows)
    low, high = found.interval(LEARNED, found.best_heuristic)
    # Those that stop jobs may be a hundred times better: they must not press the others together.
    values = [low, high, 0.97, 1.03, *(rows[name] for name in names)]
    span = max(values) / min(values)
    least, most = min(values) / span**0.12, max(values) * span**0.3
    with styled():
        figure = new_figure(9, 1.5 + 0.29 * (len(rows) + (0.8 if apart else 0)))
        axes = figure.subplots()
        axes.axvline(1.0, color=DARK, linewidth=1, linestyle=DASHED, zorder=1)
        places = _rows(axes, names, apart)
        for name, y in places.items():
            reach, best = high if name == LEARNED else 0.0, name == found.best_heuristic
            _stem(axes, name, y, rows[name], (least, most), reach, best)
        axes.plot([low, high], [places[LEARNED]] * 2, color=DARK, linewidth=1.1, marker="|", markersize=7, zorder=5)
        axes.set_xscale("log")
        axes.set_xlim(least, most)
        _ratio_ticks(axes.xaxis, (least, most), 480.0, axes)
        axes.grid(axis="x")
        axes.set_xlabel(f"Cost relative to {found.best_heuristic}, geometric mean of windows (log scale)")
        what = f"{capital(OBJECTIVES[found.objective])}, less is better; whisker: 95% confidence"
        axes.set_title(f"{_which(found)}\n{what}", loc="left")
        return figure


def paired(found: Evaluation) -> Figure:
    """Costs of learned and of the best heuristic in each window; losses of learned are red."""
    best = found.best_heuristic
    ours, theirs = found.costs(LEARNED), found.costs(best)
    parted = (
        (ours > theirs * CLEARLY, RED, f"loses by more than {CLEARLY - 1:.0%}"),
        ((ours <= theirs * CLEARLY) & (ours * CLEARLY >= theirs), GREY, f"within {CLEARLY - 1:.0%}"),
        (ours * CLEARLY < theirs, BLUE, f"wins by more than {CLEARLY - 1:.0%}"),
    )
    with styled():
        figure = new_figure(6.4, 6.0)
        axes = figure.subplots()
        least, most = float(min(ours.min(), theirs.min())), float(max(ours.max(), theirs.max()))
        ends = (least / 1.15, most * 1.15)
        axes.plot(ends, ends, color=DARK, linewidth=1, linestyle=DASHED, zorder=1)
        for which, colour, text in parted:
            axes.scatter(
                theirs[which], ours[which], s=24, color=colour, alpha=0.7, linewidths=0, zorder=3,
                label=f"{text}: {which.sum()} of {len(ours)}",
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        for axis in (axes.xaxis, axes.yaxis):
            _ratio_ticks(axis, ends, 300.0, axes if axis is axes.xaxis else None)
        axes.grid()
        axes.set_xlabel(f"Cost under {best} (log scale)")
        axes.set_ylabel("Cost under learned (log scale)")
        axes.set_title(f"{_which(found)}\nA dot per window; above the line learned loses", loc="left")
        legend_below(figure, 3)
        return figure


def waits(found: Evaluation) -> Figure:
    """Waits under each policy: median, mean, 99th percentile and the longest."""
    rows = {name: found.row(name) for name in found.stats}
    names, apart = _ordered({name: row["wait_mean"] for name, row in rows.items()})
    with styled():
        figure = new_figure(9, 1.5 + 0.27 * (len(rows) + (0.8 if apart else 0)))
        axes = figure.subplots()
        places = _rows(axes, names, apart)
        for name, y in places.items():
            values = [_or_none(rows[name][key]) for key, *_ in _STATISTICS]
            axes.plot([min(values), max(values)], [y, y], color=LIGHT, linewidth=2.5, zorder=1)
            for (_, _, marker, colour), value in zip(_STATISTICS, values, strict=True):
                axes.plot(value, y, linestyle="none", color=colour, zorder=3, clip_on=False, **_marker(marker))
        times = np.array([_or_none(row[key]) for row in rows.values() for key, *_ in _STATISTICS])
        _time_axis(axes, times, 480.0)
        axes.grid(axis="x")
        axes.set_xlabel("Wait (log scale)")
        axes.set_title(f"{_which(found)}: waits, the shortest mean first", loc="left")
        handles = [
            Line2D([], [], linestyle="none", label=text, color=colour, **_marker(marker))
            for _, text, marker, colour in _STATISTICS
        ]  # fmt: skip
        legend_below(figure, 4, handles=handles)
        return figure


def _or_none(wait: float) -> float:
    """A wait of less than a second counts as none: it is a rounding error of sums."""
    return wait if wait >= 1.0 else 0.0


def _marker(marker: str) -> dict[str, Any]:
    bar = marker == "|"
    return {"marker": marker, "markersize": 8 if bar else 5, "markeredgewidth": 2 if bar else 0}


def preferences(found: Explanation) -> Figure:
    """The score as each quantity of a job changes, of the policy and of its base; and the weight of features."""
    with styled():
        figure = new_figure(12.5, 6.0)
        panels = figure.subplots(2, 4).flatten()
        reach = [np.concatenate((p.scores, p.base))[np.concatenate((p.inside, p.inside))] for p in found.preferences]
        low, high = (float(f(np.concatenate([*reach, np.zeros(1)]))) for f in (np.min, np.max))
        room = max(high - low, 0.1) * 0.08
        for axes, preference in zip(panels, found.preferences, strict=False):
            _curve(axes, preference, found.base)
            axes.set_ylim(high + room, low - room)  # upside down: the job that is ahead is above
        for axes in (panels[0], panels[4]):
            axes.set_ylabel("Score, the typical job's is 0\n(upside down: higher goes ahead)")
        _importance_bars(panels[7], found)
        handles = [
            Line2D([], [], color=BLUE, linewidth=1.8, label="learned"),
            Line2D([], [], color=GREY, linewidth=1.4, linestyle=DASHED, label=f"{found.base} alone"),
            Line2D([], [], color=BLUE, linewidth=1, alpha=0.45, linestyle=":", label="beyond what it saw in training"),
            Line2D([], [], color=BLUE, marker="o", linestyle="none", markersize=5, label="the typical job"),
        ]
        legend_below(figure, 4, handles=handles)
        return figure


def _curve(axes: Axes, preference: Preference, base: str) -> None:
    quantity, inside = preference.quantity, preference.inside
    values = preference.values / (GIB if quantity.kind == "size" else 1.0)
    axes.plot(values, preference.base, color=GREY, linewidth=1.0, linestyle=":", alpha=0.6)
    axes.plot(values, preference.scores, color=BLUE, linewidth=1.0, linestyle=":", alpha=0.45)
    axes.plot(values[inside], preference.base[inside], color=GREY, linewidth=1.4, linestyle=DASHED)
    axes.plot(values[inside], preference.scores[inside], color=BLUE, linewidth=1.8)
    axes.plot(preference.typical / (GIB if quantity.kind == "size" else 1.0), 0.0, "o", color=BLUE, markersize=5)
    axes.set_title(capital(quantity.title), loc="left", fontsize=9)
    axes.grid()
    if quantity.kind == "duration":
        _time_axis(axes, preference.values, 165.0)
    elif quantity.kind == "count":
        axes.set_xscale("log", base=2)
        most = float(values.max())
        ticks = [2**k for k in range(0, 20, 2) if 2**k <= most * 1.01]
        label_axis(axes.xaxis, [(float(t), f"{t:,}") for t in ticks])
    elif quantity.kind == "share":
        percent_axis(axes.xaxis)
    else:
        axes.set_xlabel("GiB", fontsize=8)
    if preference.ahead == UNSEEN:
        axes.text(0.5, 0.9, "never varied in training", transform=axes.transAxes, ha="center", fontsize=8, color=GREY)


def _importance_bars(axes: Axes, found: Explanation) -> None:
    shown = [i for i in found.importances if i.importance > 0][:SHOWN_FEATURES]
    axes.barh(range(len(shown)), [i.importance for i in shown], color=PALE, height=0.72)
    label_rows(axes, [i.feature for i in shown])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_title(f"What features add to {found.base}", loc="left", fontsize=9)
    axes.set_xlabel("Spread of the score", fontsize=8)


def _ordered(values: dict[str, float]) -> tuple[list[str], list[str]]:
    """Policies by their value, the least first; and those that stop jobs."""
    order = sorted(values, key=lambda name: values[name])
    return [n for n in order if n not in PREEMPTIVE], [n for n in order if n in PREEMPTIVE]


def _rows(axes: Axes, names: Sequence[str], apart: Sequence[str]) -> dict[str, float]:
    """A row for each policy, with room before those that stop jobs; returns their positions."""
    places = {name: float(k) for k, name in enumerate(names)}
    places |= {name: len(names) + 0.8 + k for k, name in enumerate(apart)}
    axes.set_yticks(list(places.values()), [clipped(name, 40) for name in places])
    last = max(places.values())
    axes.set_ylim(last + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)
    for name, label in zip(places, axes.get_yticklabels(), strict=True):
        if name == LEARNED:
            label.set_fontweight("bold")
            label.set_color(BLUE)
    if apart:
        line = len(names) - 0.1
        axes.axhspan(line, last + 0.6, color="#f4f5f7", zorder=0)
        axes.text(
            0.995, line + 0.15, "these stop running jobs, at no cost: another game", ha="right",
            transform=axes.get_yaxis_transform(), va="top", fontsize=7.5, color=GREY,
        )  # fmt: skip
    return places


def _stem(axes: Axes, name: str, y: float, ratio: float, limits: tuple[float, float], reach: float, best: bool) -> None:
    """A dot at a policy's ratio, or an arrow where there is no room for it, and a line from 1."""
    colour, hollow = BLUE if name == LEARNED else GREY, name in PREEMPTIVE
    at = float(np.clip(ratio, limits[0] * 1.01, limits[1] / 1.01))
    marker = "o" if at == ratio else "<" if ratio < at else ">"
    axes.plot([1.0, at], [y, y], color=colour if name == LEARNED else LIGHT, linewidth=2.5, zorder=2,
              linestyle=":" if hollow else "-")  # fmt: skip
    axes.plot(at, y, marker=marker, color=colour, markersize=7 if name == LEARNED else 5.5, zorder=4,
              markerfacecolor="white" if hollow else colour)  # fmt: skip
    text = f"{ratio:.3f}" + (" (the best heuristic, in hindsight)" if best else "")
    axes.annotate(text, (max(at, reach, 1.0), y), (8, 0), textcoords="offset points", va="center", fontsize=8)


def _which(found: Evaluation) -> str:
    return clipped(f"{found.problem.name}, estimates {found.problem.estimate}", 60)


_STEPS: tuple[tuple[float, ...], ...] = (
    (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0),
    (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,),
)  # fmt: skip


def _ratio_ticks(axis: Any, values: Sequence[float], width: float = 0.0, axes: Axes | None = None) -> None:
    """Ticks that read as numbers on a logarithmic axis: the finest that fit."""
    low, high = min(values) / 1.02, max(values) * 1.02
    ticks: list[Tick] = []
    for steps in _STEPS:
        powers = range(-6, 13) if 0.5 not in steps else range(1)
        ticks = [(at, f"{at:,.10g}") for p in powers for s in steps if low <= (at := s * 10.0**p) <= high]
        fits = len(ticks) <= 10 if axes is None else room_for(axes, ticks, width)
        covers = bool(ticks) and ticks[0][0] <= low * 2.5 and ticks[-1][0] >= high / 2.5
        if len(ticks) > 1 and fits and covers:
            break
    label_axis(axis, ticks)


def _time_axis(axes: Axes, values: Floats, width: float) -> None:
    """A logarithmic x axis for times, from 0 on where there is one."""
    positive = values[values > 0]
    high = float(positive.max(initial=1.0))
    low = max(float(positive.min(initial=high)), high * 1e-6)
    linear = min(max(low, 10.0), high) if len(positive) < len(values) else None
    log_time_axis(axes, low, high, width, linear=linear)
