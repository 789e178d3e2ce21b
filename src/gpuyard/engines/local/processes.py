"""Processes of this machine, as /proc and pidfds show them.

A process id is reused after its process is gone. So a process is identified by its id *and* its start time, and held
by a pidfd: open the pidfd first, then compare the start time; after that the pidfd means this process and no other.
"""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from gpuyard.engines.base import EngineError

MARK = "GPUYARD_RUN"  # the environment variable that tells which attempt, of which engine, a process belongs to
OWN = "daemon-"
OWN_MARK = f"{OWN}{secrets.token_hex(8)}"  # of what the daemon runs itself; secret, since jobs can have any mark

_libc = ctypes.CDLL(None, use_errno=True)
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of linux/prctl.h
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_DESCENDANTS = 1000
_LOOK = 0.1  # seconds between looks at processes without a pidfd


class Process(NamedTuple):
    pid: int
    state: str
    parent: int
    group: int
    session: int
    kernel: bool  # whether it is a thread of the kernel's own
    started: int  # in clock ticks since the machine started

    @property
    def dead(self) -> bool:
        """Whether it has ended, and only waits to be reaped."""
        return self.state in "ZX"


def parse_stat(line: bytes) -> Process:
    """A line of `/proc/PID/stat`; the name in it may hold spaces and parentheses."""
    pid, _, rest = line.partition(b" (")
    state, parent, group, session, _, _, flags, *more = rest[rest.rindex(b")") + 2 :].split(None, 20)
    kernel = bool(int(flags) & _KERNEL_THREAD)
    return Process(int(pid), state.decode(), int(parent), int(group), int(session), kernel, int(more[12]))


def read_proc(pid: int, name: str) -> bytes | None:
    """The contents of `/proc/PID/NAME`; None if the process is gone or not ours to look at."""
    try:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        chunks = []
        while chunk := os.read(file, 65536):
            chunks.append(chunk)
        return b"".join(chunks)
    except OSError:  # ESRCH: it ended between open and read
        return None
    finally:
        os.close(file)


def look(pid: int) -> Process | None:
    line = read_proc(pid, "stat")
    return parse_stat(line) if line else None


def variable_of(pid: int, name: str) -> str | None:
    environment = read_proc(pid, "environ")
    prefix = os.fsencode(f"{name}=")
    for entry in (environment or b"").split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


def mark_of(pid: int) -> str | None:
    return variable_of(pid, MARK)


def descendants(pid: int) -> list[int]:
    """The children of a process, theirs and so on; parents come first."""
    found: list[int] = []
    pending = [pid]
    while pending and len(found) < _MOST_DESCENDANTS:
        parent = pending.pop(0)
        children = [int(child) for child in (read_proc(parent, f"task/{parent}/children") or b"").split()]
        found += children
        pending += children
    return found


def user_of(pid: int) -> int | None:
    """The real user of a process: who started it, also where the program acts as another user."""
    return parse_user(read_proc(pid, "status") or b"")


def parse_user(status: bytes) -> int | None:
    _, found, rest = status.partition(b"\nUid:")
    return int(rest.split(None, 1)[0]) if found else None


def life() -> str:
    """What tells one life of this machine, or of this container, from the next.

    The boot id alone does not show that a container was restarted, which ends its processes just as well.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    first = look(1)
    return f"{boot}:{first.started if first else 0}"


def hold(pid: int, started: int | None = None) -> int | None:
    """A pidfd of the process `pid`, if it started then; None if that one is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):  # no process has a number as large
        return None
    except OSError as error:
        raise EngineError(f"cannot watch a process: {error.strerror}") from error
    process = look(pid)
    if process is not None and started in (None, process.started):
        return pidfd
    unseen = process is None and not has_ended(pidfd)
    os.close(pidfd)
    if unseen:  # too many open files, say: it must not be taken for dead
        raise EngineError(f"cannot look at process {pid}")
    return None


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def ticks(at: float) -> int:
    """A time of day as clock ticks since the machine started; now, if the time of day was set back since."""
    return int((min(0.0, at - time.time()) + time.clock_gettime(time.CLOCK_BOOTTIME)) * _TICKS)


def age(process: Process) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / _TICKS


def reap(number: int, kind: int = os.P_PIDFD, options: int = 0) -> int | None:
    """The exit code of a child that has ended, -n if signal n ended it; None if it was not our child."""
    try:
        result = os.waitid(kind, number, os.WEXITED | os.WNOHANG | options)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


READERS = 8  # threads in which requests read


def spare_files() -> int:
    """How many files may be open beside the daemon's own: half for connections, half for processes that it watches.

    Its own are the store, two for each thread that reads it, those of a launch, and some for what comes up.
    """
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 48 - 2 * READERS)


def _is_there(pid: int) -> bool:
    """Whether there is a process with this id, or one of the group `-pid`; found out without opening a file."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has a number as large
        return False
    except PermissionError:
        return True
    return True


@dataclass(slots=True, eq=False)
class Held:
    """A process that is watched: one that started then, or our child, whose id stays its own until it is reaped."""

    pid: int
    started: int | None = None  # None: our child
    pidfd: int | None = None  # None: it is looked at now and then

    def has_ended(self) -> bool:
        """Whether it has; without a pidfd, False if that cannot be told now."""
        if self.pidfd is not None:
            return has_ended(self.pidfd)
        if self.started is None:
            return self.status() is not None
        if (process := look(self.pid)) is not None:
            return process.dead or process.started != self.started
        return not _is_there(self.pid)

    def status(self, *, reaped: bool = False) -> int | None:
        """What `reap` says; it is reaped only if that is wanted."""
        options = 0 if reaped else os.WNOWAIT
        if self.pidfd is not None:
            return reap(self.pidfd, options=options)
        if self.started is not None and (process := look(self.pid)) is not None and process.started != self.started:
            return None
        return reap(self.pid, os.P_PID, options)

    def send(self, number: signal.Signals) -> None:
        if self.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)
        else:
            send([self.pid], number, born={} if self.started is None else {self.pid: self.started})


class Watch:
    """Tells of processes that have ended: by pidfds in one epoll, as many as there is room for.

    The others are looked at now and then, so no job fails or is lost for lack of file descriptors.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most  # pidfds; None: as many as the limit of open files allows for one of two engines
        self._epoll = select.epoll()
        self._by_pidfd: dict[int, Held] = {}
        self._unheld: set[Held] = set()
        self._look_at = 0.0

    def fileno(self) -> int:
        return self._epoll.fileno()

    def due(self) -> float | None:
        """When to look at those without a pidfd, on the monotonic clock."""
        return self._look_at if self._unheld else None

    def add(self, pid: int, started: int | None = None) -> Held | None:
        """Watch a process that started then, or our child; None if the former is gone."""
        held = Held(pid, started)
        if self._hold(held):
            return held
        if started is not None and held.has_ended():
            return None
        self._unheld.add(held)
        return held

    def _hold(self, held: Held) -> bool:
        if len(self._by_pidfd) >= (spare_files() // 4 if self._most is None else self._most):
            return False
        try:
            held.pidfd = hold(held.pid, held.started)
        except EngineError:  # too many open files
            return False
        if held.pidfd is None:
            return False
        self._by_pidfd[held.pidfd] = held
        self._epoll.register(held.pidfd, select.EPOLLIN)
        return True

    def ended(self) -> list[Held]:
        """Who has ended and was not released."""
        found = [self._by_pidfd[pidfd] for pidfd, _ in self._epoll.poll(0)]
        now = time.monotonic()
        if self._unheld and now >= self._look_at:
            self._look_at = now + _LOOK
            found += [held for held in self._unheld if held.has_ended()]
            self._unheld -= {held for held in self._unheld.difference(found) if self._hold(held)}
        return found

    def release(self, held: Held) -> None:
        self._unheld.discard(held)
        if held.pidfd is not None:
            del self._by_pidfd[held.pidfd]
            self._epoll.unregister(held.pidfd)
            os.close(held.pidfd)
            held.pidfd = None

    def close(self) -> None:
        for held in list(self._by_pidfd.values()):
            self.release(held)
        self._unheld.clear()
        self._epoll.close()


def send(pids: Iterable[int], *signals: signal.Signals, born: Mapping[int, int] | None = None) -> None:
    """Send signals to processes; those that are gone meanwhile are passed over.

    `born` holds their start times, so that no process with a reused PID is hit.
    """
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):  # a set-user-id program may be out of reach
            try:
                pidfd = hold(pid, (born or {}).get(pid))
            except EngineError:  # too many files are open, but it has to end
                for number in signals:
                    os.kill(pid, number)
                continue
            if pidfd is None:
                continue
            try:
                for number in signals:
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)


def adopt_orphans() -> None:
    """Make orphans below us our children, not those of the first process."""
    if _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the parent of orphans")


def adopts_orphans() -> bool:
    answer = ctypes.c_int(0)
    return _libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and answer.value == 1


def orphans(known: Collection[int]) -> list[int]:
    """Our children that we did not start; those that have ended are reaped."""
    living = []
    for pid in _children(os.getpid()).difference(known):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                living.append(pid)
    return living


def strays(
    daemon: int, attempts: Collection[Suspect], shown: Callable[[int, str | None], bool]
) -> dict[int, str | None]:
    """Orphans below a daemon, which is a subreaper, that are of some job and do not show of which.

    Each comes with the folder of its attempt by elimination: the only one that its user had before it; None if there
    are several. What the daemon itself starts has a mark or shares its session; before its exec, as the daemon's user,
    it has the daemon's command line, during the exec none.
    """
    itself, user, own = look(daemon), user_of(daemon), (b"", None, read_proc(daemon, "cmdline"))
    found: dict[int, str | None] = {}
    for pid in _children(daemon):
        one, uid = look(pid), user_of(pid)
        if not one or not itself or one.dead or one.session == itself.session or shown(pid, mark_of(pid)):
            continue
        if uid != user or read_proc(pid, "cmdline") not in own:
            able = [by for by in attempts if by.uid in (None, uid) and (by.started or 0) <= one.started]
            found[pid] = able[0].folder if len(able) == 1 else None
    return found


def _children(parent: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{parent}/task"):
            found |= {int(pid) for pid in (read_proc(parent, f"task/{thread}/children") or b"").split()}
    return found


def is_empty(group: int) -> bool:
    return not _is_there(-group)


def everyone() -> dict[int, Process]:
    """All living processes, without the kernel's threads."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process and not process.dead and not process.kernel}


@dataclass(frozen=True, slots=True)
class Suspect:
    """An attempt that a census looks for: by its directory, and by its wrapper where that is certain."""

    folder: str
    leader: int | None = None
    """The wrapper's process id, which leads the session; None where that id may have been reused."""
    started: int | None = None  # the wrapper's start time
    uid: int | None = None  # the user whose processes may carry its mark, since marks can be forged; None: any user


class Census:
    """Who belongs to which attempt, where no cgroup tells: found by walking /proc, which costs 40 us per process.

    It pays to look for many attempts at once, and not too often: a census may be taken when 20 times as long as the
    last one took has passed (5 % of one core), or a second; when something is to be killed, sooner.
    """

    def __init__(self) -> None:
        self._cost = 0.0
        self._taken = float("-inf")
        self.born: dict[int, int] = {}  # when those started whom the last census saw

    def next(self, *, urgent: bool = False) -> float:
        """When it may be taken again, on the monotonic clock."""
        return self._taken + min(1.0, max(0.01, (2 if urgent else 20) * self._cost))

    def take(self, suspects: Collection[Suspect], placed: Mapping[int, str] | None = None) -> dict[str, list[int]]:
        """The living processes of each attempt, by its directory, without its wrapper; some are `placed` already."""
        begun = time.monotonic()
        processes = everyone()
        processes.pop(os.getpid(), None)  # started out of a job, the daemon carries its mark: it is not to end itself
        members = _sort_out(processes, suspects, placed or {})
        self.born = {pid: processes[pid].started for found in members.values() for pid in found}
        self._taken = time.monotonic()
        self._cost = self._taken - begun
        return members


def _sort_out(
    processes: Mapping[int, Process], suspects: Collection[Suspect], placed: Mapping[int, str]
) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {suspect.folder: [] for suspect in suspects}
    leaders = {suspect.leader: suspect.folder for suspect in suspects if _certain(suspect, processes)}
    users = {suspect.folder: suspect.uid for suspect in suspects}
    belongs: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
        folder = leaders.get(process.session) or leaders.get(process.group) or _marked(process.pid, users)
        folder = folder or placed.get(process.pid)
        if folder in members:
            belongs[process.pid] = folder
    pending = list(belongs)
    while pending:
        parent = pending.pop()
        for child in children.get(parent, ()):
            if child not in belongs:
                belongs[child] = belongs[parent]
                pending.append(child)
    for pid, folder in belongs.items():
        if pid not in leaders:
            members[folder].append(pid)
    return members


def _marked(pid: int, users: Mapping[str, int | None]) -> str | None:
    mark = mark_of(pid)
    if mark is None or mark not in users:
        return None
    return mark if users[mark] is None or users[mark] == user_of(pid) else None


def _certain(suspect: Suspect, processes: Mapping[int, Process]) -> bool:
    if suspect.leader is None:
        return False
    namesake = processes.get(suspect.leader)
    return namesake is None or namesake.started == suspect.started
