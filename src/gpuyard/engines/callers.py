"""Which process asks when `gpuyard acquire` is called: the one that goes on with the GPUs that it prints.

(`python -m watchmen.wait` prints GPUs as well; there the daemon looks.)

That is the shell that called us; but who our parent is depends on how we were called. In
`X=$(gpuyard acquire | head -1)` it is a copy of the shell that ends as soon as we do, in
`X=$(timeout 9 gpuyard acquire)` it is `timeout`, and in `(X=$(gpuyard acquire); train) &` it is a copy of the shell
that is the very one to hold the lease. What tells them apart is who reads what we print: a shell keeps the reading end
of the pipe while it waits for the value.

So we climb, from our parent on, over copies of shells and over programs that only pass us on, and stop at the first
that reads our output, or the output of somebody below it. If none does, it is the first that is no such program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from gpuyard.engines.processes import read_proc

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
    """A process above us."""

    pid: int
    parent: int
    name: str
    terminal: int
    image: tuple[str, ...]
    """What a fork keeps and running another program changes: where its stack and arguments begin, and its program."""


class Found(NamedTuple):
    """Who is to hold a lease."""

    pid: int
    interactive: bool
    """Whether it is a shell that somebody types in."""
    name: str
    """What to call it: a script's name, if it is a shell that runs one."""


def find_holder(pid: int | None = None, asker: int | None = None) -> Found:
    """The process that goes on when we, or another that asks, have ended; or the one that is named."""
    chosen = _climb(asker or os.getpid()) if pid is None else _look(pid)
    if chosen is None:
        return Found(pid or asker or os.getppid(), False, "")
    arguments = _arguments(chosen.pid)
    script = _script(arguments) if chosen.name in SHELLS else None
    parent = _look(chosen.parent)
    copy = parent is not None and _is_copy(chosen, parent)
    typed_in = chosen.name in SHELLS and script is None and chosen.terminal != 0 and not copy
    return Found(chosen.pid, typed_in, os.path.basename(script or "") or chosen.name)


def _climb(asker: int) -> Caller | None:
    """Up to who reads what is printed."""
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
    """Whether it is a fork of its parent and nothing more: a subshell is that, a shell that a shell starts is not."""
    return caller.image == parent.image and caller.image[0] not in ("0", "1")  # those hide it from us


def _pipe(pid: int, number: int) -> str | None:
    """`pipe:[123]`, if that is what a descriptor of a process is."""
    found = _link(f"/proc/{pid}/fd/{number}")
    return found if found and found.startswith("pipe:") else None


def _read_pipes(pid: int) -> Iterator[str]:
    """The pipes that a process has the reading end of."""
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


def _arguments(pid: int) -> list[str]:
    return [os.fsdecode(word) for word in (read_proc(pid, "cmdline") or b"").split(b"\0")[:-1]]


def _script(arguments: list[str]) -> str | None:
    """What a shell was told to run: a file, or `-c`; None if it reads what somebody types, or its input."""
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
