"""`gpuyard logs` and `gpuyard wait`: print or follow a job's output, and wait until jobs end."""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from gpuyard.api.types import OVER, Job, LogPart
from gpuyard.cli.common_options import DaemonOptions, JobId, JobIds, option, option_groups
from gpuyard.cli.terminal import output
from gpuyard.client.client import Client
from gpuyard.client.follow import Log, output_of
from gpuyard.errors import UserError

_LOOK = 0.1  # seconds between looks at a file that grows


class FileLog:
    def __init__(self, client: Client, path: str) -> None:
        self._client, self.path = client, path

    def log(
        self, id: str, offset: int = 0, *, size: int = 2**20, attempt: int | None = None, wait: float = 0.0
    ) -> LogPart:
        """A piece of it; `wait`: seconds to wait for more, or for the job's end."""
        end = time.monotonic() + wait
        while True:
            job = self._client.job(id)  # before the file is read: no last output is missed
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
                start = start if start <= length else 0  # it was truncated
                file.seek(start)
                return file.read(size), start, length
        except FileNotFoundError:
            return b"", max(offset, 0), 0


def log_of(client: Client, id: str, *, error: bool = False) -> Log:
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


def write(data: bytes) -> None:
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def follow(
    log: Log, job: str, offset: int = 0, attempt: int | None = None, write: Callable[[bytes], None] = write
) -> None:
    for data in output_of(log, job, offset, attempt, output.say):
        write(data)


def exit_code(job: Job) -> int:
    if job["state"] == "succeeded":
        return 0
    if job["state"] == "cancelled":
        return 130
    if job["state"] == "timeout":
        return 124
    code = job["exit_code"] or 1
    return 128 - code if code < 0 else code


def outcome(job: Job) -> str:
    """`job 17: failed (exit code 3)`."""
    why = job["reason"]
    if not why and job["state"] == "failed" and job["exit_code"] is not None:
        why = f"exit code {job['exit_code']}"
    if why and why.startswith(job["state"]):
        return f"job {job['id']}: {why}"
    return f"job {job['id']}: {job['state']}" + (f" ({why.rstrip('.')})" if why else "")


_PIECE = 2**16  # bytes that are read at first to find the last lines


@option_groups
def logs(
    daemon: DaemonOptions,
    job: JobId,
    follow_: Annotated[bool, option("--follow", "-f", "Go on until the job is over.")] = False,
    tail: Annotated[int | None, option("--tail", "-n", "N", "Only the last N lines.", min=0)] = None,
    attempt: Annotated[int | None, option("--attempt", "N", "Of its Nth attempt (the last).", min=1)] = None,
    error: Annotated[bool, option("--error", "-e", "Its errors, if they go to a file of their own.")] = False,
    raw: Annotated[bool, option("--raw", "On a terminal: also what moves its cursor or sets its title.")] = False,
) -> None:
    """Print a job's output."""
    yard = daemon.client()
    client = log_of(yard, job, error=error)
    screen = None if raw or not sys.stdout.isatty() else ScreenFilter()
    put = write if screen is None else lambda data: write(screen.harmless(data))
    try:
        if tail is None:
            offset = _copy(client, job, attempt, put)
        else:
            text, offset = last_lines(client, job, tail, attempt)
            put(text)
        if not offset:
            _say_that_it_waits(yard, job)
        if follow_:
            follow(client, job, offset, attempt, put)
    finally:
        if screen is not None:
            write(screen.rest())


def _say_that_it_waits(client: Client, id: str) -> None:
    job = client.job(id)
    if job["state"] in ("queued", "held"):
        output.say(f"{outcome(job)}; it has no output before it starts")


class ScreenFilter:
    """Takes out of a job's output what acts on a terminal. Colours stay, and what a progress bar does in its line.

    The output comes in pieces, which may end within a sequence.
    """

    _KEPT = re.compile(r"\x1b\[[0-9;:]*[mK]")
    _CONTROL = re.compile(
        r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_k][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]*[0-~]?"
        r"|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\udc80-\udc9f]"
    )
    _UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[]PX^_k][^\x07\x1b\x9c]*\x1b?|[ -/]*)\Z")
    _LONGEST = 4096  # characters of a sequence; what goes on after that is text

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held, self._coloured = "", False

    def harmless(self, data: bytes, *, last: bool = False) -> bytes:
        text = self._held + self._decoder.decode(data, last)
        cut = None if last else self._UNFINISHED.search(text, max(0, len(text) - self._LONGEST))
        text, self._held = (text, "") if cut is None else (text[: cut.start()], text[cut.start() :])
        return self._CONTROL.sub(self._kept, text).encode(errors="surrogateescape")

    def _kept(self, found: re.Match[str]) -> str:
        kept = found[0] if self._KEPT.fullmatch(found[0]) else ""
        self._coloured = self._coloured or bool(kept)
        return kept

    def rest(self) -> bytes:
        """What was held back, and an end of colours."""
        return self.harmless(b"", last=True) + (b"\x1b[m" if self._coloured else b"")


def _copy(client: Log, job: str, attempt: int | None, write: Callable[[bytes], None]) -> int:
    """Write all output so far; returns the offset of its end."""
    offset = 0
    while True:
        part = client.log(job, offset, attempt=attempt)
        write(part.data)
        offset = part.next_offset
        if not part.data:
            return offset


def last_lines(client: Log, job: str, count: int, attempt: int | None = None) -> tuple[bytes, int]:
    """The last lines of a job's output, read backwards as far as needed, and the offset of its end."""
    part = client.log(job, -_PIECE, size=_PIECE, attempt=attempt)
    text, end = part.data, part.next_offset
    start = end - len(text)
    size = _PIECE
    while start > 0 and text.rstrip(b"\n").count(b"\n") < count:
        size = min(2 * size, 2**24, start)
        text = client.log(job, start - size, size=size, attempt=attempt).data + text
        start -= size
    found = text.splitlines(keepends=True) if count else []
    return b"".join(found[-count:]), end


@option_groups
def wait(
    daemon: DaemonOptions,
    jobs: JobIds,
    timeout: Annotated[str | None, option("--timeout", "TIME", "Give up after that, with exit code 124.")] = None,
    json: Annotated[bool, option("--json", "Print the jobs as JSON.")] = False,
) -> None:
    """Wait until jobs are over; the exit code tells how they ended."""
    from gpuyard.cli.jobs.job_options import duration
    from gpuyard.cli.terminal.text_table import print_rows

    client = daemon.client()
    found = [client.job(id) for id in dict.fromkeys(jobs)]  # an unknown id fails here
    found, in_time = _await(client, found, duration("--timeout", timeout), quiet=json)
    if json:
        print_rows(found)
    if not in_time:
        raise typer.Exit(124)
    if len(found) == 1:
        raise SystemExit(exit_code(found[0]))  # not typer.Exit: 130 would be taken for our own interruption
    raise typer.Exit(int(any(job["state"] != "succeeded" for job in found)))


def _await(client: Client, jobs: list[Job], timeout: float | None, quiet: bool) -> tuple[list[Job], bool]:
    from gpuyard.client.retry import patiently

    end = None if timeout is None else time.monotonic() + timeout
    found = []
    for job in jobs:
        while job["state"] not in OVER and (end is None or time.monotonic() < end):
            left = 30.0 if end is None else end - time.monotonic()
            job = patiently(client.job, job["id"], wait=left, say=output.say)
            time.sleep(0.0 if job["state"] in OVER else 0.02)
        found.append(job)
        if not quiet:
            output.say(outcome(job))
    return found, all(job["state"] in OVER for job in found)
