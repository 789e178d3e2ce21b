"""The Gantt chart: which job held which GPU when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpuyard.figures.axes import elapsed_axis, time_unit
from gpuyard.figures.style import INK, clipped, legend_beside, new_figure, styled
from gpuyard.sim.result import Bars, Result, Segments, first_submit, shown_bars, stack_bars

MAX_ROWS = 128
MAX_LABELLED = 4_000  # segments up to which bars have outlines and job ids
MAX_SEGMENTS = 20_000
_MANY_JOBS = 24
_NAMED_USERS = 9
_OTHERS = "#c9c9c9"
_CYCLE = (
    "#4e79a7", "#f28e2b", "#76b7b2", "#e15759", "#edc948", "#59a14f",
    "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac", "#a0cbe8", "#d4a6c8",
)  # fmt: skip
_WIDTH = 11.0
_PAD = 0.07


def gantt(result: Result, *, kinds: Sequence[str] | None = None) -> Figure:
    """One row per GPU, shares of a GPU stacked in its row; what had to be left out stands in the title.

    With `kinds`, one of each job of the trace, colours stand for these.
    """
    segments, window, notes = _shown(result)
    bars = stack_bars(segments, result.share, first_submit(result))
    rows = min(result.cluster.gpus, MAX_ROWS)
    detailed = len(segments) <= MAX_LABELLED and result.cluster.gpus <= MAX_ROWS
    with styled():
        height = min(max(8.0 / rows, 0.1), 0.5) * rows
        figure = new_figure(_WIDTH, height + 1.1)
        axes = figure.subplots()
        _frame(axes, result, rows)
        divisor = elapsed_axis(axes, *window)
        axes.set_title(_title(result, notes), loc="left")
        colours, legend = _colours(result, segments) if kinds is None else _kind_colours(segments, kinds)
        _draw(axes, bars, colours, divisor, detailed)
        if legend:
            legend_beside(figure, handles=legend, title="Colour: user" if kinds is None else "Colour: kind")
        if detailed:
            points = (_WIDTH - (2.4 if legend else 0.9)) * 72 / (window[1] - window[0])
            _write_ids(axes, bars, colours, result.trace.ids, divisor, points, height / rows * 72)
        return figure


def _shown(result: Result) -> tuple[Segments, tuple[float, float], list[str]]:
    """The segments to draw, their window of time (since the first submit), and notes on omissions."""
    found, notes = shown_bars(result, MAX_ROWS, MAX_SEGMENTS), []
    if result.cluster.gpus > found.gpus:
        notes.append(f"first {found.gpus} of {result.cluster.gpus:,} GPUs")
    if found.until - found.since < found.last:
        divisor, unit = time_unit(found.last)
        notes.append(f"busiest {(found.until - found.since) / divisor:.3g} of {found.last / divisor:.3g} {unit}")
    return found.segments, (found.since, found.until), notes


def _title(result: Result, notes: list[str]) -> str:
    gpus, unfinished = result.cluster.gpus, len(result.trace) - len(result.completed) - len(result.rejected)
    title = f"{clipped(result.policy, 60)}: {len(result.trace):,} jobs on {gpus:,} GPU{'s' * (gpus != 1)}"
    if result.rejected:
        notes = [f"{len(result.rejected):,} rejected", *notes]
    if unfinished:
        notes = [f"{unfinished:,} not completed", *notes]
    return f"{title} ({', '.join(notes)})" if notes else title


def _frame(axes: Axes, result: Result, rows: int) -> None:
    every = -(-rows // 64)
    alone = len(result.cluster.nodes) == 1
    labels = [f"GPU {gpu}" for gpu in range(rows)] if alone else result.cluster.labels()[:rows]
    axes.set_ylim(rows, 0)
    axes.set_yticks(np.arange(0, rows, every) + 0.5, labels[::every], fontsize=8 if rows <= 32 else 6)
    axes.set_ylabel("" if alone else "GPU (node:index)")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    edges = np.cumsum(result.cluster.nodes)[:-1]
    for edge in edges[edges < rows]:
        axes.axhline(float(edge), color="#9a9a9a", linewidth=0.7, zorder=0.9)
    if not len(result.segments):
        axes.text(0.5, 0.5, "no job ran", transform=axes.transAxes, ha="center", va="center", color="#777777")


def _draw(axes: Axes, bars: Bars, colours: dict[int, str], divisor: float, detailed: bool) -> None:
    floor = bars.gpu + 1 - _PAD - bars.low * (1 - 2 * _PAD)
    ceiling = floor - bars.height * (1 - 2 * _PAD)
    x0, x1 = bars.start / divisor, bars.end / divisor
    corners = np.stack(
        [np.stack(xy, axis=-1) for xy in ((x0, floor), (x1, floor), (x1, ceiling), (x0, ceiling))], axis=1
    )
    collection = PolyCollection(
        list(corners),
        facecolors=[colours[int(job)] for job in bars.job],
        edgecolors="white" if detailed else "none",
        linewidths=0.5 if detailed else 0.0,
        rasterized=not detailed,  # thousands of vector shapes make an SVG that no viewer opens
        zorder=2,
    )
    axes.add_collection(collection, autolim=False)


def _write_ids(
    axes: Axes, bars: Bars, colours: dict[int, str], ids: list[str],
    divisor: float, points_per_second: float, row_points: float,
) -> None:  # fmt: skip
    widths = (bars.end - bars.start) * points_per_second
    heights = bars.height * row_points * (1 - 2 * _PAD)
    for i in range(len(bars)):
        text = " ".join(ids[bars.job[i]].split())
        room = min(widths[i] / (0.62 * max(len(text), 1) + 0.5), heights[i] / 1.2)
        if room < 5:
            continue
        middle = bars.gpu[i] + 1 - _PAD - (bars.low[i] + bars.height[i] / 2) * (1 - 2 * _PAD)
        axes.text(
            (bars.start[i] + bars.end[i]) / 2 / divisor, middle, text, parse_math=False, clip_on=True,
            fontsize=min(room, 8), color=_ink(colours[int(bars.job[i])]),
            ha="center", va="center_baseline", zorder=3,
        )  # fmt: skip


def _ink(background: str) -> str:
    red, green, blue = to_rgb(background)
    return INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.52 else "white"


def _colours(result: Result, segments: Segments) -> tuple[dict[int, str], list[Patch]]:
    users = result.trace.users
    jobs = np.unique(segments.job)
    if len(jobs) <= _MANY_JOBS or len({users[j] for j in jobs} - {""}) < 2:
        return _job_colours(segments), []
    work: defaultdict[str, float] = defaultdict(float)
    seconds = (segments.end - segments.start) * result.share[segments.job]
    totals = np.bincount(segments.job, weights=seconds, minlength=len(users))
    for job in jobs:
        work[users[job]] += float(totals[job])
    largest = sorted(work, key=lambda user: (-work[user], user))
    named = largest if len(largest) <= _NAMED_USERS + 1 else largest[:_NAMED_USERS]
    colour_of = dict(zip(named, _CYCLE, strict=False))
    legend = [Patch(color=colour_of[u], label=clipped(u or "(no user)", 18)) for u in named]
    if len(named) < len(largest):
        legend.append(Patch(color=_OTHERS, label=f"{len(largest) - len(named)} other users"))
    return {int(j): colour_of.get(users[j], _OTHERS) for j in jobs}, legend


def _kind_colours(segments: Segments, kinds: Sequence[str]) -> tuple[dict[int, str], list[Patch]]:
    colour_of = {kind: _CYCLE[n % len(_CYCLE)] for n, kind in enumerate(dict.fromkeys(kinds))}
    legend = [Patch(color=colour, label=clipped(kind, 24)) for kind, colour in colour_of.items()]
    return {int(job): colour_of[kinds[job]] for job in np.unique(segments.job)}, legend


def _job_colours(segments: Segments) -> dict[int, str]:
    """Colours in turn by first start, without those of neighbours on a GPU."""
    order = np.lexsort((segments.start, segments.gpu))
    job, gpu = segments.job[order], segments.gpu[order]
    near: defaultdict[int, set[int]] = defaultdict(set)
    for lag in range(1, 6):  # not the last one only: with shares, jobs before it may still be there
        for a, b in zip(job[:-lag][gpu[:-lag] == gpu[lag:]], job[lag:][gpu[:-lag] == gpu[lag:]], strict=True):
            near[int(a)].add(int(b))
            near[int(b)].add(int(a))
    chosen: dict[int, str] = {}
    _, first = np.unique(segments.job[np.argsort(segments.start, kind="stable")], return_index=True)
    by_start = segments.job[np.argsort(segments.start, kind="stable")][np.sort(first)]
    for turn, j in enumerate(by_start):
        used = {chosen[k] for k in near[int(j)] if k in chosen and k != j}
        cycle = [_CYCLE[(turn + k) % len(_CYCLE)] for k in range(len(_CYCLE))]
        chosen[int(j)] = next((colour for colour in cycle if colour not in used), cycle[0])
    return chosen
