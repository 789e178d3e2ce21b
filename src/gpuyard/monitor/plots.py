"""Figures of recordings, one for each metric; figures of forecasts and of compared policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gpuyard.errors import UserError
from gpuyard.figures.axes import label_time, time_unit
from gpuyard.figures.panels import (
    DRAWN_AS_ROWS,
    Axis,
    Line,
    Named,
    Panel,
    Scale,
    axis_of,
    decimate,
    highest,
    lowest,
    panels,
    scale_of,
    smooth,
)
from gpuyard.figures.strips import draw_errors, draw_notes, draw_throttling, lanes_of
from gpuyard.figures.style import (
    COLOURS,
    clean,
    clipped,
    figure_title,
    legend_beside,
    new_figure,
    png_bytes,
    save,
    shorten,
    styled,
    svg_bytes,
)
from gpuyard.files import csv_text, write_atomically
from gpuyard.monitor.forecasts import Evaluation
from gpuyard.recordings.series import METRICS, USUAL, Floats, Metric
from gpuyard.units import format_plain

FORMATS = ("png", "svg", "html")
LAYOUTS = ("overlay", "stacked")
_POINTS = 4000  # of one line: about two for each dot of a figure's width. A crowd of lines shares eight times as many.
_FAINT = 240  # the same of a faint line; the peaks of all of them together are the band around their mean
_WIDTH = 11.0
_TALL, _FLAT = 3.4, 1.5  # inches of a panel by itself, and of one of many
_MANY = 4
_LANE = 0.17
_COLUMN = 16  # panels above each other; more stand side by side


def write_plots(
    recordings: Named,
    metrics: Sequence[str] = USUAL,
    out: str | Path = ".",
    *,
    layout: str = "overlay",
    formats: Sequence[str] = FORMATS,
    title: str = "",
) -> list[Path]:
    """Write a figure of each metric that is known, and one page with all of them; returns the files.

    Several recordings are compared on one axis, the time since each began. A metric without values is left out; if
    none has any, that is a `UserError`, and nothing is written.
    """
    _check(layout, formats)
    drawn = known(recordings, metrics)
    if not drawn:
        raise UserError(nothing(recordings, metrics))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for metric in drawn if {"png", "svg"} & set(formats) else ():
        figure = draw(recordings, metric, layout=layout, title=title)
        for kind, render in (("png", png_bytes), ("svg", svg_bytes)):
            if kind in formats:
                write_atomically(folder / f"{metric}.{kind}", render(figure))
                written.append(folder / f"{metric}.{kind}")
    if "html" in formats:
        from gpuyard.figures.interactive_page import plots_page

        page = plots_page(recordings, drawn, layout=layout, title=title)
        write_atomically(folder / "plots.html", page.encode(errors="replace"))  # names may be any bytes
        written.append(folder / "plots.html")
    return written


def _check(layout: str, formats: Sequence[str]) -> None:
    if layout not in LAYOUTS:
        raise UserError(f"there is no layout '{layout}'; write overlay or stacked")
    if wrong := [kind for kind in formats if kind not in FORMATS]:
        raise UserError(f"plots cannot be written as '{wrong[0]}'; write some of {', '.join(FORMATS)}")
    if not formats:
        raise UserError(f"no format is named; write some of {', '.join(FORMATS)}")


def known(recordings: Named, metrics: Sequence[str]) -> list[str]:
    return [
        metric
        for metric in dict.fromkeys(metrics)
        if any(np.isfinite(one.mean).any() for _, recording in recordings for one in recording.of(metric))
    ]


def nothing(recordings: Named, metrics: Sequence[str]) -> str:
    there = [name for name in METRICS if known(recordings, [name])]
    asked = ", ".join(metrics) or "no metric"
    if there:
        return f"nothing was recorded of {asked}; there is something of {', '.join(there)} (--metrics)"
    return f"there is nothing to draw: no value of {asked} is known for that time"


def draw(recordings: Named, metric: str, *, layout: str = "overlay", title: str = "") -> Figure:
    found = panels(recordings, metric, layout)
    axis = axis_of(recordings)
    with styled():
        if metric in DRAWN_AS_ROWS:
            return _strips(recordings, found, axis, metric, title)
        return _curves(recordings, found, axis, title)


def heading(recordings: Named, metric: Metric, title: str) -> str:
    told = [metric.title, title or (recordings[0][0] if len(recordings) == 1 else "")]
    made_up = " (simulated GPUs)" if any(recording.simulated for _, recording in recordings) else ""
    return clean(shorten(": ".join(part for part in told if part), 110)) + made_up


def _curves(recordings: Named, found: list[Panel], axis: Axis, title: str) -> Figure:
    metric = found[0].metric
    scale = scale_of(metric, highest(found))
    columns = -(-len(found) // _COLUMN)
    figure, grid = _grid(found, columns, axis)
    points = max(200, min(_POINTS, 8 * _POINTS // max(1, *(len(panel.lines) for panel in found))))
    for panel, (strip, axes) in zip(found, grid, strict=True):
        if strip is not None:
            draw_notes(strip, axes, panel.notes, axis)
        for line in panel.lines:
            draw_line(axes, line, scale, points)
        value_axis(axes, metric, scale, found)
        if panel.title:
            (strip or axes).set_title(clipped(panel.title, 60), loc="left", fontsize=9)
        axes.grid()
        label_time(axes, axis, width=620.0 / columns)
    _outer(grid, columns)
    top = next(axes for axes in figure.axes)
    if columns == 1 and not found[0].title:
        top.set_title(heading(recordings, metric, title), loc="left")
    else:
        figure_title(figure, heading(recordings, metric, title))
    if columns > 1 or len(found) > _MANY:
        figure.supylabel(_value_label(metric, scale), fontsize=9)
    if len(found) == 1 or any(len(panel.lines) > 1 for panel in found):  # else the panels' titles tell all
        legend(figure, recordings, found)
    return figure


def _grid(found: list[Panel], columns: int, axis: Axis) -> tuple[Figure, list[tuple[Axes | None, Axes]]]:
    lanes = [lanes_of(panel.notes, axis) if columns == 1 else 0 for panel in found]
    if len(found) > _MANY:  # a strip for every small panel would be most of the figure
        lanes = [0] * len(found)
    tall = _TALL if len(found) == 1 else 2.1 if len(found) <= _MANY else _FLAT
    heights = [part for many in lanes for part in (many * _LANE, tall) if part]
    if columns > 1:
        rows = -(-len(found) // columns)
        figure = new_figure(_WIDTH + 2, 0.8 + rows * 0.95)
        figure.set_layout_engine("none")  # the layout engine takes seconds for this many
        cells = figure.subplots(
            rows, columns, squeeze=False,
            gridspec_kw={"left": 0.06, "right": 0.985, "top": 0.95, "bottom": 0.05, "hspace": 0.42, "wspace": 0.06},
        )  # fmt: skip
        flat = list(cells.T.flat)
        for spare in flat[len(found) :]:
            spare.set_visible(False)
        return figure, [(None, axes) for axes in flat[: len(found)]]
    figure = new_figure(_WIDTH, 0.8 + sum(heights))
    column = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights).flat)
    return figure, [(column.pop(0) if many else None, column.pop(0)) for many in lanes]


def _outer(grid: Sequence[tuple[Axes | None, Axes]], columns: int) -> None:
    """Times below the lowest panel only."""
    rows = -(-len(grid) // columns)
    for place, (_, axes) in enumerate(grid):
        if place % rows != rows - 1 and place != len(grid) - 1:
            axes.set_xlabel("")
            axes.tick_params(axis="x", labelbottom=False)
        else:
            axes.tick_params(axis="x", labelbottom=True)
        if columns > 1 or len(grid) > _MANY:
            axes.set_ylabel("")
        if place >= rows:
            axes.tick_params(axis="y", labelleft=False)


def draw_line(axes: Axes, line: Line, scale: Scale, points: int) -> None:
    """One line, with a band from the least to the most, reduced to `points`."""
    if line.faint:
        at, mean = smooth(line.at, line.mean, _FAINT)
        axes.plot(at, mean / scale.divisor, color=line.colour, linewidth=0.5, alpha=0.4, zorder=2)
        return
    at, mean, low, high = decimate(line.at, line.mean, line.low, line.high, points)
    if low is not None and high is not None:
        axes.fill_between(
            at, low / scale.divisor, high / scale.divisor, color=line.colour, alpha=0.16, linewidth=0, zorder=2.5
        )
    dashes = (0, (6, 6 * line.beneath)) if line.beneath else "-"
    axes.plot(at, mean / scale.divisor, color=line.colour, linewidth=1.3, linestyle=dashes, zorder=3)
    single = _single(mean)
    if single.any():  # a line of one point is not seen
        axes.plot(at[single], mean[single] / scale.divisor, "o", color=line.colour, markersize=3, zorder=3)


def _single(values: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    there = np.isfinite(values)
    around = np.concatenate([[False], there, [False]])
    single: np.ndarray[tuple[int], np.dtype[np.bool_]] = there & ~around[:-2] & ~around[2:]
    return single


def value_axis(axes: Axes, metric: Metric, scale: Scale, found: Sequence[Panel]) -> None:
    axes.set_ylabel(_value_label(metric, scale))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if metric.most is not None:
        axes.set_ylim(0, metric.most * 1.02)
    elif metric.unit == "°C":  # no GPU is at 0 °C, and a few degrees matter
        low, high = lowest(found), highest(found)
        axes.set_ylim(low - 0.05 * (high - low) - 1.0, high + 0.05 * (high - low) + 1.0)
    else:
        axes.set_ylim(0, (highest(found) / scale.divisor * 1.05) or 1.0)


def _value_label(metric: Metric, scale: Scale) -> str:
    return f"{metric.title} ({scale.unit})" if scale.unit else metric.title


def legend(figure: Figure, recordings: Named, found: Sequence[Panel]) -> None:
    groups: dict[str, Line] = {}
    for panel in found:
        for line in panel.lines:
            groups.setdefault(line.group, line)
    strong = sorted(groups.items(), key=lambda pair: pair[1].faint)
    handles = [
        Line2D(
            [], [], label=clipped(name, 44), color=line.colour,
            linewidth=0.6 if line.faint else 1.6, alpha=0.6 if line.faint else 1.0,
        )
        for name, line in strong
    ]  # fmt: skip
    # a GPU without a name may be of another model
    models = {one.subject.name for _, recording in recordings for one in recording.series}
    model = models.pop() if len(models) == 1 else ""
    legend_beside(figure, handles=handles, handlelength=1.8, title=clipped(model, 34) or None)


def _strips(recordings: Named, found: list[Panel], axis: Axis, metric: str, title: str) -> Figure:
    pairs = [pair for panel in found for pair in panel.series]
    origins = {key: start for panel in found for key, start in panel.origins.items()}
    if metric == "throttle":
        figure = draw_throttling(pairs, origins, axis)
    else:
        errors = {key: several for panel in found for key, several in panel.errors.items()}
        figure = draw_errors([line for line, _ in pairs], errors, origins, axis)
    axes = figure.axes[0]
    axes.set_title(heading(recordings, METRICS[metric], title), loc="left")
    label_time(axes, axis)
    return figure


_LONGEST = 24


class Measure(NamedTuple):
    key: str
    title: str
    unit: str  # `s` for a duration, which is drawn in minutes or hours where it is long


MEASURES = (
    Measure("makespan", "Makespan", "s"),
    Measure("wait_mean", "Mean wait", "s"),
    Measure("turnaround_mean", "Mean turnaround", "s"),
    Measure("utilization", "Mean GPU utilization", "%"),
    Measure("energy_wh", "Energy", "Wh"),
)
"""Of all but utilization, less is better."""


def write_comparison(out: Path, summaries: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """`comparison.png`, `comparison.svg` and `comparison.csv`; a summary for each policy, by its name."""
    table = out / "comparison.csv"
    keys = ("jobs", "succeeded", *(measure.key for measure in MEASURES), "throughput")
    rows = ((policy, *(one[key] for key in keys)) for policy, one in summaries.items())
    write_atomically(table, csv_text(("policy", *keys), rows).encode())
    return [*save(comparison_figure(summaries), out, "comparison"), table]


def comparison_figure(summaries: Mapping[str, Mapping[str, Any]]) -> Figure:
    known = [measure for measure in MEASURES if any(one[measure.key] is not None for one in summaries.values())]
    with styled():
        figure = new_figure(max(4.0, 2.4 * len(known) + 0.6), 1.2 + 0.36 * len(summaries))
        panels = figure.subplots(1, max(1, len(known)), sharey=True, squeeze=False)[0]
        for axes, measure in zip(panels, known, strict=False):
            _measure_panel(axes, measure, [one[measure.key] for one in summaries.values()])
        panels[0].set_yticks(range(len(summaries)), [clipped(name, _LONGEST) for name in summaries])
        panels[0].set_ylim(len(summaries) - 0.5, -0.5)
        simulated = any(one.get("simulated") for one in summaries.values())
        first = next(iter(summaries.values()))
        made_up = " (simulated GPUs)" * simulated
        figure_title(figure, f"The same {first['jobs']} jobs under {len(summaries)} policies{made_up}")
        return figure


def _measure_panel(axes: Axes, measure: Measure, values: Sequence[float | None]) -> None:
    highest = max((value for value in values if value is not None), default=0.0)
    divisor, unit = time_unit(highest) if measure.unit == "s" else (1.0, measure.unit)
    for place, value in enumerate(values):
        if value is None:
            axes.text(0.0, place, " not known", va="center", fontsize=8, color="#777777")
            continue
        axes.barh(place, value / divisor, height=0.6, color=COLOURS[place % len(COLOURS)])
        axes.text(value / divisor, place, f" {format_plain(value / divisor, 3)}", va="center", fontsize=8)
    axes.set_xlim(0.0, highest / divisor * 1.25 or 1.0)
    axes.set_title(f"{measure.title} ({unit})", loc="left", fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


_FORECAST_POINTS = 4000  # of a line, or of a scatter: more cannot be told apart


def write_forecast_plots(name: str, title: str, metric: str, found: Evaluation, out: Path) -> list[Path]:
    """Write both figures of one series; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    known = METRICS.get(metric, Metric(metric, "", metric))
    scale = scale_of(known, float(np.max(found.real, initial=0.0))) if known.unit else Scale(1.0, "")
    label = _value_label(known, scale)
    written = []
    for kind, draw in (("line", _forecast_line), ("scatter", _forecast_scatter)):
        with styled():
            figure = draw(found, scale.divisor, label)
            figure.suptitle(clean(f"Forecast against what came: {title}"), fontsize="medium")
            path = out / f"{name}-{kind}.png"
            write_atomically(path, png_bytes(figure))
        written.append(path)
    return written


def _forecast_line(found: Evaluation, divisor: float, label: str) -> Figure:
    figure = new_figure(11.0, 4.0)
    axes = figure.add_subplot()
    step = -(-len(found.at) // _FORECAST_POINTS)
    seconds = (found.at - found.at[0])[::step]
    axes.plot(seconds, found.real[::step] / divisor, label="what came", linewidth=1.2)
    axes.plot(seconds, found.foreseen[::step] / divisor, label="forecast", linewidth=1.0, linestyle="--")
    axes.set_xlabel("time (s)")
    axes.set_ylabel(label)
    axes.legend(loc="best")
    return figure


def _forecast_scatter(found: Evaluation, divisor: float, label: str) -> Figure:
    figure = new_figure(5.5, 5.0)
    axes = figure.add_subplot()
    step = -(-len(found.at) // _FORECAST_POINTS)
    real, foreseen = found.real[::step] / divisor, found.foreseen[::step] / divisor
    low, high = float(min(real.min(), foreseen.min())), float(max(real.max(), foreseen.max()))
    axes.plot([low, high], [low, high], color="0.6", linewidth=0.8, label="as foreseen")
    axes.scatter(real, foreseen, s=6, alpha=0.5)
    axes.set_xlabel(f"what came: {label}")
    axes.set_ylabel("forecast")
    axes.legend(loc="best")
    return figure
