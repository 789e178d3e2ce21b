"""Directories of attempts as other parts see them: which exist, whose processes live, and their removal."""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Collection, Iterator
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
        if pid != os.getpid() and (owner := membership.owner(pid) or _marked(processes.mark_of(pid), place)):
            found.setdefault(owner, []).append(pid)
    return found


def _marked(mark: str | None, place: Path) -> tuple[str, int] | None:
    job, _, attempt = (mark or "").removeprefix(f"{place}/").partition("/")
    return (job, int(attempt)) if mark == f"{place}/{job}/{attempt}" and attempt.isdecimal() else None


def unplaced(daemon: int, directory: Path, attempts: Collection[tuple[str, int]]) -> tuple[list[int], list[str]]:
    """Without cgroups: orphans of perhaps several of these attempts, and the jobs whose orphans a former daemon had."""
    place = directory.resolve()
    membership, known, ours, former = Membership(place), dict[tuple[str, int], wrapper.Claim](), [], []
    for job, attempt in attempts:
        claim = wrapper.read_claim(folder := place / job / str(attempt))
        now = processes.look(claim.wrapper.pid) if isinstance(claim, wrapper.Claim) else None
        if isinstance(claim, wrapper.Claim) and now is not None and now.started == claim.wrapper.started:
            known[job, attempt] = claim
            if now.parent != daemon and not claim.cgroup:
                former.append(job)
            elif not claim.cgroup:
                ours.append(processes.Suspect(str(folder), now.pid, now.started, claim.uid))

    def shown(pid: int, mark: str | None) -> bool:
        if membership.owner(pid):
            return True
        if claim := known.get(_marked(mark, place) or ("", 0)):
            return claim.uid is None or processes.user_of(pid) == claim.uid or pid == claim.wrapper.pid
        return (mark or "").startswith((processes.OWN, f"{place.parent / 'mps'}/"))

    found = processes.strays(daemon, ours, shown)
    return [pid for pid, folder in found.items() if folder is None], former
