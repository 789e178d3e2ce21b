"""The store: one SQLite file that holds the log, and what follows from it.

One thread writes, a batch of records at a time: one transaction, one fsync, and only then is anything acknowledged
(WAL, synchronous=FULL). The views of the jobs are written in the same transaction, so they can never disagree with the
log; `rebuild` recreates them. Others read through connections of their own (`reader`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.core import checkpoint
from gpuyard.core.checkpoint import compact
from gpuyard.core.events import ClockSet, Edited, Opened, Submitted
from gpuyard.core.model import Cluster, Phase, Request
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon.store import reader, views
from gpuyard.daemon.store.database import (
    HighWater,
    Mark,
    StoreBehind,
    StoreDamaged,
    StoreFailing,
    damaged,
    is_damage,
    open_store,
    reached,
    readable,
    sentence,
    set_aside,
)
from gpuyard.daemon.store.reader import Answered, Queries
from gpuyard.daemon.store.records import Record, Row, decode, encode
from gpuyard.daemon.store.views import JobView, fold_view, shifted
from gpuyard.errors import Bug, UserError
from gpuyard.files import point
from gpuyard.spec.notation import number_of
from gpuyard.spec.work import Work, with_tuples

_JOBS = f"jobs ({', '.join(views.COLUMNS)})"
_ROWS = 32  # rows of one statement
_FORGETTABLE = """SELECT id FROM jobs WHERE ended < ? AND number < ? AND id != ?
    AND NOT EXISTS (SELECT 1 FROM events WHERE events.job = jobs.id AND seq >= ?) ORDER BY ended LIMIT ?"""
_FORGETTABLE_GPUS = """DELETE FROM events WHERE seq IN (SELECT seq FROM events
    WHERE kind IN ('GpusWithdrawn', 'GpusRestored', 'MemoryTaken') AND job IS NULL AND seq < ? AND at < ? LIMIT ?)"""
_FORGETTABLE_ANSWERS = """DELETE FROM answers WHERE (user, key) IN (
    SELECT user, key FROM answers WHERE at < ? ORDER BY at LIMIT ?)"""
_UPDATE, _EDIT = (
    f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in columns)} WHERE number = ?"
    for columns in (views.CHANGING, views.COLUMNS)
)


class Intent(NamedTuple):
    """A long request: how many of its jobs are done, and what is asked for, as JSON; empty: as written before."""

    done: int
    what: str


class Store(Queries):
    def __init__(
        self, path: Path, *, accept_loss: bool = False, begun: Callable[[int], Sequence[str]] = lambda newest: ()
    ) -> None:
        """Raises `StoreBehind` for a store that has lost writes, unless a person accepts that.

        The mark beside it tells, and `begun`: which jobs beyond the newest that is known have begun, by their folders.
        """
        self.path = path
        self._coming: Mapping[str, str] = {}  # what is being written
        self.mark = HighWater(path)
        before = self.mark.read()
        self.lost = self._compare(before, accept_loss, begun)
        self._connection = open_store(path)
        with readable(path):
            self.last = self._number("SELECT max(seq) FROM events")
            self.last_at = self._last_at()  # when the last event happened
            self.jobs = self._number("SELECT max(number) FROM jobs")  # the number of the job that was submitted last
            newest = self._number("SELECT max(CAST(id AS INTEGER)) FROM jobs")
            self.newest = max(newest, before.newest, self.lost.newest)  # the id of a lost job is not given again
            self.open: dict[str, JobView] = {view.id: view for view in self._views("WHERE ended IS NULL")}
            """The views of all jobs that are not over."""
            self.checkpointed = self._number("SELECT max(seq) FROM checkpoint")
            self.last_intent = self._number("SELECT max(number) FROM intents")

    def _compare(self, mark: Mark, accept_loss: bool, begun: Callable[[int], Sequence[str]]) -> Mark:
        """What the store lacks; a copy is kept of one that goes on without."""
        found = reached(self.path)
        lost = Mark(mark.last - found.last, max(0, mark.jobs - found.jobs))
        if lost.last > 0:
            what = f"{lost.last:,} of {mark.last:,} events, with {lost.jobs:,} submitted job{'s' * (lost.jobs != 1)}"
            what += f", by {self.mark.path}"
        elif jobs := begun(max(found.newest, mark.newest)):
            lost = Mark(0, len(jobs), number_of(jobs[-1]))
            what = f"{lost.jobs:,} job{'s' * (lost.jobs != 1)} that began, by the folders of jobs"
        else:
            return Mark()
        if not accept_loss:
            raise StoreBehind(
                f"{self.path} has lost writes that were acknowledged: {what}. Put back the file, "
                "its -wal beside it, or a backup (gpuyard restore FILE); or go on without them: gpuyard up "
                "--accept-loss keeps a copy, and takes up the jobs that have begun by their folders"
            )
        kept = f"; a copy is {set_aside(self.path, 'behind', move=False)}" if self.path.exists() else ""
        log.warning("the store goes on without %s%s", what, kept)
        return lost

    def close(self) -> None:
        with suppress(sqlite3.Error):  # where it cannot be written, the next life reads what lies beside it
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self.mark.close()

    # -- writing ----------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[Record],
        environments: Mapping[str, str] | None = None,
        answers: Iterable[Answered] = (),
        intents: Mapping[int, Intent | None] | None = None,
    ) -> None:
        """Write records and their views; on disk when this returns, or not at all."""
        self._coming = environments or {}
        seen: dict[str, JobView] = {}
        ran: list[tuple[Any, ...]] = []
        number = self.jobs
        edited = {record.job for record in records if isinstance(record.event, Edited)}
        for record in records:
            if record.job is not None:
                number += isinstance(record.event, Submitted)
                before = seen.get(record.job) or self.open.get(record.job)
                if before is not None and (run := reader.run_of(before, record)) is not None:
                    ran.append(run)
                view = fold_view(before, number, record)
                if view is not None:  # else a late report on a job that is over
                    seen[record.job] = view
            elif isinstance(record.event, ClockSet):
                seen |= shifted({**self.open, **seen}.values(), record.event)
        with self._transaction() as connection:
            _insert(
                connection,
                "events (seq, at, kind, job, attempt, data)",
                [(self.last + n, *encode(record, self._base)) for n, record in enumerate(records, 1)],
            )
            point("store:events")
            if environments:
                connection.executemany("INSERT OR IGNORE INTO environments VALUES (?, ?)", environments.items())
            if answers := list(answers):
                connection.executemany(
                    "INSERT OR REPLACE INTO answers (user, key, request, answer, at) VALUES (?, ?, ?, ?, ?)", answers
                )
            for intent, state in (intents or {}).items():
                _write_intent(connection, intent, state)
            if ran:
                connection.executemany(reader.INSERT_RUN, ran)
            if new := [views.to_row(v, bases=self._base) for v in seen.values() if v.number > self.jobs]:
                _insert(connection, _JOBS, new)
            changed = {job: v for job, v in seen.items() if v.number <= self.jobs}
            for statement, columns in ((_UPDATE, views.CHANGING), (_EDIT, views.COLUMNS)):
                rows = [v for job, v in changed.items() if (job in edited) == (statement is _EDIT)]
                if rows:
                    connection.executemany(statement, [views.to_row(v, (*columns, "number"), self._base) for v in rows])
            point("store:views")
        point("store:committed")
        self.last += len(records)
        self.jobs = number
        self.newest = max([self.newest, *(number_of(job) for job in seen)])
        self.last_at = max([self.last_at, *(record.event.at for record in records)])
        self.mark.write(Mark(self.last, self.jobs, self.newest))
        for job, view in seen.items():
            if view.over:
                self.open.pop(job, None)
            else:
                self.open[job] = view

    def keep(self, state: State) -> None:
        """Keep the state as of the last event, so that the next start is quick."""
        for _ in self.keeping(state):
            pass

    def keeping(self, state: State) -> Iterator[None]:
        """The same in steps, between which more may happen: a long queue takes a while."""
        last, packer, packed = self.last, zlib.compressobj(1), list[bytes]()  # large ones take long to write
        for place, (name, value) in enumerate(chain((("cluster", _cluster(state.cluster)),), checkpoint.parts(state))):
            text = f'{"," if place else "{"}"{name}":{json.dumps(value)}'.encode()
            for at in range(0, len(text), _PIECE):
                packed.append(packer.compress(text[at : at + _PIECE]))
                if place:  # from then on the parts are what they were
                    yield
        packed += packer.compress(b"}"), packer.flush()
        if last <= self.checkpointed:  # a later one was kept meanwhile, and events before that may be gone
            return
        with self._transaction() as connection:
            connection.execute("DELETE FROM checkpoint")
            point("store:checkpoint")
            connection.execute("INSERT INTO checkpoint VALUES (?, ?)", (last, b"".join(packed)))
        self.checkpointed = last

    def rebuild(self) -> int:
        """Make the views again from the log; returns the number of jobs."""
        found: dict[str, JobView] = {}
        for _, record in self.records():
            if record.job is not None:
                view = fold_view(found.get(record.job), len(found) + 1, record)
                if view is not None:
                    found[record.job] = view
            elif isinstance(record.event, ClockSet):
                found |= shifted(found.values(), record.event)
        with self._transaction() as connection:
            connection.execute("DELETE FROM jobs")
            connection.execute("DELETE FROM checkpoint")
            _insert(connection, _JOBS, [views.to_row(view, bases=self._base) for view in found.values()])
        self.open = {view.id: view for view in found.values() if not view.over}
        self.checkpointed = 0
        return len(found)

    def forget(self, before: float, most: int) -> int:
        """Remove up to `most` jobs that ended before an instant, with all their events; returns their number.

        Only what the checkpoint makes needless goes, and never the newest job: no other may get its id.
        """
        with self._transaction() as connection:
            found = connection.execute(_FORGETTABLE, (before, self.jobs, str(self.newest), self.checkpointed, most))
            jobs = [(id,) for (id,) in found]
            connection.executemany("DELETE FROM events WHERE job = ?", jobs)
            point("store:forgetting")
            connection.executemany("DELETE FROM jobs WHERE id = ?", jobs)
        return len(jobs)

    def forget_gpus(self, before: float, most: int) -> int:
        """Remove up to `most` events about GPUs before an instant; returns their number."""
        with self._transaction() as connection:
            found = connection.execute(_FORGETTABLE_GPUS, (self.checkpointed, before, most))
            return found.rowcount

    def forget_answers(self, before: float, most: int) -> int:
        """Remove up to `most` answers to requests with a key before an instant; returns their number."""
        with self._transaction() as connection:
            found = connection.execute(_FORGETTABLE_ANSWERS, (before, most))
            return found.rowcount

    def forget_environments(self, keys: Iterable[str], since: int) -> int:
        """Remove environments and scripts that no job up to a number has, nor a later one; returns their number."""
        if self._number("SELECT count(*) FROM intents"):
            return 0  # jobs that are not written yet may have them
        with self._transaction() as connection:
            later = connection.execute("SELECT work FROM jobs WHERE number > ?", (since,))
            works = [*(view.work for view in self.open.values()), *(json.loads(work) for (work,) in later)]
            wanted = {str(work.get(name)) for work in works for name in ("environment", "script", "shared")}
            needless = [(key,) for key in keys if key not in wanted]
            connection.executemany("DELETE FROM environments WHERE hash = ?", needless)
        return len(needless)

    def forget_runs(self, signature: str) -> int:
        """Remove the runs of a signature; returns their number."""
        with self._transaction() as connection:
            return connection.execute("DELETE FROM runs WHERE signature = ?", (signature,)).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise (StoreDamaged if is_damage(error) else StoreFailing)(sentence(self.path, error)) from error
        finally:
            if connection.in_transaction:
                with suppress(sqlite3.Error):  # what cannot be undone now is not there for the next who opens the file
                    connection.execute("ROLLBACK")

    # -- reading ----------------------------------------------------------------------------------

    def records(self, after: int = 0) -> Iterator[tuple[int, Record]]:
        found = self._connection.execute(
            "SELECT seq, at, kind, job, attempt, data FROM events WHERE seq > ? ORDER BY seq", (after,)
        )
        for seq, *row in found:
            try:
                record = decode(Row(*row), self._base)
            except Bug as error:  # versions agree, so no version of ours wrote this
                raise UserError(damaged(self.path, str(error))) from error
            yield seq, record

    def load(self) -> State | None:
        """The state by the log; None if that is empty."""
        with readable(self.path):
            return self._folded()

    def _folded(self) -> State | None:
        state: State | None = None
        found = self._connection.execute("SELECT seq, data FROM checkpoint ORDER BY seq DESC LIMIT 1").fetchone()
        if found is not None:
            data = json.loads(zlib.decompress(found[1]) if isinstance(found[1], bytes) else found[1])
            state = checkpoint.load(Cluster(**with_tuples(data.pop("cluster"))), data)
        for _, record in self.records(found[0] if found else 0):
            if state is None:
                if not isinstance(record.event, Opened):
                    raise UserError(f"{self.path} does not begin like a log of gpuyard; move it away to start anew")
                state = State(record.event.cluster)
            apply(state, record.event)
        return state

    def latest(self, kind: str) -> Iterator[Record]:
        found = self._connection.execute(
            "SELECT at, kind, job, attempt, data FROM events WHERE kind = ? AND job IS NULL ORDER BY seq DESC", (kind,)
        )
        return (decode(Row(*row)) for row in found)

    def _last_at(self) -> float:
        found = self._connection.execute("SELECT max(at) FROM (SELECT at FROM events ORDER BY seq DESC LIMIT 1000)")
        return float(found.fetchone()[0] or 0.0)

    def latest_at(self, job: str) -> float:
        found = self._connection.execute("SELECT at FROM events WHERE job = ? ORDER BY seq DESC LIMIT 1", (job,))
        return float((found.fetchone() or (0.0,))[0])

    def _base(self, key: str) -> Mapping[str, Any]:
        """What the tasks of an array share, by its hash."""
        return views.shared_of(key, lambda: self._coming.get(key) or self.kept(key))

    def script(self, key: str) -> str:
        return str(json.loads(self.kept(key)))

    def kept(self, key: str) -> str:
        found = self._connection.execute("SELECT content FROM environments WHERE hash = ?", (key,)).fetchone()
        if found is None:
            raise UserError("its environment, or its script, is not kept any more; submit it anew")
        return str(found[0])

    def standing(self, limit: int = -1, **wanted: str) -> list[tuple[str, Phase]]:
        """State of the jobs with this id, of this array, or of this name and user: the open first, then the newest."""
        where = " AND ".join(reader.OF_ARRAY if name == "array" else f"{name} = ?" for name in wanted)
        found = self._connection.execute(
            f"SELECT id, state FROM jobs WHERE {where} ORDER BY ended IS NULL DESC, number DESC LIMIT ?",
            (*wanted.values(), limit),
        )
        return [(id, Phase(state)) for id, state in found]

    def ended(self, array: str) -> list[tuple[str, Phase]]:
        """Of the tasks of an array that are over, the first of each state."""
        where = f"{reader.OF_ARRAY} AND ended IS NOT NULL GROUP BY state"
        found = self._connection.execute(f"SELECT id, state, min(number) FROM jobs WHERE {where}", (array,))
        return [(id, Phase(state)) for id, state, _ in found]

    def runs(self, job: str, attempt: int) -> bool:
        """Whether this attempt is on its GPUs. For any thread."""
        view = self.open.get(job)
        return view is not None and view.state == "running" and view.attempt == attempt

    def names(self, user: str) -> list[str]:
        found = self._connection.execute("SELECT name FROM jobs WHERE user = ? ORDER BY number DESC LIMIT 200", (user,))
        return list(dict.fromkeys(name for (name,) in found))

    def described(self, job: str) -> Record | None:
        found = self._connection.execute(
            "SELECT at, kind, job, attempt, data FROM events WHERE job = ? AND kind IN ('Submitted', 'Edited') "
            "ORDER BY seq DESC LIMIT 1",
            (job,),
        ).fetchone()
        return decode(Row(*found), self._base) if found else None

    def recalled(self, job: str, attempt: int) -> Mapping[str, Any]:
        found = self._connection.execute(
            "SELECT at, kind, job, attempt, data FROM events WHERE job = ? AND attempt = ? AND kind = 'Recalled' "
            "ORDER BY seq DESC LIMIT 1",
            (job, attempt),
        ).fetchone()
        return decode(Row(*found)).details if found else {}

    def _views(self, where: str) -> Iterator[JobView]:
        found = self._connection.execute(f"SELECT {views.SELECTED} FROM jobs {where} ORDER BY number")
        return map(views.from_row, found)

    def unfinished(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Long requests that are written and not done: number, how much of it is done, and what is asked for."""
        found = self._connection.execute("SELECT number, done, what FROM intents ORDER BY number")
        return [(number, done, json.loads(what)) for number, done, what in found]

    def _number(self, query: str) -> int:
        return int(self._connection.execute(query).fetchone()[0] or 0)


def _write_intent(connection: sqlite3.Connection, number: int, intent: Intent | None) -> None:
    if intent is None:
        connection.execute("DELETE FROM intents WHERE number = ?", (number,))
    elif intent.what:
        connection.execute("INSERT INTO intents (number, done, what) VALUES (?, ?, ?)", (number, *intent))
    else:
        connection.execute("UPDATE intents SET done = ? WHERE number = ?", (intent.done, number))


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Many rows a statement: at the end of each, Python lets other threads run, and this one waits for its turn."""
    for begin in range(0, len(rows), _ROWS):
        some = rows[begin : begin + _ROWS]
        row = f"({', '.join('?' * len(some[0]))})"
        connection.execute(
            f"INSERT INTO {table} VALUES {', '.join([row] * len(some))}", list(chain.from_iterable(some))
        )


def hashed(environment: Mapping[str, Any] | str) -> tuple[str, str]:
    kept = environment if isinstance(environment, str) else dict(sorted(environment.items()))
    content = json.dumps(kept, separators=(",", ":"))
    return key_of(content), content


def key_of(content: Any) -> str:
    return hashlib.sha256(str(content).encode()).hexdigest()[:32]


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return {name: getattr(cluster, name) for name in Cluster.__dataclass_fields__}


log = logging.getLogger("gpuyard")
_LATER = 20  # times as many events while a long request is under way
_SLICE = 0.005  # seconds of a turn that are spent on a checkpoint
_PIECE = 2**19  # bytes that are compressed at a time
_EVERY = 5_000, 20_000  # events: when there is nothing else to do, and at most
_RETRY = 60.0


class Checkpoints:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._not_before = -math.inf
        self._steps: Iterator[None] | None = None
        self.wanted = False  # whether a checkpoint is asked for

    @property
    def under_way(self) -> bool:
        return self._steps is not None

    def make(self, state: State, *, idle: bool, busy: bool = False) -> bool:
        """If it is time to, keep the state, which must match the log; whether jobs that are over were dropped.

        That goes on for some turns, unless the checkpoint is asked for.
        """
        if self._steps is not None and not self.wanted:
            self._go_on(_SLICE)
            return False
        behind, jobs = self._store.last - self._store.checkpointed, len(self._store.open)
        few, many = _EVERY  # it takes the longer the more jobs there are
        least = max(few, jobs // 4) if idle else max(many, jobs) * (_LATER if busy else 1)
        if behind <= (0 if self.wanted else least) or time.monotonic() < self._not_before:
            return False
        seconds, self.wanted = math.inf if self.wanted else 0.0, False
        if compacts := len(state.ids) - jobs > jobs // 4:
            compact(state)
        self._steps = self._store.keeping(state)
        self._go_on(seconds)
        return compacts

    def _go_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        try:
            for _ in self._steps or ():
                if time.monotonic() >= end:
                    return
        except StoreFailing as error:  # the log has everything, so nothing is lost
            log.warning("%s", error)
            self._not_before = time.monotonic() + _RETRY
        self._steps = None


class NoSuchJob(UserError):
    """There is no such job."""


def description(job: str, store: Store, unwritten: Mapping[str, Record]) -> tuple[Work, Request]:
    """What a job runs and asks for, also when it is over; `unwritten` has the latest unwritten description by job."""
    record = unwritten.get(job) or store.described(job)
    if record is None or not isinstance(record.event, Submitted | Edited):
        raise NoSuchJob(f"what job {job} ran is not kept any more")
    return Work.from_json(record.details["work"]), record.event.request
