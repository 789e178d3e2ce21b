"""HTTP over a given connection, the Unix socket, and what refusals mean."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple, Protocol, cast

from gpuyard.errors import GpuyardError, UserError

_LONGEST_LINE = 2**16
_MOST_HEADERS = 100
_PIECE = 2**16


class NoDaemon(GpuyardError):
    """No daemon answers; start one with gpuyard up (or gpuyard serve)."""


class HungUp(NoDaemon):
    """The daemon hung up before it had answered, so what was asked of it may have been done, or not."""


class Request(NamedTuple):
    """What is asked for."""

    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Answer(NamedTuple):
    """What came back; the headers' names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Way(Protocol):
    """How a daemon is reached."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def host(self) -> str:
        """The daemon's name, as it is told."""
        ...

    @property
    def base(self) -> str:
        """What comes before all paths."""
        ...

    @property
    def advice(self) -> str:
        """What to do if something else listens there."""
        ...

    def connect(self, timeout: float) -> socket.socket:
        """A new connection; NoDaemon if there is none to be had."""
        ...

    def misunderstanding(self) -> GpuyardError | None:
        """Why who listens there hangs up on us, if it is the wrong way to speak to them."""
        ...


def send(way: Way, request: Request, timeout: float = 30.0) -> Answer:
    """Send one request, and read all of the answer."""
    with stream(way, request, timeout) as reply:
        return Answer(reply.status, reply.headers, reply.read())


@contextlib.contextmanager
def stream(way: Way, request: Request, timeout: float = 30.0) -> Iterator[Reply]:
    """Send one request; the answer's body is read as it comes. No pause in it may be longer than `timeout`."""
    data = _head(way, request) + request.body
    with way.connect(timeout) as connection, connection.makefile("rb") as file:
        try:
            with _told(way, timeout), contextlib.suppress(BrokenPipeError):
                connection.sendall(data)  # the server may have answered before it read all; the answer says why
            reply = Reply(way, file, timeout)
        except HungUp as error:
            why = None if isinstance(error.__cause__, TimeoutError) else way.misunderstanding()
            raise why or error from error.__cause__
        yield reply


def check_header(what: str, value: str) -> str:
    """A text that may stand in a header; it is not told, since it may be a secret."""
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise UserError(f"{what} must be letters, digits and marks of ASCII, without blanks")
    return value


class Reply:
    """An answer whose body is still to come."""

    def __init__(self, way: Way, file: BinaryIO, timeout: float) -> None:
        self._way, self._file, self._timeout = way, file, timeout
        with _told(way, timeout):
            self.status, self.headers = self._head()

    def read(self) -> bytes:
        """All of the body."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The body, piece by piece as it comes; HungUp if it is cut."""
        length = self.headers.get("content-length", "")
        with _told(self._way, self._timeout):
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                yield from self._chunks()
            elif length:
                yield self._exactly(self._number(length, 10))
            else:
                while data := cast("bytes", self._file.read1(_PIECE)):  # type: ignore[attr-defined]
                    yield data

    def _head(self) -> tuple[int, dict[str, str]]:
        parts = self._line().split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/") or not parts[1].isdigit():
            raise self._strange()
        headers: dict[str, str] = {}
        for _ in range(_MOST_HEADERS):
            if not (line := self._line()):
                return int(parts[1]), headers
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        raise self._strange()

    def _line(self) -> str:
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise self._cut()
        return line.decode("latin-1").rstrip("\r\n")

    def _chunks(self) -> Iterator[bytes]:
        while size := self._number(self._line().partition(";")[0], 16):
            yield self._exactly(size)
            self._line()
        while self._line():  # what may follow the last chunk
            pass

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise self._cut()
        return data

    def _number(self, text: str, base: int) -> int:
        try:
            number = int(text, base)
        except ValueError:
            number = -1
        if number < 0:
            raise self._strange()
        return number

    def _cut(self) -> HungUp:
        return HungUp(
            f"the daemon at {self._way.name} hung up in the middle of its answer; see whether gpuyard status answers"
        )

    def _strange(self) -> GpuyardError:
        return GpuyardError(f"what listens at {self._way.name} is not gpuyard's daemon; {self._way.advice}")


def _head(way: Way, request: Request) -> bytes:
    lines = [f"{request.method} {way.base}{request.target} HTTP/1.1", f"Host: {way.host}", "Connection: close"]
    if request.body or request.method in ("POST", "PUT"):
        lines += ["Content-Type: application/json", f"Content-Length: {len(request.body)}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    return "\r\n".join((*lines, "", "")).encode("ascii")


@contextlib.contextmanager
def _told(way: Way, timeout: float) -> Iterator[None]:
    """What goes wrong with a connection, as a sentence."""
    try:
        yield
    except TimeoutError as error:
        raise HungUp(f"the daemon at {way.name} did not answer within {timeout:.4g} seconds; try again") from error
    except OSError as error:  # of TLS as well
        raise HungUp(
            f"the daemon at {way.name} hung up before it answered; see whether gpuyard status answers"
        ) from error


_LONGEST = 107
"""Bytes of a path that fit into a socket address on Linux."""


class UnixWay:
    """To a daemon by the path of its socket."""

    host = "gpuyard"
    base = ""
    advice = "give another --socket"

    def __init__(self, path: str) -> None:
        self.name = path

    def connect(self, timeout: float) -> socket.socket:
        """A new connection; NoDaemon if there is none to be had."""
        if not hasattr(socket, "AF_UNIX"):
            raise UserError("gpuyard's daemon runs on Linux; say where, as in --host https://box:62333 (GPUYARD_HOST)")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            with reachable(self.name) as address:
                connection.connect(address)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise self._refused(error, timeout) from error
            raise
        return connection

    def misunderstanding(self) -> None:
        """There is one way only to speak to a socket."""

    def _refused(self, error: OSError, timeout: float) -> Exception:
        if isinstance(error, TimeoutError):
            return NoDaemon(f"the daemon at {self.name} did not answer within {timeout:.4g} seconds; try again")
        if isinstance(error, PermissionError):
            return GpuyardError(f"you may not connect to {self.name}; ask whoever runs that daemon")
        if isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionError):
            return NoDaemon(f"no daemon answers at {self.name}; start one with gpuyard up (or gpuyard serve)")
        return error


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """An address for a socket's path: through a descriptor of its directory where the path is too long for one."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield path
        return
    directory, name = os.path.split(path)
    if len(os.fsencode(name)) > _LONGEST // 2:
        raise UserError(f"the name of the socket {path} is too long; give a shorter one")
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)


_AWAY = (502, 503, 504)
"""What a proxy answers while the daemon behind it is away."""
_ELSEWHERE = (403, 404, 405, 501)
"""What servers answer that know nothing of our paths; a daemon says so in JSON."""


class Refused(GpuyardError):
    """The daemon said no."""

    def __init__(self, status: int, message: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class Invalid(Refused, UserError):
    """The daemon cannot make sense of the request."""


def refusal(answer: Answer, url: str = "", token: bool = False) -> GpuyardError:
    """An answer that is none, as an error; with the daemon's URL if it is elsewhere, and whether a token was sent."""
    text = _detail(answer)
    if url and text is None and answer.status in _AWAY:
        return NoDaemon(f"there is a proxy at {url}, but no daemon behind it answers; see whether it is up there")
    if url and answer.status in _ELSEWHERE and not _is_json(answer):
        return stranger(url)
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "elsewhere")
        return GpuyardError(f"{url or 'the daemon'} sends to {where}; give the address there, if you trust it")
    kind = Invalid if answer.status in (400, 422) else Refused
    return kind(answer.status, _sentence(answer, text, url, token))


def stranger(url: str) -> GpuyardError:
    """Somebody answers, and it is no daemon."""
    return GpuyardError(f"what answers at {url} is not gpuyard; check the host, the port and the path")


def _is_json(answer: Answer) -> bool:
    try:
        json.loads(answer.body)
    except ValueError:
        return False
    return True


def _detail(answer: Answer) -> str | None:
    """The daemon's own sentence."""
    try:
        problem = json.loads(answer.body)
        text = problem.get("detail") or problem.get("title")
    except (ValueError, AttributeError):
        return None
    return text if isinstance(text, str) else None


def _sentence(answer: Answer, text: str | None, url: str, token: bool) -> str:
    if answer.status == 401 and url and token:
        why = text or "it may be over, or revoked"
        return f"{url} does not take this token: {why} (gpuyard login {url} stores another)"
    if answer.status == 401 and url:
        return f"{url} wants to know who you are: gpuyard login {url} stores a token, or set GPUYARD_TOKEN"
    if answer.status == 421:
        return text or (
            f"the daemon at {url} does not go by that name; reach it by another, or let its admin add this one to the "
            "setting allowed_hosts"
        )
    if answer.status == 429:
        seconds = answer.headers.get("retry-after", "")
        wait = f" (try again in {seconds} s)" if seconds.isdigit() else ""
        return f"{text or 'too many requests that failed'}{wait}"
    return text or f"the daemon answered {answer.status}; see its log with gpuyard status"
