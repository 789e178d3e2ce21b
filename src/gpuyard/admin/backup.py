"""Backup and restore: the queue in one tar file with a manifest, and going back to it."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gpuyard import __version__
from gpuyard.config import Settings
from gpuyard.daemon.store.database import (
    BESIDE,
    VERSION,
    HighWater,
    connect,
    damaged,
    integrity,
    is_damage,
    name_aside,
    reached,
    sentence,
    set_aside,
)
from gpuyard.engines.local import output, stored_attempts
from gpuyard.errors import UserError
from gpuyard.files import point, replacing, sync
from gpuyard.spec.notation import number_of

FORMAT = 1
_MANIFEST, _DATABASE = "manifest.json", "gpuyard.db"
_FILE = re.compile(r"jobs/([0-9]+)/([0-9]+)/(output\.log|pid|exit)")
_LARGEST_MANIFEST = 2**20
_ASIDE = "before-restore"


@dataclass(frozen=True, slots=True)
class Manifest:
    format: int
    gpuyard: str  # the version that made it
    schema: int  # the version of the store
    made_at: str
    jobs: int  # how many there are, and how many of them are not over
    open_jobs: int
    events: int
    logs: bool  # whether output is in it
    size: int  # bytes of the store, and their SHA-256
    sha256: str


@dataclass(frozen=True, slots=True)
class Backup:
    path: Path
    manifest: Manifest
    database: Path


# -- making one ----------------------------------------------------------------------------------------


def make_backup(settings: Settings, target: Path, *, logs: bool = False) -> Manifest:
    """Write a backup, verify it, and only then give it its name."""
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
        copy_store(settings.database, copy)
        if problem := integrity(copy, thorough=True):
            raise UserError(damaged(settings.database, problem))
        manifest = _describe(copy, logs)
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
    """A copy in one file of a store that may be written to meanwhile, as of one instant."""
    try:
        with closing(read_only(source)) as reading, closing(sqlite3.connect(copy)) as writing:
            reading.backup(writing)
            writing.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        text = sentence(source, error) if is_damage(error) else f"{source} cannot be copied: {error}"
        raise UserError(text) from error
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
    """The files of attempts: all, or those needed of attempts that are not over."""
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
    """Add a file as it is read: without the hole that a long output may have, and with its present length."""
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
    """A verified backup; its store is in the folder while this lasts."""
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


def put_back_files(path: Path, data_dir: Path) -> int:
    """Restore missing files of attempts; returns their number."""
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
    with stream, replacing(target, durable=False, mode=0o600) as new, open(new, "wb") as sink:
        shutil.copyfileobj(stream, sink, 2**20)
        sink.flush()
        os.fsync(sink.fileno())


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_only(path: Path) -> sqlite3.Connection:
    return connect(path, writing=False)


@dataclass(frozen=True, slots=True)
class Losses:
    unknown: list[str]  # they run or wait now, and the backup does not know them
    out_of_step: list[str]  # they run now, and the backup has them waiting, over, or in another attempt
    revived: list[str]  # they are over now, and the backup has them waiting or running
    newest: int  # the largest id that was ever given, as far as that is known


def losses(settings: Settings, backup: Backup) -> Losses:
    then, now = stored_jobs(backup.database) or {}, stored_jobs(settings.database)
    if now is None:  # damaged, or not there: the processes tell
        running = set(stored_attempts.living(settings.jobs_dir))
        opened = {job for job, _ in running}
    else:
        running = {(job, view.attempt) for job, view in now.items() if view.state == "running"}
        opened = {job for job, view in now.items() if not view.over}
    in_step = {(job, view.attempt) for job, view in then.items() if view.state == "running"}
    revived = [job for job, view in then.items() if not view.over and now is not None and job in now and now[job].over]
    return Losses(
        unknown=_in_order(job for job in opened if job not in then),
        out_of_step=_in_order(job for job, attempt in running if job in then and (job, attempt) not in in_step),
        revived=_in_order(revived),
        newest=max((*map(number_of, (*then, *(now or ()))), HighWater(settings.database).read().newest)),
    )


def _in_order(jobs: Iterator[str] | list[str]) -> list[str]:
    return sorted(jobs, key=lambda job: (len(job), job))


class StoredJob(NamedTuple):
    state: str
    attempt: int
    over: bool


def stored_jobs(database: Path) -> dict[str, StoredJob] | None:
    """The states of all jobs of a store; None if it cannot be read, or does not exist."""
    try:
        with closing(read_only(database)) as connection:
            rows = connection.execute("SELECT id, state, attempt, ended IS NOT NULL FROM jobs ORDER BY number")
            return {job: StoredJob(state, attempt, bool(over)) for job, state, attempt, over in rows}
    except sqlite3.Error:
        return None


@contextmanager
def alone(data_dir: Path) -> Iterator[None]:
    with open(data_dir / "daemon.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise UserError(
                f"a daemon (process {pid}) is on {data_dir} and does not answer; end it first (kill {pid})"
            ) from error
        yield


def restore(settings: Settings, backup: Backup, newest: int) -> Path | None:
    """Replace the store by that of a backup; returns where the former one is now. Call this within `alone`."""
    new = settings.database.with_name(f".{settings.database.name}.restored")
    shutil.copyfile(backup.database, new)
    new.chmod(0o600)
    sync(new)
    put_back_files(backup.path, settings.data_dir)
    if newest:
        (settings.jobs_dir / str(newest)).mkdir(mode=0o700, parents=True, exist_ok=True)  # so that no id is given again
    point("restore:prepared")
    aside = _put_aside(settings.database)
    point("restore:aside")
    mark = HighWater(settings.database)  # so that what the backup lacks is not taken for a loss, also by the folders
    mark.write(reached(new)._replace(newest=newest))
    mark.close()
    os.replace(new, settings.database)
    sync(settings.data_dir)
    return aside


def _put_aside(database: Path) -> Path | None:
    if not database.exists():
        return None
    if _is_in_one_file(database):
        with suppress(OSError):  # not every file system has second names
            os.link(database, aside := name_aside(database, _ASIDE))
            return aside
    return set_aside(database, _ASIDE, move=True)


def _is_in_one_file(database: Path) -> bool:
    if integrity(database, thorough=False):  # SQLite might throw away what lies beside a store that it cannot read
        return False
    try:
        with closing(sqlite3.connect(database, timeout=5)) as connection:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    beside = [database.with_name(database.name + ending) for ending in BESIDE]
    return not busy and not any(path.exists() for path in beside)
