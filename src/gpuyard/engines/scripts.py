"""The script of a job: written out as it was submitted, whatever became of the file since."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuyard.engines.accounts import Account
from gpuyard.engines.base import EngineError, LaunchRefused, Task

NAME = "script"
_FRESH = f".{NAME}"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)


def run_from(folder: Path, task: Task) -> Task:
    """The task, running the script that is in the folder, if it runs one."""
    return task if task.script is None else replace(task, command=(str(folder / NAME), *task.command[1:]))


def put(folder: int, text: bytes, account: Account | None) -> None:
    """Write the script, unless it is there: all of it or nothing.

    The folder may be its user's already, who may put anything there: so no link is followed, nothing that is there is
    written to, and what is in the way is the job's own fault.
    """
    try:
        if NAME in os.listdir(folder):
            return
        with suppress(FileNotFoundError):
            os.unlink(_FRESH, dir_fd=folder)
        with open(os.open(_FRESH, _NEW, 0o700, dir_fd=folder), "wb") as file:
            file.write(text)
            if account:
                os.fchown(file.fileno(), account.uid, account.gid)
        os.rename(_FRESH, NAME, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        kind = EngineError if error.errno in _PASSING else LaunchRefused
        raise kind(f"its script cannot be written: {error.strerror}") from error
