"""Starts the process of the web page, and restarts it when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from gpuyard.client.transport import reachable
from gpuyard.config import Settings
from gpuyard.engines.local.processes import MARK, OWN_MARK, reap
from gpuyard.server.sockets import listen

log = logging.getLogger("gpuyard")
_LONGEST_LINE = 2000  # characters of a line
_BURST, _REFILL = 500.0, 1.0  # lines at once, and per second


class PageLog:
    def __init__(self) -> None:
        self._left, self._since = _BURST, time.monotonic()
        self._passed_over = 0

    async def read(self, stream: IO[bytes]) -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), stream
        )
        rest = b""
        try:
            while data := await reader.read(2**14):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:_LONGEST_LINE]
                for line in lines:
                    self.write(line)
            self.write(rest)
        finally:
            transport.close()

    def write(self, line: bytes) -> None:
        """Log a line, unless there were too many recently."""
        text = line.decode(errors="replace").rstrip()[:_LONGEST_LINE].removeprefix("page: ")
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        if not text:
            return
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._since) * _REFILL)
        self._since = now
        if self._left < 1.0:
            self._passed_over += 1
            return
        self._left -= 1.0
        if self._passed_over:
            log.info("page: (%d more lines)", self._passed_over)
            self._passed_over = 0
        log.info("page: %s", text)


AS_NOBODY = "GPUYARD_PAGE_USER"  # the variable with the user that the process switches to
_PASSED = ("PYTHONPATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "GPUYARD_CACHE_DIR")
_NICENESS = 5
_QUICK = 60.0  # seconds; a process that ends sooner is restarted later and later
_LONGEST_DELAY = 30.0  # seconds between two starts
_SOON = 2.0  # seconds in which it has to end
_LOOK, _STUCK, _SLOW_START = 15.0, 60.0, 180.0  # seconds between looks, and until one that says nothing is ended
_QUESTION = b"GET /page/assets/alive HTTP/1.1\r\nHost: gpuyard\r\nConnection: close\r\n\r\n"  # any response will do


class PageSupervisor:
    """Starts the page's process, and restarts it when it ends; lives in the event loop."""

    def __init__(self, settings: Settings, command: Sequence[str] = ()) -> None:
        self._settings = settings
        self._url = ""
        self._command = command or (sys.executable, "-s", "-P", "-m", "gpuyard.page")
        self.pid: int | None = None
        self.starts = 0
        self.answers = False  # whether the current process has answered a request
        self._listener: socket.socket | None = None
        self._running: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._quick_ends = 0

    @property
    def is_on(self) -> bool:
        return self._listener is not None

    def facts(self) -> dict[str, Any]:
        state = "off" if not self.is_on else "running" if self.answers else "starting"
        return {"url": self._url if self.is_on else None, "pid": self.pid, "starts": self.starts, "state": state}

    def is_page(self, pid: int) -> bool:
        if self.pid is None:
            return False
        try:
            return os.getpgid(pid) == self.pid
        except OSError:
            return False

    def open(self, url: str) -> None:
        """Make the listening socket. If that fails, the daemon goes on without a page."""
        self._url = f"{url}/"
        try:
            self._listener = listen(self._settings.page_socket, 0o600)
        except Exception as error:
            log.error("there is no page: its socket %s cannot be made (%s)", self._settings.page_socket, error)

    async def connect(self) -> socket.socket:
        """A connection to the process; while it starts, the connection waits at the socket."""
        found = socket.socket(socket.AF_UNIX)
        try:
            found.setblocking(False)
            with reachable(str(self._settings.page_socket)) as address:
                await asyncio.get_running_loop().sock_connect(found, address)
        except BaseException:
            found.close()
            raise
        return found

    async def connect_to(self, make: Callable[[], asyncio.Protocol]) -> None:
        with reachable(str(self._settings.page_socket)) as address:
            await asyncio.get_running_loop().create_unix_connection(make, address)

    def start(self, begun: Callable[[], bool]) -> None:
        """Keep a process running until `end`, once the daemon answers requests; returns at once."""
        self._running = asyncio.create_task(self._run(begun))

    async def _run(self, begun: Callable[[], bool]) -> None:
        while not begun() and not self._over.is_set():
            await asyncio.sleep(0.02)
        while self.is_on and not self._over.is_set():
            began = time.monotonic()
            try:
                how = await self._life()
            except OSError as error:
                how = f"could not be started ({error})"
            self.pid, self.answers = None, False
            if self._over.is_set():
                return
            delay = self._delay(time.monotonic() - began)
            again = f"in {delay:.0f} s" if delay else "now"
            log.warning("the page's process %s; the queue is not affected, and it is started again %s", how, again)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), delay)

    def _delay(self, lived: float) -> float:
        """Seconds until the next start: none at first, then more and more while it ends quickly."""
        if lived >= _QUICK:
            self._quick_ends = 0
        self._quick_ends += 1
        return 0.0 if self._quick_ends == 1 else min(_LONGEST_DELAY, 2.0 ** (self._quick_ends - 2))

    def end(self) -> None:
        self._over.set()
        self._signal(signal.SIGTERM)

    async def close(self) -> None:
        self.end()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=_SOON)
            self._signal(signal.SIGKILL)
            await self._running
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._settings.page_socket.unlink(missing_ok=True)

    async def _life(self) -> str:
        """Run one process to its end; returns how it ended."""
        process = self._start()
        self.starts += 1
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:  # it ended at once, and the engine, which reaps all children, was first
            pidfd = -1
        helpers = [asyncio.create_task(PageLog().read(process.stderr))]
        try:
            if pidfd < 0:
                return "ended as it began"
            self.pid = process.pid
            os.setpriority(os.PRIO_PGRP, process.pid, _NICENESS)
            helpers.append(asyncio.create_task(self._watch()))
            if self._over.is_set():
                self._signal(signal.SIGTERM)
            await _readable(pidfd)
            return _ending(reap(pidfd))
        finally:
            self._signal(signal.SIGKILL)  # its children
            process.stdin.close()
            await asyncio.wait(helpers[:1], timeout=0.2)  # its last output
            for helper in helpers:
                helper.cancel()
            if pidfd >= 0:
                os.close(pidfd)

    def _start(self) -> subprocess.Popen[bytes]:
        assert self._listener is not None
        number = self._listener.fileno()
        process = subprocess.Popen(
            [
                *self._command, "--fd", str(number), "--socket", str(self._settings.socket),
                "--traces", str(self._settings.traces_dir),
            ],
            cwd="/", env=self._environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True, pass_fds=(number,),
        )  # fmt: skip
        process.returncode = 0  # it is reaped by its pidfd, or by the engine, and not by this object
        return process

    def _environment(self) -> dict[str, str]:
        """A part of the daemon's. `MARK` keeps the process from being taken for the remains of a job."""
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        home = "/" if self._settings.shared else os.environ.get("HOME", "/")
        found = {"PATH": "/usr/local/bin:/usr/bin:/bin", **passed, "HOME": home, MARK: OWN_MARK}
        return {**found, AS_NOBODY: "nobody"} if self._settings.shared else found

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def _watch(self) -> None:
        """Note when it answers; kill it when it has not for long, so that it is restarted."""
        while True:
            try:
                answered = await asyncio.wait_for(self._ask(), _STUCK if self.answers else _SLOW_START)
            except TimeoutError:
                break
            except OSError:
                answered = False
            self.answers = self.answers or answered
            await asyncio.sleep(_LOOK if answered else 1.0)
        log.warning("the page's process does not answer, and is ended")
        self._signal(signal.SIGKILL)

    async def _ask(self) -> bool:
        loop = asyncio.get_running_loop()
        with await self.connect() as connection:
            await loop.sock_sendall(connection, _QUESTION)
            return await loop.sock_recv(connection, 1) != b""


async def _readable(pidfd: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


def _ending(code: int | None) -> str:
    if code is None:
        return "ended"
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code} ({signal.Signals(-code).name})"
