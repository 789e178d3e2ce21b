"""Ticks of a time axis: times of day in the local time zone, or time since the start."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

from matplotlib.axes import Axes

from gpuyard.figures.panels import Axis
from gpuyard.figures.style import Tick, label_x, room_for, time_unit

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_SHORT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_DAY = 86400
_MOST_TICKS = 40
"""Ticks that could be on an axis at all."""
_WIDTH = 620.0
"""Points from left to right of a panel, beside the legend."""


def label_time(axes: Axes, axis: Axis, zone: tzinfo | None = None, width: float = _WIDTH) -> None:
    """Label an x axis that is in seconds; its limits are set here too."""
    axes.set_xlim(axis.left, axis.right)
    if axis.clock:
        choices = (_clock(axis, step, zone) for step in _clock_steps() if _is_sparse(axis, step))
        axes.set_xlabel(f"Time ({days(axis, zone)})")
    else:
        divisor, unit = time_unit(axis.right - axis.left)
        choices = (_even(axis, step, divisor) for step in _steps(divisor) if _is_sparse(axis, step))
        axes.set_xlabel(f"Time since the start ({unit})")
    label_x(axes, next(ticks for ticks in choices if len(ticks) < 2 or room_for(axes, ticks, width)))


def _is_sparse(axis: Axis, step: float) -> bool:
    return (axis.right - axis.left) / step <= _MOST_TICKS


def days(axis: Axis, zone: tzinfo | None = None) -> str:
    """The day, or the first and the last, and the zone: `2026-11-16, UTC`."""
    first, last = (datetime.fromtimestamp(axis.origin + at, zone).astimezone(zone) for at in (axis.left, axis.right))
    span = f"{first:%Y-%m-%d}" if first.date() == last.date() else f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return f"{span}, {first:%Z}"


def _steps(divisor: float) -> list[float]:
    """In seconds, steps that are round in the unit, the finest first."""
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
