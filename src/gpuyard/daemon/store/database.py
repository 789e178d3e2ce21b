"""The store's file: how it is opened, checked and copied, what its errors mean, and the mark that tells of lost writes.

SQLite cannot tell a store that lost its last writes (a journal that was cut or deleted, an empty file) from one that
never had them. So a *high-water mark* lies beside it: how many events and jobs were written. It is overwritten in place
after each commit, which costs a system call and no fsync; `sync` brings it to the disk, every few seconds and at the
end. It is never ahead of the store: a store behind its mark has lost something that was acknowledged.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuyard.errors import GpuyardError, UserError
from gpuyard.files import point, replacing

VERSION = 6
WAY_OUT = "gpuyard restore FILE puts a backup in its place, gpuyard recover saves what can be read of it"
BESIDE = ("-wal", "-shm")  # the endings of what SQLite keeps beside a database
_HERE = Path(__file__).parent
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
NONSENSE = (ValueError, LookupError, TypeError, AttributeError, zlib.error)
"""What becomes of values that we did not write, besides errors of SQLite's."""
_NOT_UTF8 = "Could not decode to UTF-8"
FARTHEST = 1e10  # seconds since 1970: no time of an event is as late
_LACKS = " || ".join(f"json_type(work, '$.{name}')" for name in ("gpu_count", "gpu_memory", "estimate", "from"))
_NO_WORK = f"""CASE WHEN NOT json_valid(work) THEN 1 WHEN json_type(work, '$.shared') IS NULL
    THEN ({_LACKS}) IS NULL ELSE 0 END"""
_UNREADABLE = f"""SELECT (
        SELECT count(*) FROM events WHERE NOT at BETWEEN 0 AND {FARTHEST} OR (data <> '' AND NOT json_valid(data))
    ) + (SELECT count(*) FROM jobs
        WHERE {_NO_WORK} OR NOT min(submitted, coalesce(started, 0), coalesce(ended, 0)) >= 0
        OR NOT max(submitted, coalesce(started, 0), coalesce(ended, 0)) <= {FARTHEST}{{more}})"""
_MEASURED = 5  # the version in which jobs have what they used
_MORE = " OR (measured <> '' AND NOT json_valid(measured))"
_REACHED = """SELECT coalesce((SELECT max(seq) FROM events), 0), coalesce((SELECT max(number) FROM jobs), 0),
    coalesce((SELECT max(CAST(id AS INTEGER)) FROM jobs), 0)"""
log = logging.getLogger("gpuyard")


class StoreFailing(GpuyardError):
    """The store cannot be written."""


class StoreDamaged(StoreFailing):
    """The store is damaged."""


class StoreBehind(UserError):
    """The store lacks what was acknowledged."""


def is_damage(error: BaseException) -> bool:
    """Whether an error of SQLite says that the file is not what was written."""
    unreadable = str(error).startswith(_NOT_UTF8)  # we write nothing else
    code = getattr(error, "sqlite_errorcode", 0) or 0
    return isinstance(error, sqlite3.Error) and (code & 0xFF in _DAMAGE or unreadable)


def sentence(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    if "full" in text or getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_SHMSIZE":
        return f"the disk that holds {path} is full; free some space, nothing is lost"
    if "readonly" in text or "unable to open" in text:
        return f"{path} cannot be written ({text}); check its permissions, and whether its disk is mounted read-only"
    if is_damage(error):
        return damaged(path, text)
    return f"{path}: {text}"


def damaged(path: Path, text: str) -> str:
    text = text.partition(" with text ")[0]  # which is somebody's job
    return f"{path} is damaged ({text}); {WAY_OUT}"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What cannot be read of a store is a `UserError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise UserError(sentence(path, error)) from error
    except NONSENSE as error:
        raise UserError(damaged(path, repr(error))) from error


def connect(path: Path, *, writing: bool = True, **options: Any) -> sqlite3.Connection:
    """Open a database with a write-ahead log, on a full disk too.

    SQLite wants 32 kB beside it, shared with other processes. Without room for these it can still be read, by this
    process alone, which then locks it until it ends.
    """
    for system in ("unix", "unix-excl"):
        uri = f"file:{quote(str(path))}?vfs={system}&mode={'rwc' if writing else 'ro'}"
        connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, **options)
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if writing:
                connection.execute("PRAGMA journal_mode = WAL")
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorname != "SQLITE_IOERR_SHMSIZE" or system == "unix-excl":
                raise
        except sqlite3.Error:
            connection.close()
            raise
        except UnicodeDecodeError as error:  # in what SQLite itself says of a file that is damaged
            connection.close()
            raise sqlite3.DatabaseError(f"{_NOT_UTF8}: {error}") from error
    raise AssertionError


def open_store(path: Path) -> sqlite3.Connection:
    """Open the store; create it, or upgrade it."""
    with readable(path):
        connection = connect(path, isolation_level=None, check_same_thread=False)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if version > VERSION:
            raise UserError(f"{path} was written by a newer version of gpuyard; use that version")
        if version < 0:
            raise UserError(damaged(path, f"version {version}"))
        if version == 0 and tables:
            raise UserError(f"{path} is a database, but not one of gpuyard; move it away, or use another --data-dir")
        connection.execute("PRAGMA synchronous = FULL")
        point("store:opened")
        if version == 0:
            _run_script(connection, _HERE / "schema.sql", VERSION)
        elif version < VERSION:
            _upgrade(connection, path, version)
    return connection


def _upgrade(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Bring a store to this version; a copy of what it was stays beside it."""
    copy = path.with_name(f"{path.name}.version-{version}")
    if not copy.exists():
        with replacing(copy, mode=0o600) as draft, closing(sqlite3.connect(draft)) as writing:
            connection.backup(writing)
    try:
        for step in range(version + 1, VERSION + 1):
            _run_script(connection, _HERE / "upgrades" / f"{step}.sql", step)
    except sqlite3.OperationalError as error:
        if _is_about_content(error):  # it is not of that version
            raise UserError(damaged(path, f"version {version}, {error}")) from error
        raise
    log.info("upgraded %s from version %d to %d; a copy of the former is %s", path, version, VERSION, copy)


def _run_script(connection: sqlite3.Connection, script: Path, version: int) -> None:
    connection.executescript(f"BEGIN;\n{script.read_text()}\nPRAGMA user_version = {version};\nCOMMIT;")


def integrity(path: Path, *, thorough: bool) -> str:
    """What is wrong with a store; empty if all is well."""
    try:
        return examine(path, thorough=thorough)
    except sqlite3.Error as error:
        return str(error)


def damage_of(path: Path) -> str:
    """What is wrong with a store, as a sentence with the way out; empty if all is well, or it cannot be read now."""
    try:
        found = examine(path, thorough=False)
    except sqlite3.Error as error:
        found = str(error) if is_damage(error) or _is_about_content(error) else ""
    return damaged(path, found) if found else ""


def damage_behind(error: Exception, path: Path) -> tuple[Path, str]:
    """What is damaged where something unforeseen failed, the store or a database beside it, in a sentence; or none."""
    problem = damage_of(path)
    if problem or not (isinstance(error, sqlite3.Error) and is_damage(error)):
        return path, problem
    for other in path.parent.glob("*.db"):
        if other != path and _quick_check(other) != "ok":
            return other, f"{other} is damaged ({error}); gpuyard down, move it away, and gpuyard up makes a new one"
    return path, sentence(path, error)


def _quick_check(path: Path) -> str:
    try:
        with closing(connect(path, writing=False)) as connection:
            return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        return str(error) if is_damage(error) else "ok"


def _is_about_content(error: sqlite3.Error) -> bool:
    """Whether a statement failed that cannot fail on a sound store: a table is missing, say, or the file's format."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF == sqlite3.SQLITE_ERROR


def examine(path: Path, *, thorough: bool) -> str:
    """What is wrong with a store by SQLite's checks and ours; raises what SQLite does.

    A thorough check also compares indices with their tables. Neither sees a changed letter or digit: rows have no sums.
    """
    with closing(connect(path, writing=False)) as connection:
        (found,) = connection.execute(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)").fetchone()
        more = _MORE if connection.execute("PRAGMA user_version").fetchone()[0] >= _MEASURED else ""
        rows = connection.execute(_UNREADABLE.format(more=more)).fetchone()[0] if found == "ok" else 0
    if rows:
        return f"{rows} rows of events or jobs cannot be read"
    return "" if found == "ok" else " ".join(str(found).split())


def name_aside(path: Path, why: str) -> Path:
    """A name for a former store that no file has."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside, number = path.with_name(f"{path.name}.{why}-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.{why}-{stamp}-{number}")
    return aside


def set_aside(path: Path, why: str, *, move: bool) -> Path:
    """Put a store, with what lies beside it, under a name of its own: moved, or copied."""
    aside = name_aside(path, why)
    for ending in ("", *BESIDE):  # the store first: what lies beside no store is nothing to SQLite
        if (part := path.with_name(path.name + ending)).exists():
            target = aside.with_name(aside.name + ending)
            os.rename(part, target) if move else shutil.copy(part, target)
    return aside


class Mark(NamedTuple):
    """How far a store has come."""

    last: int = 0  # the number of its last event
    jobs: int = 0  # how many jobs were submitted
    newest: int = 0  # the largest id of a job


def reached(path: Path) -> Mark:
    """How far a store has come, by itself. The file stays as it is."""
    if path.exists() and path.stat().st_size:  # SQLite deletes the log that lies beside an empty file
        with readable(path), closing(connect(path, writing=False)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'").fetchone():
                return Mark(*connection.execute(_REACHED).fetchone())
    return Mark()


class HighWater:
    """The mark beside a store. One thread writes it; any may sync it."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_suffix(".mark")
        self._file: int | None = None
        self._unsynced = self._failed = False

    def read(self) -> Mark:
        """The mark; zeros if there is none, or it makes no sense."""
        try:
            *numbers, check = self.path.read_text("ascii").split()
            mark = Mark(*map(int, numbers))
        except (OSError, ValueError, TypeError):
            return Mark()
        return mark if check == _checksum(mark) else Mark()

    def write(self, mark: Mark) -> None:
        """Overwrite the mark. Where that fails, the store is as safe as before, but nobody would notice a loss."""
        line = f"{mark.last:>20} {mark.jobs:>16} {mark.newest:>16} {_checksum(mark)}\n"
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, line.encode(), 0)
            self._unsynced = True
        except OSError as error:
            if not self._failed:
                log.warning("%s cannot be written (%s): a loss of writes would go unnoticed", self.path, error.strerror)
            self._failed = True

    def sync(self) -> None:
        if self._unsynced and self._file is not None:
            self._unsynced = False
            with suppress(OSError):  # as above
                os.fdatasync(self._file)

    def remove(self) -> None:
        """Forget the mark: another store takes the place of the one that it tells of."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self.sync()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _checksum(mark: Mark) -> str:
    return f"{zlib.crc32(repr(tuple(mark)).encode()):08x}"
