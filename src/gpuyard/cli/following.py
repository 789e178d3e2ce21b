"""What a job writes, until it is over, and how commands tell of its end."""

from __future__ import annotations

import os
import sys
import time

from gpuyard.cli import output
from gpuyard.client import OVER, Client, Job, LogPart
from gpuyard.errors import UserError
from gpuyard.following import Log, output_of

__all__ = ["FileLog", "Log", "exit_code", "follow", "log_of", "told", "write"]

_LOOK = 0.1
"""Seconds between looks at a file that grows."""


class FileLog:
    """The file that a job's output goes to, read with the rights of whoever looks."""

    def __init__(self, client: Client, path: str) -> None:
        self._client, self.path = client, path

    def log(
        self, id: str, offset: int = 0, *, size: int = 2**20, attempt: int | None = None, wait: float = 0.0
    ) -> LogPart:
        """A piece of it; with `wait`, wait for more, or for the job's end."""
        end = time.monotonic() + wait
        while True:
            job = self._client.job(id)  # before the file is read: what it wrote last is not missed
            if attempt and attempt > job["attempt"]:
                raise UserError(f"job {id} has had {output.many(job['attempt'], 'attempt')}, not {attempt}")
            data, start, length = self._read(offset, size)
            if data or job["state"] in OVER or time.monotonic() >= end:
                return LogPart(data, start + len(data), length, job["state"], 0)  # one file for all attempts
            time.sleep(_LOOK)

    def _read(self, offset: int, size: int) -> tuple[bytes, int, int]:
        try:
            with open(self.path, "rb") as file:
                length = os.fstat(file.fileno()).st_size
                start = max(0, length + offset) if offset < 0 else offset
                start = start if start <= length else 0  # it has begun anew
                file.seek(start)
                return file.read(size), start, length
        except FileNotFoundError:
            return b"", max(offset, 0), 0


def log_of(client: Client, id: str, *, error: bool = False) -> Log:
    """Where a job's output is to be read."""
    job = client.job(id)
    if "tasks" in job:  # the daemon says which tasks there are
        return client
    path = job["error"] if error else job["output"]
    if job["error"] and job["error"] != job["output"] and not error:
        output.say(f"its errors go to {job['error']} (gpuyard logs --error {id} shows them)")
    if error and not path:
        raise UserError(f"the errors of job {id} go where its output goes; leave out --error")
    if not path or (not os.path.exists(path) and job["state"] in OVER):  # it could not be written: the daemon has why
        return client
    if client.host is not None:
        raise UserError(
            f"the {'errors' if error else 'output'} of job {id} went to {path} on that machine; read it there"
        )
    return FileLog(client, path)


def follow(log: Log, job: str, offset: int = 0, attempt: int | None = None) -> None:
    """Write a job's output to stdout as it comes, from an offset on, until the job is over."""
    for data in output_of(log, job, offset, attempt, output.say):
        write(data)


def write(data: bytes) -> None:
    """Bytes to stdout, as they are."""
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def exit_code(job: Job) -> int:
    """What a command that stands for a job ends with."""
    if job["state"] == "succeeded":
        return 0
    if job["state"] == "cancelled":
        return 130
    if job["state"] == "timeout":
        return 124
    code = job["exit_code"] or 1
    return 128 - code if code < 0 else code


def told(job: Job) -> str:
    """`job 17: failed (exit code 3)`."""
    why = job["reason"]
    if not why and job["state"] == "failed" and job["exit_code"] is not None:
        why = f"exit code {job['exit_code']}"
    return f"job {job['id']}: {job['state']}" + (f" ({why.rstrip('.')})" if why else "")
