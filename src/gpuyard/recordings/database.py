"""The database of recordings:

SQLite, apart from the queue's, written without waiting for the disk; samples become chunks.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from gpuyard.recordings.chunks import (
    APART,
    AT,
    COVERED,
    HIGH,
    HOURS,
    KEPT,
    LOW,
    MINUTES,
    SAMPLES,
    Damaged,
    Level,
    decode,
    encode,
    held,
    one_of,
)
from gpuyard.recordings.series import OF_JOBS, Floats

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
    gpu: int
    uuid: str
    name: str = ""
    memory: int = 0
    simulated: bool = False
    job: str = ""
    attempt: int = 0


class Chunk(NamedTuple):
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
        """Whether the file still has its name: nobody reads what is written to a removed file."""
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def subject(self, who: Who) -> int:
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
        for who in gone:
            self._known.pop(who, None)

    def load(self, level: Level, subject: int, at: int) -> bytes | None:
        found = self._connection.execute(
            "SELECT data FROM chunks WHERE level = ? AND subject = ? AND at = ?", (level.number, subject, at)
        ).fetchone()
        return None if found is None else bytes(found[0])

    def unfinished(self) -> list[tuple[int, int, bytes]]:
        """Samples of earlier daemons that the next level lacks: subject, start and data."""
        found = self._connection.execute("SELECT subject, at, data FROM chunks WHERE open = 1 ORDER BY subject, at")
        return [(int(subject), int(at), bytes(data)) for subject, at, data in found]

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Write or replace chunks: all or none."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                "INSERT OR REPLACE INTO chunks (level, subject, at, open, data) VALUES (?, ?, ?, ?, ?)", chunks
            )

    def subjects(self) -> list[int]:
        return [int(id) for (id,) in self._connection.execute("SELECT id FROM subjects ORDER BY id")]

    def forget(self, level: Level, subject: int, before: float, most: int) -> int:
        """Remove up to `most` chunks of a subject that end before an instant; returns their number."""
        found = self._connection.execute(_OLDER, (level.number, subject, before - level.chunk, most))
        return found.rowcount

    def forget_subjects(self, most: int) -> int:
        """Remove up to `most` subjects without chunks, and free their room; returns their number."""
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
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _DAMAGED


def set_aside(path: Path, aside: Path) -> None:
    """Move a file and its companions away, over one that was moved there before."""
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
    return closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None))


def chunks_of(
    connection: sqlite3.Connection, level: Level, subject: int, start: float, end: float
) -> Iterator[tuple[int, bytes]]:
    """The chunks of a subject that a span of time touches, in order: start and data."""
    return connection.execute(
        "SELECT at, data FROM chunks WHERE level = ? AND subject = ? AND at > ? AND at <= ? ORDER BY at",
        (level.number, subject, start - level.chunk, end),
    )


KEPT_OF_GPUS = tuple(name for name in KEPT if name not in OF_JOBS)  # what is kept of a GPU
_OVER = 120.0  # seconds after its last sample that nothing is kept in memory of a subject


@dataclass(slots=True)
class _Open:
    level: Level
    begin: int
    names: tuple[str, ...]
    rows: list[tuple[float, ...]] = field(default_factory=list)
    """The instant, and a value for each name; seconds since the epoch, NaN where nothing is known."""
    changed: bool = False

    def put(self, at: float, values: Mapping[str, float]) -> None:
        row = (at, *(values.get(name, np.nan) for name in self.names))
        if self.rows and self.rows[-1][0] == at:
            self.rows[-1] = row
        elif not self.rows or at > self.rows[-1][0]:  # a clock that goes back is not to spoil what there is
            self.rows.append(row)
        self.changed = True

    def columns(self, since: float = 0.0) -> dict[str, Floats]:
        """The columns, or those since an instant; times since the chunk's start."""
        values = np.array([row for row in self.rows if row[0] >= since], dtype=np.float64).T
        return {AT: values[0] - self.begin, **dict(zip(self.names, values[1:], strict=True))}

    def encoded(self) -> bytes:
        columns = {name: values for name, values in self.columns().items() if not np.isnan(values).all()}
        return encode(columns, means=self.level is not SAMPLES)

    def load(self, data: bytes) -> None:
        found = decode(data)
        nothing = np.full(len(found[AT]), np.nan)
        columns = (found[AT] + self.begin, *(found.get(name, nothing) for name in self.names))
        self.rows = list(zip(*(column.tolist() for column in columns), strict=True))


class _Track:
    def __init__(self, file: RecordingFile, subject: int, names: tuple[str, ...]) -> None:
        self._file, self._subject, self._names = file, subject, names
        self._spread = (COVERED, *(f"{name}{kind}" for name in names for kind in ("", LOW, HIGH)))
        self._open: dict[int, _Open] = {}
        self.last = 0.0  # when the last sample was

    def add(self, at: float, values: Mapping[str, float]) -> Iterator[Chunk]:
        """Add a sample; yields chunks that are complete by it."""
        yield from self.settle(at)
        self._chunk(SAMPLES, at).put(at, values)
        self.last = at

    def settle(self, now: float) -> Iterator[Chunk]:
        """Close the minute if it is over, or if a clock went back before it."""
        minute = self._open.get(SAMPLES.number)
        if minute is None or minute.begin <= now < minute.begin + SAMPLES.chunk:
            return
        del self._open[SAMPLES.number]
        yield from self.close(minute)

    def close(self, minute: _Open) -> Iterator[Chunk]:
        if not minute.rows:
            return
        columns, begin = minute.columns(), float(minute.begin)
        minutes = self._chunk(MINUTES, begin)
        minutes.put(begin, one_of(columns, held(columns[AT], float(SAMPLES.chunk), APART)))
        began = begin // HOURS.period * HOURS.period
        hour = minutes.columns(since=began)
        self._chunk(HOURS, began).put(began, one_of(hour, hour[COVERED]))
        yield Chunk(SAMPLES.number, self._subject, minute.begin, False, minute.encoded())
        yield from self._written(MINUTES, HOURS)

    def changed(self) -> Iterator[Chunk]:
        """What has changed since it was last written."""
        yield from self._written(SAMPLES)

    def _written(self, *levels: Level) -> Iterator[Chunk]:
        for level in levels:
            chunk = self._open.get(level.number)
            if chunk is not None and chunk.changed:
                chunk.changed = False
                yield Chunk(level.number, self._subject, chunk.begin, level is SAMPLES, chunk.encoded())

    def _chunk(self, level: Level, at: float) -> _Open:
        """The chunk of an instant: the open one, one of an earlier daemon, or a new one."""
        begin, found = level.chunk_of(at), self._open.get(level.number)
        if found is None or found.begin != begin:
            found = _Open(level, begin, self._names if level is SAMPLES else self._spread)
            before = self._file.load(level, self._subject, begin)
            if before is not None:
                with suppress(Damaged):  # then it is written again
                    found.load(before)
            self._open[level.number] = found
        return found


class Writer:
    """All subjects that are being recorded. For one thread at a time."""

    def __init__(self, file: RecordingFile) -> None:
        self._file = file
        self._tracks: dict[Who, _Track] = {}
        self._chunks: dict[tuple[int, int, int], Chunk] = {}
        """Pending rows, by level, subject and time: of two with the same key only the later."""

    def add(self, who: Who, at: float, values: Mapping[str, float]) -> None:
        track = self._tracks.get(who)
        if track is None:
            track = self._tracks[who] = _Track(self._file, self._file.subject(who), tuple(values))
        self._note(track.add(at, values))

    def write(self, now: float) -> None:
        gone = []
        for who, track in self._tracks.items():
            self._note(track.settle(now))
            self._note(track.changed())
            if track.last < now - _OVER:
                gone.append(who)
        if self._chunks:
            self._file.write(list(self._chunks.values()))
            self._chunks = {}
        for who in gone:
            del self._tracks[who]
        self._file.forget_known(gone)

    def finish(self, now: float) -> None:
        for subject, begin, data in self._file.unfinished():
            if begin + SAMPLES.chunk > now:
                continue  # it goes on
            try:
                names = OF_JOBS if any(name in OF_JOBS for name in decode(data)) else KEPT_OF_GPUS
            except Damaged:  # it is lost, and left as it is
                self._file.write([Chunk(SAMPLES.number, subject, begin, False, data)])
                continue
            track = _Track(self._file, subject, names)
            minute = _Open(SAMPLES, begin, names)
            minute.load(data)
            self._note(track.close(minute))
            self._file.write(list(self._chunks.values()))
            self._chunks = {}

    def _note(self, chunks: Iterator[Chunk]) -> None:
        for chunk in chunks:
            self._chunks[chunk.level, chunk.subject, chunk.at] = chunk
