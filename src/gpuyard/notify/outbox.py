"""The database of notifications: subscriptions, deliveries, and the position in the event log."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuyard.daemon.store.database import connect
from gpuyard.errors import UserError, suggest
from gpuyard.notify.subscriptions import DEFAULT_EVENTS, LONG_WAIT_SECONDS, REMOVED, mask

VERSION = 1
MOST_SUBSCRIPTIONS, MOST_URLS = 50, 1000  # of one user: by name, and given with jobs
MOST_WAITING = 1000  # deliveries of one user that may wait to be sent; what comes then is dropped and reported
_DAY = 86400.0
_KEPT, _FAILURES_KEPT, _URLS_KEPT = 7 * _DAY, 30 * _DAY, 30 * _DAY
WAITING, DELIVERED, GIVEN_UP = "waiting", "delivered", "given-up"


class NoSuchSubscription(UserError):
    """There is no such subscription."""


@dataclass(frozen=True, slots=True)
class Subscription:
    id: int
    user: str
    name: str
    url: str = field(repr=False)
    events: tuple[str, ...] = DEFAULT_EVENTS
    long_wait: float = LONG_WAIT_SECONDS  # seconds that are a long wait
    title: str = ""  # a template of its own; empty: the usual one
    body: str = ""
    created: float = 0.0
    of_jobs: bool = False  # given with a job, for jobs that name it

    @property
    def target(self) -> str:
        return mask(self.url)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification to one place."""

    subscription: int
    name: str
    target: str
    user: str
    job: str  # empty for a test
    event: str
    at: float
    title: str
    body: str
    fields: Mapping[str, Any]  # what happened, for programs
    state: str = WAITING
    attempts: int = 0
    next: float = 0.0  # when to try it
    ended: float | None = None
    error: str = ""
    id: int = 0


_COLUMNS = tuple(name for name in Delivery.__slots__ if name != "id")
_SUBSCRIPTION = "id, user, name, url, events, long_wait, title, body, created, of_jobs"


class Outbox:
    """The file, for the threads of one daemon."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._connection = connect(path, isolation_level=None, check_same_thread=False)
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise UserError(f"{path} was written by a newer version of gpuyard; use that version, or move it away")
        if version == 0:
            script = (Path(__file__).parent / "schema.sql").read_text()
            self._connection.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {VERSION};\nCOMMIT;")

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # -- subscriptions ----------------------------------------------------------------------------

    def subscriptions(self, user: str | None = None) -> list[Subscription]:
        where, values = ("", ()) if user is None else ("WHERE user = ?", (user,))
        with self._lock:
            found = self._connection.execute(f"SELECT {_SUBSCRIPTION} FROM subscriptions {where} ORDER BY id", values)
            return [_subscription(row) for row in found]

    def subscription(self, user: str, which: str) -> Subscription:
        mine = [one for one in self.subscriptions(user) if not one.of_jobs]
        found = next((one for one in mine if which in (one.name, str(one.id))), None)
        if found is None:
            near = suggest(which, [one.name for one in mine])
            raise NoSuchSubscription(f"you have no subscription '{which}'{near} (gpuyard notify list shows them)")
        return found

    def add(self, new: Subscription, now: float) -> Subscription:
        """Store a subscription; on disk when this returns."""
        mine = [one for one in self.subscriptions(new.user) if one.of_jobs is new.of_jobs]
        if new.of_jobs and len(mine) >= MOST_URLS:
            raise UserError(f"you gave {len(mine)} different URLs with jobs, which is the most; see gpuyard notify add")
        if len(mine) >= MOST_SUBSCRIPTIONS and not new.of_jobs:
            raise UserError(f"you have {len(mine)} subscriptions, which is the most; remove one first")
        if not new.of_jobs and any(one.name == new.name for one in mine):
            raise UserError(f"you have a subscription '{new.name}' already; remove it first, or choose another --name")
        row = (
            new.user, new.name, new.url, ",".join(new.events), new.long_wait, new.title, new.body, now, now,
            new.of_jobs,
        )  # fmt: skip
        columns = "user, name, url, events, long_wait, title, body, created, used, of_jobs"
        with self._transaction(durable=True) as connection:
            made = connection.execute(f"INSERT INTO subscriptions ({columns}) VALUES (?,?,?,?,?,?,?,?,?,?)", row)
        return replace(new, id=int(made.lastrowid or 0), created=now)

    def of_jobs(self, user: str, url: str, now: float) -> Subscription | None:
        found = next((one for one in self.subscriptions(user) if one.of_jobs and one.url == url), None)
        if found is not None:
            with self._transaction() as connection:
                connection.execute("UPDATE subscriptions SET used = ? WHERE id = ?", (now, found.id))
        return found

    def remove(self, user: str, which: str, now: float) -> Subscription:
        found = self.subscription(user, which)
        with self._transaction(durable=True) as connection:
            connection.execute("DELETE FROM subscriptions WHERE id = ?", (found.id,))
            connection.execute(
                "UPDATE deliveries SET state = ?, ended = ?, body = '', fields = '', error = ? WHERE subscription = ? "
                "AND state = ?",
                (GIVEN_UP, now, REMOVED, found.id, WAITING),
            )
        return found

    # -- the log ----------------------------------------------------------------------------------

    def cursor(self) -> int | None:
        """The last event that was read; None if none ever was."""
        with self._lock:
            found = self._connection.execute("SELECT seq FROM cursor").fetchone()
        return int(found[0]) if found else None

    def advance(self, seq: int | None, new: Sequence[Delivery]) -> int:
        """Store deliveries, and how far the log has been read; returns the number of new deliveries."""
        before = self._connection.total_changes
        with self._transaction() as connection:
            room = {user: MOST_WAITING - self._waiting(user) for user in {one.user for one in new}}
            for one in new:
                room[one.user] -= 1
                connection.execute(_INSERT, _row(one if room[one.user] >= 0 else _dropped(one)))
            added = connection.total_changes - before
            if seq is not None:
                connection.execute("DELETE FROM cursor")
                connection.execute("INSERT INTO cursor VALUES (?)", (seq,))
        return added

    def told(self, job: str, event: str) -> set[int]:
        with self._lock:
            found = self._connection.execute(
                "SELECT subscription FROM deliveries WHERE job = ? AND event = ?", (job, event)
            )
            return {id for (id,) in found}

    def _waiting(self, user: str) -> int:
        found = self._connection.execute(
            "SELECT count(*) FROM deliveries WHERE user = ? AND state = ?", (user, WAITING)
        ).fetchone()
        return int(found[0])

    # -- deliveries -------------------------------------------------------------------------------

    def due(self, now: float, each: int) -> list[Delivery]:
        """Deliveries that are due, up to `each` per target, the oldest first."""
        first = (
            "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY subscription ORDER BY next, id) AS place "
            "FROM deliveries WHERE state = 'waiting' AND next <= ?) WHERE place <= ?"
        )
        return self._deliveries(f"WHERE id IN ({first}) ORDER BY next, id", (now, each))

    def next_due(self) -> float | None:
        with self._lock:
            found = self._connection.execute("SELECT min(next) FROM deliveries WHERE state = 'waiting'").fetchone()
        return None if found[0] is None else float(found[0])

    def delivered(self, id: int, now: float) -> None:
        """Its text is not kept."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE deliveries SET state = ?, attempts = attempts + 1, ended = ?, error = '', body = '', "
                "fields = '' WHERE id = ? AND state = ?",
                (DELIVERED, now, id, WAITING),
            )

    def failed(self, id: int, error: str, now: float, again: float | None) -> None:
        """It could not be sent; it is tried again at a time, or never."""
        state, ended = (WAITING, None) if again is not None else (GIVEN_UP, now)
        with self._transaction() as connection:
            connection.execute(
                "UPDATE deliveries SET state = ?, attempts = attempts + 1, next = ?, ended = ?, error = ? "
                "WHERE id = ? AND state = ?",
                (state, again or 0.0, ended, error, id, WAITING),
            )

    def postpone(self, subscription: int, until: float) -> None:
        """Let other deliveries to the same place wait as long: they would fail as well."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE deliveries SET next = ? WHERE subscription = ? AND state = ? AND next < ?",
                (until, subscription, WAITING, until),
            )

    def recent(
        self, user: str | None, jobs: Sequence[str] = (), *, failed: bool = False, limit: int = 100
    ) -> list[Delivery]:
        """Deliveries of a user, or of everybody; of some jobs, or failed ones; the latest first."""
        terms, values = ["1"], list[Any]()
        if user is not None:
            terms.append("user = ?")
            values.append(user)
        if jobs:
            terms.append(f"job IN ({','.join('?' * len(jobs))})")
            values += jobs
        if failed:
            terms.append("state != 'delivered' AND error != ''")
        return self._deliveries(f"WHERE {' AND '.join(terms)} ORDER BY id DESC LIMIT ?", (*values, limit))

    def prune(self, now: float, needed: set[int]) -> None:
        """Remove what is old, and URLs given with jobs that no open job (`needed`) and no delivery has any more."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM deliveries WHERE state = 'delivered' AND ended < ?", (now - _KEPT,))
            connection.execute("DELETE FROM deliveries WHERE ended < ?", (now - _FAILURES_KEPT,))
            old = connection.execute(
                "SELECT id FROM subscriptions WHERE of_jobs AND used < ? AND NOT EXISTS (SELECT 1 FROM deliveries "
                "WHERE subscription = subscriptions.id AND state = 'waiting')",
                (now - _URLS_KEPT,),
            ).fetchall()
            connection.executemany(
                "DELETE FROM subscriptions WHERE id = ?", [row for row in old if row[0] not in needed]
            )

    def _deliveries(self, rest: str, values: Sequence[Any]) -> list[Delivery]:
        with self._lock:
            found = self._connection.execute(f"SELECT {', '.join(_COLUMNS)}, id FROM deliveries {rest}", values)
            return [_delivery(row) for row in found]

    @contextmanager
    def _transaction(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """A transaction; durable if a user relies on it, the rest would be found again in the log."""
        with self._lock:
            connection = self._connection
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")


_INSERT = (
    f"INSERT INTO deliveries ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) ON CONFLICT DO NOTHING"
)


def _subscription(row: tuple[Any, ...]) -> Subscription:
    id, user, name, url, events, long_wait, title, body, created, of_jobs = row
    wanted = tuple(events.split(","))
    return Subscription(id, user, name, url, wanted, long_wait, title, body, created, bool(of_jobs))


def _row(one: Delivery) -> list[Any]:
    return [json.dumps(one.fields) if name == "fields" else getattr(one, name) for name in _COLUMNS]


def _delivery(row: tuple[Any, ...]) -> Delivery:
    found = dict(zip((*_COLUMNS, "id"), row, strict=True))
    return Delivery(**{**found, "fields": json.loads(found["fields"] or "{}")})


def _dropped(one: Delivery) -> Delivery:
    why = f"more than {MOST_WAITING:,} notifications of yours wait to be sent"
    return replace(one, state=GIVEN_UP, body="", fields={}, ended=one.at, error=why)
