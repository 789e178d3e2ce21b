"""Going back to a backup: what would be lost by it, and the change itself, which leaves the former store in peace.

No daemon may run meanwhile; `alone` sees to that. Where the former store can be read, there is never an instant without
one: it gets a second name, and the new one takes its place in one step. A damaged one is moved away first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpuyard.arrays import number_of
from gpuyard.config import Settings
from gpuyard.daemon.backup import Backup, integrity, put_back_files, read_only, sync
from gpuyard.engines import attempts
from gpuyard.errors import UserError
from gpuyard.faults import point


@dataclass(frozen=True, slots=True)
class Losses:
    """Jobs that a backup tells another story of than there is now."""

    unknown: list[str]
    """They run or wait now, and the backup does not know them."""
    out_of_step: list[str]
    """They run now, and the backup has them waiting, over, or in another attempt."""
    revived: list[str]
    """They are over now, and the backup has them waiting or running."""
    newest: int
    """The largest id that was ever given, as far as that is known."""


def losses(settings: Settings, backup: Backup) -> Losses:
    """What would be lost by going back."""
    then, now = standings(backup.database) or {}, standings(settings.database)
    if now is None:  # damaged, or not there: the processes tell
        running = set(attempts.living(settings.jobs_dir))
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
        newest=max(map(number_of, (*then, *(now or ()))), default=0),
    )


def _in_order(jobs: Iterator[str] | list[str]) -> list[str]:
    return sorted(jobs, key=lambda job: (len(job), job))


class Standing(NamedTuple):
    """Where a job stands, as far as stores of all versions tell."""

    state: str
    attempt: int
    over: bool


def standings(database: Path) -> dict[str, Standing] | None:
    """Where all jobs of a store stand; None if it cannot be read, or is not there."""
    try:
        with closing(read_only(database)) as connection:
            rows = connection.execute("SELECT id, state, attempt, ended IS NOT NULL FROM jobs ORDER BY number")
            return {job: Standing(state, attempt, bool(over)) for job, state, attempt, over in rows}
    except sqlite3.Error:
        return None


@contextmanager
def alone(data_dir: Path) -> Iterator[None]:
    """Keep daemons from starting, if none runs."""
    with open(data_dir / "daemon.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise UserError(f"a daemon (process {pid}) is on {data_dir} and does not answer; end it first") from error
        yield


def restore(settings: Settings, backup: Backup, newest: int) -> Path | None:
    """Put the store of a backup in place of the present one; returns where that is now. Call this `alone`."""
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
    os.replace(new, settings.database)
    sync(settings.data_dir)
    return aside


def _put_aside(database: Path) -> Path | None:
    """Give the former store another name, with all that lies beside it."""
    if not database.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = database.with_name(f"{database.name}.before-restore-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = database.with_name(f"{database.name}.before-restore-{stamp}-{number}")
    if _is_in_one_file(database):
        with suppress(OSError):  # not every file system has second names
            os.link(database, aside)
            return aside
    os.rename(database, aside)  # first: what lies beside no store is nothing to SQLite
    for ending in ("-wal", "-shm"):
        if (beside := database.with_name(database.name + ending)).exists():
            os.rename(beside, aside.with_name(aside.name + ending))
    return aside


def _is_in_one_file(database: Path) -> bool:
    """Whether all that was written could be put into the store itself, and nothing is left beside it."""
    if integrity(database, thorough=False):  # SQLite might throw away what lies beside a store that it cannot read
        return False
    try:
        with closing(sqlite3.connect(database, timeout=5)) as connection:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    beside = [database.with_name(database.name + ending) for ending in ("-wal", "-shm")]
    return not busy and not any(path.exists() for path in beside)
