"""Cgroups (version 2): the kernel's own list of what belongs to an attempt, whatever its processes do.

Each attempt's job runs in a cgroup of its own, below one that belongs to the engine's directory. It joins before its
program begins, so nothing that it starts is ever outside. The wrapper stays outside, and so survives to write down how
the job ended when everything within is killed. A cgroup can be removed when it is empty: that is the whole test.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from gpuyard.engines.base import EngineError
from gpuyard.engines.local import processes

logger = logging.getLogger(__name__)


class Cgroup:
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self) -> None:
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise EngineError(f"cannot create the cgroup {self.path}: {error.strerror}") from error

    def remove(self) -> bool:
        """Remove it if it is empty; returns whether it was."""
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError:  # something lives in it, or the job made cgroups of its own below
            return not self.members() and self._remove_all()
        return True

    def _remove_all(self) -> bool:
        try:
            for folder, _, _ in os.walk(self.path, topdown=False):
                os.rmdir(folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno == errno.EBUSY:  # who ended last is not quite gone yet
                return False
            logger.warning("cannot remove the empty cgroup %s: %s", self.path, error.strerror)
        return True

    def members(self) -> list[int]:
        found = _read_members(self.path)
        for folder, _, _ in os.walk(self.path):
            if folder != self.path:
                found += _read_members(folder)
        return found

    def kill(self) -> None:
        """Kill everything in it, also what forks meanwhile. Linux before 5.14 cannot, and does nothing."""
        with suppress(OSError):
            Path(self.path, "cgroup.kill").write_text("1")


def _read_members(path: str) -> list[int]:
    try:
        with open(f"{path}/cgroup.procs", "rb") as file:
            return [int(line) for line in file.read().split()]
    except OSError:  # removed meanwhile, or of a threaded kind, which lists its processes in its parent
        return []


class Cgroups:
    def __init__(self, base: str) -> None:
        self.base = base

    def of(self, job: str, attempt: int) -> Cgroup:
        return Cgroup(f"{self.base}/{job}.{attempt}")

    def close(self) -> None:
        """Remove the engine's own cgroup if no attempt is left in it."""
        with suppress(OSError):
            os.rmdir(self.base)


class Membership:
    def __init__(self, directory: Path) -> None:
        self._pattern = re.compile(rf"^0::.*/{_name(directory)}/([^/]+)\.(\d+)(?:/|$)", re.MULTILINE)

    def owner(self, pid: int) -> tuple[str, int] | None:
        found = self._pattern.search((processes.read_proc(pid, "cgroup") or b"").decode(errors="replace"))
        return (found[1], int(found[2])) if found else None


def _name(directory: Path) -> str:
    """Named after the engine's directory, so that the next daemon finds them."""
    return f"gpuyard-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"


def find_cgroups(directory: Path) -> Cgroups:
    """The cgroups of the engine in this directory. Raises `EngineError`, with the reason, where there can be none.

    They are made below the cgroup that we run in, so limits on the daemon hold for its jobs; else at the top.
    """
    mount = _mount()
    own = (processes.read_proc(os.getpid(), "cgroup") or b"").decode().rpartition("0::")[2].partition("\n")[0]
    problem = ""
    for parent in dict.fromkeys((own.rstrip("/"), "")):
        cgroups = Cgroups(f"{mount}{parent}/{_name(directory)}")
        problem = _try(cgroups)
        if not problem:
            return cgroups
    raise EngineError(problem)


def cgroups_if(directory: Path, wanted: bool | None) -> Cgroups | None:
    """The cgroups of an engine: if they are wanted, if not, or (None) if they are available."""
    if wanted is False:
        return None
    try:
        return find_cgroups(directory)
    except EngineError as error:
        if wanted:
            raise
        logger.info("jobs run without cgroups; a process that hides from its job may outlive it: %s", error)
        return None


def _mount() -> str:
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            _, where, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return where
    raise EngineError("no cgroup2 file system is mounted")


def _try(cgroups: Cgroups) -> str:
    """What goes wrong when a process joins a cgroup made there; nothing if all is well.

    Only trying tells: it takes the right to write to a common ancestor, and a parent of the right kind.
    """
    trial = cgroups.of("trial", os.getpid())
    try:
        trial.create()
        joining = ("/bin/sh", "-c", 'echo 0 >"$1/cgroup.procs"', "sh", trial.path)
        joined = subprocess.run(joining, stdin=subprocess.DEVNULL, capture_output=True, check=False, env={})
        trial.remove()
    except (EngineError, OSError) as error:
        return str(error)
    cgroups.close()
    return f"cannot join a cgroup below {cgroups.base}" if joined.returncode else ""
