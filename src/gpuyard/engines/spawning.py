"""Start a process that outlives us, and say whose fault it is if that cannot be done."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpuyard.engines import dropping, output, wrapper
from gpuyard.engines.accounts import Account
from gpuyard.engines.base import EngineError, LaunchRefused, Task
from gpuyard.engines.runs import Run


def start(run: Run, task: Task, told: Mapping[str, str], life: str, account: Account | None) -> tuple[int, int]:
    """Start a wrapper; that of another user's job gets nothing of that user's, not even the directory."""
    cgroup = run.cgroup.path if run.cgroup else ""
    environment = wrapper.environment(task, told, run.folder, account)
    arguments = wrapper.command_line(task, run.folder, life, cgroup, account, run.uid)
    if account is None:
        return spawn(arguments, environment, task.directory, run.log, task.umask)
    dropping.leave_keyring()
    return spawn(arguments, environment, "/", run.log, 0o077, group=account.gid)


def spawn(
    arguments: list[str], environment: dict[str, str], directory: str, log: Path, umask: int, group: int | None = None
) -> tuple[int, int]:
    """Start a process in a session of its own, with its output appended to `log`: its id, and a pidfd that holds it.

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
    process.returncode = 0  # it is reaped by its pidfd; this object is to leave it alone
    return process.pid, _hold(process.pid)


def _whose_fault(error: OSError, directory: str) -> EngineError | LaunchRefused:
    if error.errno == errno.E2BIG:
        return LaunchRefused("the command and its environment are longer than this system allows")
    if error.filename == directory and error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO):
        return LaunchRefused(f"the directory {directory} cannot be entered: {error.strerror}")
    return EngineError(f"cannot start a process: {error.strerror}")


def _hold(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError as error:  # nobody would notice its end: better that it does not begin
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise EngineError(f"cannot watch a process: {error.strerror}") from error
