"""A metric against what was varied: the figure and the files of a sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from gpuyard.sim.figures import clean, new_figure, save, shorten, styled, time_unit, write_atomically
from gpuyard.sim.plots import COLOURS, DURATIONS, METRIC_NAMES, TIME_TICKS
from gpuyard.sim.sweep import Axis, Sweep, Value
from gpuyard.sim.writing import write_table

_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_AXIS_NAMES = {
    "load": "Load (times the trace's own arrival rate)",
    "gpus": "GPUs",
    "nodes": "Nodes x GPUs",
    "quantum": "Quantum",
    "restart-cost": "Restart cost",
    "round": "Round (s)",
    "estimate": "Estimates",
}
_WIDE_RANGE = 40.0
_MOST_TICKS = 12


def trend(found: Sweep, metric: str) -> Figure:
    """One line per policy, over the values of what was varied; a band where several seeds tell how sure it is."""
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
            colour, mark = COLOURS[k % len(COLOURS)], _MARKS[k // len(COLOURS) % len(_MARKS)]
            label = clean(shorten(policy, 30))
            axes.plot(x[order], y[order], color=colour, marker=mark, markersize=4, linewidth=1.6, label=label)
            axes.fill_between(x[order], *(ends[order].T / divisor), color=colour, alpha=0.15, linewidth=0)
        axes.set_title(f"{name[:1].upper()}{name[1:]} by {clean(found.axis.name)}", loc="left")
        axes.grid()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
        return figure


def _value_axis(axes: Axes, axis: Axis) -> dict[Value, float]:
    """Where each value stands: at itself if it is a number, else side by side."""
    axes.set_xlabel(_AXIS_NAMES.get(axis.name, clean(axis.name)))
    if all(isinstance(value, float) for value in axis.values):
        if len(axis.values) <= _MOST_TICKS:
            axes.set_xticks([float(value) for value in axis.values])
        return {value: float(value) for value in axis.values}
    axes.xaxis.set_major_locator(FixedLocator(list(range(len(axis.values)))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([clean(str(value)) for value in axis.values])
    return {value: float(k) for k, value in enumerate(axis.values)}


def _metric_axis(axes: Axes, metric: str, name: str, heights: Sequence[float]) -> float:
    """Set up the y axis for these numbers; returns what to divide them by."""
    low, high = min(heights, default=0.0), max(heights, default=1.0)
    if low <= 0 or high / low <= _WIDE_RANGE:
        divisor, unit = time_unit(high) if metric in DURATIONS else (1.0, "")
        axes.set_ylim(0, 1.06 * high / divisor or 1.0)
        axes.set_ylabel(f"{name} ({unit})" if unit else name)
        return divisor
    axes.set_yscale("log")
    axes.set_ylim(low / 1.2, high * 1.2)
    axes.set_ylabel(f"{name} (log scale)")
    if metric in DURATIONS:
        ticks = [tick for tick in TIME_TICKS if low / 1.2 <= tick[0] <= high * 1.2]
        axes.yaxis.set_major_locator(FixedLocator([at for at, _ in ticks]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_yticklabels([text for _, text in ticks])
    return 1.0


def write_sweep(found: Sweep, metric: str, document: dict[str, Any], directory: Path) -> None:
    """`sweep.csv`, `sweep.json`, and the curve as PNG and SVG."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"policy": row["policy"], found.axis.name: row["value"], **row} for row in found.rows]
    write_table(directory / "sweep.csv", [{k: v for k, v in row.items() if k != "value"} for row in rows])
    write_atomically(directory / "sweep.json", json.dumps(document, indent=2).encode() + b"\n")
    save(trend(found, metric), directory, "sweep")
