"""The file of recordings: SQLite, apart from the queue's, and written without waiting for the disk.

A process that is killed loses nothing that was written; a machine that loses power may lose the last minute or so. A
file that is damaged is set aside, and a new one begun: what GPUs did is worth less than that jobs go on.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from gpuyard.recordings.levels import Level

log = logging.getLogger("gpuyard")
VERSION = 1
NAME = "recordings.db"
_SCHEMA = Path(__file__).with_name("schema.sql")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_OLDER = """DELETE FROM chunks WHERE (level, subject, at) IN (
    SELECT level, subject, at FROM chunks WHERE level = ? AND subject = ? AND at < ? ORDER BY at LIMIT ?)"""
_EMPTY = """DELETE FROM subjects WHERE id IN (
    SELECT id FROM subjects WHERE NOT EXISTS (
        SELECT 1 FROM chunks WHERE level IN (0, 1, 2) AND subject = subjects.id) LIMIT ?)"""
_FREED = 2000  # pages that are given back at once


class Who(NamedTuple):
    """A subject, as the file has it."""

    gpu: int
    uuid: str
    name: str = ""
    memory: int = 0
    simulated: bool = False
    job: str = ""
    attempt: int = 0


class Chunk(NamedTuple):
    """A row to be written."""

    level: int
    subject: int
    at: int
    open: bool
    data: bytes


class RecordingFile:
    """The writer's end: for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = _opened(path)
        self._inode = path.stat().st_ino
        self._known: dict[Who, int] = {}

    def is_there(self) -> bool:
        """Whether others find it where it was; what is written to a file that was removed, nobody reads."""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Let go of the file, with all that was written in it and not beside it."""
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def subject(self, who: Who) -> int:
        """The number of a subject, which is made known if it is new."""
        if who not in self._known:
            values = (*who[:4], int(who.simulated), *who[5:])
            self._connection.execute(
                "INSERT OR IGNORE INTO subjects (gpu, uuid, name, memory, simulated, job, attempt) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            found = self._connection.execute(
                "SELECT id FROM subjects WHERE gpu = ? AND uuid = ? AND name = ? AND memory = ? AND simulated = ? "
                "AND job = ? AND attempt = ?",
                values,
            )
            self._known[who] = int(found.fetchone()[0])
        return self._known[who]

    def forget_known(self, gone: Iterable[Who]) -> None:
        """Keep no numbers in memory of subjects that are over."""
        for who in gone:
            self._known.pop(who, None)

    def load(self, level: Level, subject: int, at: int) -> bytes | None:
        """A chunk that was written before."""
        found = self._connection.execute(
            "SELECT data FROM chunks WHERE level = ? AND subject = ? AND at = ?", (level.number, subject, at)
        ).fetchone()
        return None if found is None else bytes(found[0])

    def unfinished(self) -> list[tuple[int, int, bytes]]:
        """Samples of former lives of which the next level does not know: subject, beginning and data."""
        found = self._connection.execute("SELECT subject, at, data FROM chunks WHERE open = 1 ORDER BY subject, at")
        return [(int(subject), int(at), bytes(data)) for subject, at, data in found]

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Write chunks, in place of what there was of them: all or none."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                "INSERT OR REPLACE INTO chunks (level, subject, at, open, data) VALUES (?, ?, ?, ?, ?)", chunks
            )

    def subjects(self) -> list[int]:
        """All of them, by number."""
        return [int(id) for (id,) in self._connection.execute("SELECT id FROM subjects ORDER BY id")]

    def forget(self, level: Level, subject: int, before: float, most: int) -> int:
        """Remove up to so many chunks of a subject that are over before an instant; returns how many."""
        found = self._connection.execute(_OLDER, (level.number, subject, before - level.chunk, most))
        return found.rowcount

    def forget_subjects(self, most: int) -> int:
        """Remove up to so many subjects of which nothing is left, and give freed room back; returns how many."""
        count = self._connection.execute(_EMPTY, (most,)).rowcount
        self._connection.execute(f"PRAGMA incremental_vacuum({_FREED})").fetchall()
        self._known = {} if count else self._known
        return count


def _opened(path: Path) -> sqlite3.Connection:
    try:
        return _connected(path)
    except sqlite3.Error as error:
        if not is_damaged(error):
            raise
        aside = path.with_name(f"{path.name}.damaged")
        log.warning("%s is damaged (%s): it is now %s, and recording begins anew", path, error, aside)
        set_aside(path, aside)
        return _connected(path)


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether a file can be of no use any more."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _DAMAGED


def set_aside(path: Path, aside: Path) -> None:
    """Move a file away, in place of one that was moved there before, and what belongs to it."""
    os.replace(path, aside)
    for part in ("-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise _damaged(f"it is of version {version}")
        if version == 0:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise _damaged("it holds something else")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before there is anything in it
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA.read_text()} PRAGMA user_version = {VERSION}; COMMIT;")
        # all of a large file is not looked through; these two touch both tables
        connection.execute("SELECT max(id) FROM subjects").fetchone()
        connection.execute("SELECT max(at) FROM chunks WHERE open = 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _damaged(why: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(why)
    error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    return error


def reading(path: Path) -> closing[sqlite3.Connection]:
    """A connection that only reads."""
    return closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None))


def chunks_of(
    connection: sqlite3.Connection, level: Level, subject: int, start: float, end: float
) -> Iterator[tuple[int, bytes]]:
    """The chunks of a subject that a span of time touches, in order: their beginning and data."""
    return connection.execute(
        "SELECT at, data FROM chunks WHERE level = ? AND subject = ? AND at > ? AND at <= ? ORDER BY at",
        (level.number, subject, start - level.chunk, end),
    )
