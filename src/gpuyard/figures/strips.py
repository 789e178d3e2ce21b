"""Strips above and beside curves: jobs and errors as bars and ticks, throttle reasons as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuyard.figures.axes import label_rows
from gpuyard.figures.panels import COLOURS, GREY, RED, Axis, Line, Note
from gpuyard.figures.style import INK, clean, new_figure, shorten
from gpuyard.recordings.series import Series
from gpuyard.recordings.throttling import REASONS, Error, error_text, throttled

MOST_LANES = 6
_LETTER = 4.6
_PANEL = 620.0  # points: a letter of a label, and a panel from left to right
_LABEL = 30
_MOST_ROWS = 48
_MOST_LINES = 40  # marks with a line down through the panel: more would hide the curves
SHADES = dict(zip(REASONS.values(), (*COLOURS, GREY), strict=True))


class _Placed(NamedTuple):
    note: Note
    lane: int
    named: bool


def lanes_of(notes: Sequence[Note], axis: Axis) -> int:
    return 1 + max((placed.lane for placed in _placed(notes, axis)), default=-1)


def notes_inside(notes: Sequence[Note], axis: Axis) -> list[Note]:
    """The notes on the axis; one that is off it by a rounding error is put at its end."""
    near = (axis.right - axis.left) / 500
    found = []
    for note in notes:
        last = note.at if note.until is None else note.until
        if note.at <= axis.right + near and last >= axis.left - near:
            at, until = max(note.at, axis.left), None if note.until is None else min(note.until, axis.right)
            found.append(note._replace(at=min(at, axis.right), until=until))
    return found


def _placed(notes: Sequence[Note], axis: Axis) -> list[_Placed]:
    """Each note in the first row with room for it and its name; else without its name in the last."""
    notes = notes_inside(notes, axis)
    groups = list(dict.fromkeys(note.lane for note in notes))
    per_group = max(1, MOST_LANES // max(1, len(groups)))
    taken = np.full((len(groups), per_group), -np.inf)
    found = []
    for note in notes:
        rows = taken[groups.index(note.lane)]
        begin, end = _reach(note, axis)
        free = np.flatnonzero(rows <= begin)
        row = int(free[0]) if len(free) else per_group - 1
        if len(free):
            rows[row] = end
        found.append(_Placed(note, groups.index(note.lane) * per_group + row, bool(len(free))))
    used = sorted({placed.lane for placed in found})
    return [placed._replace(lane=used.index(placed.lane)) for placed in found]


def _reach(note: Note, axis: Axis) -> tuple[float, float]:
    """The extent of a note with its name, which stands before the note if there is no room after it."""
    width = (_LETTER * len(_label(note)) + 8.0) * (axis.right - axis.left) / _PANEL
    last = note.at if note.until is None else note.until
    if note.at + width <= axis.right:
        return note.at, max(note.at + width, last)
    return note.at - width, last


def note_text(note: Note) -> str:
    """The label of a note, with the recording that it is of, unless the label says that."""
    return note.label if not note.lane or note.label.startswith(note.lane) else f"{note.lane}: {note.label}"


def _label(note: Note) -> str:
    return shorten(note_text(note), _LABEL)


def draw_notes(strip: Axes, panel: Axes, notes: Sequence[Note], axis: Axis) -> None:
    placed = _placed(notes, axis)
    aside = 3 * (axis.right - axis.left) / _PANEL
    alike: dict[tuple[int, str], list[Note]] = {}
    for note, lane, _ in placed:
        alike.setdefault((lane, note.colour), []).append(note)
    for (lane, colour), some in alike.items():  # together, since there may be thousands
        bars = [(note.at, note.until - note.at) for note in some if note.until is not None]
        strip.broken_barh(bars, (lane - 0.43, 0.86), color=colour, alpha=0.3, linewidth=0)
        strip.vlines([note.at for note in some], lane - 0.45, lane + 0.45, colors=colour, linewidth=1.2)
    for note, lane, named in placed:
        if named:
            before = _reach(note, axis)[0] < note.at
            at, side = (note.at - aside, "right") if before else (note.at + aside, "left")
            strip.text(at, lane, clean(_label(note)), va="center", ha=side, fontsize=7, color=INK, clip_on=False)
    ends = [(note.colour, at) for note in notes[:_MOST_LINES] for at in (note.at, note.until) if at is not None]
    for colour, at in ends:
        if axis.left <= at <= axis.right:
            panel.axvline(at, color=colour, linewidth=0.7, linestyle=(0, (4, 2)), alpha=0.6, zorder=1)
    strip.set_ylim(max(one.lane for one in placed) + 0.5, -0.5)
    strip.set_axis_off()


def draw_throttling(pairs: Sequence[tuple[Line, Series]], origins: Mapping[str, float], axis: Axis) -> Figure:
    """A row for each GPU and each reason for which it was slowed down, with a bar while it was."""
    rows = [
        (f"{line.name}: {reason}", reason, origins[line.key], spans)
        for line, series in pairs
        for reason, spans in throttled(series).items()
    ]
    cut, rows = max(0, len(rows) - _MOST_ROWS), rows[:_MOST_ROWS]
    figure = new_figure(11.0, 1.2 + 0.22 * max(len(rows), 3))
    axes = figure.subplots()
    for place, (_, reason, start, spans) in enumerate(rows):
        bars = [(span.start - start, span.end - span.start) for span in spans]
        axes.broken_barh(bars, (place - 0.36, 0.72), color=SHADES.get(reason, INK), linewidth=0)
    _rows(axes, [name for name, *_ in rows], f"{cut} more rows are not shown" if cut else "")
    if not rows:
        axes.text(0.5, 0.5, "No GPU was slowed down.", transform=axes.transAxes, ha="center", va="center")
    return figure


def draw_errors(
    lines: Sequence[Line], errors: Mapping[str, Sequence[Error]], origins: Mapping[str, float], axis: Axis
) -> Figure:
    shown = lines[:_MOST_ROWS]
    figure = new_figure(11.0, 1.2 + 0.32 * max(len(shown), 2))
    axes = figure.subplots()
    for place, line in enumerate(shown):
        for at, number in errors[line.key]:
            left = at - origins[line.key]
            late = left > axis.left + 0.75 * (axis.right - axis.left)
            axes.plot(left, place, "X", color=RED, markersize=6)
            axes.annotate(
                error_text(number), (left, place), (-6 if late else 6, 0), textcoords="offset points",
                ha="right" if late else "left", va="center", fontsize=8,
            )  # fmt: skip
    cut = len(lines) - len(shown)
    _rows(axes, [line.name for line in shown], f"{cut} more GPUs are not shown" if cut else "")
    if not any(errors.values()):
        axes.text(0.5, 0.5, "There was no error.", transform=axes.transAxes, ha="center", va="center")
    return figure


def _rows(axes: Axes, names: Sequence[str], more: str) -> None:
    label_rows(axes, names, 44)
    if more:
        axes.annotate(more, (0, 0), (0, -34), xycoords="axes fraction", textcoords="offset points", fontsize=8)
