"""A job's output: one plain file, so that it never blocks the job, and still kept within a limit.

The job appends to the file by itself. When it has grown beyond its limit, its middle is taken out by punching a hole,
which gives the blocks back to the disk and leaves every offset as it was: the beginning and the end stay readable,
readers that follow the output keep their position, and the job notices nothing. If the file system does not support
holes, the file is left alone.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02 | 0x01  # FALLOC_FL_KEEP_SIZE, and FALLOC_FL_PUNCH_HOLE with it, of linux/falloc.h
_HEAD = 2**20
_BLOCK = 4096
_TRIM_EVERY = 1.0
_libc = ctypes.CDLL(None, use_errno=True)


class HolesUnsupported(OSError):
    """The file system can neither reserve space for a file nor give back a part of one."""


def open_log(path: Path, group: int | None = None) -> int:
    """A file descriptor that appends to the output; the file is created if need be, and writable by a group."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if group is not None:
        os.fchown(file, -1, group)
        os.fchmod(file, 0o620)
    return file


def trim(path: Path, limit: int) -> None:
    """Punch out the middle of a file that holds more than `limit` bytes; raises `HolesUnsupported`."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if min(status.st_size, status.st_blocks * 512) <= limit:
        return
    block = status.st_blksize if _BLOCK < status.st_blksize <= limit // 8 else _BLOCK
    head = min(_HEAD, limit // 10) // block * block
    tail = (limit - head) // block * block
    end = -(-status.st_size // block) * block - tail
    if end > head:
        _punch(path, head, end - head)


class Trimmer:
    """Keeps the outputs of one engine within their limits, unless the file system cannot punch holes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next = 0.0
        self._able = True

    def due(self) -> float | None:
        """When to trim running outputs, on the monotonic clock; None if that is of no use here."""
        return self._next if self._able else None

    def trim_all(self, logs: Iterable[tuple[Path, int]], now: float) -> None:
        if now < self._next:
            return
        self._next = now + _TRIM_EVERY
        for path, limit in logs:
            self.trim(path, limit)

    def trim(self, path: Path, limit: int) -> None:
        """Trim one file; a failure is only logged."""
        if not self._able:
            return
        try:
            trim(path, limit)
        except HolesUnsupported:
            self._able = False
            logger.warning("output is not limited: the file system of %s cannot punch holes", self._directory)
        except OSError as error:
            logger.warning("cannot limit the output in %s: %s", path, error.strerror)


def supports_holes(folder: Path) -> bool:
    """Whether files in this folder can have holes; tried with a file."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".holes-") as file:
        file.write(bytes(3 * _BLOCK))
        file.flush()
        try:
            _punch(Path(file.name), _BLOCK, _BLOCK)
        except HolesUnsupported:
            return False
    return True


def reserve(path: Path, length: int) -> None:
    """Take blocks of the disk for a file, which keeps its size; where the file system cannot, it has none."""
    with suppress(HolesUnsupported):
        _allocate(path, _KEEP_SIZE, 0, length)


def _punch(path: Path, offset: int, length: int) -> None:
    _allocate(path, _PUNCH_HOLE, offset, length)


def _allocate(path: Path, mode: int, offset: int, length: int) -> None:
    create = 0 if mode == _PUNCH_HOLE else os.O_CREAT
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | create, 0o600)
    try:
        if _libc.fallocate(file, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
            number = ctypes.get_errno()
            kind = HolesUnsupported if number in (errno.EOPNOTSUPP, errno.ENOSYS) else OSError
            raise kind(number, os.strerror(number), str(path))
    finally:
        os.close(file)


def size(path: Path) -> int:
    """Bytes written, kept or not; 0 if there is no file."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def read(path: Path, offset: int, length: int, *, exact: bool = False) -> tuple[int, bytes]:
    """Up to `length` bytes from `offset` on, and where to read on.

    What was taken out is not read as zeros: a line tells how many bytes there were, and the text after them follows.
    Only if it is to be `exact`, every byte stands at its place.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):  # a link is none of its output
            raise
        return 0, b""
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):  # a job may put a pipe in its place, which is not to be waited for
            return 0, b""
        end = os.fstat(file).st_size
        begin = max(0, end + offset) if offset < 0 else min(offset, end)  # a job may cut its own output short
        if exact:
            text = os.pread(file, length, begin)
            return begin + len(text), text
        data = _seek(file, begin, os.SEEK_DATA, end)
        notice = f"\n[gpuyard: {data - begin} bytes left out]\n".encode() if data > begin else b""
        until = min(data + length, _seek(file, data, os.SEEK_HOLE, end))
        text = os.pread(file, until - data, data)
        return data + len(text), notice + text
    finally:
        os.close(file)


def _seek(file: int, offset: int, what: int, end: int) -> int:
    """Where the next data, or the next hole, begins; `end` if there is none."""
    try:
        return min(end, os.lseek(file, offset, what))
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return end
        raise
