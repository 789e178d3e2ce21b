"""Directories of attempts as other parts see them: which exist, whose processes live, and their removal."""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuyard.engines.local import processes, wrapper
from gpuyard.engines.local.cgroups import Membership
from gpuyard.engines.local.folders import work_in
from gpuyard.spec.notation import number_of

_REMOVED = ".removed-"
_LONGEST = 600.0  # seconds for one tree


def jobs_in(directory: Path) -> list[str]:
    found: list[str] = []
    newest = -1
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:  # step by step, so that other threads get their turn
            if number := number_of(entry.name):
                found.append(entry.name)
                newest = max(newest, number)
    return [job for job in found if number_of(job) != newest]


def begun_after(directory: Path, newest: int) -> list[str]:
    """The jobs with a larger number that have begun an attempt, in the order of their numbers."""
    names = os.listdir(directory) if directory.exists() else []
    later = [name for name in names if number_of(name) > newest and any(directory.glob(f"{name}/*/pid"))]
    return sorted(later, key=lambda name: (number_of(name), name))


def is_kept(directory: Path, job: str, attempt: int) -> bool:
    return (directory / job / str(attempt)).is_dir()


def remove(directory: Path, job: str) -> None:
    for parent in (work_in(directory), directory):
        doomed = parent / f"{_REMOVED}{job}"
        with suppress(FileNotFoundError):  # a job need not have left anything of its own
            os.rename(parent / job, doomed)
            remove_tree(doomed)


def half_removed(directory: Path) -> list[Path]:
    """What was to be removed when the daemon ended, or could not be."""
    return [path for parent in (work_in(directory), directory) for path in parent.glob(f"{_REMOVED}*")]


def remove_tree(root: Path) -> None:
    """Remove a directory with all that is in it, however deep, without following any link.

    A directory in a directory is moved to the top first, so a few file descriptors do, and no path grows too long.
    """
    end = time.monotonic() + _LONGEST
    if not stat.S_ISDIR(os.lstat(root).st_mode):  # somebody put a file or a link in its place
        os.unlink(root)
        return
    with _opened(str(root)) as top:
        os.fchmod(top, 0o700)
        moved = 0
        while names := os.listdir(top):
            for name in names:
                if time.monotonic() > end:  # somebody goes on making files there
                    raise OSError(errno.ETIMEDOUT, "it takes too long", str(root))
                if not _unlinked(name, top):
                    moved = _emptied(name, top, moved)
                    os.rmdir(name, dir_fd=top)
    os.rmdir(root)


def _emptied(name: str, top: int, moved: int) -> int:
    with _opened(name, top) as folder:
        os.fchmod(folder, 0o700)
        for inner in os.listdir(folder):
            if not _unlinked(inner, folder):
                moved += 1
                with _opened(inner, folder) as deeper:
                    os.fchmod(deeper, 0o700)  # else it could not be moved
                os.rename(inner, f".{os.getpid()}.{moved}", src_dir_fd=folder, dst_dir_fd=top)
    return moved


def _unlinked(name: str, folder: int) -> bool:
    """Remove a file or a link; False if it is a directory."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


@contextmanager
def _opened(name: str, folder: int | None = None) -> Iterator[int]:
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def last_change(directory: Path, job: str) -> float:
    """When something last changed in a job's folders; infinite if that cannot be told."""
    try:
        folders = [directory / job, *(directory / job).iterdir()]
        return max(path.lstat().st_mtime for folder in folders for path in (folder, *_files(folder)))
    except OSError:
        return math.inf


def _files(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def processes_below(directory: Path, job: str, attempt: int) -> list[int]:
    claim = wrapper.read_claim(directory / job / str(attempt))
    if not isinstance(claim, wrapper.Claim) or claim.wrapper.pid == os.getpid():
        return []
    now = processes.look(claim.wrapper.pid)
    if now is None or now.started != claim.wrapper.started:
        return []
    return processes.descendants(now.pid)


def living(directory: Path) -> dict[tuple[str, int], list[int]]:
    """The processes of each living attempt that we may look at, without our own."""
    place = directory.resolve()
    membership = Membership(place)
    found: dict[tuple[str, int], list[int]] = {}
    for pid in processes.everyone():
        if pid != os.getpid() and (owner := _owner(pid, f"{place}/", membership)):
            found.setdefault(owner, []).append(pid)
    return found


def _owner(pid: int, prefix: str, membership: Membership) -> tuple[str, int] | None:
    """The attempt that a process is of, by its mark; if it has none, by its cgroup."""
    mark = processes.mark_of(pid)
    if mark is None:
        return membership.owner(pid)
    job, _, attempt = mark.removeprefix(prefix).partition("/")
    return (job, int(attempt)) if mark.startswith(prefix) and attempt.isdecimal() else None


def unplaced(daemon: int, attempts: Mapping[tuple[str, int], Sequence[int]]) -> list[int]:
    """The processes below a daemon that are of a job, but of more than one of these perhaps."""
    looks = {attempt: [processes.look(pid) for pid in pids] for attempt, pids in attempts.items()}
    began = {attempt: min((one.started for one in found if one), default=0) for attempt, found in looks.items()}
    known = {pid for pids in attempts.values() for pid in pids}
    strays = (stray for stray in processes.strays(daemon) if stray.pid not in known)
    return [stray.pid for stray in strays if processes.place(stray, began) is None]
