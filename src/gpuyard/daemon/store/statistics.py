"""Statistics of a span of time by SQL:

totals per user and tag, and who was on which GPU when. For a reader's thread.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuyard.daemon.store.records import Row
from gpuyard.daemon.store.views import WORK

USAGE_COLUMNS = ("job", "name", "user", "kind", "gpu", "begin", "end", "state", "attempt")
_LAST = """SELECT id, name, user, kind, gpus, started AS begin, ended AS "end", state, attempt FROM jobs
    WHERE ended >= :since AND started < :until
    UNION ALL
    SELECT id, name, user, kind, gpus, started, NULL, state, attempt FROM jobs
    WHERE ended IS NULL AND attempt > 0 AND started < :until"""
# Those that were tried before, or wait again.
_AGAIN = "submitted < :until AND (attempt > 1 OR (attempt = 1 AND started IS NULL))"
_FORMER = f"""WITH tried AS (
        SELECT id, name, user, kind, attempt, started FROM jobs WHERE ended >= :since AND {_AGAIN}
        UNION ALL
        SELECT id, name, user, kind, attempt, started FROM jobs WHERE ended IS NULL AND {_AGAIN})
    SELECT tried.id, name, user, tried.kind, placed.data, began.at AS begin, min(over.at) AS "end",
           CASE WHEN over.kind = 'Preempted' THEN 'preempted'
                WHEN json_extract(nullif(over.data, ''), '$.details.failed') THEN 'failed' ELSE 'requeued' END,
           began.attempt
    FROM tried
    CROSS JOIN events AS began ON began.job = tried.id AND began.kind = 'Started'
    CROSS JOIN events AS placed ON placed.job = tried.id AND placed.kind = 'Placed' AND placed.attempt = began.attempt
    CROSS JOIN events AS over ON over.job = tried.id AND over.attempt = began.attempt
        AND over.kind IN ('Exited', 'Preempted', 'Requeued')
    WHERE (began.attempt < tried.attempt OR tried.started IS NULL) AND began.at < :until
    GROUP BY tried.id, began.attempt HAVING min(over.at) >= :since"""
_ADAPTS = """instr(work, '"adaptive":true')"""  # quick to tell of thousands; who only writes so has no loans
_LENT = f"""WITH adapts AS (
        SELECT id, name, user, state FROM jobs WHERE ended >= :since AND started < :until AND {_ADAPTS}
        UNION ALL
        SELECT id, name, user, state FROM jobs WHERE ended IS NULL AND attempt > 0 AND {_ADAPTS})
    SELECT adapts.id, name, user, 'grant', lent.data, lent.at AS begin, min(over.at) AS "end", state, lent.attempt
    FROM adapts
    CROSS JOIN events AS lent ON lent.job = adapts.id AND lent.kind = 'Granted'
    LEFT JOIN events AS over ON over.job = adapts.id AND over.attempt = lent.attempt AND over.seq > lent.seq
        AND (over.kind IN ('Exited', 'Preempted', 'Requeued') OR (over.kind = 'Returned'
            AND json_extract(over.data, '$.gpus[0]') = json_extract(lent.data, '$.gpus[0]')))
    WHERE lent.at < :until
    GROUP BY lent.seq HAVING min(over.at) IS NULL OR min(over.at) >= :since"""
_NEWEST = "ORDER BY begin DESC LIMIT :most"


def usage(path: Path, since: float, until: float, limit: int) -> tuple[dict[str, list[Any]], bool]:
    values = {"since": since, "until": until, "most": limit + 1}
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")  # all from one instant
        last = [(*row[:4], _indices(row[4]), *row[5:]) for row in connection.execute(f"{_LAST} {_NEWEST}", values)]
        former = [
            (*row[:4], json.loads(row[4])["gpus"], *row[5:])
            for sql in (_FORMER, _LENT)
            for row in connection.execute(f"{sql} {_NEWEST}", values)
        ]
    spans = sorted([*last, *former], key=lambda span: -span[5])
    shown = spans[:limit]
    columns = zip(*shown, strict=True) if shown else ((),) * len(USAGE_COLUMNS)
    return dict(zip(USAGE_COLUMNS, map(list, columns), strict=True)), len(spans) > limit


def _indices(text: str) -> list[int]:
    return [int(index) for index in text.split(",") if index]


class Spell(NamedTuple):
    job: str
    attempt: int
    gpus: tuple[int, ...]
    begin: float
    end: float | None  # None: it is still there
    measured: Mapping[str, Any]  # what it used, once it is over
    name: str = ""  # what the job is called


def spells(events: Iterable[Row]) -> list[Spell]:
    placed: dict[tuple[str, int], tuple[int, ...]] = {}
    found: dict[tuple[str, int], Spell] = {}
    for row in events:
        if row.job is None or row.attempt is None:
            continue
        key = row.job, row.attempt
        if row.kind == "Placed":
            placed[key] = tuple(json.loads(row.data)["gpus"])
        elif row.kind == "Started" and key in placed:
            found[key] = Spell(*key, placed[key], row.at, None, {})
        elif row.kind in ("Exited", "Preempted", "Requeued") and key in found and found[key].end is None:
            details = json.loads(row.data).get("details", {}) if row.data else {}
            found[key] = found[key]._replace(end=row.at, measured=details.get("measured", {}))
    return list(found.values())


HOUR = 3600.0
_PERCENTILES = (("p90", 90), ("p99", 99))
EDGES = tuple((7 * 24 * HOUR) ** (n / 24) for n in range(25))
"""Seconds between which durations are counted: from one to a week, each 1.74 times the one before."""
_MOST_TAGS = 500

_TAGS = f"json_extract({WORK}, '$.tags')"
_SEEN = f"""CREATE TEMP TABLE seen AS
    SELECT id, user, state, submitted, started, ended, attempt,
           json_extract(work, '$.gpu_count') AS gpus,
           CASE WHEN json_extract(work, '$.alone') THEN NULL ELSE json_extract(work, '$.gpu_memory') END AS memory,
           {_TAGS} AS tags,
           json_extract(nullif(measured, ''), '$.energy_wh') AS energy,
           coalesce(json_extract(nullif(measured, ''), '$.ran_before'), 0.0) AS ran_before
    FROM jobs WHERE ended >= :since
    UNION ALL
    SELECT id, user, state, submitted, started, NULL, attempt,
           json_extract(work, '$.gpu_count'),
           CASE WHEN json_extract(work, '$.alone') THEN NULL ELSE json_extract(work, '$.gpu_memory') END,
           {_TAGS}, NULL, 0.0
    FROM jobs WHERE ended IS NULL AND attempt > 0"""
# What is kept of a job tells of its last attempt only, and of that only if it does not wait again.
_SPANS = """CREATE TEMP TABLE spans AS
    SELECT user, tags, gpus, memory, energy, started AS begin, coalesce(ended, :until) AS end
    FROM seen WHERE started IS NOT NULL
    UNION ALL
    SELECT user, tags, gpus, memory, (
        SELECT max(json_extract(nullif(data, ''), '$.details.measured.energy_wh')) FROM events
        WHERE events.job = seen.id AND events.attempt = began.attempt
        AND events.kind IN ('Exited', 'Preempted', 'Requeued')), began.at, (
        SELECT min(at) FROM events WHERE events.job = seen.id AND events.attempt = began.attempt
        AND events.kind IN ('Exited', 'Preempted', 'Requeued'))
    FROM seen JOIN events AS began ON began.job = seen.id AND began.kind = 'Started'
    WHERE (seen.attempt > 1 OR seen.started IS NULL) AND NOT (began.attempt = seen.attempt AND started IS NOT NULL)"""
_SECONDS = """sum(
        max(0.0, min(end, :until) - max(begin, :since)) * gpus * min(1.0, coalesce(memory / :memory, 1.0)))"""
_HAD = f"SELECT user, {_SECONDS} FROM spans GROUP BY user"
# Of an attempt that reaches beyond the window, as much as lies in it; it is known only when it is over.
_ENERGY = """SELECT user, sum(energy * max(0.0, min(end, :until) - max(begin, :since)) / max(1e-3, end - begin))
    FROM spans WHERE energy IS NOT NULL GROUP BY user"""
_TAGS_HAD = f"SELECT tags, {_SECONDS} FROM spans GROUP BY tags"
_ENDED = "FROM seen WHERE ended >= :since AND ended < :until"
_FIRST_START = """CASE WHEN attempt > 1
    THEN (SELECT min(at) FROM events WHERE events.job = seen.id AND events.kind = 'Started') ELSE started END"""


@dataclass(frozen=True, slots=True)
class Window:
    since: float
    until: float
    gpus: int
    memory: float  # bytes of a GPU: what shares are shares of


def statistics(path: Path, window: Window) -> dict[str, Any]:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA temp_store = MEMORY")
        values = {"since": window.since, "until": window.until, "memory": window.memory}
        connection.execute("BEGIN")  # all from one instant
        connection.execute(_SEEN, values)
        connection.execute(_SPANS, values)
        had = {user: seconds / HOUR for user, seconds in connection.execute(_HAD, values)}
        energy = dict(connection.execute(_ENERGY, values).fetchall())
        outcomes = dict(connection.execute(f"SELECT state, count(*) {_ENDED} GROUP BY state", values).fetchall())
        ended = dict(connection.execute(f"SELECT user, count(*) {_ENDED} GROUP BY user", values).fetchall())
        submitted = _submitted(connection, window)
        seconds = window.gpus * (window.until - window.since)
        return {
            "submitted": sum(submitted.values()),
            "ended": sum(ended.values()),
            "outcomes": outcomes,
            "gpu_hours": sum(had.values()),
            "utilization": sum(had.values()) * HOUR / seconds if seconds else None,
            "wait_seconds": _spread(connection, f"{_FIRST_START} - submitted", values),
            "run_seconds": _spread(connection, "ended - started + ran_before", values),
            "users": [
                {**user, "energy_wh": energy.get(user["user"])} for user in _by_use("user", had, submitted, ended)
            ],
            "tags": _tags(connection, window, values),
        }  # fmt: skip


def _by_use(
    kind: str, had: Mapping[str, float], submitted: Mapping[str, int], ended: Mapping[str, int]
) -> list[dict[str, Any]]:
    return [
        {
            kind: name, "gpu_hours": had.get(name, 0.0), "submitted": submitted.get(name, 0),
            "ended": ended.get(name, 0),
        }
        for name in sorted({*had, *submitted, *ended}, key=lambda name: (-had.get(name, 0.0), name))
    ]  # fmt: skip


def _tags(connection: sqlite3.Connection, window: Window, values: dict[str, float]) -> list[dict[str, Any]]:
    """The same by tag: only tags with most use, since there may be as many as jobs."""
    had = _each(connection.execute(_TAGS_HAD, values))
    ended = _each(connection.execute(f"SELECT tags, count(*) {_ENDED} GROUP BY tags", values))
    submitted = _each(_submitted(connection, window, _TAGS).items())
    hours = {tag: seconds / HOUR for tag, seconds in had.items()}
    return _by_use("tag", hours, submitted, ended)[:_MOST_TAGS]


def _each(found: Iterable[tuple[str | None, Any]]) -> dict[str, Any]:
    """Numbers per tag from numbers per list of tags: most jobs have the same few lists."""
    numbers: dict[str, Any] = {}
    for tags, number in found:
        for tag in dict.fromkeys(json.loads(tags or "[]")):
            numbers[tag] = numbers.get(tag, 0) + number
    return numbers


def _submitted(connection: sqlite3.Connection, window: Window, kind: str = "user") -> dict[Any, int]:
    first, behind = (_first_since(connection, at) for at in (window.since, window.until))
    found = connection.execute(
        f"SELECT {kind}, count(*) FROM jobs WHERE number >= ? AND number < ? GROUP BY 1", (first, behind)
    )
    return dict(found.fetchall())


def _first_since(connection: sqlite3.Connection, at: float) -> int:
    """The number that the first job since an instant has, or would have."""
    low, high = 0, int(connection.execute("SELECT coalesce(max(number), 0) FROM jobs").fetchone()[0]) + 1
    while low < high:
        middle = (low + high) // 2
        found = connection.execute(
            "SELECT number, submitted FROM jobs WHERE number >= ? ORDER BY number LIMIT 1", (middle,)
        ).fetchone()
        if found is None or found[1] >= at:
            high = middle
        else:
            low = int(found[0]) + 1
    return low


def _spread(connection: sqlite3.Connection, value: str, values: dict[str, float]) -> dict[str, Any]:
    """Mean and percentiles of how long something took for the jobs that ended."""
    connection.execute("DROP TABLE IF EXISTS spread")
    connection.execute(
        f"CREATE TEMP TABLE spread AS SELECT max(0.0, {value}) AS v {_ENDED} AND started IS NOT NULL ORDER BY v", values
    )
    count, mean = connection.execute("SELECT count(*), avg(v) FROM spread").fetchone()
    histogram = {"edges": list(EDGES), "counts": _counts(connection, count)}
    if not count:
        nothing = dict.fromkeys(("mean", "median", *(name for name, _ in _PERCENTILES)))
        return {"count": 0, **nothing, "histogram": histogram}
    middle = (count + 1) // 2, count // 2 + 1
    ranks = {name: -(-percent * count // 100) for name, percent in _PERCENTILES}  # rounded up: the nearest rank
    found = _at(connection, (*middle, *ranks.values()))
    median = (found[middle[0]] + found[middle[1]]) / 2
    quantiles = {name: found[rank] for name, rank in ranks.items()}
    return {"count": count, "mean": mean, "median": median, **quantiles, "histogram": histogram}


def _counts(connection: sqlite3.Connection, count: int) -> list[int]:
    """The number of values below the first edge, between each two, and from the last on: by bisection."""

    def value(place: int) -> float:
        return float(connection.execute("SELECT v FROM spread WHERE rowid = ?", (place + 1,)).fetchone()[0])

    below = [bisect_left(range(count), edge, key=value) for edge in EDGES]
    return [more - less for less, more in pairwise((0, *below, count))]


def _at(connection: sqlite3.Connection, places: Sequence[int]) -> dict[int, float]:
    marks = ",".join("?" * len(places))
    return dict(connection.execute(f"SELECT rowid, v FROM spread WHERE rowid IN ({marks})", places).fetchall())
