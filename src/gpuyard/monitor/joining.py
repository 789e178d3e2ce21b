"""Columns of several origins as one, and where nothing is known in them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuyard.monitor.track import Column
from gpuyard.recordings.series import Floats, Series
from gpuyard.times import format_when

_MOST_TOLD = 8  # gaps that are told one by one


def single(at: Floats, values: Floats) -> Column:
    """A column of single looks."""
    return Column(at, values, None, None)


def in_order(columns: Sequence[Column]) -> Column:
    """Pieces of one series, one after the other; what is in two of them counts once."""
    at = np.concatenate([column.at for column in columns])
    _, places = np.unique(at, return_index=True)
    return single(at[places], np.concatenate([column.mean for column in columns])[places])


def joined(base: Column, other: Column, apart: float) -> Column:
    """A series with what another one knows further than `apart` seconds from everything in it: never both at once."""
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
    """Series on one grid of spans as one: the mean of those that know, the least and the most of all."""
    if len(columns) == 1:
        return columns[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a span of which nobody knows is NaN, as it should be
        mean = np.nanmean([column.mean for column in columns], axis=0)
        lows = [column.low for column in columns if column.low is not None]
        highs = [column.high for column in columns if column.high is not None]
        low = np.nanmin(lows, axis=0) if lows else None
        high = np.nanmax(highs, axis=0) if highs else None
    return Column(columns[0].at, mean, low, high)


def highest(columns: Sequence[Column]) -> Column:
    """Series of single looks as one: the most that any of them knows at each instant."""
    at, places = np.unique(np.concatenate([column.at for column in columns]), return_inverse=True)
    values = np.full(len(at), -np.inf)
    told = np.concatenate([column.mean for column in columns])
    known = ~np.isnan(told)
    np.maximum.at(values, places[known], told[known])
    return single(at, np.where(np.isinf(values), np.nan, values))


def came_up(counts: Column, code: float, start: float, period: float) -> Column:
    """A number wherever a count rises, 0 elsewhere; one that begins after `start` rose then."""
    at, values = counts.at, counts.mean
    known = ~np.isnan(values)
    at, values = at[known], values[known]
    if len(at) and at[0] - start > 3 * period:
        at, values = np.insert(at, 0, at[0] - period), np.insert(values, 0, 0.0)
    rises = np.diff(values, prepend=values[:1]) > 0
    return single(at, np.where(rises, code, 0.0))


def filled(base: Column, other: Column) -> Column:
    """A series on a grid of spans, with what another one knows where it knows nothing."""
    gap = np.isnan(base.mean)
    low, high = (
        None if mine is None or theirs is None else np.where(gap, theirs, mine)
        for mine, theirs in ((base.low, other.low), (base.high, other.high))
    )
    return Column(base.at, np.where(gap, other.mean, base.mean), low, high)


def in_spans(column: Column, step: float) -> Column:
    """Single looks as spans: what each knew on average, at least and at most."""
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
    """Seconds between two values, as a rule."""
    return round(float(np.median(np.diff(at))), 3) if len(at) > 1 else default


class Hole(NamedTuple):
    """A time of which a series knows nothing: from one value to the next."""

    start: float
    end: float
    first: bool = False
    """Whether there is no value before it."""
    last: bool = False
    """Whether there is none after it."""


def holes(series: Series, start: float, end: float) -> list[Hole]:
    """Where a series knows nothing between two instants; less than three periods at an end do not count."""
    known = series.at[~np.isnan(series.mean)]
    if not len(known):
        return [Hole(start, end, first=True, last=True)]
    gap = np.isnan(series.mean).astype(np.int8)
    begins = np.flatnonzero(np.diff(gap) == 1)
    found = [_hole(series, int(before)) for before in begins if (gap[before + 1 :] == 0).any()]
    if known[0] - start > 3 * series.period:
        found.insert(0, Hole(start, float(known[0]), first=True))
    if end - known[-1] > 3 * series.period + (series.period if series.high is not None else 0.0):
        found.append(Hole(float(known[-1]), end, last=True))
    return found


def _hole(series: Series, before: int) -> Hole:
    after = before + 1 + int(np.argmin(np.isnan(series.mean[before + 1 :])))
    return Hole(float(series.at[before]), float(series.at[after]))


def told(
    series: Sequence[Series],
    start: float,
    end: float,
    besides: Mapping[str, Sequence[Hole]] | None = None,
    *,
    least: float = 0.0,
) -> list[str]:
    """A sentence for each time of which series know nothing, with those that it is about.

    `besides` are times, by metric, of which it is told elsewhere that nothing is known; `least` is how many seconds are
    worth a word.
    """
    groups: list[tuple[Hole, list[Series]]] = []
    for one in series:
        long = [hole for hole in holes(one, start, end) if hole.end - hole.start > least]
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


def _are_alike(one: Hole, other: Hole, near: float) -> bool:
    """Whether holes are at the same time, and at the same ends of what is known."""
    ends = ((one.start, other.start), (one.end, other.end))
    return one[2:] == other[2:] and all(math.isclose(*pair, abs_tol=near) for pair in ends)


def _left(found: Sequence[Hole], besides: Sequence[Hole], least: float) -> list[Hole]:
    """What remains of holes without other times, where that is longer than `least`."""
    for other in besides:
        apart = [hole for hole in found if hole.end <= other.start or hole.start >= other.end]
        cut = [hole for hole in found if hole not in apart]
        parts = [hole._replace(end=other.start, last=False) for hole in cut]
        parts += [hole._replace(start=other.end, first=False) for hole in cut]
        found = sorted(apart + [part for part in parts if part.end - part.start > least])
    return list(found)


def _sentence(hole: Hole, members: Sequence[Series], all_of_them: Sequence[Series], end: float) -> str:
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
