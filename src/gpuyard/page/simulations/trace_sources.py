"""Traces to simulate: uploads, a folder, the daemon's history; and the cache of compiled code."""

from __future__ import annotations

import csv
import functools
import io
import os
import secrets
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any

from gpuyard.errors import UserError
from gpuyard.page.api import Api, Facts
from gpuyard.page.parts import epoch

MOST_BYTES = 64 * 2**20
_EACH, _ALL = 3, 12
_NAME = 120
_SYSTEM_CACHE = Path("/var/cache/gpuyard")


@dataclass(frozen=True, slots=True)
class Upload:
    id: str
    viewer: str
    name: str
    size: int
    file: IO[bytes]


class Uploads:
    def __init__(self) -> None:
        self._kept: list[Upload] = []

    async def add(self, viewer: str, name: str, chunks: AsyncIterator[bytes]) -> Upload:
        """Store a file; the oldest files are dropped."""
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
        return next((kept for kept in self._kept if kept.id == id and kept.viewer == viewer), None)


class TraceFolder:
    """Traces that the admin offers. The folder is opened before root is dropped, so its parents need no permissions."""

    def __init__(self, path: str) -> None:
        self._directory = -1
        try:
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if path else -1
        except OSError:
            return  # most daemons have no such folder

    def names(self) -> list[str]:
        if self._directory < 0:
            return []
        try:
            return sorted(name for name in os.listdir(self._directory) if self._is_trace(name))[:1000]
        except OSError:
            return []

    def open(self, name: str) -> IO[bytes]:
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
    return tempfile.TemporaryFile(prefix="gpuyard-")


def reopened(file: IO[bytes]) -> int:
    return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)


def make_code_cache(user: int) -> None:
    try:
        _SYSTEM_CACHE.mkdir(exist_ok=True)
        _SYSTEM_CACHE.chmod(0o755)  # whatever the umask
        own = _SYSTEM_CACHE / "page"
        own.mkdir(mode=0o700, exist_ok=True)
        os.chown(own, user, -1, follow_symlinks=False)
    except OSError:
        return  # the fallback is a temporary directory


def code_cache() -> str:
    """Directory for compiled code that only we can write to, so that code is compiled once."""
    if given := os.environ.get("GPUYARD_CACHE_DIR"):
        return given
    places = [_SYSTEM_CACHE / "page", Path(tempfile.gettempdir()) / f"gpuyard-{os.geteuid()}"]
    home = os.environ.get("HOME", "/")
    if home != "/" or os.environ.get("XDG_CACHE_HOME"):  # commands have their cache there
        places.insert(0, Path(os.environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "gpuyard")
    return str(next((place for place in places if _is_ours(place)), None) or _temporary_cache())


@functools.cache
def _temporary_cache() -> str:
    """Fallback: lives as long as this process."""
    return tempfile.mkdtemp(prefix="gpuyard-kernel-")


def _is_ours(place: Path) -> bool:
    """Whether the directory exists or can be made, and nobody else can write to it."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _clean(name: str) -> str:
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:_NAME] or "trace"


MAX_HISTORY = 50_000  # the latest jobs, at most
_PAGE = 1000
_COLUMNS = ("job", "submit", "run", "gpus", "requested", "priority", "user", "memory", "preemptible")
_SHORTEST = 0.001  # seconds; run times must be positive


async def history_trace(api: Api, since: date | None, user: str) -> tuple[IO[bytes], int]:
    begin = datetime(since.year, since.month, since.day, tzinfo=UTC) if since else None
    file = temporary()
    file.write((",".join(_COLUMNS) + "\n").encode())
    count, cursor = 0, ""
    while count < MAX_HISTORY:
        page = await api.get(
            "/history", limit=_PAGE, user=user, since=begin.isoformat() if begin else None, cursor=cursor
        )
        found = trace_rows(page["jobs"], begin.timestamp() if begin else None)
        file.write(_lines(found))
        count += len(found)
        if page["next"] is None:
            break
        cursor = page["next"].rpartition("cursor=")[2].partition("&")[0]
    if not count:
        file.close()
        raise UserError("no job of that time has run to its end, so there is nothing to simulate yet")
    file.flush()
    return file, count


def trace_rows(jobs: Iterable[Facts], begin: float | None = None) -> list[tuple[Any, ...]]:
    """A row for each job that ran, was submitted since then, and asked for a GPU."""
    ran = (job for job in jobs if job["started_at"] and job["ended_at"] and job["gpu_count"])
    return [_row(job) for job in ran if begin is None or epoch(job["submitted_at"]) >= begin]


def _row(job: Facts) -> tuple[Any, ...]:
    run = round(epoch(job["ended_at"]) - epoch(job["started_at"]) + job["ran_before"], 3)
    return (
        job["id"], epoch(job["submitted_at"]), max(run, _SHORTEST), job["gpu_count"], job["estimate"] or "",
        job["priority"], job["user"], job["gpu_memory"] or "", "false",
    )  # fmt: skip


def _lines(found: Iterable[tuple[Any, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(found)
    return text.getvalue().encode()
