"""A damaged store is read row by row, around the pages that cannot be read, into a new one.

The log is the truth: events are kept with their numbers, and jobs follow from them. What makes no sense without an
event that is lost is left out. A job that would wait again since the rest of its story is lost, is cancelled: whether
it has run, its folder tells, not the log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.admin.backup import read_only
from gpuyard.config import Settings
from gpuyard.core.events import Cancelled, Opened, Placed
from gpuyard.core.model import Cluster, Phase
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon.store import views
from gpuyard.daemon.store.database import BESIDE, HighWater, open_store, set_aside
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record, Row, decode, encode
from gpuyard.errors import GpuyardError, UserError
from gpuyard.files import sync

_EVENTS = ("seq", "at", "kind", "job", "attempt", "data")
_MESSAGE = "cancelled: what happened after it was submitted could not be read from a damaged store; see its output"
_OTHERS = {"environments": "hash", "answers": "user", "runs": "job", "intents": "number"}  # tables by their keys
_FARTHEST = 2**32  # events, where the mark is lost too

Numbered = tuple[int, Record]


@dataclass(frozen=True, slots=True)
class Recovered:
    events: int  # that are in the new store
    dropped: int  # that could be read, and make no sense without others
    last: int  # the number of the last event, and what it should be; 0: not known
    expected: int
    jobs: int
    cancelled: list[str]
    former: str  # where the damaged store is now


def recover(settings: Settings) -> Recovered:
    """Replace a damaged store by what can be read of it. Call this within `alone`."""
    database, expected = settings.database, HighWater(settings.database).read().last
    draft = database.with_name(f".{database.name}.recovered")
    for ending in ("", *BESIDE):
        draft.with_name(draft.name + ending).unlink(missing_ok=True)
    advice = "gpuyard restore FILE puts a backup in its place"
    try:
        with closing(read_only(database)) as source:
            found = list(_events(source, expected))
            environments = {key for key, _ in _rows(source, "environments", "hash", ["hash", "content"])}
            kept, cancelled = sensible([one for one in found if _shared(one[1]) in environments | {None}])
            if not kept:
                raise UserError(f"nothing can be read of the log in {database}; {advice}")
            with closing(open_store(draft)) as target:
                _insert(target, "events", _EVENTS, [(seq, *encode(record)) for seq, record in kept])
                for table, key in _OTHERS.items():
                    columns = [name for _, name, *_ in target.execute(f"PRAGMA table_info({table})")]
                    _insert(target, table, columns, _rows(source, table, key, columns))
            over = [row for row in _rows(source, "jobs", "number", views.COLUMNS) if row[views.COLUMNS.index("ended")]]
        jobs = _rebuild(draft, over)
    except sqlite3.Error as error:
        raise UserError(f"{database} cannot be recovered ({error}); {advice}") from error
    sync(draft)
    aside = set_aside(database, "damaged", move=True)
    os.replace(draft, database)
    sync(settings.data_dir)
    dropped = len(found) + len(cancelled) - len(kept)
    return Recovered(len(kept), dropped, kept[-1][0], expected, jobs, cancelled, str(aside))


def _rebuild(draft: Path, over: Sequence[Sequence[Any]]) -> int:
    """Make the jobs follow from the log; of those that are over and not in it, the history has the rows."""
    store = Store(draft)
    try:
        jobs = store.rebuild()
        store.load()
    finally:
        store.close()
        store.mark.remove()
    place = {name: at for at, name in enumerate(views.COLUMNS)}
    with closing(open_store(draft)) as target:
        known = {id for (id,) in target.execute("SELECT id FROM jobs")}
        lost = [list(row) for row in over if row[place["id"]] not in known]
        for number, row in enumerate(lost, jobs + 1):
            row[place["number"]] = number
        _insert(target, "jobs", views.COLUMNS, lost)
    return jobs + len(lost)


def _insert(target: sqlite3.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    marks = ", ".join("?" * len(columns))
    with target:
        target.execute("BEGIN")
        target.executemany(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)


def _rows(source: sqlite3.Connection, table: str, key: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of a table up to the first page that cannot be read, from either end."""
    found: dict[tuple[Any, ...], None] = {}
    for order in ("ASC", "DESC"):
        try:
            for row in source.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {key} {order}"):
                found[row] = None
        except sqlite3.Error:
            continue
        break
    return list(found)


def _events(source: sqlite3.Connection, expected: int) -> Iterator[Numbered]:
    """All events that can be read, in order."""
    after, end, leap = 0, expected or _FARTHEST, 1
    query = f"SELECT {', '.join(_EVENTS)} FROM events WHERE seq > ? ORDER BY seq"
    while after < end:
        try:
            for seq, *row in source.execute(query, (after,)):
                if seq <= after:
                    raise sqlite3.DatabaseError("the log is out of order")
                after, leap = seq, 1
                if (record := _decoded(Row(*row))) is not None:
                    yield seq, record
            return
        except sqlite3.Error:
            after = max(_next(source, after, end), after + leap)  # pages may also seem to be readable, and lead nowhere
            leap *= 2


def _decoded(row: Row) -> Record | None:
    try:
        return decode(row)
    except (GpuyardError, ValueError, LookupError, TypeError):
        return None


def _shared(record: Record) -> str | None:
    """The hash of what a task shares with others of its array, without which it makes no sense."""
    key: str | None = record.details.get("work", {}).get("shared")
    return key


def _next(source: sqlite3.Connection, after: int, end: int) -> int:
    """The number before the next event that can be read: found by leaps, and then by halves."""

    def readable(seq: int) -> bool:
        try:
            source.execute("SELECT at, data FROM events WHERE seq >= ? ORDER BY seq LIMIT 1", (seq,)).fetchone()
        except sqlite3.Error:
            return False
        return True

    low, leap = after + 1, 1
    while not readable(low + leap):
        if low + leap >= end:
            return end
        leap = min(2 * leap, end - low)
    low, high = low + leap // 2, low + leap
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if readable(middle) else (middle + 1, high)
    return low - 1


def sensible(found: list[Numbered]) -> tuple[list[Numbered], list[str]]:
    """The events that can follow each other, and the jobs that are cancelled at the end."""
    if not found:
        return [], []
    first = next((record.event for _, record in found if isinstance(record.event, Opened)), None)
    if first is None:  # as many GPUs as were used; the next daemon says how many there are
        used = (gpu for _, record in found if isinstance(record.event, Placed) for gpu in record.event.gpus)
        first = Opened(0.0, Cluster((1 + max(used, default=0),)))
    state, kept, holes = State(first.cluster), list[Numbered](), dict[str, None]()
    if not isinstance(found[0][1].event, Opened):
        at = found[0][1].event.at
        found = [(max(0, found[0][0] - 1), Record(Opened(at, first.cluster, first.gpus))), *found]
    for seq, record in found:
        try:
            apply(state, record.event)
            kept.append((seq, record))
        except (GpuyardError, ValueError, LookupError, TypeError):
            if record.job is not None:
                holes[record.job] = None
    rows = ((job, state.row_of.get(job, -1)) for job in holes)
    cancelled = [job for job, row in rows if row >= 0 and state.phase[row] in (Phase.QUEUED, Phase.HELD)]
    (last, record), at = kept[-1], max(record.event.at for _, record in kept)
    kept += [(last + n, Record(Cancelled(at, job), {"message": _MESSAGE})) for n, job in enumerate(cancelled, 1)]
    return kept, cancelled
