"""What is read of recordings: series of a span of time, as fine as a plot can show.

The level is the coarsest that still has values enough; what is more than was asked for becomes the least, the mean and
the most of spans. A day's samples of a machine are half a million numbers: nobody waits for those to see a month.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuyard.recordings.chunks import (
    APART,
    AT,
    COVERED,
    HIGH,
    KEPT,
    LEVELS,
    LOW,
    MINUTES,
    SAMPLES,
    Damaged,
    Level,
    condensed,
    decode,
    held,
)
from gpuyard.recordings.database import Who, chunks_of, reading
from gpuyard.recordings.series import OF_JOBS, Floats

_ENOUGH = 3  # a level with at least this part of the wanted points is enough
_FEW = 60  # values that a level has at least; its last one is not complete yet
_ERRORS = 100
_NICE = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Values:
    mean: Floats
    low: Floats | None = None
    high: Floats | None = None  # the least and the most of each span; None where every value is a single look


@dataclass(slots=True)
class Track:
    who: Who
    at: Floats  # seconds since the epoch, rising; of a span, when it began
    metrics: dict[str, Values] = field(default_factory=dict)
    watt_hours: float | None = None
    errors: list[tuple[float, int]] = field(default_factory=list)  # times and numbers of XID errors


@dataclass(slots=True)
class Told:
    level: Level
    period: float  # seconds that a value stands for; of single looks, about
    gpus: list[Track] = field(default_factory=list)
    jobs: list[Track] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    start: float
    end: float
    metrics: Sequence[str]
    points: int = 600
    gpus: Sequence[int] | None = None  # by index; None is all of them
    jobs: Sequence[tuple[str, int]] = ()  # attempts whose own series are wanted
    period: float = SAMPLES.period  # seconds between samples while a GPU is in use
    apart: float = APART  # seconds without a sample that make a gap


def read(path: Path, wanted: Wanted) -> Told:
    with reading(path) as connection:
        connection.execute("BEGIN")  # all from one instant
        gpus = {id: who for id, who in _gpus(connection) if wanted.gpus is None or who.gpu in wanted.gpus}
        jobs = dict(_jobs(connection, wanted))
        level = _level(connection, wanted, list(gpus))
        period = wanted.period if level is SAMPLES else level.period
        told = Told(level, period)
        of_gpus = [name for name in wanted.metrics if name not in OF_JOBS]
        of_jobs = [name for name in wanted.metrics if name in OF_JOBS]
        for into, subjects, names in ((told.gpus, gpus, of_gpus), (told.jobs, jobs, of_jobs)):
            for id, who in subjects.items() if names else ():
                track, width = _track(connection, wanted, level, id, who, names)
                if len(track.at):
                    into.append(track)
                    told.period = max(told.period, width)
        told.gpus.sort(key=lambda track: track.who.gpu)
    return told


def _gpus(connection: sqlite3.Connection) -> Iterator[tuple[int, Who]]:
    found = connection.execute("SELECT id, gpu, uuid, name, memory, simulated FROM subjects WHERE job = ''")
    return ((id, Who(gpu, uuid, name, memory, bool(made_up))) for id, gpu, uuid, name, memory, made_up in found)


def _jobs(connection: sqlite3.Connection, wanted: Wanted) -> Iterator[tuple[int, Who]]:
    for job, attempt in wanted.jobs:
        found = connection.execute(
            "SELECT id, gpu, uuid FROM subjects WHERE job = ? AND attempt = ? ORDER BY gpu", (job, attempt)
        )
        yield from ((id, Who(gpu, uuid, job=job, attempt=attempt)) for id, gpu, uuid in found)


def _level(connection: sqlite3.Connection, wanted: Wanted, gpus: Sequence[int]) -> Level:
    begun = _first(connection, SAMPLES, gpus)
    if _first(connection, MINUTES, gpus) > begun - MINUTES.period:  # nothing is older than the samples
        span = wanted.end - max(wanted.start, min(begun, wanted.end))
    else:
        span = wanted.end - wanted.start
    fitting = [level for level in LEVELS if span / level.period >= max(_FEW, wanted.points / _ENOUGH)]
    some = LEVELS[fitting[-1].number if fitting else 0 :]
    firsts = [_first(connection, level, gpus) for level in some]
    for n, level in enumerate(some):
        coarser = [
            first + other.period for other, first in zip(some, firsts, strict=True) if other.number > level.number
        ]
        if firsts[n] <= wanted.start or not any(first < firsts[n] for first in coarser):
            return level
    return some[-1]


def _first(connection: sqlite3.Connection, level: Level, gpus: Sequence[int]) -> float:
    found = math.inf
    for id in gpus:
        row = connection.execute(
            "SELECT at, data FROM chunks WHERE level = ? AND subject = ? ORDER BY at LIMIT 1", (level.number, id)
        ).fetchone()
        if row is not None and row[0] < found:
            with suppress(Damaged):
                found = min(found, row[0] + float(decode(row[1], (AT,))[AT][0]))
    return found


def _track(
    connection: sqlite3.Connection, wanted: Wanted, level: Level, id: int, who: Who, names: Sequence[str]
) -> tuple[Track, float]:
    columns = _columns(connection, wanted, level, id, names)
    at = columns.pop(AT)
    if not len(at):
        return Track(who, at), 0.0
    raw = level is SAMPLES
    end = min(wanted.end, float(at[-1]) + wanted.period) if raw else wanted.end
    weights = held(at, end, wanted.apart) if raw else columns.pop(COVERED)
    gaps = np.diff(at) > (wanted.apart if raw else max(1.5 * level.period, wanted.apart))
    energy = _energy(at, columns["power"], weights, gaps, wanted, level) if "power" in columns else None
    errors = _errors(at, columns.get("xid" if raw else "xid" + HIGH))
    width = wanted.period if raw else level.period
    at, columns, width = _thinned(at, columns, weights, gaps, wanted, width)
    metrics = {name: _values(name, columns, who) for name in names if _source(name) in columns}
    return Track(who, at, metrics, energy, errors), width


def _columns(
    connection: sqlite3.Connection, wanted: Wanted, level: Level, id: int, names: Sequence[str]
) -> dict[str, Floats]:
    kinds = ("",) if level is SAMPLES else ("", LOW, HIGH)
    sources = {*map(_source, names), *(() if names[0] in OF_JOBS else ("power", "xid"))}
    needed = {AT, *(() if level is SAMPLES else (COVERED,)), *(f"{name}{kind}" for name in sources for kind in kinds)}
    parts = []
    for begin, data in chunks_of(connection, level, id, wanted.start, wanted.end):
        with suppress(Damaged):  # a gap, where the rest is worth having
            part = decode(data, needed)
            parts.append({**part, AT: part[AT] + begin})
    there = [name for name in needed if any(name in part for part in parts)] if parts else [AT]
    whole = {name: np.concatenate([_part(part, name) for part in parts]) if parts else np.zeros(0) for name in there}
    over = 0.0 if level is SAMPLES else level.period
    within = (whole[AT] + over >= wanted.start) & (whole[AT] <= wanted.end)
    return {name: values[within] for name, values in whole.items()}


def _part(columns: Mapping[str, Floats], name: str) -> Floats:
    """A column of a chunk; NaN where it has none."""
    return columns[name] if name in columns else np.full(len(columns[AT]), np.nan)


def _errors(at: Floats, xids: Floats | None) -> list[tuple[float, int]]:
    if xids is None:
        return []
    places = np.flatnonzero(np.nan_to_num(xids) > 0)[-_ERRORS:]
    return [(float(at[place]), int(xids[place])) for place in places]


def _source(name: str) -> str:
    return name if name in KEPT else "memory_used"


def _energy(
    at: Floats, power: Floats, weights: Floats, gaps: NDArray[np.bool_], wanted: Wanted, level: Level
) -> float | None:
    """Watt-hours in a span of time, without gaps. None: power is unknown."""
    if np.isnan(power).all():
        return None
    if level is SAMPLES:
        between = (power[1:] + power[:-1]) / 2 * np.where(gaps, 0.0, np.diff(at))
        return float(np.nansum(between) / 3600)
    inside = np.minimum(at + level.period, wanted.end) - np.maximum(at, wanted.start)
    share = np.clip(inside / level.period, 0.0, 1.0)
    return float(np.nansum(power * weights * share) / 3600)


def _thinned(
    at: Floats, columns: dict[str, Floats], weights: Floats, gaps: NDArray[np.bool_], wanted: Wanted, width: float
) -> tuple[Floats, dict[str, Floats], float]:
    if len(at) + int(gaps.sum()) <= wanted.points:
        return (*_with_gaps(at, columns, gaps, width), width)
    for step in _steps((wanted.end - wanted.start) / wanted.points):
        bins = np.floor(at / step)
        bounds = np.concatenate(([0], np.flatnonzero(np.diff(bins)) + 1))
        first = bins[bounds]
        missing = gaps[bounds[1:] - 1] & (np.diff(first) > 1)
        if len(bounds) + int(missing.sum()) <= wanted.points:
            break
    fewer = condensed(columns, weights, bounds)
    del fewer[COVERED]
    return (*_with_gaps(first * step, fewer, missing, step), max(width, step))


def _steps(least: float) -> Iterator[float]:
    """Round spans of time, from `least` on."""
    yield from (float(nice) for nice in _NICE if nice >= least)
    step = math.ceil(max(least, 1.0) / _NICE[-1]) * float(_NICE[-1])
    while True:
        yield step
        step *= 2


def _with_gaps(
    at: Floats, columns: dict[str, Floats], gaps: NDArray[np.bool_], width: float
) -> tuple[Floats, dict[str, Floats]]:
    """The same, with a NaN before every gap."""
    places = np.flatnonzero(gaps) + 1
    if not len(places):
        return at, columns
    widened = np.insert(at, places, at[places - 1] + width)
    return widened, {name: np.insert(values, places, np.nan) for name, values in columns.items()}


def _values(name: str, columns: Mapping[str, Floats], who: Who) -> Values:
    source = _source(name)
    mean, low, high = columns[source], columns.get(source + LOW), columns.get(source + HIGH)
    if name == source:
        return Values(mean, low, high)
    free = (None if part is None else who.memory - part for part in (mean, high, low))
    mean_free, low_free, high_free = free
    assert mean_free is not None
    return Values(mean_free, low_free, high_free)
