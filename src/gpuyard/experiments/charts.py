"""How long everything took, against how much more jobs asked for than they need: a line for each scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuyard.sim.figures import clean, label_x, new_figure, shorten, styled
from gpuyard.sim.plots import COLOURS
from gpuyard.units import format_number

_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_PANELS = (
    ("duration", "duration_std", "Duration (s)", "First arrival to last end"),
    ("wait", None, "Mean wait (s)", "Arrival to start"),
    ("energy", None, "Energy (Wh)", "All GPUs"),
)


def comparison(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Duration, mean wait and energy of each scheduler; bars are the deviation of repetitions."""
    panels = [panel for panel in _PANELS if any(row[panel[0]] is not None for row in rows)]
    names = list(dict.fromkeys(row["scheduler"] for row in rows))
    with styled():
        figure = new_figure(4.2 * len(panels) + 1.2, 4.0)
        places = figure.subplots(1, len(panels), squeeze=False).flat
        for axes, (key, spread, label, note) in zip(places, panels, strict=True):
            for place, name in enumerate(names):
                _line(axes, [row for row in rows if row["scheduler"] == name], key, spread, place, len(names))
            _finish(axes, rows, label, note)
        made_up = " (simulated GPUs)" if any(row["simulated"] for row in rows) else ""
        figure.suptitle(clean(shorten(title, 90)) + made_up, x=0.01, ha="left", fontsize=10.5)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
        return figure


def _line(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, spread: str | None, place: int, count: int) -> None:
    """The line of one scheduler; who is drawn earlier is broader, so that it is seen where others lie upon it."""
    known = sorted((row for row in rows if row[key] is not None), key=lambda row: row["percent"])
    if not known:
        return
    broader = min(3, count - 1 - place)
    bars = [row[spread] or 0.0 for row in known] if spread and any(row[spread] for row in known) else None
    axes.errorbar(
        [row["percent"] for row in known], [row[key] for row in known], yerr=bars,
        color=COLOURS[place % len(COLOURS)], marker=_MARKS[place % len(_MARKS)],
        markersize=5 + 2 * broader, linewidth=1.6 + broader, capsize=3, label=clean(shorten(known[0]["scheduler"], 30)),
    )  # fmt: skip


def _finish(axes: Axes, rows: Sequence[Mapping[str, Any]], label: str, note: str) -> None:
    axes.set_ylabel(label)
    axes.set_xlabel("Over-provisioning (%)")
    axes.set_title(note, loc="left", fontsize=9)
    percents = sorted({row["percent"] for row in rows})
    apart = (percents[-1] - percents[0]) or 1.0
    axes.set_xlim(percents[0] - 0.06 * apart, percents[-1] + 0.06 * apart)
    if len(percents) <= 8:
        label_x(axes, [(percent, format_number(percent)) for percent in percents])
    axes.set_ylim(bottom=0)
    axes.grid()
