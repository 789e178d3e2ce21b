"""Several policies that ran the same jobs, side by side: a figure and a table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuyard.sim.figures import clean, new_figure, save, shorten, styled, time_unit
from gpuyard.units import format_plain

_COLOURS = ("#1f6fb4", "#d1493f", "#2f9e44", "#ee8a12", "#8a56ac", "#12a5b8", "#7a5238", "#444444")
_LONGEST = 24


class Measure(NamedTuple):
    """A number of a summary."""

    key: str
    title: str
    unit: str
    """`s` for a duration, which is drawn in minutes or hours where it is long."""


MEASURES = (
    Measure("makespan", "Makespan", "s"),
    Measure("wait_mean", "Mean wait", "s"),
    Measure("turnaround_mean", "Mean turnaround", "s"),
    Measure("utilization", "Mean GPU utilization", "%"),
    Measure("energy_wh", "Energy", "Wh"),
)
"""What policies are compared by; of all but utilization, less is better."""


def write_comparison(out: Path, summaries: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """`comparison.png`, `comparison.svg` and `comparison.csv`; a summary for each policy, by its name."""
    table = out / "comparison.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("policy", "jobs", "succeeded", *(measure.key for measure in MEASURES), "throughput"))
        for policy, one in summaries.items():
            keys = ("jobs", "succeeded", *(measure.key for measure in MEASURES), "throughput")
            writer.writerow((policy, *("" if one[key] is None else one[key] for key in keys)))
    return [*save(draw(summaries), out, "comparison"), table]


def draw(summaries: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A panel for each measure, a bar for each policy."""
    known = [measure for measure in MEASURES if any(one[measure.key] is not None for one in summaries.values())]
    with styled():
        figure = new_figure(max(4.0, 2.4 * len(known) + 0.6), 1.2 + 0.36 * len(summaries))
        panels = figure.subplots(1, max(1, len(known)), sharey=True, squeeze=False)[0]
        for axes, measure in zip(panels, known, strict=False):
            _panel(axes, measure, [one[measure.key] for one in summaries.values()])
        panels[0].set_yticks(range(len(summaries)), [clean(shorten(name, _LONGEST)) for name in summaries])
        panels[0].set_ylim(len(summaries) - 0.5, -0.5)
        simulated = any(one.get("simulated") for one in summaries.values())
        first = next(iter(summaries.values()))
        figure.suptitle(
            f"The same {first['jobs']} jobs under {len(summaries)} policies{' (simulated GPUs)' * simulated}",
            x=0.01, ha="left", fontsize=10.5,
        )  # fmt: skip
        return figure


def _panel(axes: Axes, measure: Measure, values: Sequence[float | None]) -> None:
    highest = max((value for value in values if value is not None), default=0.0)
    divisor, unit = time_unit(highest) if measure.unit == "s" else (1.0, measure.unit)
    for place, value in enumerate(values):
        if value is None:
            axes.text(0.0, place, " not known", va="center", fontsize=8, color="#777777")
            continue
        axes.barh(place, value / divisor, height=0.6, color=_COLOURS[place % len(_COLOURS)])
        axes.text(value / divisor, place, f" {format_plain(value / divisor, 3)}", va="center", fontsize=8)
    axes.set_xlim(0.0, highest / divisor * 1.25 or 1.0)
    axes.set_title(f"{measure.title} ({unit})", loc="left", fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
