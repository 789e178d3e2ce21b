"""Who was on which GPU when, in a span of time: one look at the store, by one reader, in a thread.

What is kept of a job tells of its last attempt; of former ones the log does, as long as it is kept.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuyard.daemon.journal import Row

COLUMNS = ("job", "name", "user", "kind", "gpu", "begin", "end", "state", "attempt")
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
    """The latest spans of a window, column by column, and whether there are more."""
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
    columns = zip(*shown, strict=True) if shown else ((),) * len(COLUMNS)
    return dict(zip(COLUMNS, map(list, columns), strict=True)), len(spans) > limit


def _indices(text: str) -> list[int]:
    return [int(index) for index in text.split(",") if index]


class Spell(NamedTuple):
    """An attempt of a job on GPUs."""

    job: str
    attempt: int
    gpus: tuple[int, ...]
    begin: float
    end: float | None
    """None: it is still there."""
    measured: Mapping[str, Any]
    """What it used, once it is over."""
    name: str = ""
    """What the job is called."""


def spells(events: Iterable[Row]) -> list[Spell]:
    """The attempts that some events tell of, in the order in which they began."""
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
