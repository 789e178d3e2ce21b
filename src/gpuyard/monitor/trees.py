"""Which processes belong to a command, or to a process that runs already: its children, theirs, and so on."""

from __future__ import annotations

import os
from typing import Protocol

from gpuyard.engines.processes import everyone, look

_DEEPEST = 1000


class Tree(Protocol):
    """A process and all that come from it."""

    def look(self) -> None:
        """See who there is now."""
        ...

    def has(self, pid: int) -> bool:
        """Whether a process belongs to it."""
        ...


class Below:
    """All that come from this process, which must adopt orphans: then whoever loses its parent is still below it.

    Nobody needs to be counted: of the few processes that are on a GPU, it is enough to go up from parent to parent.
    """

    def __init__(self) -> None:
        self._top = os.getpid()

    def look(self) -> None:
        """There is nothing to remember."""

    def has(self, pid: int) -> bool:
        """Whether a process comes from this one, and is another."""
        for _ in range(_DEEPEST):
            found = look(pid)
            if found is None or found.parent == 0:
                return False
            if found.parent == self._top:
                return True
            pid = found.parent
        return False


class From:
    """A process that somebody else started, and all that come from it.

    Who loses its parent goes to the machine's first process, or to whoever adopts it. So those that were seen below it
    are remembered, and if it leads a session, whoever is in that belongs to it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, int] = {}  # when each started: a number may be somebody else's later

    def look(self) -> None:
        """See who there is now; this walks through all processes of the machine."""
        processes = everyone()
        children: dict[int, list[int]] = {}
        for process in processes.values():
            children.setdefault(process.parent, []).append(process.pid)
        members = {
            pid for pid, started in self._known.items() if pid in processes and processes[pid].started == started
        }
        members |= {process.pid for process in processes.values() if process.session == self._pid}
        members |= {self._pid} & processes.keys()
        pending = list(members)
        while pending:
            new = [pid for pid in children.get(pending.pop(), ()) if pid not in members]
            members.update(new)
            pending += new
        self._known = {pid: processes[pid].started for pid in members}

    def has(self, pid: int) -> bool:
        """Whether a process belonged to it at the last look."""
        return pid in self._known
