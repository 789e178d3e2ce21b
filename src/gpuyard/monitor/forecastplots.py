"""Figures of forecasts against what came: as lines over time, and as a scatter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from gpuyard.monitor.forecasts import Evaluation
from gpuyard.monitor.lines import Scale, scale_of
from gpuyard.recordings.series import METRICS, Metric
from gpuyard.sim.figures import clean, new_figure, png_bytes, styled, write_atomically

_POINTS = 4000
"""Of a line, or of a scatter: more cannot be told apart."""


def write_forecast_plots(name: str, title: str, metric: str, found: Evaluation, out: Path) -> list[Path]:
    """Write both figures of one series; returns what was written."""
    out.mkdir(parents=True, exist_ok=True)
    known = METRICS.get(metric, Metric(metric, "", metric))
    scale = scale_of(known, float(np.max(found.real, initial=0.0))) if known.unit else Scale(1.0, "")
    label = f"{known.title} ({scale.unit})" if scale.unit else known.title
    written = []
    for kind, draw in (("line", _line), ("scatter", _scatter)):
        with styled():
            figure = draw(found, scale.divisor, label)
            figure.suptitle(clean(f"Forecast against what came: {title}"), fontsize="medium")
            path = out / f"{name}-{kind}.png"
            write_atomically(path, png_bytes(figure))
        written.append(path)
    return written


def _line(found: Evaluation, divisor: float, label: str) -> Figure:
    figure = new_figure(11.0, 4.0)
    axes = figure.add_subplot()
    step = -(-len(found.at) // _POINTS)
    seconds = (found.at - found.at[0])[::step]
    axes.plot(seconds, found.real[::step] / divisor, label="what came", linewidth=1.2)
    axes.plot(seconds, found.foreseen[::step] / divisor, label="forecast", linewidth=1.0, linestyle="--")
    axes.set_xlabel("time (s)")
    axes.set_ylabel(label)
    axes.legend(loc="best")
    return figure


def _scatter(found: Evaluation, divisor: float, label: str) -> Figure:
    figure = new_figure(5.5, 5.0)
    axes = figure.add_subplot()
    step = -(-len(found.at) // _POINTS)
    real, foreseen = found.real[::step] / divisor, found.foreseen[::step] / divisor
    low, high = float(min(real.min(), foreseen.min())), float(max(real.max(), foreseen.max()))
    axes.plot([low, high], [low, high], color="0.6", linewidth=0.8, label="as foreseen")
    axes.scatter(real, foreseen, s=6, alpha=0.5)
    axes.set_xlabel(f"what came: {label}")
    axes.set_ylabel("forecast")
    axes.legend(loc="best")
    return figure
