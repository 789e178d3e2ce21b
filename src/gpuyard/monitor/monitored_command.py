"""The monitored command or process: running it, waiting for its end, and which processes belong to it."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from gpuyard.engines.local.processes import adopt_orphans, everyone, look
from gpuyard.errors import UserError

_DEEPEST = 1000


class ProcessTree(Protocol):
    """A process and its descendants."""

    def look(self) -> None:
        """Update the list of members."""

    def has(self, pid: int) -> bool: ...


class ChildTree:
    """The descendants of this process, which must adopt orphans, so that they stay below it.

    No list is needed: of the few processes on a GPU, it is enough to go up from parent to parent.
    """

    def __init__(self) -> None:
        self._top = os.getpid()

    def look(self) -> None:
        """Nothing to remember."""

    def has(self, pid: int) -> bool:
        for _ in range(_DEEPEST):
            found = look(pid)
            if found is None or found.parent == 0:
                return False
            if found.parent == self._top:
                return True
            pid = found.parent
        return False


class ForeignTree:
    """A process that we did not start, and its descendants.

    Orphans go to the machine's first process, or to another that adopts them. So former descendants are remembered, and
    if the process leads a session, all processes of that session are members.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, int] = {}  # when each started: a pid may be used again

    def look(self) -> None:
        """Update the members; this walks through all processes of the machine."""
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
        return pid in self._known


_PASSED_ON = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
_BY_KERNEL = 0x80  # SI_KERNEL of siginfo.h: a terminal sent it, to the whole group
_LONGEST = 3600.0  # seconds, of one wait
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Command:
    """A command, from its start to its end.

    Make it before any thread is started, as numpy does when it is imported: threads must not take its signals.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, exit codes of children would be lost
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
        self.pid = 0

    def start(self, words: Sequence[str]) -> None:
        """Start it, with our input, output and environment; orphans of it become our children."""
        adopt_orphans()
        try:
            self.pid = os.posix_spawnp(
                words[0], list(words), os.environ, setsigmask=self._before, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
            )  # Python itself ignores these two
        except OSError as error:
            raise UserError(f"{words[0]} cannot be run: {error.strerror}; check its name") from error

    def wait(self, look: Callable[[], None], every: float) -> int:
        """Look at intervals until it has ended; its exit code, -n if signal n ended it.

        An exception of `look` is raised after its end, so that the command does not suffer from it.
        """
        failure: Exception | None = None
        due = time.monotonic()
        while True:
            left = min(_LONGEST, max(0.0, due - time.monotonic()))
            found = signal.sigtimedwait((*_PASSED_ON, signal.SIGCHLD), left)
            if found is None and time.monotonic() >= due:
                due = max(due + every, time.monotonic())
                try:
                    look()
                except Exception as error:
                    failure, due = error, float("inf")
            elif found is None:
                continue
            elif found.si_signo == signal.SIGCHLD:
                if (code := self._reap()) is not None:
                    break
            elif found.si_code != _BY_KERNEL:
                os.kill(self.pid, found.si_signo)
        if failure is not None:
            raise failure
        return code

    def release(self) -> None:
        """Unblock signals; those that came too late for the command are dropped."""
        while self.pid and signal.sigtimedwait(_PASSED_ON, 0) is not None:
            continue
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def _reap(self) -> int | None:
        """Reap ended children, also orphans; the command's exit code if it is among them."""
        code = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return code
            if pid == 0:
                return code
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)


def shell_code(code: int) -> int:
    """An exit code as in a shell: 130 after SIGINT."""
    return 128 - code if code < 0 else code


def watch(
    look: Callable[[], None],
    every: float,
    woken: socket.socket,
    *,
    seconds: float | None = None,
    pidfd: int | None = None,
) -> bool:
    """Look at intervals: for a time, until a process has ended, or until an interrupt; returns whether there was one.

    `woken` is what `interruptions` gave.
    """
    poll = select.poll()
    for descriptor in (woken.fileno(), *([] if pidfd is None else [pidfd])):
        poll.register(descriptor, select.POLLIN)
    begun = due = time.monotonic()
    end = float("inf") if seconds is None else begun + seconds
    while True:
        left = min(due, end) - time.monotonic()
        if ready := poll.poll(max(0.0, left) * 1000):
            return any(descriptor == woken.fileno() for descriptor, _ in ready)
        if time.monotonic() >= end:
            return False
        due = max(due + every, time.monotonic())
        look()


@contextmanager
def interruptions() -> Iterator[socket.socket]:
    """A socket that becomes readable when a signal asks us to end."""
    here, there = socket.socketpair()
    there.setblocking(False)

    def note(number: int, frame: Any) -> None:
        """The wake-up below says all."""

    before = {number: signal.signal(number, note) for number in _ENDING}
    former = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    try:
        yield here
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in before.items():
            signal.signal(number, handler)
        here.close()
        there.close()
