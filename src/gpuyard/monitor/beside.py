"""Groups of recordings side by side: a panel for each group, with one scale and one time axis for all."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from gpuyard.monitor.lines import Axis, Named, axis_of, highest, panels, scale_of
from gpuyard.monitor.plots import draw_line, heading, legend, value_axis
from gpuyard.monitor.timeaxis import label_time
from gpuyard.recordings.series import METRICS
from gpuyard.sim.figures import clean, new_figure, shorten, styled

_COLUMNS = 3
_POINTS = 2000
"""Of one line: about two for each dot of a panel's width."""
_POINTS_WIDE = 620.0
"""Points of paper that the panels of a row have together."""


def draw_beside(groups: Sequence[tuple[str, Named]], metric: str, title: str = "") -> Figure | None:
    """One metric of several groups, each with its name; None where nobody knows anything of it, or it has no lines.

    A recording has the same colour in all groups, by its place in them.
    """
    known = [(name, several, found) for name, several in groups if (found := panels(several, metric, "overlay"))]
    if not known or metric in ("throttle", "xid"):
        return None
    every = [panel for _, _, found in known for panel in found]
    axes_of = [axis_of(recordings) for _, recordings, _ in known]
    axis = Axis(False, 0.0, min(one.left for one in axes_of), max(one.right for one in axes_of))
    scale, columns = scale_of(METRICS[metric], highest(every)), min(_COLUMNS, len(known))
    rows = -(-len(known) // columns)
    with styled():
        figure = new_figure(max(6.0, 4.2 * columns) + 1.4, 3.0 * rows + 0.8)
        places = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        for number, (axes, (name, _, (panel, *_rest))) in enumerate(zip(places, known, strict=False)):
            for line in panel.lines:
                draw_line(axes, line, scale, _POINTS)
            value_axis(axes, METRICS[metric], scale, every)
            axes.set_title(clean(shorten(name, 40)), loc="left", fontsize=9)
            axes.grid()
            label_time(axes, axis, width=_POINTS_WIDE / columns)
            axes.tick_params(labelbottom=True)
            if number % columns:
                axes.set_ylabel("")
        for spare in places[len(known) :]:
            spare.set_visible(False)
        recordings = [pair for _, several, _ in known for pair in several]
        figure.suptitle(heading(recordings, METRICS[metric], title), x=0.01, ha="left", fontsize=10.5)
        legend(figure, recordings, every)
        return figure
