"""Daemons that are forked from a process which has imported all of ours: that saves a second of each start.

`python -m gpuyard serve` spends nearly all of its start on imports. A nest does them once for each process of pytest;
after that a daemon begins with `fork` and runs the same `gpuyard.cli.main`. What the dynamic linker reads at its start
has a nest of its own, as a made-up NVML does. Where Python reads its environment at the start, a daemon must be a
program of its own: `fits` says so.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_READ_BY_THE_LINKER = "LD_"
_READ_AT_THE_START = ("PYTHON", "LANG", "LC_", "MALLOC_", "OMP_", "OPENBLAS_", "NUMBA_", "GPUYARD_FAULT")
_MOST = 2**20  # bytes of a request


def fits(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment may be forked from one with that of pytest."""
    names = {name for name in (*environment, *os.environ) if name.startswith(_READ_AT_THE_START)}
    return all(environment.get(name) == os.environ.get(name) for name in names)


class Hatched:
    """A process from the nest, with what tests use of a `Popen`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.returncode: int | None = None
        self.pid = int(self._line.recv(64))

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        return self._heard(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        code = self._heard(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("gpuyard", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _heard(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                said = self._line.recv(64)
            except (BlockingIOError, TimeoutError):
                return None
            assert said, "the nest is gone"
            self.returncode = os.waitstatus_to_exitcode(int(said))
            self._line.close()
        return self.returncode


def hatch(arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], log: IO[bytes]) -> Hatched:
    """Begin `gpuyard` with these arguments; it writes to the log."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = json.dumps([list(arguments), str(cwd), dict(environment)]).encode()
    with theirs:
        linked = [(name, value) for name, value in environment.items() if name.startswith(_READ_BY_THE_LINKER)]
        socket.send_fds(_nest(*sorted(linked)), [request], [theirs.fileno(), log.fileno()])
    return Hatched(ours)


@functools.cache
def _nest(*linked: tuple[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            env={**os.environ, **dict(linked)},
        )  # fmt: skip
    atexit.register(process.wait)
    atexit.register(ours.close)  # which is called first, and ends the process
    return ours


# -- in the nest ------------------------------------------------------------------------------------------------


def _serve(asked: socket.socket) -> list[str] | None:
    """Fork whenever that is asked for. Returns in each child, with its arguments, and at the end."""
    waiting: dict[int, socket.socket] = {}
    asked.settimeout(0.02)  # seconds until somebody hears at the latest that a process has ended
    while True:
        try:
            request, fds, _, _ = socket.recv_fds(asked, _MOST, 2)
        except TimeoutError:
            request = None
        while waiting:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _tell(waiting.pop(pid), status)
        if request == b"":
            return None
        if request is None:
            continue
        line, log = socket.socket(fileno=fds[0]), fds[1]
        if (pid := os.fork()) == 0:
            for other in (*waiting.values(), line, asked):
                other.close()
            arguments, cwd, environment = json.loads(request)
            return _settle(arguments, cwd, environment, log)
        os.close(log)
        line.send(str(pid).encode())
        waiting[pid] = line


def _tell(line: socket.socket, status: int) -> None:
    with line:
        try:
            line.send(str(status).encode())
        except BrokenPipeError:
            return  # nobody wants to know any more


def _settle(arguments: list[str], cwd: str, environment: dict[str, str], log: int) -> list[str]:
    """Be as a process that was just started."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(cwd)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return arguments


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    sys.path[0:1] = []  # of tests/
    import pydantic.v1  # noqa: F401 - by FastAPI, at its first route

    from gpuyard.cli import app, main  # noqa: F401
    from gpuyard.cli.daemon import up  # noqa: F401
    from gpuyard.server import serve  # noqa: F401 - all that a daemon needs

    gc.collect()
    gc.freeze()  # else each daemon would look through all of it
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv = ["gpuyard", *arguments]
        main()


if __name__ == "__main__":
    _main()
