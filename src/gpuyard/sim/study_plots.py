"""Figures and files of sweeps, and of filling a cluster (`inflate`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuyard.figures.axes import label_axis, label_x, room_for, time_ticks, time_unit
from gpuyard.figures.files import csv_text, write_atomically
from gpuyard.figures.style import (
    BLUE,
    COLOURS,
    MARKS,
    RED,
    capital,
    clean,
    clipped,
    legend_beside,
    new_figure,
    save,
    styled,
)
from gpuyard.sim.result_files import write_table
from gpuyard.sim.schedule_plots import DURATIONS, METRIC_NAMES
from gpuyard.sim.sweep import Axis, Sweep, Value

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
_PANEL = 400.0
"""Points from left to right, beside the longest legend."""


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
            colour, mark = COLOURS[k % len(COLOURS)], MARKS[k // len(COLOURS) % len(MARKS)]
            label = clipped(policy, 30)
            axes.plot(x[order], y[order], color=colour, marker=mark, markersize=4, linewidth=1.6, label=label)
            axes.fill_between(x[order], *(ends[order].T / divisor), color=colour, alpha=0.15, linewidth=0)
        axes.set_title(f"{capital(name)} by {_TITLE_NAMES.get(found.axis.name, clean(found.axis.name))}", loc="left")
        axes.grid()
        legend_beside(figure)
        return figure


def _value_axis(axes: Axes, axis: Axis) -> dict[Value, float]:
    """Where each value stands: at itself if it is a number, else side by side."""
    axes.set_xlabel(_AXIS_NAMES.get(axis.name, clean(axis.name)))
    if all(isinstance(value, float) for value in axis.values):
        _number_axis(axes, [float(value) for value in axis.values])
        return {value: float(value) for value in axis.values}
    ticks = [(float(k), clipped(str(value), 24)) for k, value in enumerate(axis.values)]
    axes.set_xlim(-0.06 * len(ticks), len(ticks) - 1 + 0.06 * len(ticks))
    crowded = not room_for(axes, ticks, _PANEL)
    label_x(axes, ticks)
    if crowded:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    return {value: float(k) for k, value in enumerate(axis.values)}


def _number_axis(axes: Axes, values: Sequence[float]) -> None:
    """A tick at every value where they fit, on a logarithmic axis if need be (64, 128, 256 ... 4096)."""
    if len(values) > _MOST_TICKS:
        return
    ticks, low, high = [(value, f"{value:,.10g}") for value in values], min(values), max(values)
    axes.set_xlim(low - 0.05 * (high - low or 1.0), high + 0.05 * (high - low or 1.0))
    if room_for(axes, ticks, _PANEL):
        label_x(axes, ticks)
    elif low > 0:
        axes.set_xscale("log")
        axes.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** 0.05)
        if room_for(axes, ticks, _PANEL):
            label_x(axes, ticks)
        axes.set_xlabel(f"{axes.get_xlabel()} (log scale)")


def _metric_axis(axes: Axes, metric: str, name: str, heights: Sequence[float]) -> float:
    """Set up the y axis for these numbers; returns what to divide them by."""
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
    """Allocated and fragmented GPUs as jobs arrive."""
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
