"""Series as lines with names and colours on a common time axis, in panels; figures and pages draw the same ones.

A line that has more points than can be seen is reduced to some that look the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard.figures.style import shorten
from gpuyard.recordings.series import METRICS, Floats, Mark, Metric, Recording, Series, Subject
from gpuyard.recordings.throttling import Error, errors

Named = Sequence[tuple[str, Recording]]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8508e", "#b87d00", "#2f9bd8", "#7a4a2b", "#5b5b5b")
"""Told apart also by those who see fewer colours (after Okabe and Ito, darker where that is too faint for a line)."""
GREY, RED = "#9aa1aa", "#b3261e"
_LOOKS, _MOSTLY, _NEAR = 500, 0.75, 0.05
"""Instants compared; lines are alike if at this share of them they differ by at most this share of the maximum."""
DRAWN_AS_ROWS = ("throttle", "xid")  # metrics that are no lines, but rows with bars or points (`strips`)
CROWDED = len(COLOURS)  # more lines than that cannot be told apart: then their mean is drawn, and they are faint


@dataclass(frozen=True, slots=True)
class Line:
    """One series; times in seconds since the axis begins."""

    key: str  # the same for the same subject in all panels
    name: str
    group: str  # the entry in the legend; faint lines share one
    colour: str
    at: Floats
    mean: Floats
    low: Floats | None = None
    high: Floats | None = None
    faint: bool = False
    beneath: int = 0  # how many lines of the panel it lies on, value by value: then it is dashed, so that all are seen


class Note(NamedTuple):
    at: float
    until: float | None
    label: str
    colour: str
    lane: str  # notes of one recording, where several are compared


@dataclass(frozen=True, slots=True)
class Panel:
    metric: Metric
    title: str  # whose lines these are, where panels are stacked; else empty
    lines: list[Line] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    series: list[tuple[Line, Series]] = field(default_factory=list)
    """The series of the lines, for metrics that are not drawn as lines; without means of several."""
    origins: dict[str, float] = field(default_factory=dict)
    """When the axis begins for each line, in seconds since the epoch."""
    errors: dict[str, list[Error]] = field(default_factory=dict)  # of a panel of errors, those of each line


class Axis(NamedTuple):
    clock: bool  # times of day; else time since each recording began
    origin: float  # of the first recording, in seconds since the epoch
    left: float
    right: float


def axis_of(recordings: Named) -> Axis:
    left, right = 0.0, 0.0
    for _, recording in recordings:
        known = [one for one in recording.series if len(one.at)]
        left = min([left, *(float(one.at[0]) - recording.start for one in known)])
        last = [float(one.at[-1]) - recording.start + (one.period if one.low is not None else 0.0) for one in known]
        right = max([right, recording.end - recording.start, *last])
    return Axis(len(recordings) == 1, recordings[0][1].start, left, right if right > left else left + 1.0)


def panels(recordings: Named, metric: str, layout: str) -> list[Panel]:
    """The panels of one metric; none where nothing is known of it."""
    found = [(place, name, recording) for place, (name, recording) in enumerate(recordings) if recording.of(metric)]
    if not found:
        return []
    alone = len(recordings) == 1
    if layout == "stacked" and alone:
        return _small(recordings[0][1], metric)
    if layout == "stacked":
        single = all(len(subjects(recording)) <= 1 for _, recording in recordings)
        return [_panel([_of_one(p, name, r, metric, single)], name, metric) for p, name, r in found]
    if alone:
        return [_panel([_of_one(0, "", recordings[0][1], metric, False)], "", metric)]
    return [_panel([_of_several(p, name, r, metric) for p, name, r in found], "", metric)]


class Scale(NamedTuple):
    divisor: float
    unit: str


def scale_of(metric: Metric, highest: float) -> Scale:
    """Bytes as MiB or GiB, whichever has the better numbers; the rest as it is."""
    if metric.unit != "bytes":
        return Scale(1.0, metric.unit)
    return Scale(2.0**30, "GiB") if highest >= 4 * 2.0**30 else Scale(2.0**20, "MiB")


def highest(found: Sequence[Panel]) -> float:
    tops = [line.mean if line.high is None else line.high for panel in found for line in panel.lines]
    return max([0.0, *(float(np.nanmax(top)) for top in tops if np.isfinite(top).any())])


def lowest(found: Sequence[Panel]) -> float:
    bottoms = [line.mean if line.low is None else line.low for panel in found for line in panel.lines]
    return min(float(np.nanmin(bottom)) for bottom in bottoms if np.isfinite(bottom).any())


class _Part(NamedTuple):
    pairs: list[tuple[Line, Series | None]]
    notes: list[Note]
    recording: Recording


def _panel(parts: Sequence[_Part], title: str, metric: str) -> Panel:
    pairs = [pair for part in parts for pair in part.pairs]
    lines = [line for line, _ in pairs]
    if metric not in DRAWN_AS_ROWS:
        lines = _dashed(lines, _same if len(parts) == 1 else _alike)
    pairs = [(line, series) for line, (_, series) in zip(lines, pairs, strict=True)]
    return Panel(
        METRICS[metric],
        title,
        [line for line, _ in pairs],
        [note for part in parts for note in part.notes],
        [(line, series) for line, series in pairs if series is not None],
        {line.key: part.recording.start for part in parts for line, _ in part.pairs},
        {
            line.key: errors_of(series, part.recording)
            for part in parts for line, series in part.pairs if series is not None and metric == "xid"
        },
    )  # fmt: skip


def _dashed(lines: Sequence[Line], alike: Callable[[Line, Line], bool]) -> list[Line]:
    """A line that lies on others is dashed, so that all are seen."""
    found: list[Line] = []
    for line in lines:
        beneath = 0 if line.faint else sum(alike(line, other) for other in found if not other.faint)
        found.append(replace(line, beneath=beneath) if beneath else line)
    return found


def _same(one: Line, other: Line) -> bool:
    return one.mean.tobytes() == other.mean.tobytes()


def _alike(one: Line, other: Line) -> bool:
    if _same(one, other):
        return True
    if len(one.at) < 2 or len(other.at) < 2:
        return False
    left, right = max(one.at[0], other.at[0]), min(one.at[-1], other.at[-1])
    if right - left < _MOSTLY * (max(one.at[-1], other.at[-1]) - min(one.at[0], other.at[0])):
        return False
    at = np.linspace(left, right, _LOOKS)
    here, there = (np.interp(at, line.at, line.mean) for line in (one, other))
    near = _NEAR * max(np.nanmax(np.abs(one.mean), initial=0.0), np.nanmax(np.abs(other.mean), initial=0.0))
    return bool((np.abs(here - there) <= near).mean() >= _MOSTLY)


def _of_one(place: int, name: str, recording: Recording, metric: str, by_recording: bool) -> _Part:
    """A recording by itself: a colour for each subject, or the mean if there are many."""
    found = recording.of(metric)
    if len(found) > CROWDED and metric not in DRAWN_AS_ROWS:
        return _Part(_crowd(place, "", recording, found, COLOURS[0]), notes_of(recording, GREY, ""), recording)
    order = {key_of(one): rank for rank, one in enumerate(subjects(recording, metric))}
    pairs: list[tuple[Line, Series | None]] = []
    for one in found:
        colour = COLOURS[(place if by_recording else order[key_of(one.subject)]) % len(COLOURS)]
        label = name if by_recording else label_of(one.subject, recording, metric)
        pairs.append((line_of(one, recording.start, f"{place}/{key_of(one.subject)}", label, label, colour), one))
    return _Part(pairs, notes_of(recording, GREY, ""), recording)


def _of_several(place: int, name: str, recording: Recording, metric: str) -> _Part:
    """A recording among others: all of it in one colour, with the mean of its GPUs."""
    found, colour = recording.of(metric), COLOURS[place % len(COLOURS)]
    notes = notes_of(recording, colour, name)
    if len(found) == 1 or metric in DRAWN_AS_ROWS:
        pairs: list[tuple[Line, Series | None]] = []
        for one in found:
            label = name if len(found) == 1 else f"{name}, {label_of(one.subject, recording, metric)}"
            pairs.append((line_of(one, recording.start, f"{place}/{key_of(one.subject)}", label, label, colour), one))
        return _Part(pairs, notes, recording)
    return _Part(_crowd(place, name, recording, found, colour), notes, recording)


def _crowd(
    place: int, name: str, recording: Recording, found: Sequence[Series], colour: str
) -> list[tuple[Line, Series | None]]:
    metric, kind = found[0].metric, "jobs" if len({one.subject.job for one in found}) > 1 else "GPUs"
    prefix = f"{shorten(name, 26)}, " if name else ""
    pairs: list[tuple[Line, Series | None]] = []
    for one in found:
        label = f"{prefix}{label_of(one.subject, recording, metric)}"
        key = f"{place}/{key_of(one.subject)}"
        group = f"{prefix}each of {len(found)} {kind}"
        pairs.append((line_of(one, recording.start, key, label, group, GREY if not name else colour, faint=True), one))
    label = f"{prefix}mean of {len(found)} {kind}"
    pairs.append((mean_line(found, recording.start, f"{place}/mean/{kind}", label, colour), None))
    return pairs


def _small(recording: Recording, metric: str) -> list[Panel]:
    whole = _of_one(0, "", recording, metric, False)
    pairs = [(line, series) for line, series in whole.pairs if series is not None]
    order = {key_of(one): rank for rank, one in enumerate(subjects(recording, metric))}
    found = []
    for line, series in pairs:
        colour = COLOURS[order[key_of(series.subject)] % len(COLOURS)]
        own = line_of(series, recording.start, line.key, line.name, line.name, colour)
        mine = [note for mark, note in _noted(recording, GREY, "") if concerns(mark, series.subject)]
        found.append(_panel([_Part([(own, series)], mine, recording)], line.name, metric))
    return found


def line_of(one: Series, start: float, key: str, name: str, group: str, colour: str, *, faint: bool = False) -> Line:
    """A series as a line; a value that stands for a span is drawn in the span's middle."""
    shift = one.period / 2 if one.low is not None else 0.0
    return Line(key, name, group, colour, one.at - start + shift, one.mean, one.low, one.high, faint)


def mean_line(found: Sequence[Series], start: float, key: str, name: str, colour: str) -> Line:
    """The mean, the least and the most of several series; gaps do not count."""
    shift = found[0].period / 2 if found[0].low is not None else 0.0
    at = _together(found)
    mean = np.array([_resampled(one, one.mean, at) for one in found])
    low = np.array([_resampled(one, one.mean if one.low is None else one.low, at) for one in found])
    high = np.array([_resampled(one, one.mean if one.high is None else one.high, at) for one in found])
    known = ~np.isnan(mean)
    count, total = known.sum(axis=0), np.where(known, mean, 0.0).sum(axis=0)
    average = np.divide(total, count, out=np.full(len(at), np.nan), where=count > 0)
    return Line(key, name, name, colour, at - start + shift, average, np.fmin.reduce(low), np.fmax.reduce(high))


def _together(found: Sequence[Series]) -> Floats:
    """The times of all series; of the one with the most values, if each has times of its own."""
    longest = max((one.at for one in found), key=len)
    every = np.unique(np.concatenate([one.at for one in found]))
    return every if len(every) <= 2 * len(longest) + 2 else longest


def _resampled(one: Series, values: Floats, at: Floats) -> Floats:
    """The latest value at each time; none before the first, nor long after the last."""
    if len(one.at) == len(at) and np.array_equal(one.at, at):
        return values
    if not len(one.at):
        return np.full(len(at), np.nan)
    place = np.searchsorted(one.at, at + one.period / 2, side="right") - 1
    fresh = (place >= 0) & (at <= one.at[-1] + 2 * one.period)
    return np.where(fresh, values[np.maximum(place, 0)], np.nan)


def subjects(recording: Recording, metric: str = "utilization") -> list[Subject]:
    of_jobs = metric.startswith("process_")
    found = {key_of(one.subject): one.subject for one in recording.series if bool(one.subject.job) == of_jobs}
    return sorted(found.values(), key=lambda one: (one.host, one.gpu, one.uuid, _numbered(one.job)))


def _numbered(job: str) -> tuple[int, str]:
    return (int(job) if job.isdecimal() and job.isascii() else 0, job)


def key_of(subject: Subject) -> str:
    return "/".join((subject.host, str(subject.gpu), subject.uuid, subject.job))


def label_of(subject: Subject, recording: Recording, metric: str) -> str:
    """`GPU 0`, `job 7`, or more where that is not enough to tell it from others."""
    others = subjects(recording, metric)
    gpu = f"GPU {subject.gpu}" if subject.gpu >= 0 else subject.uuid or "GPU"
    gpu = f"{subject.host} {gpu}" if len({one.host for one in others}) > 1 else gpu
    alike = {one.uuid for one in others if (one.host, one.gpu) == (subject.host, subject.gpu)}
    gpu = f"{gpu} ({shorten(subject.uuid, 16)})" if len(alike) > 1 and subject.gpu >= 0 else gpu  # parts of one
    if not subject.job:
        return gpu
    same = [one for one in others if one.job == subject.job]
    return f"job {subject.job} on {gpu}" if len(same) > 1 else f"job {subject.job}"


def notes_of(recording: Recording, colour: str, lane: str) -> list[Note]:
    return list(dict.fromkeys(note for _, note in _noted(recording, colour, lane)))  # one for all GPUs of a job


def _noted(recording: Recording, colour: str, lane: str) -> list[tuple[Mark, Note]]:
    start = recording.start
    told = [(mark, RED if _number(mark) else colour) for mark in recording.marks]
    if not any(map(_number, recording.marks)):
        told += [
            (Mark(at, f"XID {number}", None, one.subject), RED)
            for one in recording.of("xid")
            for at, number in errors(one)
        ]
    told.sort(key=lambda pair: (pair[0].at, pair[0].label))
    return [
        (mark, Note(mark.at - start, None if mark.until is None else mark.until - start, mark.label, own, lane))
        for mark, own in told
    ]


def concerns(mark: Mark, subject: Subject) -> bool:
    about = mark.subject
    if about is None:
        return True
    return (about.host, about.gpu) == (subject.host, subject.gpu) and (not subject.job or about.job == subject.job)


def errors_of(series: Series, recording: Recording) -> list[Error]:
    """The errors of a GPU: those that are marked, since the observer knows which were new; else where values rise."""
    marked = [(mark, number) for mark in recording.marks if (number := _number(mark))]
    if not marked:
        return errors(series)
    return [Error(mark.at, number) for mark, number in marked if _is_of(mark, series.subject)]


def _is_of(mark: Mark, subject: Subject) -> bool:
    """Whether a mark is about this very device: parts of one GPU have errors of their own."""
    known = mark.subject.uuid if mark.subject is not None else ""
    return concerns(mark, subject) and (not known or not subject.uuid or known == subject.uuid)


def _number(mark: Mark) -> int:
    """The XID of an error that a mark stands for; 0 if it stands for something else, as a job."""
    match = re.fullmatch(r"XID ([0-9]+)", mark.label)
    return int(match[1]) if match and mark.until is None else 0


Lines = tuple[Floats, Floats, Floats | None, Floats | None]
"""Times, values, and the least and the most of values that stand for spans."""


def decimate(at: Floats, mean: Floats, low: Floats | None, high: Floats | None, most: int) -> Lines:
    """At most about `most` points; peaks, gaps and both ends stay where they were."""
    if len(at) <= most:
        return at, mean, low, high
    size = -(-len(at) // max(most // 5, 1))
    kept = _corners(mean, size)
    if low is None or high is None:
        return at[kept], mean[kept], None, None
    gaps, bucket = np.isnan(mean[kept]), kept // size
    least, greatest = (_extremes(low, size, np.fmin)[bucket], _extremes(high, size, np.fmax)[bucket])
    return at[kept], mean[kept], np.where(gaps, np.nan, least), np.where(gaps, np.nan, greatest)


def smooth(at: Floats, mean: Floats, most: int) -> tuple[Floats, Floats]:
    """At most `most` points, each the mean of a stretch: enough for a line among many others."""
    if len(at) <= most:
        return at, mean
    begins = np.arange(0, len(at), -(-len(at) // most))
    known = ~np.isnan(mean)
    count = np.add.reduceat(known.astype(np.float64), begins)
    total = np.add.reduceat(np.where(known, mean, 0.0), begins)
    return at[begins], np.divide(total, count, out=np.full(len(begins), np.nan), where=count > 0)


def _corners(values: Floats, size: int) -> NDArray[np.int64]:
    """Of each `size` values: where the first, the last, the least and the most are, and the first gap."""
    gaps = np.isnan(values)
    lows = _rows(np.where(gaps, np.inf, values), size, np.inf).argmin(axis=1)
    peaks = _rows(np.where(gaps, -np.inf, values), size, -np.inf).argmax(axis=1)
    begins = np.arange(len(lows), dtype=np.int64) * size
    gap = _rows(gaps, size, False).argmax(axis=1)  # the first value, where there is no gap
    ends = np.minimum(begins + size, len(values)) - 1
    return np.unique(np.concatenate([begins, begins + lows, begins + peaks, begins + gap, ends]))


def _rows(values: NDArray[np.generic], size: int, filling: float) -> NDArray[np.generic]:
    missing = -len(values) % size
    return np.concatenate([values, np.full(missing, filling, values.dtype)]).reshape(-1, size)


def _extremes(values: Floats, size: int, extreme: np.ufunc) -> Floats:
    found: Floats = extreme.reduceat(values, np.arange(0, len(values), size))
    return found
