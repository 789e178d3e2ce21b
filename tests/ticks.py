"""How far apart the labels of an axis are once they are drawn."""

from __future__ import annotations

import math
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def least_gap(figure: Figure, axes: Axes) -> float:
    """Points between the two labels on the x axis that are nearest to each other; below 0 they overlap."""
    figure.draw_without_rendering()
    low, high = sorted(axes.get_xlim())
    drawn = [
        label.get_window_extent()
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= place <= high and label.get_text()
    ]
    drawn.sort(key=lambda box: box.x0)
    gaps = [(right.x0 - left.x1) / figure.dpi * 72 for left, right in pairwise(drawn)]
    return min(gaps, default=math.inf)
