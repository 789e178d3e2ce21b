"""What the store says of batches: one look by a connection of its own, in a thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuyard.api.batch_types import Span
from gpuyard.api.types import OVER
from gpuyard.daemon.store import views
from gpuyard.daemon.store.views import JobView

_ID = "json_extract(work, '$.batch[0]')"
_NEWEST = f"SELECT {_ID} AS batch FROM jobs WHERE {_ID} IS NOT NULL GROUP BY batch ORDER BY min(number) DESC"
_FIRST = f"""SELECT user, json_extract(work, '$.batch[1]'), coalesce(json_array_length(work, '$.refusals'), 0) FROM jobs
    WHERE {_ID} = ? AND json_extract(work, '$.row') IS NOT NULL ORDER BY number LIMIT 1"""
_STATES = f"""SELECT state, json_extract(work, '$.row[1]') AS wave, count(*), min(submitted), max(ended) FROM jobs
    WHERE {_ID} = ? AND wave IS NOT NULL GROUP BY state, wave"""
_REFUSALS = f"""SELECT json_extract(work, '$.refusals') FROM jobs
    WHERE {_ID} = ? AND json_extract(work, '$.row') IS NOT NULL ORDER BY number LIMIT 1"""
_SPANS = f"""SELECT events.job, events.kind, events.attempt, events.at, events.data FROM jobs
    CROSS JOIN events ON events.job = jobs.id
    WHERE {_ID} = ? AND events.kind IN ('Placed', 'Started', 'Exited', 'Preempted', 'Requeued') ORDER BY events.seq"""
_ALONE = (
    "SELECT job, seconds, command FROM runs WHERE signature = ? AND alone AND outcome = 'succeeded' ORDER BY at DESC"
)
_MOST_ALONE = 50
_OOMS = f"""SELECT count(*) FROM jobs CROSS JOIN events ON events.job = jobs.id
    WHERE {_ID} = ? AND json_extract(work, '$.row') IS NOT NULL AND events.kind IN ('Exited', 'Requeued')
    AND (json_extract(nullif(data, ''), '$.details.ooms') OR json_extract(nullif(data, ''), '$.cause') = 'oom')"""


class BatchHead(NamedTuple):
    id: str
    name: str
    user: str
    submitted: float
    ended: float | None  # None while a job of it is not over
    refused: int
    states: dict[str, int]
    waves: dict[int, dict[str, int]]  # how many jobs are in each state, by wave


class BatchLog:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def heads(self, user: str = "", most: int = 100) -> list[BatchHead]:
        """Batches, the newest first: all, or a user's."""
        found: list[BatchHead] = []
        for (id,) in self._connection.execute(_NEWEST).fetchall():
            if len(found) == most:
                break
            head = self.head(id)
            if head is not None and user in ("", head.user):
                found.append(head)
        return found

    def head(self, batch: str) -> BatchHead | None:
        first = self._connection.execute(_FIRST, (batch,)).fetchone()
        if first is None:
            return None
        user, name, refused = first
        states: dict[str, int] = {}
        waves: dict[int, dict[str, int]] = {}
        submitted, ended, is_open = float("inf"), 0.0, False
        for state, wave, count, begin, end in self._connection.execute(_STATES, (batch,)):
            states[state] = states.get(state, 0) + count
            waves.setdefault(wave or 1, {})[state] = count
            submitted, ended = min(submitted, begin), max(ended, end or 0.0)
            is_open = is_open or state not in OVER
        return BatchHead(batch, name, user, submitted, None if is_open else ended, refused, states, waves)

    def rows(self, batch: str, where: str = "", values: tuple[Any, ...] = ()) -> list[JobView]:
        """Jobs of a batch in order of submission, with its trials, which are no rows."""
        found = self._connection.execute(
            f"SELECT {views.SELECTED} FROM jobs WHERE {_ID} = ? {where} ORDER BY number", (batch, *values)
        )
        return list(map(views.from_row, found))

    def ended(self, batch: str, since: float) -> list[JobView]:
        found = self.rows(batch, "AND ended >= ? AND json_extract(work, '$.row') IS NOT NULL", (since,))
        return sorted(found, key=lambda view: (view.ended or 0.0, view.number))

    def refusals(self, batch: str) -> list[tuple[int, str]]:
        """Rows of a batch's file that could never run here, and why: its first job has them."""
        found = self._connection.execute(_REFUSALS, (batch,)).fetchone()
        return [(row, why) for row, why in json.loads(found[0])] if found and found[0] else []

    def spans(self, batch: str, now: float) -> dict[tuple[str, int], Span]:
        """When each attempt was on which GPUs; running ones until now."""
        gpus: dict[tuple[str, int], tuple[int, ...]] = {}
        found: dict[tuple[str, int], Span] = {}
        for job, kind, attempt, at, data in self._connection.execute(_SPANS, (batch,)):
            key = (job, attempt)
            if kind == "Placed":
                gpus[key] = tuple(json.loads(data)["gpus"])
            elif kind == "Started":
                found[key] = Span(gpus.get(key, ()), at, max(at, now))
            elif key in found:
                found[key] = found[key]._replace(end=max(at, found[key].begin))
        return found

    def ooms(self, batch: str) -> int:
        return int(self._connection.execute(_OOMS, (batch,)).fetchone()[0])

    def alone(self, signature: str) -> list[tuple[str, float, list[str]]]:
        """Jobs, seconds and commands of similar runs that succeeded alone on their GPUs, the latest first."""
        found = self._connection.execute(_ALONE, (signature,)).fetchmany(_MOST_ALONE)
        return [(job, seconds, json.loads(command)) for job, seconds, command in found]


@contextmanager
def batch_log(path: Path) -> Iterator[BatchLog]:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield BatchLog(connection)
