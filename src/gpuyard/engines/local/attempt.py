"""One attempt on this machine:

how it is started, what is known of it, and how its end is brought about and reported.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuyard.engines.base import Ended, EngineError, LaunchRefused, NeverBegan, Running, Task
from gpuyard.engines.local import output, privileges, wrapper
from gpuyard.engines.local.accounts import Account
from gpuyard.engines.local.cgroups import Cgroup
from gpuyard.engines.local.processes import Held, Suspect
from gpuyard.errors import is_passing

LEFTOVER_GRACE = 1.0  # seconds between TERM and KILL for what a job that ended by itself has left running
WRAPPER_GRACE = 1.0  # seconds that a wrapper gets to write down the end when everything of its job is gone
_YOUNG = 0.2  # seconds after its beginning in which an attempt may still be a shell between its fork and its job
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05


@dataclass(slots=True, eq=False)
class LocalAttempt:
    job: str
    attempt: int
    folder: Path
    pid: int  # the wrapper's
    cgroup: Cgroup | None
    limit: int
    uid: int | None = None  # the user whose processes may carry its mark; None: any user
    claim: wrapper.Claim | None = None
    held: Held | None = None  # the wrapper; None when it has ended
    witnessed: bool = True  # whether we saw the wrapper alive; if not, its process id may have been reused
    ours: bool = False  # whether this process launched it, and so saw all of its life
    stopping: bool = False
    number: signal.Signals = signal.SIGTERM  # what its processes are asked to end by
    sent: set[signal.Signals] = field(default_factory=set)  # what they were sent so far
    asked_at: float | None = None
    """When they were first asked, on the clock of the file system; None if they were not before it ended."""
    ask_again: float = float("inf")  # when to ask once more: a shell that is about to become the job may have missed it
    kill_at: float = float("inf")  # when they are killed, on the monotonic clock
    ended: Ended | None = None  # reported when no process is left
    leftovers: int = 0
    look_at: float = 0.0  # when to look after it again, if it begins or ends just now
    _pause: float = field(default=_SHORTEST_PAUSE)

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    def running(self) -> Running:
        at = self.claim.at if self.claim else time.time()
        return Running(self.job, self.attempt, at, str(self.pid))

    def suspect(self) -> Suspect:
        if not self.witnessed:
            return Suspect(str(self.folder), uid=self.uid)
        return Suspect(str(self.folder), self.pid, self.claim.wrapper.started if self.claim else None, self.uid)

    @property
    def asked(self) -> bool:
        """Whether its processes got the signal that they are to end by."""
        return self.number in self.sent

    def stop(self, deadline: float, number: signal.Signals) -> None:
        """Note that a signal ends it, and SIGKILL at the deadline."""
        self.stopping = True
        self.number = number
        self.kill_at = min(self.kill_at, deadline)
        self.hurry()

    def hurry(self) -> None:
        self.look_at, self._pause = 0.0, _SHORTEST_PAUSE

    def urgent(self, now: float) -> bool:
        return now >= self.kill_at or (self.stopping and not self.asked)

    def rest(self, now: float) -> None:
        """Check it again in a while: soon at first, then less and less often."""
        self.look_at = now + self._pause
        longest = _LONGEST_PAUSE if now < self.kill_at + 1 else 1.0  # what cannot be killed hangs in a driver
        self._pause = min(longest, 2 * self._pause)
        if self.asked and self.ended is None and now < self.kill_at:
            self.look_at = min(self.kill_at, self.ask_again)  # its wrapper tells us, should it end before

    def ask(self, now: float) -> None:
        young = self.claim is not None and time.time() - self.claim.at < _YOUNG
        self.ask_again = now + _YOUNG if young and not self.asked else float("inf")
        self.sent.add(self.number)
        if self.ended is None and self.asked_at is None:
            self.asked_at = wrapper.note_asked(self.folder)

    def with_cgroup(self, members: list[int]) -> list[int]:
        """Its processes that a census found, and those of its cgroup."""
        return list(dict.fromkeys([*members, *self.cgroup.members()])) if self.cgroup else members

    def signal_wrapper(self, number: signal.Signals) -> None:
        if self.held is not None:
            self.held.send(number)

    def halt_group(self) -> None:
        """Stop the whole process group, wrapper included, at once: a process that only forks cannot outrun that."""
        if self.held is not None:  # else the group's number may have been reused
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGSTOP)

    def conclude(self, status: int | None) -> None:
        """Note how it ended: as its wrapper wrote; else by the wrapper's status, if it was our child."""
        self.ended = verdict(self.job, self.attempt, self.folder, status)
        if self.kill_at == float("inf"):  # else what it has left was asked, and has its grace
            self.number = signal.SIGTERM
            self.kill_at = time.monotonic() + LEFTOVER_GRACE
        self.hurry()

    def report(self) -> Ended:
        assert self.ended is not None
        asked = self.asked_at is not None and self.ended.at >= self.asked_at
        ended = replace(self.ended, began=self.claim.at if self.claim else None, asked=asked)
        if not self.leftovers or self.stopping:
            return ended
        left = "1 process that it had" if self.leftovers == 1 else f"{self.leftovers} processes that it had"
        message = "; ".join(filter(None, (self.ended.message, f"ended {left} left running")))
        return replace(ended, message=message)


_CANNOT_FORK = 2  # how /bin/sh ends
_PROBLEMS = {125: "cannot enter its directory", 126: "cannot be executed", 127: "command not found"}


def verdict(job: str, attempt: int, folder: Path, status: int | None) -> Ended:
    if written := wrapper.read_exit(folder):
        problem = _PROBLEMS.get(written.code, "")
        message = f"{problem}: {written.missing}" if written.missing else ""
        if written.code == wrapper.UNWRITABLE and (file := wrapper.read_unwritable(folder)):
            message = f"its output file {file} cannot be written"
        return Ended(job, attempt, written.at, written.code, message=message)
    if status is None:
        message = "how it ended is not known: its wrapper was killed"
    elif status < 0:
        message = f"its wrapper was killed by {_signal_name(-status)}"
        status = 128 - status
    elif status == _CANNOT_FORK and (folder / "exit").is_file():
        message = "how it ended is not noted: its wrapper could start no process (ulimit -u), or the disk is full"
    else:
        message = "its exit code could not be written to the disk"
    return Ended(job, attempt, time.time(), status, message=message)


def never_ran(run: LocalAttempt, status: int | None) -> Ended | NeverBegan:
    """The report for an attempt whose wrapper did not run the job. The job is not to blame."""
    if run.stopping:
        code = 128 + signal.SIGTERM
        return Ended(run.job, run.attempt, time.time(), code, message="stopped before it began", asked=True)
    how = f"was killed by {_signal_name(-status)}" if status and status < 0 else f"ended with code {status}"
    return NeverBegan(run.job, run.attempt, f"it did not begin: its wrapper {how} (disk full?)")


def interrupted(job: str, attempt: int, folder: Path) -> Ended:
    """The end of an attempt that began before this boot: its own, or the machine's.

    The time of that is not recorded; the last sign of life is the best estimate.
    """
    if written := wrapper.read_exit(folder):
        asked_at = wrapper.read_asked(folder)
        asked = asked_at is not None and written.at >= asked_at
        return replace(verdict(job, attempt, folder, written.code), asked=asked)
    times = [path.stat().st_mtime for path in (folder / "pid", folder / "output.log") if path.exists()]
    return Ended(job, attempt, max(times), None, interrupted=True, message="it ended with the machine")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def start(run: LocalAttempt, task: Task, variables: Mapping[str, str], life: str, account: Account | None) -> int:
    """Start a wrapper; that of another user's job gets nothing of that user's, not even the directory."""
    cgroup = run.cgroup.path if run.cgroup else ""
    environment = wrapper.environment(task, variables, run.folder, account)
    arguments = wrapper.command_line(task, run.folder, life, cgroup, account, run.uid)
    if account is None:
        return spawn(arguments, environment, task.directory, run.log, task.umask)
    privileges.leave_keyring()
    return spawn(arguments, environment, "/", run.log, 0o077, group=account.gid)


def spawn(
    arguments: list[str], environment: dict[str, str], directory: str, log: Path, umask: int, group: int | None = None
) -> int:
    """Start a process in a session of its own, with its output appended to `log`; its id.

    A group may write to the output as well, by /dev/stdout: who is in it cannot come by the path, but has it open.
    """
    try:
        file = output.open_log(log, group)
    except OSError as error:
        raise EngineError(f"cannot write to {log}: {error.strerror}") from error
    try:
        process = subprocess.Popen(
            arguments,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            umask=umask,
        )
    except OSError as error:
        raise _whose_fault(error, directory) from error
    finally:
        os.close(file)
    process.returncode = 0  # the engine reaps it; this object is to leave it alone
    return process.pid


def _whose_fault(error: OSError, directory: str) -> EngineError | LaunchRefused:
    if error.errno == errno.E2BIG:
        return LaunchRefused("the command and its environment are longer than this system allows")
    if error.filename == directory and not is_passing(error):
        return LaunchRefused(f"the directory {directory} cannot be entered: {error.strerror}")
    return EngineError(f"cannot start a process: {error.strerror}")
