"""Where traces come from and where compiled code is kept: the few places on disk that simulating needs.

What is uploaded never has a name on disk, so nothing is left of it, however this process ends.
"""

from __future__ import annotations

import functools
import os
import secrets
import stat
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpuyard.errors import UserError

MOST_BYTES = 64 * 2**20
_EACH, _ALL = 3, 12
_NAME = 120
_SYSTEM_CACHE = Path("/var/cache/gpuyard")


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that somebody sent."""

    id: str
    viewer: str
    name: str
    size: int
    file: IO[bytes]


class Uploads:
    """The latest files of each viewer."""

    def __init__(self) -> None:
        self._kept: list[Upload] = []

    async def add(self, viewer: str, name: str, chunks: AsyncIterator[bytes]) -> Upload:
        """Take a file in; the oldest go."""
        file, size = temporary(), 0
        async for chunk in chunks:
            size += len(chunk)
            if size > MOST_BYTES:
                file.close()
                raise UserError("a file of at most 64 MB can be simulated here; compress it, or use a shell")
            file.write(chunk)
        file.flush()
        if not size:
            file.close()
            raise UserError("the file is empty")
        upload = Upload(secrets.token_urlsafe(9), viewer, _clean(name), size, file)
        self._kept.append(upload)
        own = [kept for kept in self._kept if kept.viewer == viewer]
        for old in own[:-_EACH] or self._kept[:-_ALL]:
            self._kept.remove(old)
            old.file.close()
        return upload

    def find(self, viewer: str, id: str) -> Upload | None:
        """A file that this viewer sent."""
        return next((kept for kept in self._kept if kept.id == id and kept.viewer == viewer), None)


class Folder:
    """The traces that the daemon's owner offers; opened before rights are given up, so its parents do not matter."""

    def __init__(self, path: str) -> None:
        self._directory = -1
        try:
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if path else -1
        except OSError:
            return  # most have none

    def names(self) -> list[str]:
        """What is there and can be read."""
        if self._directory < 0:
            return []
        try:
            return sorted(name for name in os.listdir(self._directory) if self._is_trace(name))[:1000]
        except OSError:
            return []

    def open(self, name: str) -> IO[bytes]:
        """One of them."""
        if name not in self.names():
            raise UserError(f"there is no trace {name} on the server that everybody may read")
        return os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory), "rb")

    def _is_trace(self, name: str) -> bool:
        if name.startswith("."):
            return False
        try:
            found = os.stat(name, dir_fd=self._directory)
            return stat.S_ISREG(found.st_mode) and os.access(name, os.R_OK, dir_fd=self._directory)
        except OSError:
            return False


def temporary() -> IO[bytes]:
    """A file without a name."""
    return tempfile.TemporaryFile(prefix="gpuyard-")


def reopened(file: IO[bytes]) -> int:
    """The same file with a place in it of its own, from the beginning."""
    return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)


def make_cache(user: int) -> None:
    """Make a place for compiled code, for whom this process of root's is about to become."""
    try:
        _SYSTEM_CACHE.mkdir(exist_ok=True)
        _SYSTEM_CACHE.chmod(0o755)  # whatever the umask
        own = _SYSTEM_CACHE / "page"
        own.mkdir(mode=0o700, exist_ok=True)
        os.chown(own, user, -1, follow_symlinks=False)
    except OSError:
        return  # a temporary place will do, until the next boot


def cache() -> str:
    """Where compiled code is kept: a directory that is there and is ours, or else it would be compiled every time."""
    if given := os.environ.get("GPUYARD_CACHE_DIR"):
        return given
    places = [_SYSTEM_CACHE / "page", Path(tempfile.gettempdir()) / f"gpuyard-{os.geteuid()}"]
    home = os.environ.get("HOME", "/")
    if home != "/" or os.environ.get("XDG_CACHE_HOME"):  # then commands keep theirs there
        places.insert(0, Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "gpuyard")
    return str(next((place for place in places if _is_ours(place)), None) or _passing_place())


@functools.cache
def _passing_place() -> str:
    """Where nothing else will do: for as long as this process lives."""
    return tempfile.mkdtemp(prefix="gpuyard-kernel-")


def _is_ours(place: Path) -> bool:
    """Whether a directory is there, or can be made, and nobody else can put code into it."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _clean(name: str) -> str:
    """The name of a file, without its directory, for people to read."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:_NAME] or "trace"
