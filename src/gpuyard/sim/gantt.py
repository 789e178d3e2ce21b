"""The Gantt chart: who held which GPU when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gpuyard.sim.figures import INK, clean, first_submit, new_figure, shorten, styled, time_unit
from gpuyard.sim.result import Result, Segments
from gpuyard.sim.trace import Flags, Floats, Ints

MAX_ROWS = 128
MAX_LABELLED = 4_000
"""Segments up to which bars have outlines and job ids."""
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
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Bars:
    """Rectangles within GPU rows: `low` and `height` are parts of a row, from its floor."""

    job: Ints
    gpu: Ints
    start: Floats
    end: Floats
    low: Floats
    height: Floats

    def __len__(self) -> int:
        return len(self.job)


def gantt(result: Result, *, kinds: Sequence[str] | None = None) -> Figure:
    """One row per GPU, shares of a GPU stacked in its row; what had to be left out stands in the title.

    With `kinds`, one of each job of the trace, colours stand for these.
    """
    segments, window, notes = _shown(result)
    bars = stack(segments, result.share, first_submit(result))
    rows = min(result.cluster.gpus, MAX_ROWS)
    detailed = len(segments) <= MAX_LABELLED and result.cluster.gpus <= MAX_ROWS
    with styled():
        height = min(max(8.0 / rows, 0.1), 0.5) * rows
        figure = new_figure(_WIDTH, height + 1.1)
        axes = figure.subplots()
        divisor, unit = time_unit(window[1] - window[0])
        _frame(axes, result, rows)
        axes.set_xlim(window[0] / divisor, window[1] / divisor)
        axes.set_xlabel(f"Time since the first submit ({unit})")
        axes.set_title(_title(result, notes), loc="left")
        colours, legend = _colours(result, segments) if kinds is None else _kind_colours(segments, kinds)
        _draw(axes, bars, colours, divisor, detailed)
        if legend:
            figure.legend(
                handles=legend, loc="outside right upper", frameon=False, fontsize=8,
                title="Colour: user" if kinds is None else "Colour: kind", title_fontsize=8, alignment="left",
            )  # fmt: skip
        if detailed:
            points = (_WIDTH - (2.4 if legend else 0.9)) * 72 / (window[1] - window[0])
            _write_ids(axes, bars, colours, result.trace.ids, divisor, points, height / rows * 72)
        return figure


def stack(segments: Segments, share: Floats, origin: float) -> Bars:
    """Bars of the segments, at times since `origin`: jobs on a GPU at the same time lie above each other."""
    order = np.lexsort((segments.job, segments.start, segments.gpu))
    job, gpu = segments.job[order], segments.gpu[order]
    start, end = segments.start[order] - origin, segments.end[order] - origin
    alone = _alone(gpu, start, end)
    pieces = [(int(i), 0.0, float(share[job[i]])) for i in np.flatnonzero(alone)]
    crowd = np.flatnonzero(~alone)
    for row in np.split(crowd, np.flatnonzero(np.diff(gpu[crowd])) + 1):
        pieces += _stack_row(row, start, end, share[job])
    index = np.array([i for i, _, _ in pieces], dtype=np.int64)
    low = np.array([low for _, low, _ in pieces])
    height = np.array([height for _, _, height in pieces])
    return Bars(job[index], gpu[index], start[index], end[index], low, height)


def _alone(gpu: Ints, start: Floats, end: Floats) -> Flags:
    """Which segments (by GPU, then start) meet no other on their GPU."""
    n = len(gpu)
    if n == 0:
        return np.zeros(0, dtype=bool)
    # Shifting each GPU's times beyond the last one's lets a single running maximum serve all GPUs.
    span = float(end.max() - start.min()) + 1.0
    starts, ends = start + gpu * span, end + gpu * span
    tolerance = span * (int(gpu.max()) + 1) * 1e-12
    meets_earlier = np.append(False, starts[1:] < np.maximum.accumulate(ends)[:-1] - tolerance)
    meets_next = np.append(meets_earlier[1:], False)
    return np.asarray(~(meets_earlier | meets_next), dtype=bool)


def _stack_row(row: npt.NDArray[np.intp], start: Floats, end: Floats, share: Floats) -> list[tuple[int, float, float]]:
    """(segment, low, height) on one GPU; a share that fits no single gap is spread over several."""
    taken: list[tuple[float, float, float]] = []
    pieces: list[tuple[int, float, float]] = []
    top = 1.0
    for i in row:
        taken = sorted(t for t in taken if t[2] > start[i] + _EPSILON)
        for low, height in _gaps(taken, float(share[i])):
            taken.append((low, low + height, float(end[i])))
            pieces.append((int(i), low, height))
            top = max(top, low + height)
    # Memory shares and compute shares may add up to more than one GPU: then the row is drawn to scale.
    return [(i, low / top, height / top) for i, low, height in pieces]


def _gaps(taken: list[tuple[float, float, float]], need: float) -> list[tuple[float, float]]:
    """Free (low, height) pieces that add up to `need`: one piece if any gap is large enough."""
    free: list[tuple[float, float]] = []
    floor = 0.0
    for low, high, _ in taken:
        if low - floor > _EPSILON:
            free.append((floor, low - floor))
        floor = max(floor, high)
    free.append((floor, max(1.0 - floor, 0.0)))
    if fitting := [gap for gap in free if gap[1] >= need - _EPSILON]:
        return [(min(fitting, key=lambda gap: gap[1])[0], need)]
    found: list[tuple[float, float]] = []
    for low, height in free[:-1]:
        found.append((low, min(height, need)))
        need -= found[-1][1]
        if need <= _EPSILON:
            return found
    return [*found, (free[-1][0], need)]


def _shown(result: Result) -> tuple[Segments, tuple[float, float], list[str]]:
    """The segments to draw, the window of time they are in (since the first submit), and what is left out."""
    all_, origin, notes = result.segments, first_submit(result), []
    last = float(all_.end.max()) - origin if len(all_) else 1.0
    keep = all_.end > all_.start
    if result.cluster.gpus > MAX_ROWS:
        keep &= all_.gpu < MAX_ROWS
        notes.append(f"first {MAX_ROWS} of {result.cluster.gpus:,} GPUs")
    kept = _pick(all_, keep)
    low, high = 0.0, last
    if len(kept) > MAX_SEGMENTS:
        low, high = _busiest(kept.start - origin, kept.end - origin, last)
        kept = _pick(kept, (kept.end - origin > low) & (kept.start - origin < high))
        divisor, unit = time_unit(last)
        notes.append(f"busiest {(high - low) / divisor:.3g} of {last / divisor:.3g} {unit}")
    return kept, (low, max(high, low + _EPSILON)), notes


def _pick(segments: Segments, keep: Flags) -> Segments:
    return Segments(segments.job[keep], segments.gpu[keep], segments.start[keep], segments.end[keep])


def _busiest(start: Floats, end: Floats, last: float) -> tuple[float, float]:
    """The window with the most GPU time, as wide as the limit on segments allows."""
    width = last * MAX_SEGMENTS / len(start)
    starts, ends = np.sort(start), np.sort(end)
    while True:
        low = np.linspace(0.0, last - width, 1000)
        work = _work_before(starts, ends, low + width) - _work_before(starts, ends, low)
        best = float(low[int(np.argmax(work))])
        inside = np.searchsorted(starts, best + width) - np.searchsorted(ends, best, side="right")
        if inside <= MAX_SEGMENTS or width < last * 1e-6:
            return best, best + width
        width *= 0.8


def _work_before(starts: Floats, ends: Floats, times: Floats) -> Floats:
    """GPU time spent before each of these times: sum of min(end, t) - min(start, t)."""

    def clipped(sorted_: Floats) -> Floats:
        sums = np.concatenate(([0.0], np.cumsum(sorted_)))
        below = np.searchsorted(sorted_, times)
        return np.asarray(sums[below] + (len(sorted_) - below) * times)

    return clipped(ends) - clipped(starts)


def _title(result: Result, notes: list[str]) -> str:
    gpus, unfinished = result.cluster.gpus, len(result.trace) - len(result.completed) - len(result.rejected)
    title = f"{clean(shorten(result.policy, 60))}: {len(result.trace):,} jobs on {gpus:,} GPU{'s' * (gpus != 1)}"
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
    """Colour of each job, and a legend where the colours stand for users."""
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
    legend = [Patch(color=colour_of[u], label=clean(shorten(u or "(no user)", 18))) for u in named]
    if len(named) < len(largest):
        legend.append(Patch(color=_OTHERS, label=f"{len(largest) - len(named)} other users"))
    return {int(j): colour_of.get(users[j], _OTHERS) for j in jobs}, legend


def _kind_colours(segments: Segments, kinds: Sequence[str]) -> tuple[dict[int, str], list[Patch]]:
    """Colour of each job by its kind, and what the colours stand for, in the order in which kinds come up."""
    colour_of = {kind: _CYCLE[n % len(_CYCLE)] for n, kind in enumerate(dict.fromkeys(kinds))}
    legend = [Patch(color=colour, label=clean(shorten(kind, 24))) for kind, colour in colour_of.items()]
    return {int(job): colour_of[kinds[job]] for job in np.unique(segments.job)}, legend


def _job_colours(segments: Segments) -> dict[int, str]:
    """Colours in turn by first start, leaving out those of the jobs next to it on a GPU."""
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
