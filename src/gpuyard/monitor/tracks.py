"""Columns of samples in bounded memory: growing them, joining several, finding gaps, and cutting them to a span."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard.recordings.series import Floats, Recording, Series
from gpuyard.spec.times import format_when

_FIRST = 256


class Column(NamedTuple):
    at: Floats
    mean: Floats
    low: Floats | None
    high: Floats | None


def broken(column: Column, period: float, longest: float) -> Column:
    """A column with a gap wherever two values are further apart than `longest` seconds; it begins a period later."""
    places = np.flatnonzero(np.diff(column.at) > longest)
    if not len(places):
        return column
    at = np.insert(column.at, places + 1, column.at[places] + period)
    mean, low, high = (None if one is None else np.insert(one, places + 1, np.nan) for one in column[1:])
    assert mean is not None
    return Column(at, mean, low, high)


class Track:
    """Some columns, one row per span of time: what they were on average, at least and at most.

    As long as there is room, a span is a single look. Then its width doubles, so weeks take no more than hours do.
    """

    def __init__(self, columns: int, most: int, bits: Sequence[int] = (), events: Sequence[int] = ()) -> None:
        """`bits` are columns of flags, joined by OR in a span; of `events` a span has the largest."""
        self._columns, self._most = columns, max(4, most - most % 2)
        self._bits, self._events = list(bits), list(events)
        self.width = 1  # looks in a span
        self._rows = 0
        self._open = 0  # looks in the last row
        self._at = np.empty(_FIRST)
        self._sum = np.zeros((_FIRST, columns))
        self._known = np.zeros((_FIRST, columns))
        self._low = np.full((_FIRST, columns), np.inf)
        self._high = np.full((_FIRST, columns), -np.inf)

    def __len__(self) -> int:
        return self._rows

    def add(self, at: float, values: Floats) -> None:
        """One sample; NaN: not known. Times only go forward."""
        if self._open == 0 or self._open == self.width:
            self._begin(at)
        row, known = self._rows - 1, ~np.isnan(values)
        told = np.where(known, values, 0.0)
        before = self._sum[row].copy()
        self._sum[row] += told
        self._known[row] += known
        self._low[row] = np.where(known, np.minimum(self._low[row], values), self._low[row])
        self._high[row] = np.where(known, np.maximum(self._high[row], values), self._high[row])
        for column in self._bits:
            self._sum[row, column] = int(before[column]) | int(told[column])
        self._open += 1

    def column(self, number: int) -> Column:
        """One column; `low` and `high` where spans hold several samples."""
        rows = self._rows
        known = self._known[:rows, number]
        told = known > 0
        if number in self._bits:
            sums = self._sum[:rows, number]
            return Column(self._at[:rows].copy(), np.where(told, sums, np.nan), None, None)
        low = np.where(told, self._low[:rows, number], np.nan)
        high = np.where(told, self._high[:rows, number], np.nan)
        if number in self._events:
            return Column(self._at[:rows].copy(), high, None, None)
        mean = np.where(told, self._sum[:rows, number] / np.maximum(known, 1.0), np.nan)
        single = self.width == 1
        return Column(self._at[:rows].copy(), mean, None if single else low, None if single else high)

    def _begin(self, at: float) -> None:
        if self._rows == self._most:
            self._halve()
        if self._rows == len(self._at):
            self._grow()
        self._at[self._rows] = at
        self._rows += 1
        self._open = 0

    def _grow(self) -> None:
        more = min(self._most, 2 * self._rows) - self._rows
        self._at = np.concatenate([self._at, np.empty(more)])
        shape = (more, self._columns)
        self._sum = np.concatenate([self._sum, np.zeros(shape)])
        self._known = np.concatenate([self._known, np.zeros(shape)])
        self._low = np.concatenate([self._low, np.full(shape, np.inf)])
        self._high = np.concatenate([self._high, np.full(shape, -np.inf)])

    def _halve(self) -> None:
        """Make one span of every two; the last is full, so the number of rows is even and all are alike."""
        half = self._rows // 2
        bits = {
            column: self._sum[0 : self._rows : 2, column].astype(np.int64)
            | self._sum[1 : self._rows : 2, column].astype(np.int64)
            for column in self._bits
        }
        self._at[:half] = self._at[0 : self._rows : 2]
        for table, join in (
            (self._sum, np.add),
            (self._known, np.add),
            (self._low, np.minimum),
            (self._high, np.maximum),
        ):
            table[:half] = join(table[0 : self._rows : 2], table[1 : self._rows : 2])
        for column, joined in bits.items():
            self._sum[:half, column] = joined
        self._sum[half:], self._known[half:], self._low[half:], self._high[half:] = 0.0, 0.0, np.inf, -np.inf
        self._rows, self.width = half, self.width * 2
        self._open = self.width


_MOST_TOLD = 8  # gaps that are told one by one


def single(at: Floats, values: Floats) -> Column:
    return Column(at, values, None, None)


def in_order(columns: Sequence[Column]) -> Column:
    """Pieces of one series in order; an instant in two of them counts once."""
    at = np.concatenate([column.at for column in columns])
    _, places = np.unique(at, return_index=True)
    return single(at[places], np.concatenate([column.mean for column in columns])[places])


def joined(base: Column, other: Column, apart: float) -> Column:
    """A series, with values of another that are further than `apart` seconds from all of its own."""
    if not len(base.at) or not len(other.at):
        return base if len(base.at) else other
    after = np.searchsorted(base.at, other.at)
    later = base.at[np.minimum(after, len(base.at) - 1)]
    earlier = base.at[np.maximum(after - 1, 0)]
    lonely = np.minimum(np.abs(later - other.at), np.abs(other.at - earlier)) > apart
    at = np.concatenate([base.at, other.at[lonely]])
    order = np.argsort(at, kind="stable")
    return single(at[order], np.concatenate([base.mean, other.mean[lonely]])[order])


def beside(columns: Sequence[Column]) -> Column:
    """Series on one grid of spans as one: the mean of the known values, the least and the most of all."""
    if len(columns) == 1:
        return columns[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a span without values is NaN, as it should be
        mean = np.nanmean([column.mean for column in columns], axis=0)
        lows = [column.low for column in columns if column.low is not None]
        highs = [column.high for column in columns if column.high is not None]
        low = np.nanmin(lows, axis=0) if lows else None
        high = np.nanmax(highs, axis=0) if highs else None
    return Column(columns[0].at, mean, low, high)


def highest(columns: Sequence[Column]) -> Column:
    """Series of samples as one: the highest value at each instant."""
    at, places = np.unique(np.concatenate([column.at for column in columns]), return_inverse=True)
    values = np.full(len(at), -np.inf)
    told = np.concatenate([column.mean for column in columns])
    known = ~np.isnan(told)
    np.maximum.at(values, places[known], told[known])
    return single(at, np.where(np.isinf(values), np.nan, values))


def increments(counts: Column, code: float, start: float, period: float) -> Column:
    """A number wherever a count rises, 0 elsewhere; one that begins after `start` rose then."""
    at, values = counts.at, counts.mean
    known = ~np.isnan(values)
    at, values = at[known], values[known]
    if len(at) and at[0] - start > 3 * period:
        at, values = np.insert(at, 0, at[0] - period), np.insert(values, 0, 0.0)
    rises = np.diff(values, prepend=values[:1]) > 0
    return single(at, np.where(rises, code, 0.0))


def filled(base: Column, other: Column) -> Column:
    gap = np.isnan(base.mean)
    low, high = (
        None if mine is None or theirs is None else np.where(gap, theirs, mine)
        for mine, theirs in ((base.low, other.low), (base.high, other.high))
    )
    return Column(base.at, np.where(gap, other.mean, base.mean), low, high)


def in_spans(column: Column, step: float) -> Column:
    """Samples as spans: mean, least and most of each."""
    rows = np.floor(column.at / step).astype(np.int64)
    first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
    known = ~np.isnan(column.mean)
    rows, values = rows[known] - first, column.mean[known]
    counts, sums = (np.bincount(rows, weights, count) for weights in (None, values))
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, rows, values)
    np.maximum.at(high, rows, values)
    mean, low, high = (np.where(counts > 0, one, np.nan) for one in (sums / np.maximum(counts, 1), low, high))
    return Column((first + np.arange(count, dtype=np.float64)) * step, mean, low, high)


def usual_period(at: Floats, default: float) -> float:
    return round(float(np.median(np.diff(at))), 3) if len(at) > 1 else default


class Gap(NamedTuple):
    """A time without values: from one value to the next."""

    start: float
    end: float
    first: bool = False  # whether there is no value before it
    last: bool = False  # whether there is none after it


def gaps_of(series: Series, start: float, end: float) -> list[Gap]:
    """The gaps of a series between two instants; less than three periods at an end do not count."""
    known = series.at[~np.isnan(series.mean)]
    if not len(known):
        return [Gap(start, end, first=True, last=True)]
    gap = np.isnan(series.mean).astype(np.int8)
    begins = np.flatnonzero(np.diff(gap) == 1)
    found = [_gap_at(series, int(before)) for before in begins if (gap[before + 1 :] == 0).any()]
    if known[0] - start > 3 * series.period:
        found.insert(0, Gap(start, float(known[0]), first=True))
    if end - known[-1] > 3 * series.period + (series.period if series.high is not None else 0.0):
        found.append(Gap(float(known[-1]), end, last=True))
    return found


def _gap_at(series: Series, before: int) -> Gap:
    after = before + 1 + int(np.argmin(np.isnan(series.mean[before + 1 :])))
    return Gap(float(series.at[before]), float(series.at[after]))


def gap_texts(
    series: Sequence[Series],
    start: float,
    end: float,
    besides: Mapping[str, Sequence[Gap]] | None = None,
    *,
    least: float = 0.0,
) -> list[str]:
    """A sentence for each gap in the series, with the names of the series that have it.

    `besides` are gaps, by metric, that are reported separately; gaps of at most `least` seconds are left out.
    """
    groups: list[tuple[Gap, list[Series]]] = []
    for one in series:
        long = [hole for hole in gaps_of(one, start, end) if hole.end - hole.start > least]
        for hole in _left(long, (besides or {}).get(one.metric, ()), 3 * one.period):
            for seen, members in groups:
                if _are_alike(seen, hole, 2 * max(one.period, members[0].period)):
                    members.append(one)
                    break
            else:
                groups.append((hole, [one]))
    groups.sort(key=lambda group: group[0])
    texts = [_sentence(hole, members, series, end) for hole, members in groups]
    if len(texts) > _MOST_TOLD:
        texts[_MOST_TOLD:] = [f"there are {len(texts) - _MOST_TOLD} more gaps"]
    return texts


def _are_alike(one: Gap, other: Gap, near: float) -> bool:
    ends = ((one.start, other.start), (one.end, other.end))
    return one[2:] == other[2:] and all(math.isclose(*pair, abs_tol=near) for pair in ends)


def _left(found: Sequence[Gap], besides: Sequence[Gap], least: float) -> list[Gap]:
    """The rest of gaps without other times, where it is longer than `least`."""
    for other in besides:
        apart = [hole for hole in found if hole.end <= other.start or hole.start >= other.end]
        cut = [hole for hole in found if hole not in apart]
        parts = [hole._replace(end=other.start, last=False) for hole in cut]
        parts += [hole._replace(start=other.end, first=False) for hole in cut]
        found = sorted(apart + [part for part in parts if part.end - part.start > least])
    return list(found)


def _sentence(hole: Gap, members: Sequence[Series], all_of_them: Sequence[Series], end: float) -> str:
    about = "" if len(members) == len(all_of_them) else f" of {_subjects(members, all_of_them)}"
    since, until = format_when(hole.start, end), format_when(hole.end, end)
    if hole.first and hole.last:
        return f"nothing is known{about}"
    if hole.first:
        return f"nothing is known{about} before {until}"
    if hole.last:
        return f"nothing is known{about} after {since}"
    return f"nothing is known{about} from {since} to {until}"


def _subjects(members: Sequence[Series], all_of_them: Sequence[Series]) -> str:
    gpus = sorted({(one.subject.host, one.subject.gpu) for one in members})
    metrics = sorted({one.metric for one in members})
    names = [f"GPU {host}:{gpu}" if host else f"GPU {gpu}" for host, gpu in gpus]
    whose = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    everything = {one.metric for one in all_of_them if (one.subject.host, one.subject.gpu) in gpus}
    return whose if len(metrics) == len(everything) else f"{', '.join(metrics)} of {whose}"


HELD = 15.0  # seconds for which a value of the daemon's recordings holds


def to_edges(recording: Recording, start: float, end: float, held: float = HELD) -> Recording:
    """A recording cut to a span, with values of GPUs at both ends; a job's series keep to their own time."""
    series = [_cut(one, start, end, held) for one in recording.series]
    marks = [mark for mark in recording.marks if mark.at <= end and (mark.until or mark.at) >= start]
    known = [one for one in series if len(one.at)]
    return Recording(start, end, known, marks, recording.warnings, recording.simulated)


def _cut(one: Series, start: float, end: float, held: float) -> Series:
    places: list[int] = np.flatnonzero((one.at >= start) & (one.at <= end)).tolist()
    times = one.at[places]
    if not one.subject.job:
        before = int(np.searchsorted(one.at, start)) - 1
        if before >= 0 and start - one.at[before] < held and (not len(times) or times[0] > start):
            places, times = [before, *places], np.append(start, times)
        if places and 0 < end - times[-1] < held:
            places, times = [*places, places[-1]], np.append(times, end)
    return replace(taken(one, places), at=times)


def taken(one: Series, places: NDArray[np.bool_] | list[int]) -> Series:
    low, high = (None if table is None else table[places] for table in (one.low, one.high))
    return replace(one, at=one.at[places], mean=one.mean[places], low=low, high=high)
