"""Processes that tests start beside themselves, and that die with them, however that happens."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_EPHEMERAL = 32768  # from here on the kernel gives ports to whoever connects somewhere
_KILLED_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
_starter = ThreadPoolExecutor(1)  # the kernel means the thread that started it: this one lives as long as we do


def free_port() -> int:
    """A port that nobody listens at, nor gets by connecting somewhere: a server may come back to it after a while."""
    while True:
        port = random.SystemRandom().randrange(20000, _EPHEMERAL)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port


def spawn(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to the end of a file; it is killed when this process ends."""
    words = [*(_KILLED_WITH_US if shutil.which("setpriv") else ()), *map(str, command)]

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                words, env=environment or os.environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    return _starter.submit(start).result()


def kill(process: subprocess.Popen[bytes] | None) -> None:
    """End a process at once, if it runs."""
    if process is not None and process.poll() is None:
        process.kill()
    if process is not None:
        process.wait()
