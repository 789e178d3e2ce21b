"""The queue in one file: a tar with a manifest, a copy of the store, and what attempts wrote down.

SQLite copies the store as of one instant, in one step and through a connection that only reads, so a daemon that runs
meanwhile is not disturbed. The claims and ends of attempts that are not over go along always: by them the next daemon
knows, on whatever machine, that they had begun. Output goes along if asked for.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from gpuyard import __version__
from gpuyard.config import Settings
from gpuyard.daemon.store import VERSION
from gpuyard.engines import output
from gpuyard.errors import UserError

FORMAT = 1
_MANIFEST, _DATABASE = "manifest.json", "gpuyard.db"
_FILE = re.compile(r"jobs/([0-9]+)/([0-9]+)/(output\.log|pid|exit)")
_LARGEST_MANIFEST = 2**20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself."""

    format: int
    gpuyard: str
    """The version that made it."""
    schema: int
    """The version of the store."""
    made_at: str
    jobs: int
    """How many there are, and how many of them are not over."""
    open_jobs: int
    events: int
    logs: bool
    """Whether output is in it."""
    size: int
    """Bytes of the store, and their SHA-256."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was looked through, and its store, taken out of it."""

    path: Path
    manifest: Manifest
    database: Path


# -- making one ----------------------------------------------------------------------------------------


def make_backup(settings: Settings, target: Path, *, logs: bool = False) -> Manifest:
    """Write a backup, look it through, and only then give it its name."""
    try:
        open(settings.database, "rb").close()
    except FileNotFoundError as error:
        raise UserError(f"there is nothing to back up: {settings.database} does not exist") from error
    except PermissionError as error:
        raise UserError(f"you may not read {settings.database}; be its owner, or root") from error
    if target.exists():
        raise UserError(f"{target} is there already; give the backup another name")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent} is not a directory; make it, or write the backup elsewhere")
    with tempfile.TemporaryDirectory(prefix=".gpuyard-backup-", dir=target.parent) as name:
        folder = Path(name)
        copy = folder / _DATABASE
        manifest = _describe(copy_store(settings.database, copy), logs)
        draft = folder / "draft"
        with tarfile.open(draft, "w:gz" if target.name.endswith((".gz", ".tgz")) else "w") as archive:
            _add_bytes(archive, _MANIFEST, json.dumps(asdict(manifest), indent=2).encode() + b"\n")
            archive.add(copy, _DATABASE, filter=_anonymous)
            for path in _files(settings.jobs_dir, copy, logs):
                _add_file(archive, settings.data_dir, path, folder)
        copy.unlink()
        with open_backup(draft, folder):
            pass
        draft.chmod(0o600)
        sync(draft)
        os.rename(draft, target)
        sync(target.parent)
    return manifest


def copy_store(source: Path, copy: Path) -> Path:
    """A copy of a store that may be written to meanwhile, as of one instant, and in one file."""
    try:
        with closing(read_only(source)) as reading, closing(sqlite3.connect(copy)) as writing:
            reading.backup(writing)
            writing.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise UserError(f"{source} cannot be copied: {error}") from error
    return copy


def _describe(copy: Path, logs: bool) -> Manifest:
    with closing(read_only(copy)) as connection:

        def number(query: str) -> int:
            return int(connection.execute(query).fetchone()[0] or 0)

        return Manifest(
            format=FORMAT,
            gpuyard=__version__,
            schema=number("PRAGMA user_version"),
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            jobs=number("SELECT count(*) FROM jobs"),
            open_jobs=number("SELECT count(*) FROM jobs WHERE ended IS NULL"),
            events=number("SELECT count(*) FROM events"),
            logs=logs,
            size=copy.stat().st_size,
            sha256=_digest(copy),
        )


def _files(jobs_dir: Path, copy: Path, logs: bool) -> Iterator[Path]:
    """What attempts left: all of it, or what is needed of those that are not over."""
    with closing(read_only(copy)) as connection:
        rows = connection.execute(f"SELECT id FROM jobs {'' if logs else 'WHERE ended IS NULL'} ORDER BY number")
        jobs = [str(id) for (id,) in rows]
    names = ("pid", "exit", "output.log") if logs else ("pid", "exit")
    for job in jobs:
        with suppress(FileNotFoundError):  # never begun, or removed by now
            for attempt in sorted((jobs_dir / job).iterdir()):
                yield from (path for name in names if _is_plain(path := attempt / name))


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _add_file(archive: tarfile.TarFile, root: Path, path: Path, folder: Path) -> None:
    """A file as it is read: without the hole that a long output may have, and as long as it is now."""
    copy = folder / "file"
    try:
        mtime = path.stat().st_mtime
    except FileNotFoundError:  # too old since a moment ago
        return
    with open(copy, "wb") as sink:
        end, offset = output.size(path), 0
        while offset < end:
            offset, data = output.read(path, offset, min(2**20, end - offset))
            if not data:
                break
            sink.write(data)
    info = archive.gettarinfo(copy, str(path.relative_to(root)))
    info.mtime = mtime
    with open(copy, "rb") as source:
        archive.addfile(_anonymous(info), source)


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), 0o600, int(time.time())
    archive.addfile(info, io.BytesIO(content))


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o600
    return info


# -- looking one through -------------------------------------------------------------------------------


@contextmanager
def open_backup(path: Path, folder: Path) -> Iterator[Backup]:
    """A backup in which nothing is wrong; its store is in the folder while this lasts."""
    try:
        with tarfile.open(path) as archive:
            manifest = _read_manifest(archive, path)
            database = folder / f"{_DATABASE}.of-backup"
            _take_out(archive, _DATABASE, database)
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except (tarfile.TarError, EOFError, KeyError, OSError) as error:
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise UserError(f"{path} is not a backup of gpuyard, or is damaged{why}") from error
    try:
        _check(path, manifest, database)
        yield Backup(path, manifest, database)
    finally:
        database.unlink(missing_ok=True)


def _read_manifest(archive: tarfile.TarFile, path: Path) -> Manifest:
    stream = archive.extractfile(_MANIFEST)
    try:
        found = json.loads(stream.read(_LARGEST_MANIFEST)) if stream else {}
        number = found["format"]
        manifest = (
            Manifest(**{field.name: found[field.name] for field in fields(Manifest)}) if number == FORMAT else None
        )
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"the manifest of {path} makes no sense ({error!r}); it is damaged") from error
    if manifest is None or manifest.schema > VERSION:
        version = found.get("gpuyard", "?")
        raise UserError(f"{path} was made by a newer version of gpuyard ({version}); restore it with that version")
    return manifest


def _check(path: Path, manifest: Manifest, database: Path) -> None:
    if database.stat().st_size != manifest.size or _digest(database) != manifest.sha256:
        raise UserError(f"{path} is damaged: the store in it is not the one that its manifest tells of")
    problem = integrity(database, thorough=True)
    if problem:
        raise UserError(f"the store in {path} is damaged: {problem}")


def integrity(database: Path, *, thorough: bool) -> str:
    """What SQLite finds wrong with a store; nothing if all is well."""
    try:
        with closing(read_only(database)) as connection:
            found = connection.execute(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)").fetchone()
            connection.execute("SELECT count(*) FROM jobs WHERE number < 0").fetchone()
    except sqlite3.Error as error:
        return str(error)
    return "" if found == ("ok",) else " ".join(str(found[0]).split())


def put_back_files(path: Path, data_dir: Path) -> int:
    """Put what attempts wrote down where it is missing; returns how many files that were."""
    count = 0
    with tarfile.open(path) as archive:
        for info in archive:
            if not info.isreg() or not _FILE.fullmatch(info.name) or (data_dir / info.name).exists():
                continue
            target = data_dir / info.name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _take_out(archive, info, target)
            os.utime(target, (info.mtime, info.mtime))
            count += 1
    return count


def _take_out(archive: tarfile.TarFile, member: str | tarfile.TarInfo, target: Path) -> None:
    stream = archive.extractfile(member)
    if stream is None:
        raise UserError("what should be a file in the backup is none; it is damaged")
    new = target.with_name(f".{target.name}.new")
    with stream, open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as sink:
        while piece := stream.read(2**20):
            sink.write(piece)
        sink.flush()
        os.fsync(sink.fileno())
    os.replace(new, target)


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_only(path: Path) -> sqlite3.Connection:
    """A connection to a store that changes nothing."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, written to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
