"""What scripts hold, as a hash: read with care, since the paths are users' and the daemon may be root's.

Only regular files, not too large, that the job's user may read; what is not such a file, or not there, has no hash, and
that is no error. A daemon of root could read what lies in a folder that is closed to the user, so every folder on the
way is asked as well. Never called by the yard's thread: a disk elsewhere may take its time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import NamedTuple

from gpuyard.engines.local.accounts import groups_of

MOST = 2**22  # bytes; what is larger is no script
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ, _PASS = 4, 1
_KEPT = 10_000
_HEAD = 8192
_LASTS = 10.0  # seconds for which it is remembered who is in which groups: a batch has many rows


class _Known(NamedTuple):
    mark: tuple[int, ...]
    digest: str


class _Reader:
    """A user who reads a file; None: the daemon's own."""

    def __init__(self, uid: int | None) -> None:
        self._uid = uid or None  # root may read everything, as we may
        self._groups: frozenset[int] | None = None
        self.until = time.monotonic() + _LASTS

    def may(self, found: os.stat_result, bit: int) -> bool:
        if self._uid is None:
            return True
        if found.st_uid == self._uid:
            return bool(found.st_mode & bit << 6)
        if self._groups is None:
            self._groups = groups_of(self._uid)
        return bool(found.st_mode & (bit << 3 if found.st_gid in self._groups else bit))


class Fingerprints:
    """Hashes of scripts; an unchanged file is not read again."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._readers: dict[int | None, _Reader] = {}

    def of(self, path: str, uid: int | None = None) -> str:
        """The hash of a script; empty if it is no text that this user (None: our own) may read."""
        reader = self._readers.get(uid)
        if reader is None or time.monotonic() > reader.until:
            reader = self._readers[uid] = _Reader(uid)
        try:
            real = os.path.realpath(path)
            folder = _folder(real, reader)
        except (OSError, ValueError):  # gone, out of reach, or no path at all
            return ""
        try:
            return self._in(folder, real, reader)
        except OSError:
            return ""
        finally:
            os.close(folder)

    def _in(self, folder: int, real: str, reader: _Reader) -> str:
        name = os.path.basename(real)
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not _is_fit(found, reader):
            return ""
        known = self._known.get(real)
        if known is None or known.mark != _mark(found):
            known = _read(name, folder, reader)
            if len(self._known) >= _KEPT:
                self._known = {}
            self._known[real] = known
        return known.digest


def _folder(real: str, reader: _Reader) -> int:
    """The folder of a file, opened step by step, so that no part can be swapped; all let the user pass."""
    folder = os.open("/", _FOLDER)
    try:
        for name in real.split("/")[1:-1]:
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
            if not reader.may(os.fstat(folder), _PASS):
                raise PermissionError(f"{name} is closed to them")
    except OSError:
        os.close(folder)
        raise
    return folder


def _read(name: str, folder: int, reader: _Reader) -> _Known:
    file = os.open(name, _FLAGS, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not _is_fit(found, reader):  # another one took its place
            return _Known((), "")
        with os.fdopen(os.dup(file), "rb") as stream:
            data = stream.read(MOST + 1)
    finally:
        os.close(file)
    return _Known(_mark(found), _hash(data) if len(data) <= MOST and b"\0" not in data[:_HEAD] else "")


def _is_fit(found: os.stat_result, reader: _Reader) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size <= MOST and reader.may(found, _READ)


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def digest_of(script: str) -> str:
    """The hash of a script given as text; the same as that of a file with this text."""
    return _hash(os.fsencode(script))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
