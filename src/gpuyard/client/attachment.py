"""Between the terminal of `gpuyard run` and the job: input, output, errors, signals and the terminal's size.

Run as a script it is the job's parent (`main`), started by the daemon as the job's user: it connects to the socket of
who waits for it, gives the job their input, or a terminal of its own if theirs is one, and copies what the job writes
to its log and to them. The log comes first and never blocks. Who cannot keep up, or has gone, is left, and the job goes
on; so it does without the daemon. `Desk` is the other side. A script imports nothing of gpuyard, to start quickly.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

OUT, ERR, IN, SIZE, SIGNAL, HELLO = b"o", b"e", b"i", b"w", b"s", b"h"
_HEAD = struct.Struct("!cI")
_SIZES = struct.Struct("!HH")
_PIECE = 2**16
_MOST = 2**22  # bytes that wait for who is behind, at most
_PATIENCE = 5.0  # seconds for the other side to say what it wants
_LAST = 1.0  # seconds to hand over the rest when the job has ended


def frame(kind: bytes, data: bytes) -> bytes:
    return _HEAD.pack(kind, len(data)) + data


class Frames:
    """The messages in a stream of bytes."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._rest += data
        while len(self._rest) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._rest)
            if len(self._rest) < _HEAD.size + size:
                return
            content, self._rest = self._rest[_HEAD.size : _HEAD.size + size], self._rest[_HEAD.size + size :]
            yield kind, content


# -- the job's side -------------------------------------------------------------------------------


def main(path: str, command: list[str]) -> int:
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with suppress(OSError, ValueError):
            signal.signal(number, lambda *_: None)  # they are the job's; a handler, unlike SIG_IGN, ends with `exec`
    reached = _reach(path)
    if reached is None:  # who waited has gone: the job runs as any other
        return _execute(command)
    return _Parent(command, *reached).run()


def _reach(path: str) -> tuple[socket.socket, dict[str, Any], list[int]] | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_PATIENCE)
    try:
        connection.connect(path)
        if _peer(connection) != os.getuid():
            return None
        log = {"size": os.fstat(1).st_size, "joint": _is_same(1, 2)}
        connection.sendall(frame(HELLO, json.dumps(log).encode()))
        data, passed, _, _ = socket.recv_fds(connection, _PIECE, 1)
        [(_, wishes)] = Frames().read(data)
        return connection, json.loads(wishes), passed
    except (OSError, ValueError):
        return None


def _peer(connection: socket.socket) -> int:
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def _execute(command: list[str]) -> int:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, os.fsencode(f"gpuyard: {command[0]}: {error.strerror}\n"))
        return 127 if isinstance(error, FileNotFoundError | NotADirectoryError) else 126


class _Parent:
    def __init__(
        self, command: list[str], connection: socket.socket, wishes: dict[str, Any], passed: list[int]
    ) -> None:
        self._connection: socket.socket | None = connection
        connection.setblocking(False)
        self._frames, self._unsent, self._input = Frames(), bytearray(), bytearray()
        self._pty, self._ended = bool(wishes["pty"]), False
        self._into: int | None = None
        own, out = os.openpty() if self._pty else os.pipe()
        into = passed[0] if passed else os.open(os.devnull, os.O_RDONLY)
        if self._pty:
            self._resize(own, wishes["size"])
            self._into, into = own, out
        elif wishes["typed"]:
            into, self._into = os.pipe()
        self._sources, error = {own: (OUT, 1)}, out
        if wishes["errors"]:
            read, error = os.pipe()
            self._sources[read] = ERR, 2
        self._master, self._child = own, self._fork(command, into, out, error)
        for fd in {into, out, error}:
            os.close(fd)
        if self._into is not None:
            os.set_blocking(self._into, False)
        self._pidfd = os.pidfd_open(self._child)

    def _fork(self, command: list[str], *three: int) -> int:
        child = os.fork()
        if child:
            return child
        if self._pty:
            os.setsid()
            fcntl.ioctl(three[1], termios.TIOCSCTTY, 0)
        for number, fd in enumerate(three):
            os.dup2(fd, number)
        os._exit(_execute(command))

    def run(self) -> int:
        """Copy until the job has ended and nothing of its output is left; returns its exit code as a shell has it."""
        code, end = 0, float("inf")  # what it has left running may go on writing
        while True:
            ready = dict(self._poll(0 if self._ended else None))
            if self._pidfd in ready and not self._ended:
                code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
                self._ended, end = True, time.monotonic() + _LAST
            found = [fd for fd in ready if fd in self._sources and self._copy(fd)]
            if self._connection and (events := ready.get(self._connection.fileno())):
                self._talk(events)
            if self._into is not None and self._input and self._into in ready:
                self._feed()
            if self._ended and (not found or time.monotonic() > end):
                break
        self._hand_over()
        return 128 - code if code < 0 else code

    def _poll(self, timeout: float | None) -> list[tuple[int, int]]:
        poll = select.poll()
        for fd in self._sources:
            poll.register(fd, select.POLLIN)
        if self._connection is not None:
            events = select.POLLIN if len(self._input) < _PIECE else 0
            poll.register(self._connection, events | (select.POLLOUT if self._unsent else 0))
        if self._into is not None and self._input and self._into not in self._sources:
            poll.register(self._into, select.POLLOUT)
        elif self._into is not None and self._input:
            poll.register(self._into, select.POLLIN | select.POLLOUT)
        if not self._ended:
            poll.register(self._pidfd, select.POLLIN)
        return poll.poll(timeout)

    def _copy(self, fd: int) -> bool:
        """Copy a piece of output to the log, and queue it; whether there was any."""
        kind, log = self._sources[fd]
        os.set_blocking(fd, False)
        try:
            data = os.read(fd, _PIECE)
        except BlockingIOError:
            return False
        except OSError:  # of a terminal that nobody has open any more
            data = b""
        if not data:
            del self._sources[fd]
            return False
        rest = data
        with suppress(OSError):  # a full disk is no reason to lose the job
            while rest:
                rest = rest[os.write(log, rest) :]
        if self._connection is not None:
            self._unsent += frame(kind, data)
            self._send()
            if len(self._unsent) > _MOST:
                self._leave()
        return True

    def _send(self) -> None:
        if self._connection is None:
            return
        try:
            del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._leave()

    def _leave(self) -> None:
        """Who waits has gone, or is too far behind: what is left is in the log. Typed input ends."""
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        if not self._pty and self._into is not None and not self._input:
            self._close_input()

    def _talk(self, events: int) -> None:
        assert self._connection is not None
        if events & select.POLLOUT:
            self._send()
        if self._connection is None or not events & ~select.POLLOUT:
            return
        try:
            data = self._connection.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave()
        for kind, content in self._frames.read(data):
            self._obey(kind, content)

    def _obey(self, kind: bytes, content: bytes) -> None:
        if kind == SIZE and self._pty:
            self._resize(self._master, list(_SIZES.unpack(content)))
        elif kind == SIGNAL:
            with suppress(OSError):
                os.killpg(os.tcgetpgrp(self._master) if self._pty else os.getpgrp(), content[0])
        elif kind == IN and content:
            self._input += content
            self._feed()
        elif kind == IN and self._into is not None and not self._input:
            self._close_input()

    def _feed(self) -> None:
        if self._into is None:
            return
        try:
            del self._input[: os.write(self._into, self._input)]
        except BlockingIOError:
            return
        except OSError:  # the job reads no more
            self._input.clear()

    def _close_input(self) -> None:
        if self._into is not None and not self._pty:
            os.close(self._into)
            self._into = None

    @staticmethod
    def _resize(fd: int, size: list[int]) -> None:
        with suppress(OSError):
            fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))

    def _hand_over(self) -> None:
        """Send what is left; not to somebody who does not read."""
        end = time.monotonic() + _LAST
        while self._connection is not None and self._unsent and time.monotonic() < end:
            select.select([], [self._connection], [], 0.1)
            self._send()


# -- the side of who waits ------------------------------------------------------------------------


class Desk:
    """Where a job finds the terminal of `gpuyard run`; nobody else finds it, since the folder is private."""

    def __init__(self) -> None:
        import tempfile  # here, because the script does not need it

        self._folder = tempfile.mkdtemp(prefix="gpuyard-", dir=os.environ.get("XDG_RUNTIME_DIR") or None)
        self._listener = socket.socket(socket.AF_UNIX)
        self.connection: socket.socket | None = None
        self._pty = self._typed = False
        self.on_keys: Callable[[bytes], None] = lambda keys: None
        """Called with the keys that the job is given, if it has a terminal of its own."""
        try:
            self._path = os.path.join(self._folder, "s")
            self._listener.bind(self._path)
            self._listener.listen(1)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        import shutil

        self._listener.close()
        if self.connection is not None:
            self.connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def words(self) -> list[str]:
        """What stands before the job's command."""
        return [sys.executable, "-I", "-S", __file__, self._path]

    def attend(self, goes_on: Callable[[], bool], write: Callable[[bytes, bytes], None]) -> int | None:
        """Serve the job until it ends or leaves; returns how much of its log was shown, None if it does not come."""
        if (log := self._welcome(goes_on)) is None:
            return None
        assert self.connection is not None
        shown, counted, frames = int(log["size"]), (OUT, ERR) if log["joint"] else (OUT,), Frames()
        with self._typing() as typed:
            while True:
                ready = select.select([self.connection, *([0] if typed else ())], [], [])[0]
                if 0 in ready:
                    typed = self._pass_on()
                if self.connection not in ready:
                    continue
                try:
                    data = self.connection.recv(_PIECE)
                except OSError:
                    data = b""
                for kind, content in frames.read(data):
                    write(kind, content)
                    shown += len(content) if kind in counted else 0
                if not data:
                    return shown

    def say(self, sentence: str) -> bool:
        """Write a sentence where the terminal makes no lines; False if it does."""
        if not self._pty or self.connection is None:
            return False
        os.write(2, f"\r\n{sentence}\r\n".encode())
        return True

    def signal(self, number: int) -> bool:
        """Send the job a signal; False if it is not here."""
        return self._tell(frame(SIGNAL, bytes([number])))

    def _welcome(self, goes_on: Callable[[], bool]) -> dict[str, Any] | None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if select.select([self._listener], [], [], 0.2)[0]:
                connection = self._listener.accept()[0]
                if _peer(connection) == os.getuid() and (found := _log_of(connection)) is not None:
                    self.connection = connection
                    self._greet(connection)
                    self._listener.close()
                    return found
                connection.close()
            elif not goes_on():
                break
        self._listener.close()
        return None

    def _greet(self, connection: socket.socket) -> None:
        terminal = os.isatty(0)
        self._typed = terminal and os.tcgetpgrp(0) == os.getpgrp()  # in the background there is nothing to read
        self._pty = self._typed and os.isatty(1)
        wishes = {"pty": self._pty, "typed": self._typed, "errors": not _is_same(1, 2), "size": _size()}
        passed = [0] if not terminal and _is_open(0) else []
        socket.send_fds(connection, [frame(HELLO, json.dumps(wishes).encode())], passed)

    def _tell(self, message: bytes) -> bool:
        try:
            if self.connection is None:
                return False
            self.connection.sendall(message)
        except OSError:
            return False
        return True

    @contextmanager
    def _typing(self) -> Iterator[bool]:
        """The terminal hands over every key, if the job has one of its own, and tells when its size changes."""
        if not self._pty:
            yield self._typed
            return
        former = termios.tcgetattr(0)
        before = signal.signal(signal.SIGWINCH, lambda *_: self._tell(frame(SIZE, _SIZES.pack(*_size()))))
        self._raw(former)
        try:
            yield True
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, former)
            signal.signal(signal.SIGWINCH, before)

    def _raw(self, former: list[Any]) -> None:
        """Every key as it is, and every byte of output: the job's own terminal has made lines of it."""
        self._former, mode = former, list(former)
        mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
        mode[1] &= ~termios.OPOST
        mode[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
        mode[6] = [*mode[6]]
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSADRAIN, mode)

    def _pass_on(self) -> bool:
        """Pass keys on; False at the end of the input."""
        data = os.read(0, 1024)
        if self._pty and data == b"\x1a":  # Ctrl-Z stops us, not the job
            termios.tcsetattr(0, termios.TCSADRAIN, self._former)
            os.kill(os.getpid(), signal.SIGTSTP)
            self._raw(self._former)
            return True
        self._tell(frame(IN, data))
        if self._pty:
            self.on_keys(data)
        return bool(data)


def _log_of(connection: socket.socket) -> dict[str, Any] | None:
    connection.settimeout(_PATIENCE)
    try:
        [(_, log)] = Frames().read(connection.recv(_PIECE))
        connection.settimeout(None)
        return dict(json.loads(log))
    except (OSError, ValueError):
        return None


def _size() -> list[int]:
    try:
        return list(struct.unpack("4H", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))[:2])
    except OSError:
        return [24, 80]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _is_same(one: int, other: int) -> bool:
    """Whether two descriptors are one file, so that they need not be told apart."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return True
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
