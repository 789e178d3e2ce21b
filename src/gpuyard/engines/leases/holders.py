"""Which process holds a lease when `gpuyard acquire` is called, and whether an interactive shell is in use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from gpuyard.engines.local import processes
from gpuyard.engines.local.processes import read_proc

_BRIEF = 0.5  # seconds: what ends sooner is a prompt, or a look at a file


class ShellUse:
    """Whether a shell has been used since it has a lease."""

    def __init__(self, pid: int, since: int) -> None:
        self._pid, self._since = pid, since
        self._used = False
        self._last = float("-inf")  # when it was last seen to have a child, on the monotonic clock

    def idle(self, now: float) -> float:
        """Seconds for which it has had no child since its first use."""
        children = [child for child in _children(self._pid) if not _is_gpuyard(child.pid)]
        self._used = self._used or any(self._is_use(child) for child in children)
        if children or not self._used:
            self._last = now
        return now - self._last

    def _is_use(self, child: processes.Process) -> bool:
        """Whether it was started after the lease, and not only to draw a prompt."""
        return child.started >= self._since and processes.age(child) >= _BRIEF


def _children(pid: int) -> Iterator[processes.Process]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has just ended, which its pidfd tells as well
        return
    for thread in threads:
        for child in (read_proc(pid, f"task/{thread}/children") or b"").split():
            process = processes.look(int(child))
            if process is not None and not process.dead:
                yield process


def _is_gpuyard(pid: int) -> bool:
    return any(word.rpartition(b"/")[2] == b"gpuyard" for word in _words(pid)[:3])


PASSING_ON = frozenset(
    (
        "timeout", "sudo", "doas", "su", "runuser", "env", "xargs", "nice", "ionice", "chrt", "taskset", "time",
        "stdbuf", "setsid", "nohup", "setarch", "strace", "ltrace", "unbuffer", "uv", "uvx", "pipx", "pipenv", "poetry",
        "pdm", "hatch", "rye", "conda", "mamba", "micromamba", "pixi", "direnv",
    )
)  # fmt: skip
"""Programs that run a command and end with it."""
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "ash", "tcsh", "csh", "busybox"))
_WITH_VALUE = frozenset(("-o", "+o", "-O", "+O", "--rcfile", "--init-file"))
"""Options of shells that the next word belongs to."""
_DEEPEST = 32


class Caller(NamedTuple):
    pid: int
    parent: int
    name: str
    terminal: int
    image: tuple[str, ...]
    """What a fork keeps and running another program changes: where its stack and arguments begin, and its program."""


class Found(NamedTuple):
    pid: int
    interactive: bool  # whether it is an interactive shell
    name: str  # what to call it: a script's name, if it is a shell that runs one


def find_holder(pid: int | None = None, asker: int | None = None) -> Found:
    """The process that outlives us, or another asking process; or the one that is named."""
    chosen = _climb(asker or os.getpid()) if pid is None else _look(pid)
    if chosen is None:
        return Found(pid or asker or os.getppid(), False, "")
    script = _script([os.fsdecode(word) for word in _words(chosen.pid)]) if chosen.name in SHELLS else None
    parent = _look(chosen.parent)
    copy = parent is not None and _is_copy(chosen, parent)
    typed_in = chosen.name in SHELLS and script is None and chosen.terminal != 0 and not copy
    return Found(chosen.pid, typed_in, os.path.basename(script or "") or chosen.name)


def _climb(asker: int) -> Caller | None:
    writes = {_pipe(asker, 1)}
    first = None
    for caller in _callers(asker):
        if caller.name not in PASSING_ON:
            if writes & set(_read_pipes(caller.pid)):
                return caller
            first = first or caller
        writes.add(_pipe(caller.pid, 1))
    return first


def _callers(asker: int) -> Iterator[Caller]:
    """The parent and those above it, as long as each passes us on or is a copy of the next."""
    asking = _look(asker)
    caller = _look(asking.parent) if asking else None
    for _ in range(_DEEPEST):
        if caller is None:
            return
        yield caller
        parent = _look(caller.parent)
        if parent is None or not (caller.name in PASSING_ON or _is_copy(caller, parent)):
            return
        caller = parent


def _look(pid: int) -> Caller | None:
    line = read_proc(pid, "stat")
    if not line:
        return None
    name, _, rest = line.partition(b" (")[2].rpartition(b")")
    fields = rest.split()  # from the third of proc(5) on
    state, parent, terminal = fields[0], int(fields[1]), int(fields[4])
    if state in b"ZX":
        return None
    image = (fields[25].decode(), fields[45].decode(), _link(f"/proc/{pid}/exe") or "")
    return Caller(pid, parent, name.decode(errors="replace"), terminal, image)


def _is_copy(caller: Caller, parent: Caller) -> bool:
    return caller.image == parent.image and caller.image[0] not in ("0", "1")  # those hide it from us


def _pipe(pid: int, number: int) -> str | None:
    """`pipe:[123]`, if that is what a descriptor of a process is."""
    found = _link(f"/proc/{pid}/fd/{number}")
    return found if found and found.startswith("pipe:") else None


def _read_pipes(pid: int) -> Iterator[str]:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        pipe = _pipe(pid, int(number))
        if pipe and _reads(pid, number):
            yield pipe


def _reads(pid: int, number: str) -> bool:
    info = (read_proc(pid, f"fdinfo/{number}") or b"").split()
    flags = int(info[info.index(b"flags:") + 1], 8) if b"flags:" in info else os.O_WRONLY
    return flags & os.O_ACCMODE != os.O_WRONLY


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _words(pid: int) -> list[bytes]:
    return (read_proc(pid, "cmdline") or b"").split(b"\0")[:-1]


def _script(arguments: list[str]) -> str | None:
    """What a shell runs: a file, or `-c`; None if it is interactive or reads its input."""
    words = iter(arguments[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word.startswith(("-", "+")) and word not in ("-", "--"):
            if not word.startswith("--") and "c" in word:
                return ""
        elif word not in ("-", "--"):
            return word
    return None
