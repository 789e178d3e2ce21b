"""The script of a job: written out as it was submitted, whatever became of the file since."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuyard.engines.base import EngineError, LaunchRefused, Task
from gpuyard.engines.folders import SCRIPT as NAME

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)


def written(task: Task, text: bytes, folder: Path) -> Task:
    """The task, running a script that is in the folder from now on.

    The folder may be the job's user's, who may put anything there; so the file is a new one, which takes that place.
    """
    fresh = f".{NAME}.{os.getpid()}"
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=place)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(fresh, flags, 0o700, dir_fd=place), "wb") as file:
                file.write(text)
                owner = os.fstat(place)
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.rename(fresh, NAME, src_dir_fd=place, dst_dir_fd=place)
        finally:
            os.close(place)
    except OSError as error:
        kind = EngineError if error.errno in _PASSING else LaunchRefused  # what a user put in its way is their fault
        raise kind(f"cannot write {folder / NAME}: {error.strerror}") from error
    return replace(task, command=(str(folder / NAME), *task.command[1:]))
