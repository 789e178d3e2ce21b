"""The data directory: the daemon's user alone may look into it, or, of a root daemon, everybody may pass through it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpuyard.errors import UserError


def prepare(data_dir: Path, shared: bool) -> None:
    """Make the data directory if need be, with the modes that it needs."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if shared:
        check_keeping(data_dir, "data")
        mode = data_dir.stat().st_mode
        data_dir.chmod(stat.S_IMODE(mode) & ~0o044 | 0o011)  # its socket and the jobs' directories are inside


def check_keeping(folder: Path, what: str) -> None:
    """Refuse a place where somebody else could put other files than root's under the same names."""
    place = folder.resolve()
    for path in (place, *place.parents, *folder.parents):
        found = path.stat()
        writable = found.st_mode & 0o022 and (path == place or not found.st_mode & stat.S_ISVTX)
        if writable or found.st_uid != os.geteuid():
            raise UserError(
                f"a daemon of root cannot keep its {what} in {folder}: others than root may change {path}; "
                "choose another place, or change that directory's owner and mode"
            )
