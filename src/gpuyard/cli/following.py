"""Staying with a job until it is over, also when the daemon is restarted meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gpuyard.cli import output
from gpuyard.client import OVER, Client, Job, NoDaemon

P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE = 60.0
"""Seconds for which a daemon that was there may be away."""
_POLL = 30.0
"""Seconds for which one request waits for news."""


def patiently(call: Callable[P, T], *arguments: P.args, **settings: P.kwargs) -> T:
    """Call the daemon; if it went away, wait for it to come back: jobs outlive it."""
    end = None
    while True:
        try:
            return call(*arguments, **settings)
        except NoDaemon:
            if end is None:
                end = time.monotonic() + _PATIENCE
                output.say(f"the daemon went away; the job goes on, and this waits {_PATIENCE:.0f} s for a new daemon")
            elif time.monotonic() > end:
                raise
            time.sleep(0.2)


def follow(client: Client, job: str, offset: int = 0, attempt: int | None = None) -> None:
    """Write a job's output to stdout as it comes, from an offset on, until the job is over."""
    seen = attempt
    while True:
        part = patiently(client.log, job, offset, attempt=attempt, wait=_POLL)
        if seen not in (None, part.attempt) and offset > 0:  # it runs once more: its output begins anew
            seen, offset = part.attempt, 0
            continue
        seen, offset = part.attempt, part.next_offset
        write(part.data)
        if not part.data:
            if part.state in OVER:
                return
            time.sleep(0.05)


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
