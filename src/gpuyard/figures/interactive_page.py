"""Recordings as one self-contained HTML file: charts with values, zoom and hidden lines, and a table of numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from gpuyard.figures.html_page import heading, page, paragraphs, soft, text_table
from gpuyard.figures.panels import (
    COLOURS,
    DRAWN_AS_ROWS,
    GREY,
    RED,
    Axis,
    Line,
    Named,
    Panel,
    axis_of,
    decimate,
    highest,
    panels,
    scale_of,
    smooth,
)
from gpuyard.figures.strips import SHADES, note_text
from gpuyard.recordings.series import METRICS, Floats, energy
from gpuyard.recordings.throttling import error_text, throttled
from gpuyard.units import format_plain

_POINTS = 3000  # of one line. All lines together have at most `_ALL`, which is some megabytes.
_ALL = 400_000
_FAINT = 600


def plots_page(recordings: Named, metrics: Sequence[str], *, layout: str = "overlay", title: str = "") -> str:
    called = title or (recordings[0][0] if len(recordings) == 1 else ", ".join(name for name, _ in recordings))
    simulated = any(recording.simulated for _, recording in recordings)
    parts = [
        soft("These GPUs are simulated.") if simulated else "",
        warnings_of(recordings),
        heading("Over time"),
        charts(recordings, metrics, layout=layout),
        numbers_table(recordings, metrics),
    ]
    return page(called or "What the GPUs did", parts, style())


@cache
def style() -> str:
    return files("gpuyard.figures").joinpath("charts.css").read_text("utf-8")


@cache
def _script() -> str:
    return files("gpuyard.figures").joinpath("charts.js").read_text("utf-8")


def warnings_of(recordings: Named) -> str:
    several = len(recordings) > 1
    said = [f"{name}: {text}" if several else text for name, recording in recordings for text in recording.warnings]
    return paragraphs(dict.fromkeys(said), "warned")


def charts(recordings: Named, metrics: Sequence[str], *, layout: str = "overlay") -> str:
    """The charts, with all that they need but `style`."""
    return (
        '<p class="soft no-print">Point at a chart for its values; drag across it to zoom, double-click to see all. '
        "By keyboard: Tab to a chart, arrows move, + and − zoom, Esc shows all. Press a name to hide its line.</p>\n"
        '<div class="charts"><noscript>The charts need JavaScript; the numbers below do not.</noscript></div>\n'
        '<script type="application/json" id="recorded">'
        f"{script_json(chart_data(recordings, metrics, layout))}</script>\n"
        f"<script>{_script()}</script>"
    )


def script_json(value: Any) -> str:
    """JSON that may stand in a script element, whatever is in its texts: none of them can end it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # only ASCII: no line separator of JavaScript
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


class _Shared:
    """Lists that the page has once, and refers to by number."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        key = json.dumps(value)
        if key not in self._places:
            self._places[key] = len(self.found)
            self.found.append(value)
        return self._places[key]


def chart_data(recordings: Named, metrics: Sequence[str], layout: str) -> dict[str, Any]:
    axis = axis_of(recordings)
    found = [(metric, panels(recordings, metric, layout)) for metric in metrics]
    lines = sum(not line.faint for _, several in found for panel in several for line in panel.lines)
    points = max(200, min(_POINTS, _ALL // max(lines, 1)))
    times, strips = _Shared(), _Shared()
    found_panels = []
    for metric, several in found:
        scale = scale_of(METRICS[metric], highest(several))
        for panel in several:
            own = _panel(panel, scale.unit, metric)
            own["strip"] = strips.place(_notes(panel))
            if metric in DRAWN_AS_ROWS:
                own |= {"rows": _rows(panel, metric), "lines": []}
            else:
                own["lines"] = [_line(line, panel, scale.divisor, points, times) for line in panel.lines]
            found_panels.append(own)
    return _axis(axis) | {"times": times.found, "strips": strips.found, "panels": found_panels}


def _axis(axis: Axis) -> dict[str, Any]:
    return {"clock": axis.clock, "origin": axis.origin, "left": axis.left, "right": axis.right}


def _panel(panel: Panel, unit: str, metric: str) -> dict[str, Any]:
    of = METRICS[metric]
    title = f"{of.title} ({unit})" if unit else of.title
    title = f"{title}: {panel.title}" if panel.title else title
    none = {"throttle": "No GPU was slowed down.", "xid": "There was no error."}.get(metric, "")
    about = f"{title} over time, {len(panel.lines)} line{'s' * (len(panel.lines) != 1)}"
    return {"title": title, "unit": unit, "most": of.most, "afloat": of.unit == "°C", "none": none, "about": about}


def _notes(panel: Panel) -> list[dict[str, Any]]:
    return [
        {"at": note.at, "until": note.until, "label": note_text(note), "colour": _colour(note.colour)}
        for note in panel.notes
    ]


def _line(line: Line, panel: Panel, divisor: float, points: int, times: _Shared) -> dict[str, Any]:
    low: Floats | None
    high: Floats | None
    if line.faint:
        (at, mean), low, high = smooth(line.at, line.mean, _FAINT), None, None
    else:
        at, mean, low, high = decimate(line.at, line.mean, line.low, line.high, points)
    steps = np.diff(at)
    ends = (mean if low is None else low, mean if high is None else high)
    bottom, top = (values[np.isfinite(values)] for values in ends)
    return {
        "name": line.name,
        "group": line.group,
        "colour": _colour(line.colour),
        "faint": line.faint,
        "beneath": line.beneath,
        "period": float(np.median(steps)) if len(steps) else 1.0,
        "least": float(bottom.min()) / divisor if len(bottom) else None,
        "greatest": float(top.max()) / divisor if len(top) else None,
        "at": times.place(_listed(at, 1.0)),
        "mean": _listed(mean, divisor),
        "low": None if low is None else _listed(low, divisor),
        "high": None if high is None else _listed(high, divisor),
    }


def _listed(values: Floats, divisor: float) -> list[float | None]:
    rounded = np.round(values / divisor, 3).tolist()
    return [None if value != value else int(value) if value == int(value) else value for value in rounded]


def _rows(panel: Panel, metric: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for line, series in panel.series:
        start = panel.origins[line.key]
        if metric == "xid":
            points = [[at - start, error_text(number)] for at, number in panel.errors[line.key]]
            rows.append({"name": line.name, "colour": "red", "bars": [], "points": points})
            continue
        for reason, spans in throttled(series).items():
            bars = [[span.start - start, span.end - start] for span in spans]
            colour = _colour(SHADES.get(reason, ""))
            rows.append({"name": f"{line.name}: {reason}", "colour": colour, "bars": bars, "points": []})
    return rows if any(row["bars"] or row["points"] for row in rows) else []


_NAMES: Mapping[str, str] = {**{colour: f"c{place}" for place, colour in enumerate(COLOURS)}, GREY: "grey", RED: "red"}


def _colour(colour: str) -> str:
    return _NAMES.get(colour, "grey")


def numbers_table(recordings: Named, metrics: Sequence[str]) -> str:
    rows = [
        row
        for metric in metrics
        if metric not in DRAWN_AS_ROWS
        for panel in panels(recordings, metric, "stacked" if len(recordings) == 1 else "overlay")
        for row in _numbers(panel)
    ]
    if not rows:
        return ""
    table = text_table(("What", "Of", "Least", "Mean", "Most", "Values"), rows, "numbers")
    return f"<details><summary>The numbers</summary>{table}{_energy(recordings)}</details>"


def _numbers(panel: Panel) -> list[tuple[str, ...]]:
    found = []
    for line, _ in panel.series:
        known = line.mean[np.isfinite(line.mean)]
        if not len(known):
            continue
        low = float(np.nanmin(line.mean if line.low is None else line.low))
        high = float(np.nanmax(line.mean if line.high is None else line.high))
        scale = scale_of(panel.metric, high)
        cells = (_text(value / scale.divisor, scale.unit) for value in (low, float(known.mean()), high))
        found.append((panel.metric.title, line.name, *cells, f"{len(known):,}"))
    return found


def _energy(recordings: Named) -> str:
    several = len(recordings) > 1
    totals = [
        f"{name}: {format_plain(total)} Wh" if several else f"{format_plain(total)} Wh"
        for name, recording in recordings
        if (total := sum(energy(one) for one in recording.of("power"))) > 0
    ]
    return soft(f"Energy, by what is known of the power: {', '.join(totals)}") if totals else ""


def _text(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}".strip() if abs(value) >= 1000 else f"{value:,.4g} {unit}".strip()
