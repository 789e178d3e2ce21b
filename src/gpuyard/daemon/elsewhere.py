"""The end of what a job printed to a file of its own.

The file is its user's, who may have put anything in its place, and it may lie on a file system that does not answer. So
only a plain file counts that belongs to that user and was written to since the attempt began; and it is read beside
the yard, which waits for a moment only.
"""

from __future__ import annotations

import os
import pwd
import stat
import threading

_PATIENCE = 0.5  # seconds
_CLOCKS = 0.1  # seconds by which the time of a file may be before that of the attempt that wrote it


class Elsewhere:
    """Reads such files, one at a time."""

    def __init__(self) -> None:
        self._reading: threading.Thread | None = None

    def end_of(self, path: str, user: str, since: float, size: int) -> bytes:
        """Up to so many bytes of the end; nothing where it must not be read, or cannot be by now.

        Its owner must be `user`; ourselves, if that is empty.
        """
        if self._reading is not None and self._reading.is_alive():  # one that hangs is enough
            return b""
        found: list[bytes] = []

        def read() -> None:
            try:
                found.append(_read(path, pwd.getpwnam(user).pw_uid if user else os.geteuid(), since, size))
            except (OSError, KeyError, ValueError):  # gone, closed to us, or no path; nobody is called so any more
                found.append(b"")

        self._reading = threading.Thread(target=read, daemon=True)
        self._reading.start()
        self._reading.join(_PATIENCE)
        return found[0] if found else b""


def _read(path: str, uid: int, since: float, size: int) -> bytes:
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # opens nothing yet: a device may mind that
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_mtime < since - _CLOCKS:
            return b""
        with open(f"/proc/self/fd/{place}", "rb", buffering=0) as file:
            file.seek(max(0, found.st_size - size))
            return file.read(size) or b""
    finally:
        os.close(place)
