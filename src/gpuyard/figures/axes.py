"""Axes: ticks of times, durations and numbers that have room, and rows with names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from gpuyard.figures.panels import Axis
from gpuyard.figures.style import clipped
from gpuyard.units import format_duration

Tick = tuple[float, str]  # position and label
TIME_TICKS: tuple[Tick, ...] = (
    (0.001, "1 ms"), (0.01, "10 ms"), (0.1, "0.1 s"), (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"),
    (600.0, "10 min"), (3600.0, "1 h"), (21600.0, "6 h"), (86400.0, "1 d"), (864e3, "10 d"), (864e4, "100 d"),
    (864e5, "1000 d"),
)  # fmt: skip
_ROUND_TIMES = (0.0, 0.001, 1.0, 60.0, 3600.0, 86400.0)  # labelled before the others, where there is no room for all
_CHARACTER = 5.3
_APART = 5.0  # in points, at the size of tick labels: the width of a character, and the least room between two labels
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_SHORT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_DAY = 86400
_MOST_TICKS = 40  # ticks that could be on an axis at all
_WIDTH = 620.0  # points from left to right of a panel, beside the legend


def room_for(axes: Axes, ticks: Sequence[Tick], width: float) -> bool:
    """Whether labels can stand side by side on an x axis that is `width` points wide, its scale and limits set."""
    ticks = sorted(ticks)
    scale = axes.xaxis.get_transform()
    left, right = scale.transform(np.array(axes.get_xlim()))
    places = (scale.transform(np.array([at for at, _ in ticks])) - left) / (right - left) * width
    halves = [_CHARACTER * len(text) / 2 for _, text in ticks]
    return all(places[k] - halves[k] >= places[k - 1] + halves[k - 1] + _APART for k in range(1, len(ticks)))


def label_axis(axis: Any, ticks: Iterable[Tick]) -> None:
    """These ticks on `axes.xaxis` or `axes.yaxis`, and no others."""
    ticks = sorted(ticks)
    axis.set_major_locator(FixedLocator([at for at, _ in ticks]))
    axis.set_minor_locator(NullLocator())
    axis.set_ticklabels([text for _, text in ticks])


def count_axis(axes: Axes) -> None:
    """A y axis for numbers of things, from 0: whole, round, and with commas."""
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def percent_axis(axis: Any) -> None:
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def label_rows(axes: Axes, names: Sequence[str], length: int = 40) -> None:
    axes.set_yticks(range(len(names)), [clipped(name, length) for name in names])
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def time_unit(span: float) -> tuple[float, str]:
    """Seconds per unit, and the unit, in which a stretch of time reads best on an axis."""
    for limit, divisor, unit in ((600.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (4 * 86400.0, 3600.0, "h")):
        if span <= limit:
            return divisor, unit
    return 86400.0, "days"


def elapsed_axis(axes: Axes, begin: float, end: float) -> float:
    """An x axis for the time since the first submit, from and to these seconds; returns the divisor of seconds."""
    divisor, unit = time_unit(end - begin)
    axes.set_xlim(begin / divisor, end / divisor if end > begin else begin / divisor + 1.0)
    axes.set_xlabel(f"Time since the first submit ({unit})")
    return divisor


def time_ticks(low: float, high: float, beyond: float = 1.2) -> list[Tick]:
    return [tick for tick in TIME_TICKS if low / beyond <= tick[0] <= high * beyond]


def log_time_axis(axes: Axes, low: float, high: float, width: float, *, linear: float | None = None) -> None:
    """A logarithmic x axis for seconds, labelled where there is room; from 0 to `linear` it is linear, if given."""
    ticks = time_ticks(low, high)
    if linear is not None:
        axes.set_xscale("symlog", linthresh=linear, linscale=0.4)
        axes.set_xlim(0, high * 1.3)
        ticks = [(0.0, "0"), *(tick for tick in ticks if tick[0] >= linear)]
    else:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
    kept: list[Tick] = []
    for tick in sorted(ticks, key=lambda tick: tick[0] not in _ROUND_TIMES):
        if room_for(axes, [*kept, tick], width):
            kept.append(tick)
    label_axis(axes.xaxis, kept or [(high, format_duration(high))])


def label_time(axes: Axes, axis: Axis, zone: tzinfo | None = None, width: float = _WIDTH) -> None:
    """Label an x axis in seconds of a recording: times of day in the local zone, or time since the start."""
    axes.set_xlim(axis.left, axis.right)
    if axis.clock:
        choices = (_clock(axis, step, zone) for step in _clock_steps() if _is_sparse(axis, step))
        axes.set_xlabel(f"Time ({days(axis, zone)})")
    else:
        divisor, unit = time_unit(axis.right - axis.left)
        choices = (_even(axis, step, divisor) for step in _steps(divisor) if _is_sparse(axis, step))
        axes.set_xlabel(f"Time since the start ({unit})")
    label_axis(axes.xaxis, next(ticks for ticks in choices if len(ticks) < 2 or room_for(axes, ticks, width)))


def _is_sparse(axis: Axis, step: float) -> bool:
    return (axis.right - axis.left) / step <= _MOST_TICKS


def days(axis: Axis, zone: tzinfo | None = None) -> str:
    """`2026-11-16, UTC`, or the first and the last day."""
    first, last = (datetime.fromtimestamp(axis.origin + at, zone).astimezone(zone) for at in (axis.left, axis.right))
    span = f"{first:%Y-%m-%d}" if first.date() == last.date() else f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return f"{span}, {first:%Z}"


def _steps(divisor: float) -> list[float]:
    """Round steps in the unit, in seconds, the finest first."""
    bases = (1, 2, 5) if divisor == 1.0 or divisor == 60.0 else (1, 2, 6)
    return [divisor * base * 10.0**power for power in range(-3, 7) for base in bases]


def _even(axis: Axis, step: float, divisor: float) -> list[Tick]:
    first = -int(-axis.left // step)
    found = []
    while first * step <= axis.right:
        found.append((first * step, f"{first * step / divisor:.10g}"))
        first += 1
    return found


def _clock_steps() -> list[float]:
    return [*_SHORT, *_STEPS, *(_DAY * many for many in (1, 2, 7, 14, 28, 91, 182, 364, 3640))]


def _clock(axis: Axis, step: float, zone: tzinfo | None) -> list[Tick]:
    """Round times of day; midnight has the date."""
    begin = datetime.fromtimestamp(axis.origin + axis.left, zone).astimezone(zone)
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    many = -int(-(axis.origin + axis.left - midnight) // step)
    found = []
    while (at := midnight + many * step) <= axis.origin + axis.right:
        found.append((at - axis.origin, _tick_text(datetime.fromtimestamp(at, zone), step)))
        many += 1
    return found


def _tick_text(at: datetime, step: float) -> str:
    if step < 1:
        digits = 1 if step >= 0.1 else 2
        at += timedelta(seconds=0.5 / 10**digits)  # floats may fall short of it
        return f"{at:%H:%M:%S.%f}"[: digits - 6]
    if step >= _DAY or (at - timedelta(seconds=step)).date() != at.date():
        return f"{at:%b} {at.day}" if step >= 60 else f"{at:%H:%M:%S}"
    return f"{at:%H:%M:%S}" if step < 60 else f"{at:%H:%M}"
