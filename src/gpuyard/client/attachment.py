"""Between the terminal of `gpuyard run` and the job: input, output, errors, signals and the terminal's size.

Run as a script it is the job's parent (`main`), started by the daemon as the job's user: it connects to the socket of
who waits for it, gives the job their input, or a terminal of its own if theirs is one, and copies what the job writes
to its log and to them. The log comes first. Who is behind is waited for while they read at all, as here: they may yet
type, or close the output. Who reads nothing for some seconds, or has gone, is left, and the job goes on; so it does
without the daemon. `Desk` is the other side. A script imports nothing of gpuyard, to start quickly.
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
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

OUT, ERR, IN, SIZE, SIGNAL, HELLO = b"o", b"e", b"i", b"w", b"s", b"h"
CLOSED, STOP, TAKEN = b"c", b"z", b"t"  # nobody reads this; Ctrl-Z is for who waits; Ctrl-C was a key for a program
_HEAD = struct.Struct("!cI")
_SIZES = struct.Struct("!HH")
_PIECE = 2**16
_MOST = 2**22  # bytes that wait for who is behind, at most
_PATIENCE = 5.0  # seconds for the other side to say what it wants, or to read on
_LOOK = 0.2  # seconds between looks whether keys are for the job again
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


def main(path: str, command: list[str]) -> int:
    """The job's side."""
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
    with suppress(OSError, ValueError):
        connection.connect(path)
        if _peer(connection) == os.getuid():
            log = {"size": os.fstat(1).st_size, "joint": _is_same(1, 2)}
            connection.sendall(frame(HELLO, json.dumps(log).encode()))
            data, passed, _, _ = socket.recv_fds(connection, _PIECE, 1)
            [(_, wishes)] = Frames().read(data)
            return connection, json.loads(wishes), passed
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
    def __init__(self, command: list[str], peer: socket.socket, wishes: dict[str, Any], passed: list[int]) -> None:
        self._connection: socket.socket | None = peer
        peer.setblocking(False)
        self._frames, self._unsent, self._input = Frames(), bytearray(), bytearray()
        self._ended, self._last, self._master, self._read_at = False, False, -1, 0.0
        self._into: int | None = None
        self._sources = dict[int, tuple[bytes, int]]()
        into, out, error = self._ends(wishes, passed)
        self._child = self._fork(command, into, out, error)
        for fd in {into, out, error}:
            os.close(fd)
        if self._into is not None:
            os.set_blocking(self._into, False)
        self._pidfd = os.pidfd_open(self._child)

    def _ends(self, wishes: dict[str, Any], passed: list[int]) -> tuple[int, int, int]:
        """The job's input, output and errors: each a terminal where theirs is one."""
        terminals, slave = wishes["terminals"], -1
        if any(terminals):
            self._master, slave = os.openpty()
            self._resize(wishes["size"])
            self._sources[self._master] = (OUT, 1) if terminals[0] else (ERR, 2)
        out = slave if terminals[0] else self._pipe(OUT, 1)
        error = slave if terminals[1] else out if wishes["joint"] else self._pipe(ERR, 2)
        if wishes["typed"] and terminals[0]:
            self._into = self._master
            return slave, out, error
        if slave >= 0:  # theirs makes lines of the output
            mode = termios.tcgetattr(slave)
            mode[1] &= ~termios.OPOST
            termios.tcsetattr(slave, termios.TCSANOW, mode)
        if wishes["typed"]:
            into, self._into = os.pipe()
            return into, out, error
        return passed[0] if passed else os.open(os.devnull, os.O_RDONLY), out, error

    def _pipe(self, kind: bytes, log: int) -> int:
        read, write = os.pipe()
        self._sources[read] = kind, log
        return write

    def _fork(self, command: list[str], *three: int) -> int:
        child = os.fork()
        if child:
            return child
        if self._master >= 0:
            os.setsid()
            fcntl.ioctl(next(filter(os.isatty, three[1:])), termios.TIOCSCTTY, 0)
        for number, fd in enumerate(three):
            os.dup2(fd, number)
        os._exit(_execute(command))

    def run(self) -> int:
        """Copy until the job has ended and nothing of its output is left; returns its exit code as a shell has it."""
        code, end = 0, float("inf")  # what it has left running may go on writing
        while True:
            held = self._is_behind
            ready = dict(self._poll(0 if self._ended else 1000 if held else None, held))
            if self._pidfd in ready and not self._ended:
                code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
                self._ended, end = True, time.monotonic() + _LAST
            found = [fd for fd in ready if fd in self._sources and not held and self._copy(fd)]
            if held and time.monotonic() > self._read_at + _PATIENCE:
                self._leave()
            if self._connection and (events := ready.get(self._connection.fileno())):
                self._talk(events)
            if self._into is not None and self._input and self._into in ready:
                self._feed()
            if self._ended and not held and (not found or time.monotonic() > end):
                break
        self._hand_over()
        return 128 - code if code < 0 else code

    def _poll(self, timeout: float | None, held: bool) -> list[tuple[int, int]]:
        poll, sources = select.poll(), () if held else self._sources
        for fd in sources:
            poll.register(fd, select.POLLIN)
        if self._connection is not None:
            events = select.POLLIN if len(self._input) < _PIECE else 0
            poll.register(self._connection, events | (select.POLLOUT if self._unsent else 0))
        if self._into is not None and self._input:
            poll.register(self._into, select.POLLOUT | (select.POLLIN if self._into in sources else 0))
        if not self._ended:
            poll.register(self._pidfd, select.POLLIN)
        return poll.poll(timeout)

    @property
    def _is_behind(self) -> bool:
        """Whether the job's output has to wait for who reads it."""
        return self._connection is not None and not self._ended and len(self._unsent) > _MOST

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
        self._tell(frame(kind, data))
        return True

    def _tell(self, message: bytes) -> None:
        if self._connection is not None:
            self._unsent += message
            self._send()
        if self._connection is not None and self._ended and len(self._unsent) > _MOST:
            self._leave()

    def _send(self) -> None:
        try:
            if self._connection is not None:
                del self._unsent[: self._connection.send(self._unsent)]
                self._read_at = time.monotonic()
        except BlockingIOError:
            return
        except OSError:
            self._leave()

    def _leave(self) -> None:
        """Who waits has gone, or is too far behind: what is left is in the log. Typed input ends."""
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        self._feed(last=True)

    def _talk(self, events: int) -> None:
        if events & select.POLLOUT:
            self._send()
        if (connection := self._connection) is None or not events & ~select.POLLOUT:
            return
        try:
            data = connection.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave()
        for kind, content in self._frames.read(data):
            self._obey(kind, content)

    def _obey(self, kind: bytes, content: bytes) -> None:
        if kind == SIZE and self._master >= 0:
            self._resize(list(_SIZES.unpack(content)))
        elif kind == SIGNAL:
            with suppress(OSError):
                os.killpg(os.tcgetpgrp(self._master) if self._master >= 0 else os.getpgrp(), content[0])
        elif kind == CLOSED:  # so that who writes there learns of it
            for fd in [fd for fd, (which, _) in self._sources.items() if which == content and fd != self._master]:
                del self._sources[fd]
                os.close(fd)
        elif kind == IN and content:
            if self._into != self._master or not self._is_for_us(content):
                self._input += content
                self._feed()
        elif kind == IN:
            self._feed(last=True)

    def _is_for_us(self, keys: bytes) -> bool:
        """Whether keys are a Ctrl-Z that would stop the job; who waits is told, and what a Ctrl-C was for."""
        signals, lines = (termios.tcgetattr(self._master)[3] & flag for flag in (termios.ISIG, termios.ICANON))
        if b"\x03" in keys and not (signals and lines):
            self._tell(frame(TAKEN, b""))
        stops = keys == b"\x1a" and signals and os.tcgetpgrp(self._master) == self._child
        if stops:
            self._tell(frame(STOP, b""))
        return bool(stops)

    def _feed(self, *, last: bool = False) -> None:
        """Give the job what has been typed; after the last of it, the end of its input."""
        self._last = self._last or last
        try:
            if self._into is not None:
                del self._input[: os.write(self._into, self._input)]
        except BlockingIOError:
            return
        except OSError:  # the job reads no more
            self._input.clear()
        if self._into is not None and self._last and not self._input and self._into != self._master:
            os.close(self._into)
            self._into = None

    def _resize(self, size: list[int]) -> None:
        with suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))

    def _hand_over(self) -> None:
        """Send what is left; not to somebody who does not read."""
        end = time.monotonic() + _LAST
        while self._connection is not None and self._unsent and time.monotonic() < end:
            select.select([], [self._connection], [], 0.1)
            self._send()


class Desk:
    """Where a job finds the terminal of `gpuyard run`; nobody else finds it, since the folder is private."""

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self.connection: socket.socket | None = None
        self._typed = self._raw = False  # raw: the job has a terminal of its own, which gets every key
        self._closed = set[bytes]()
        self.on_keys: Callable[[bytes], None] = lambda keys: None
        """Called with the keys that the job is given, if it has a terminal of its own."""
        self._folder = self._listen()

    def _listen(self) -> str:
        import tempfile  # here, because the script does not need it

        for place in (os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp", "/var/tmp"):
            with suppress(OSError):  # it does not exist, or its name is too long
                folder = tempfile.mkdtemp(prefix="gpuyard-", dir=place or "/tmp")
                try:
                    self._path = os.path.join(folder, "s")
                    self._listener.bind(self._path)
                    self._listener.listen(1)
                except OSError:
                    os.rmdir(folder)
                    raise
                return folder
        raise OSError("cannot make a socket in /tmp, by which the job finds this terminal")

    def close(self) -> None:
        """Let nobody else in. Done once the job is here, since `gpuyard run` may be killed later."""
        import shutil

        self._listener.close()
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
        with self.connection, self._typing():
            while data := self._read():
                for kind, content in frames.read(data):
                    shown += len(content) if kind in counted else 0
                    self._obey(kind, content, write)
        return shown

    def _read(self) -> bytes:
        """What the job sends next, nothing at its end; meanwhile keys are passed on."""
        assert self.connection is not None
        while True:
            typed = self._typed and self._look()
            among = [self.connection, *([0] if typed else ())]
            ready = select.select(among, [], [], None if typed or not self._typed else _LOOK)[0]
            if 0 in ready:
                self._pass_on()
            if self.connection in ready:
                with suppress(OSError):
                    return self.connection.recv(_PIECE)
                return b""

    def _obey(self, kind: bytes, content: bytes, write: Callable[[bytes, bytes], None]) -> None:
        if kind == STOP:
            self._take_keys(False)
            os.kill(os.getpid(), signal.SIGTSTP)
            self._look(since_stop=True)
        elif kind == TAKEN:
            self.on_keys(b"")
        elif kind not in self._closed:
            try:
                write(kind, content)
            except BrokenPipeError:  # as in `gpuyard run ... | head`
                self._closed.add(kind)
                self._tell(frame(CLOSED, kind))

    def say(self, sentence: str) -> bool:
        """Write a sentence where the terminal makes no lines; False if it does."""
        if not self._raw or self.connection is None:
            return False
        os.write(2, f"\r\n{sentence}\r\n".encode())
        return True

    def signal(self, number: int) -> bool:
        """Send the job a signal; False if it is not here."""
        return self._tell(frame(SIGNAL, bytes([number])))

    def _welcome(self, goes_on: Callable[[], bool]) -> dict[str, Any] | None:
        found, end = None, time.monotonic() + _PATIENCE
        while found is None and time.monotonic() < end:
            if not select.select([self._listener], [], [], 0.2)[0]:
                if goes_on():
                    continue
                break
            connection = self._listener.accept()[0]
            if _peer(connection) == os.getuid() and (found := _log_of(connection)) is not None:
                self.connection = connection
                self._greet(connection)
            else:
                connection.close()
        self.close()
        return found

    def _greet(self, connection: socket.socket) -> None:
        terminals = [os.isatty(1), os.isatty(2)]
        self._typed = os.isatty(0) and _is_in_front()  # in the background there is nothing to read
        self._raw = self._typed and terminals[0]
        wishes = {"typed": self._typed, "terminals": terminals, "joint": _is_same(1, 2), "size": _size()}
        passed = [] if os.isatty(0) else [0]
        socket.send_fds(connection, [frame(HELLO, json.dumps(wishes).encode())], passed)

    def _tell(self, message: bytes) -> bool:
        with suppress(OSError):
            if self.connection is not None:
                self.connection.sendall(message)
                return True
        return False

    @contextmanager
    def _typing(self) -> Iterator[None]:
        """The terminal hands over every key, if the job has one of its own, and tells when its size changes."""
        self._former, self._in_front = termios.tcgetattr(0) if self._raw else [], True
        handlers = {
            signal.SIGWINCH: lambda *_: self._tell(frame(SIZE, _SIZES.pack(*_size()))),
            signal.SIGCONT: lambda *_: self._look(since_stop=True),
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._take_keys(True)
        try:
            yield
        finally:
            self._take_keys(False)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take_keys(self, taken: bool) -> None:
        """Every key as it is, and every byte of output: the job's own terminal has made lines of it."""
        with suppress(termios.error):  # the terminal has gone
            if self._raw and _is_in_front():  # else the shell has its own mode, and would stop us
                termios.tcsetattr(0, termios.TCSADRAIN, self._former)
                if taken:
                    tty.setraw(0, termios.TCSADRAIN)

    def _look(self, *, since_stop: bool = False) -> bool:
        """Whether keys are for the job: not in the background, nor where a pager reads what we write."""
        before, self._in_front = self._in_front and not since_stop, _is_in_front()
        if self._raw and self._in_front and not before:
            self._take_keys(True)
            self.signal(signal.SIGWINCH)  # to be drawn anew
        try:
            return self._in_front and (self._raw or bool(termios.tcgetattr(0)[3] & termios.ICANON))
        except termios.error:
            return False

    def _pass_on(self) -> None:
        """Pass keys on, or the end of the input."""
        data = b""
        with suppress(OSError):  # the terminal has gone
            data = os.read(0, 1024)
        self._typed = bool(data)
        self._tell(frame(IN, data))
        if self._raw:
            self.on_keys(data)


def _is_in_front() -> bool:
    with suppress(OSError):
        return os.tcgetpgrp(0) == os.getpgrp()
    return False


def _log_of(connection: socket.socket) -> dict[str, Any] | None:
    connection.settimeout(_PATIENCE)
    with suppress(OSError, ValueError):
        [(_, log)] = Frames().read(connection.recv(_PIECE))
        connection.settimeout(None)
        return dict(json.loads(log))
    return None


def _size() -> list[int]:
    for fd in (1, 2):
        with suppress(OSError):
            return list(struct.unpack("4H", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))[:2])
    return [24, 80]


def _is_same(one: int, other: int) -> bool:
    """Whether two descriptors are one file, so that they need not be told apart."""
    with suppress(OSError):
        return os.path.sameopenfile(one, other)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
