"""What happened that somebody may want to be told of, out of the log.

A job ends once: an attempt that is followed by another is no end, and neither is being stopped for others. An array is
told of as one, when its last task has ended. A lease begins and waits like a job, but how it ends is no news to whoever
held it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from gpuyard.client import OVER
from gpuyard.daemon.reader import Reader
from gpuyard.daemon.views import JobView
from gpuyard.notices.words import FAILURE, FINISH, LONG_WAIT, OF_STATE, START, TIMEOUT

_KINDS = "'Started', 'Exited', 'Cancelled'"
_AT_ONCE = 1000
_ASKED = 20
"""Cancelled tasks of an array of which it is looked up who did that."""


class Row(NamedTuple):
    """An event of the log, as far as it matters here."""

    seq: int
    at: float
    kind: str
    job: str


@dataclass(frozen=True, slots=True)
class Happening:
    """Something to tell of a job, or of an array."""

    id: str
    event: str
    at: float
    view: JobView
    """The job; of an array its first task."""
    tasks: Sequence[JobView] = ()
    """Of an array, all of them."""
    by: str = ""
    """Who cancelled it."""
    each: bool | None = None
    """Whether it is for those who want to be told of each task (True), or of none (False); None: for all."""


class Log:
    """The log, from one place on."""

    def __init__(self, database: Path) -> None:
        self.reader = Reader(database)
        self._connection = sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True, isolation_level=None)

    def close(self) -> None:
        """Let go of the file."""
        self.reader.close()
        self._connection.close()

    def last(self) -> int:
        """The number of the latest event."""
        return int(self._connection.execute("SELECT max(seq) FROM events").fetchone()[0] or 0)

    def after(self, seq: int) -> tuple[list[Row], int]:
        """What matters of the events after one, and the last of them that was looked at."""
        with closing(self._connection.cursor()) as cursor:
            newest = cursor.execute(
                "SELECT max(seq) FROM (SELECT seq FROM events WHERE seq > ? ORDER BY seq LIMIT ?)", (seq, _AT_ONCE)
            ).fetchone()[0]
            if newest is None:
                return [], seq
            found = cursor.execute(
                f"SELECT seq, at, kind, job FROM events WHERE seq > ? AND seq <= ? AND kind IN ({_KINDS}) ORDER BY seq",
                (seq, newest),
            )
            return [Row(*row) for row in found], int(newest)

    def cancelled_by(self, job: str) -> str:
        """Who cancelled a job; empty if nobody did, and it follows from something else."""
        found = self._connection.execute(
            "SELECT data FROM events WHERE job = ? AND kind IN ('Cancelled', 'Recalled') ORDER BY seq DESC", (job,)
        )
        said = (json.loads(data or "{}").get("details", {}) for (data,) in found)
        return next((str(details["by"]) for details in said if details.get("by")), "")


def happenings(log: Log, rows: Iterable[Row]) -> Iterator[Happening]:
    """What these events come to; an array, however many of its tasks are among them, is looked at once."""
    begun: dict[str, tuple[float, JobView]] = {}
    ended: dict[str, float] = {}
    for row in rows:
        view = log.reader.job(row.job)
        if view is None:  # forgotten meanwhile
            continue
        each = True if view.array else None
        if row.kind == "Started":
            yield Happening(view.id, START, row.at, view, each=each)
            if view.array:
                begun.setdefault(view.array, (row.at, view))
        elif view.over and view.ended == row.at:
            by = log.cancelled_by(view.id) if view.state == "cancelled" else ""
            event = end_of(view, by)
            if event:
                yield Happening(view.id, event, row.at, view, by=by, each=each)
            if view.array:
                ended[view.array] = row.at
    for array, (at, view) in begun.items():
        yield Happening(array, START, at, view, each=False)
    for array, at in ended.items():
        if log.reader.tasks(array).keys() <= OVER:
            yield from _end_of_array(log, array, at)


def end_of(view: JobView, by: str) -> str:
    """What the end of a job is to whoever wants to be told; empty if it is no news."""
    if view.kind == "lease" and view.state != "timeout":
        return ""
    if view.state == "cancelled" and by == view.user:
        return ""
    return OF_STATE.get(view.state, FAILURE)


def _end_of_array(log: Log, array: str, at: float) -> Iterator[Happening]:
    views = log.reader.jobs(over=True, wanted={"array": array})
    views.sort(key=lambda view: view.number)
    if not views:
        return
    states = {view.state for view in views}
    cancelled = [view for view in views if view.state == "cancelled"][:_ASKED]
    others = [by for view in cancelled if (by := log.cancelled_by(view.id)) != view.user]
    bad = {OF_STATE.get(state, FAILURE) for state in states - {"succeeded", "cancelled"}}
    if FAILURE in bad or others:
        event = FAILURE
    elif TIMEOUT in bad:
        event = TIMEOUT
    elif states == {"succeeded"}:
        event = FINISH
    else:  # whoever cancelled the rest knows
        return
    yield Happening(array, event, at, views[0], views, by=next(filter(None, others), ""), each=False)


def long_waits(views: Iterable[JobView], now: float, least: float) -> Iterator[Happening]:
    """Jobs that have waited for so many seconds since they were submitted, or since the time they were to begin."""
    arrays: dict[str, JobView] = {}
    started: set[str] = set()
    for view in views:
        if view.array and view.state == "running":
            started.add(view.array)
        if view.state != "queued" or view.attempt or now - waiting_since(view) < least:
            continue
        if view.array:
            arrays.setdefault(view.array, view)
        else:
            yield Happening(view.id, LONG_WAIT, now, view)
    for array, view in arrays.items():
        if array not in started:
            yield Happening(array, LONG_WAIT, now, view)


def waiting_since(view: JobView) -> float:
    """Since when a job waits that was not started yet."""
    return max(view.submitted, float(view.work.get("begin") or 0.0))
