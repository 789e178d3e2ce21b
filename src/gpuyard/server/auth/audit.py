"""The audit log of changes and refusals, written by a thread, and redaction of secrets in logs."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import time
from collections import Counter, deque
from typing import Any, NamedTuple

from gpuyard.daemon.context import BackgroundThread
from gpuyard.errors import GpuyardError
from gpuyard.server.auth.credentials import CredentialStore
from gpuyard.server.paths import API

_TOKEN = re.compile(r"(gy_[a-z0-9]+)_[A-Za-z0-9_-]{16,}")
_TICKET = re.compile(r"\bgt_[A-Za-z0-9_.-]{16,}")


def redacted(text: str) -> str:
    return _TICKET.sub("gt_...", _TOKEN.sub(r"\1_...", text))


class RedactingFormatter(logging.Formatter):
    """Formats log lines, tracebacks included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


log = logging.getLogger("gpuyard")
REFUSALS = frozenset((401, 403, 421, 429))  # the statuses of refusals that are logged
_EVERY = 0.5  # seconds between batches
_TIDY = 3600.0
_MOST_WAITING = 20_000  # entries in memory, where the disk is full
_KEPT = 365 * 86400.0
_MOST_CHANGES, _MOST_REFUSALS = 1_000_000, 100_000  # rows
_BURST, _REFILL = 1000.0, 0.1  # refusals that get rows: at once, and per second
_LONGEST = 300  # characters of a path
_JOB = re.compile(rf"{API}/(?:jobs|leases)/(?!batch(?:/|$))([^/]+)")
_NAMES = ("at", "user", "via", "address", "method", "path", "status", "job", "times")


class AuditEntry(NamedTuple):
    at: float
    user: str
    via: str
    address: str
    method: str
    path: str
    status: int
    job: str = ""
    times: int = 1


class AuditLog(BackgroundThread):
    """Takes entries from any thread; its own thread writes them."""

    def __init__(self, credentials: CredentialStore) -> None:
        super().__init__("audit")
        self._credentials = credentials
        self._waiting: deque[tuple[AuditEntry, bytes]] = deque(maxlen=_MOST_WAITING)
        self._left, self._since = _BURST, time.monotonic()
        self._tidy_at = 0.0
        self._failed = False
        self._more: Counter[int] = Counter()  # refusals without a row, by status

    def stop(self) -> None:
        super().stop()
        self.flush()

    def add(self, entry: AuditEntry, answer: bytes = b"") -> None:
        """Take an entry; the body of the response tells the id of a new job."""
        self._waiting.append((entry, answer))
        self._wake.set()

    def flush(self) -> None:
        with self._credentials.lock:
            taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
            rows = self._rows([_complete(entry, answer) for entry, answer in taken])
            marks = ", ".join("?" for _ in _NAMES)
            try:
                self._credentials.flush()
                with self._credentials.connection as connection:
                    statement = f"INSERT INTO audit ({', '.join(_NAMES)}) VALUES ({marks})"
                    connection.executemany(statement, rows)
            except (sqlite3.Error, GpuyardError) as error:
                self._waiting.extendleft((row, b"") for row in reversed(rows))
                if not self._failed:
                    log.warning("the audit trail cannot be written, and is kept in memory: %s", error)
                self._failed = True
            else:
                self._failed = False

    def find(self, user: str = "", since: float = 0.0, limit: int = 100, before: int | None = None) -> list[Any]:
        self.flush()
        where, values = ["at >= ?"], [since]
        if user:
            where, values = [*where, "user = ?"], [*values, user]  # type: ignore[list-item]
        if before is not None:
            where, values = [*where, "seq < ?"], [*values, before]
        chosen = f"SELECT seq, {', '.join(_NAMES)} FROM audit WHERE {' AND '.join(where)} ORDER BY seq DESC LIMIT ?"
        with self._credentials.lock:
            found = self._credentials.connection.execute(chosen, (*values, limit)).fetchall()
        return [(seq, AuditEntry(*row)) for seq, *row in found]

    def _step(self) -> float:
        if self._waiting and not self._over.wait(_EVERY):
            self.flush()
        if time.monotonic() >= self._tidy_at:
            self._tidy()
            self._tidy_at = time.monotonic() + _TIDY
        return _TIDY

    def _tidy(self) -> None:
        """Remove old rows, and those beyond the limits: refusals do not push out changes."""
        marks = ", ".join("?" for _ in REFUSALS)
        try:
            with self._credentials.lock, self._credentials.connection as connection:
                connection.execute("DELETE FROM audit WHERE at < ?", (time.time() - _KEPT,))
                for which, most in (("IN", _MOST_REFUSALS), ("NOT IN", _MOST_CHANGES)):
                    some = f"SELECT seq FROM audit WHERE status {which} ({marks}) ORDER BY seq DESC LIMIT -1 OFFSET ?"
                    connection.execute(f"DELETE FROM audit WHERE seq IN ({some})", (*REFUSALS, most))
            self._credentials.tidy(time.time())
        except (sqlite3.Error, GpuyardError) as error:
            log.warning("the audit trail cannot be tidied: %s", error)

    def _rows(self, entries: list[AuditEntry]) -> list[AuditEntry]:
        """The rows for some entries: equal refusals become one row, and a flood of refusals is only counted."""
        changes = [entry for entry in entries if entry.status not in REFUSALS]
        alike: dict[tuple[Any, ...], AuditEntry] = {}
        for entry in entries:
            if entry.status in REFUSALS:
                former = alike.setdefault(entry[1:7], entry._replace(times=0))
                alike[entry[1:7]] = former._replace(times=former.times + entry.times)
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._since) * _REFILL)
        self._since = now
        refusals = []
        for entry in alike.values():
            if self._left < 1.0:
                self._more[entry.status] += entry.times
            else:
                refusals.append(entry)
                self._left -= 1.0
        for status in [status for status in self._more if self._left >= 1.0]:
            self._left -= 1.0
            refusals.append(AuditEntry(time.time(), "", "nobody", "", "", "(more)", status, "", self._more.pop(status)))
        return sorted(changes + refusals, key=lambda entry: entry.at)


def _complete(entry: AuditEntry, answer: bytes) -> AuditEntry:
    """The entry with its job, and without secrets in its path."""
    job = entry.job
    if found := _JOB.match(entry.path):
        job = found[1]
    if answer:
        job = _new(answer) or job
    return entry._replace(path=redacted(entry.path)[:_LONGEST], job=job[:_LONGEST])


def _new(answer: bytes) -> str:
    """The id of the new job in a response; of several jobs, the first and the last."""
    try:
        body = json.loads(answer)
        ids = body.get("ids") or [body["id"]]
    except (ValueError, KeyError, AttributeError):
        return ""
    return f"{ids[0]}" if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
