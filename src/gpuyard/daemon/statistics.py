"""What a yard did in a span of time, worked out by SQLite from the store: one look, by one reader, in a thread.

Jobs that ended are found by an index, and the span in which others came in by their numbers, which are given in the
order of submission. Of a job that was tried several times the log tells when it had GPUs, else what is kept of the job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

HOUR = 3600.0
_PERCENTILES = (("p90", 90), ("p99", 99))

_SEEN = """CREATE TEMP TABLE seen AS
    SELECT id, user, state, submitted, started, ended, attempt,
           json_extract(work, '$.gpu_count') AS gpus, json_extract(work, '$.gpu_memory') AS memory
    FROM jobs WHERE ended >= :since
    UNION ALL
    SELECT id, user, state, submitted, started, NULL, attempt,
           json_extract(work, '$.gpu_count'), json_extract(work, '$.gpu_memory')
    FROM jobs WHERE ended IS NULL AND attempt > 0"""
# What is kept of a job tells of its last attempt only, and of that only if it does not wait again.
_SPANS = """CREATE TEMP TABLE spans AS
    SELECT user, gpus, memory, started AS begin, coalesce(ended, :until) AS end
    FROM seen WHERE started IS NOT NULL
    UNION ALL
    SELECT user, gpus, memory, began.at, (
        SELECT min(at) FROM events WHERE events.job = seen.id AND events.attempt = began.attempt
        AND events.kind IN ('Exited', 'Preempted', 'Requeued'))
    FROM seen JOIN events AS began ON began.job = seen.id AND began.kind = 'Started'
    WHERE (seen.attempt > 1 OR seen.started IS NULL) AND NOT (began.attempt = seen.attempt AND started IS NOT NULL)"""
_HAD = """SELECT user, sum(
        max(0.0, min(end, :until) - max(begin, :since)) * gpus * min(1.0, coalesce(memory / :memory, 1.0)))
    FROM spans GROUP BY user"""
_ENDED = "FROM seen WHERE ended >= :since AND ended < :until"
_FIRST_START = """CASE WHEN attempt > 1
    THEN (SELECT min(at) FROM events WHERE events.job = seen.id AND events.kind = 'Started') ELSE started END"""


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, and what there was to use in it."""

    since: float
    until: float
    gpus: int
    memory: float
    """Bytes of a GPU: what shares are shares of."""


def statistics(path: Path, window: Window) -> dict[str, Any]:
    """What happened in a window."""
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA temp_store = MEMORY")
        values = {"since": window.since, "until": window.until, "memory": window.memory}
        connection.execute("BEGIN")  # all from one instant
        connection.execute(_SEEN, values)
        connection.execute(_SPANS, values)
        had = {user: seconds / HOUR for user, seconds in connection.execute(_HAD, values)}
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
            "run_seconds": _spread(connection, "ended - started", values),
            "users": [
                {
                    "user": user, "gpu_hours": had.get(user, 0.0), "submitted": submitted.get(user, 0),
                    "ended": ended.get(user, 0),
                }
                for user in sorted({*had, *submitted, *ended}, key=lambda name: (-had.get(name, 0.0), name))
            ],
        }  # fmt: skip


def _submitted(connection: sqlite3.Connection, window: Window) -> dict[str, int]:
    """How many jobs each user submitted."""
    first, behind = (_first_since(connection, at) for at in (window.since, window.until))
    found = connection.execute(
        "SELECT user, count(*) FROM jobs WHERE number >= ? AND number < ? GROUP BY user", (first, behind)
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
    """How long something took for the jobs that ended: on average, and for most of them."""
    connection.execute("DROP TABLE IF EXISTS spread")
    connection.execute(
        f"CREATE TEMP TABLE spread AS SELECT max(0.0, {value}) AS v {_ENDED} AND started IS NOT NULL ORDER BY v", values
    )
    count, mean = connection.execute("SELECT count(*), avg(v) FROM spread").fetchone()
    if not count:
        return {"count": 0, "mean": None, "median": None, **{name: None for name, _ in _PERCENTILES}}
    middle = (count + 1) // 2, count // 2 + 1
    ranks = {name: -(-percent * count // 100) for name, percent in _PERCENTILES}  # rounded up: the nearest rank
    found = _at(connection, (*middle, *ranks.values()))
    median = (found[middle[0]] + found[middle[1]]) / 2
    return {"count": count, "mean": mean, "median": median, **{name: found[rank] for name, rank in ranks.items()}}


def _at(connection: sqlite3.Connection, places: Sequence[int]) -> dict[int, float]:
    """The values at some places of a table that was filled in order."""
    marks = ",".join("?" * len(places))
    return dict(connection.execute(f"SELECT rowid, v FROM spread WHERE rowid IN ({marks})", places).fetchall())
