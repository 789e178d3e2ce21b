"""Whether a shell that somebody types in is used: whether it has children."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpuyard.engines import processes

_BRIEF = 0.5  # seconds: what ends sooner is a prompt, or a look at a file


class Use:
    """How a shell is used since it has a lease: not yet, now, or not any more."""

    def __init__(self, pid: int, since: int) -> None:
        self._pid, self._since = pid, since
        self._used = False
        self._last = float("-inf")
        """When it was last seen to have a child, on the monotonic clock."""

    def idle(self, now: float) -> float:
        """Look at it; for how many seconds it has had no child since its first use."""
        children = [child for child in _children(self._pid) if not _is_gpuyard(child.pid)]
        self._used = self._used or any(self._is_use(child) for child in children)
        if children or not self._used:
            self._last = now
        return now - self._last

    def _is_use(self, child: processes.Process) -> bool:
        """Whether it was started when there was a lease already, and not only to draw a prompt."""
        return child.started >= self._since and processes.age(child) >= _BRIEF


def _children(pid: int) -> Iterator[processes.Process]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has just ended, which its pidfd tells as well
        return
    for thread in threads:
        for child in (processes.read_proc(pid, f"task/{thread}/children") or b"").split():
            process = processes.look(int(child))
            if process is not None and not process.dead:
                yield process


def _is_gpuyard(pid: int) -> bool:
    """Whether a process is one of our own commands, by the beginning of its command line."""
    words = (processes.read_proc(pid, "cmdline") or b"").split(b"\0")[:3]
    return any(word.rpartition(b"/")[2] == b"gpuyard" for word in words)
