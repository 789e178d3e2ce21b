"""What an accuracy's course tells: how steep it is, how noisy, and what more time would bring."""

from __future__ import annotations

import math
from collections.abc import Sequence

RECENT = 5
"""Evaluations that the slope is taken from."""
_TIMES = tuple(2.0**power for power in range(-5, 4))
"""Time constants that are tried, relative to the time so far."""

Points = Sequence[tuple[float, float]]


def line(points: Points) -> tuple[float, float]:
    """Level at 0 and slope of the line nearest to them; nan if there is none."""
    number = len(points)
    if number < 2:
        return math.nan, math.nan
    mean_x, mean_y = sum(x for x, _ in points) / number, sum(y for _, y in points) / number
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread <= 0:
        return math.nan, math.nan
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return mean_y - slope * mean_x, slope


def slope(points: Points) -> float:
    """Accuracy per unit of time, lately; nan with fewer than two evaluations."""
    return line(points[-RECENT:])[1]


def noise(points: Points, samples: int) -> float:
    """Standard deviation of one evaluation: by how the last ones scatter, but no less than chance makes it."""
    if not points:
        return math.nan
    level = min(1.0, max(0.0, points[-1][1]))
    chance = math.sqrt(level * (1 - level) / samples) if samples else 0.0
    recent = [y for _, y in points[-8:]]
    bends = [a - 2 * b + c for a, b, c in zip(recent, recent[1:], recent[2:], strict=False)]
    scatter = math.sqrt(sum(bend * bend for bend in bends) / (6 * len(bends))) if len(bends) >= 3 else 0.0
    return max(chance, scatter)


def saturating(points: Points) -> tuple[float, float, float] | None:
    """Ceiling, height and time constant of the curve `ceiling - height * exp(-time / constant)` nearest to them."""
    if len(points) < 3 or points[-1][0] <= 0:
        return None
    best: tuple[float, tuple[float, float, float]] | None = None
    for relative in _TIMES:
        constant = relative * points[-1][0]
        level, steep = line([(math.exp(-x / constant), y) for x, y in points])
        if math.isnan(level):
            continue
        error = sum((level + steep * math.exp(-x / constant) - y) ** 2 for x, y in points)
        if best is None or error < best[0]:
            best = error, (level, -steep, constant)
    return None if best is None else best[1]


def gain_per_second(points: Points, end: float) -> float:
    """What the accuracy would gain by one more second after the end, if its course goes on as it did; 0 if unknown."""
    found = saturating(points)
    if found is None:
        return 0.0
    _, height, constant = found
    return max(0.0, height / constant * math.exp(-end / constant))
