"""Directories and scripts of attempts and jobs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gpuyard.engines.base import EngineError, LaunchRefused, Task
from gpuyard.engines.local.accounts import Account
from gpuyard.errors import Bug, is_passing
from gpuyard.spec.notation import number_of

CHECKPOINT, SCRIPT, PROGRESS = "checkpoint", "script", "progress"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    def __init__(self, directory: Path, shared: bool) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory.resolve()
        self._work = work_in(self.directory)
        self._shared = shared

    def last_job(self) -> int:
        return max(map(number_of, os.listdir(self.directory)), default=0)

    def of(self, job: str, attempt: int) -> Path:
        _check(job)
        return self.directory / job / str(attempt)

    def make(self, job: str, attempt: int) -> Path:
        folder = self.of(job, attempt)
        try:
            for path in (folder.parent, folder):
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
        except OSError as error:
            raise EngineError(f"cannot create {folder}: {error.strerror}") from error
        return folder

    def parse(self, mark: str | None) -> tuple[str, int] | None:
        parts = Path(mark).parts[-2:] if mark else ()
        if len(parts) != 2 or not parts[1].isdigit() or not _NAME.fullmatch(parts[0]):
            return None
        return (parts[0], int(parts[1])) if str(self.directory / parts[0] / parts[1]) == mark else None

    def is_of_mps(self, mark: str, uid: int | None) -> bool:
        """Whether a mark names the directory of a control daemon of MPS, which is its user's own; root starts it."""
        place, name = os.path.split(mark)
        folder = self.directory.parent / "mps"
        with suppress(OSError):
            return os.path.realpath(place) == str(folder) and uid in (os.geteuid(), os.lstat(folder / name).st_uid)
        return False

    def work(self, job: str) -> Path:
        _check(job)
        return self._work / job

    def make_work(self, job: str, account: Account | None) -> Path:
        folder = self.work(job)
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        except FileNotFoundError:
            make_parent(self._work, self._shared)
            return self.make_work(job, account)
        except OSError as error:
            raise EngineError(f"cannot create {folder}: {error.strerror}") from error
        try:
            _furnish(folder, account)
        except OSError as error:
            raise EngineError(f"cannot use {folder}: {error.strerror}") from error
        return folder

    def leave_work(self, job: str) -> None:
        with suppress(OSError):  # it is not there, or not empty, or the user has put something else in its place
            handle = os.open(self.work(job), _DIRECTORY)
            try:
                with os.scandir(handle) as entries:
                    few = {entry.name for entry in islice(entries, 4)}  # there may be a million
                if few <= {CHECKPOINT, SCRIPT, PROGRESS}:
                    if CHECKPOINT in few:  # first: if something is in it, all is kept
                        os.rmdir(CHECKPOINT, dir_fd=handle)
                    for name in few - {CHECKPOINT}:
                        os.unlink(name, dir_fd=handle)
            finally:
                os.close(handle)
            os.rmdir(self.work(job))


def make_parent(folder: Path, shared: bool) -> None:
    """A directory of users' own ones; where there are many users, they pass through to theirs."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if shared:
            folder.chmod(0o711)
    except OSError as error:
        raise EngineError(f"cannot create {folder}: {error.strerror}") from error


def work_in(directory: Path) -> Path:
    return directory.parent / "work"


def _check(job: str) -> None:
    if not _NAME.fullmatch(job):
        raise Bug(f"'{job}' cannot be the name of a job's directory")


def _furnish(folder: Path, account: Account | None) -> None:
    """Create its files, and give it to the user; one that was given away before stays as it is."""
    handle = os.open(folder, _DIRECTORY)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            return
        with suppress(FileExistsError):
            os.mkdir(CHECKPOINT, 0o700, dir_fd=handle)
        if account:
            inner = os.open(CHECKPOINT, _DIRECTORY, dir_fd=handle)
            try:
                os.fchown(inner, account.uid, account.gid)
            finally:
                os.close(inner)
            os.fchown(handle, account.uid, account.gid)
    finally:
        os.close(handle)


def with_script(task: Task, text: bytes, folder: Path) -> Task:
    """The task, running a script that is in the folder from now on.

    The folder may be the job's user's, who may put anything there; so the file is a new one, which takes that place.
    """
    fresh = f".{SCRIPT}.{os.getpid()}"
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=place)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(fresh, flags, 0o700, dir_fd=place), "wb") as file:
                file.write(text)
                owner = os.fstat(place)
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.rename(fresh, SCRIPT, src_dir_fd=place, dst_dir_fd=place)
        finally:
            os.close(place)
    except OSError as error:
        kind = EngineError if is_passing(error) else LaunchRefused  # what a user put in its way is their fault
        raise kind(f"cannot write {folder / SCRIPT}: {error.strerror}") from error
    return replace(task, command=(str(folder / SCRIPT), *task.command[1:]))
