"""Limits of processes (ulimit): a job has those of whoever submitted it, not those of the daemon.

They are read from /proc, so nobody can claim other limits than they have, and kept as `prlimit` writes them:
`nofile=1024:4096`, the soft limit and the hard one.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from functools import cache

from gpuyard.engines.processes import parse_user, read_proc

_NAMES = {
    b"Max cpu time": "cpu", b"Max file size": "fsize", b"Max data size": "data", b"Max stack size": "stack",
    b"Max core file size": "core", b"Max resident set": "rss", b"Max processes": "nproc", b"Max open files": "nofile",
    b"Max locked memory": "memlock", b"Max address space": "as", b"Max file locks": "locks",
    b"Max pending signals": "sigpending", b"Max msgqueue size": "msgqueue", b"Max nice priority": "nice",
    b"Max realtime priority": "rtprio", b"Max realtime timeout": "rttime",
}  # fmt: skip
_WIDTH = 26  # of the names' column
_SYS_RESOURCE = 24  # the capability to raise a hard limit
PROGRAMS = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked for that run as root: never where a user's PATH says."""


def limits_of(pid: int, uid: int) -> tuple[str, ...] | None:
    """The limits of a user's process, where they differ from our own; None if that process is gone.

    The directory is held open, so what is read is of one process, whoever gets its number next.
    """
    try:
        folder = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status, text = _read_at(folder, "status"), _read_at(folder, "limits")
    finally:
        os.close(folder)
    if status is None or text is None or parse_user(status) != uid:
        return None
    if text == _own():
        return ()
    theirs, ours = _parse(text), _parse(_own())
    return tuple(f"{name}={soft}:{hard}" for name, (soft, hard) in theirs.items() if ours.get(name) != (soft, hard))


def prlimit(limits: Iterable[str]) -> list[str]:
    """The words that put a program under limits; none if there is nothing to change, or nobody to change it."""
    program = shutil.which("prlimit", path=PROGRAMS)
    wanted = list(limits)
    if not wanted or program is None:
        return []
    if not _may_raise():
        wanted = _within(wanted, _parse(_own()))
    return [program, *(f"--{limit}" for limit in wanted), "--"]


def _within(limits: list[str], own: dict[str, tuple[str, str]]) -> list[str]:
    """Limits that whoever has these may set."""
    found = []
    for limit in limits:
        name, _, values = limit.partition("=")
        top = own.get(name, ("", "unlimited"))[1]
        found.append(f"{name}={':'.join(min(value, top, key=_number) for value in values.split(':'))}")
    return found


def _number(value: str) -> float:
    return math.inf if value == "unlimited" else int(value)


def _parse(text: bytes) -> dict[str, tuple[str, str]]:
    found = {}
    for line in text.splitlines():
        if name := _NAMES.get(line[:_WIDTH].strip()):
            soft, hard = line[_WIDTH:].split()[:2]
            found[name] = soft.decode(), hard.decode()
    return found


@cache
def _own() -> bytes:
    return read_proc(os.getpid(), "limits") or b""


@cache
def _may_raise() -> bool:
    status = read_proc(os.getpid(), "status") or b""
    return bool(int(status.partition(b"\nCapEff:")[2].split(None, 1)[0], 16) >> _SYS_RESOURCE & 1)


def _read_at(folder: int, name: str) -> bytes | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.read(file, 65536)
    except OSError:  # it ended between open and read
        return None
    finally:
        os.close(file)
