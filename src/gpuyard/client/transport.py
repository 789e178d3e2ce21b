"""HTTP over a given connection, the Unix socket, and what refusals mean."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple, Protocol, cast

from gpuyard.errors import GpuyardError, UserError

_LONGEST_LINE = 2**16
_MOST_HEADERS = 100
_PIECE = 2**16


class NoDaemon(GpuyardError):
    """No daemon answers; start one with gpuyard up (or gpuyard serve)."""


class Away(NoDaemon):
    """The daemon has gone and may come back: it was killed, or restarts. `gpuyard down` leaves no socket behind."""


class HungUp(NoDaemon):
    """The daemon hung up before it had answered, so what was asked of it may have been done, or not."""


class Request(NamedTuple):
    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Answer(NamedTuple):
    """An HTTP response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """How a daemon is reached."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    @property
    def host(self) -> str:
        """The `Host` header."""
        ...

    @property
    def base(self) -> str:
        """Path prefix."""
        ...

    @property
    def advice(self) -> str:
        """What to do if another server listens there."""
        ...

    def connect(self, timeout: float) -> socket.socket:
        """A new connection; raises NoDaemon."""
        ...

    def protocol_mismatch(self) -> GpuyardError | None:
        """Why the server hangs up, if it expects another protocol."""
        ...


def send(transport: Transport, request: Request, timeout: float = 30.0) -> Answer:
    with stream(transport, request, timeout) as reply:
        return Answer(reply.status, reply.headers, reply.read())


@contextlib.contextmanager
def stream(transport: Transport, request: Request, timeout: float = 30.0) -> Iterator[Reply]:
    """Send a request and read the answer's body as it comes, with no pause longer than `timeout`."""
    data = _head(transport, request) + request.body
    with transport.connect(timeout) as connection, connection.makefile("rb") as file:
        try:
            with _errors_of(transport, timeout), contextlib.suppress(BrokenPipeError):
                connection.sendall(data)  # the server may answer before it has read everything; the answer says why
            reply = Reply(transport, file, timeout)
        except HungUp as error:
            why = None if isinstance(error.__cause__, TimeoutError) else transport.protocol_mismatch()
            raise why or error from error.__cause__
        yield reply


def check_header(what: str, value: str) -> str:
    """Check a header's value; the error does not show it, since it may be a secret."""
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise UserError(f"{what} must be letters, digits and marks of ASCII, without blanks")
    return value


class Reply:
    """An answer whose body is still to come."""

    def __init__(self, transport: Transport, file: BinaryIO, timeout: float) -> None:
        self._transport, self._file, self._timeout = transport, file, timeout
        with _errors_of(transport, timeout):
            self.status, self.headers = self._head()

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes; raises HungUp if it is cut."""
        length = self.headers.get("content-length", "")
        with _errors_of(self._transport, self._timeout):
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
        while self._line():  # trailers
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
        name = self._transport.name
        return HungUp(f"the daemon at {name} hung up in the middle of its answer; see whether gpuyard status answers")

    def _strange(self) -> GpuyardError:
        return GpuyardError(f"what listens at {self._transport.name} is not gpuyard's daemon; {self._transport.advice}")


def _head(transport: Transport, request: Request) -> bytes:
    lines = [
        f"{request.method} {transport.base}{request.target} HTTP/1.1",
        f"Host: {transport.host}",
        "Connection: close",
    ]
    if request.body or request.method in ("POST", "PUT"):
        lines += ["Content-Type: application/json", f"Content-Length: {len(request.body)}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    return "\r\n".join((*lines, "", "")).encode("ascii")


@contextlib.contextmanager
def _errors_of(transport: Transport, timeout: float) -> Iterator[None]:
    """Raise failures of a connection as `HungUp`."""
    name = transport.name
    try:
        yield
    except TimeoutError as error:
        raise HungUp(f"the daemon at {name} did not answer within {timeout:.4g} seconds; try again") from error
    except OSError as error:  # also errors of TLS
        raise HungUp(f"the daemon at {name} hung up before it answered; see whether gpuyard status answers") from error


_LONGEST = 107  # bytes of a path that fit into a socket address on Linux


class UnixTransport:
    host = "gpuyard"
    base = ""
    advice = "give another --socket"

    def __init__(self, path: str) -> None:
        self.name = path

    def connect(self, timeout: float) -> socket.socket:
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

    def protocol_mismatch(self) -> None:
        """A socket has only one protocol."""

    def _refused(self, error: OSError, timeout: float) -> Exception:
        if isinstance(error, TimeoutError):
            return NoDaemon(f"the daemon at {self.name} did not answer within {timeout:.4g} seconds; try again")
        if isinstance(error, PermissionError):
            return GpuyardError(f"you may not connect to {self.name}; ask whoever runs that daemon")
        if isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionError):
            kind = Away if isinstance(error, ConnectionError) and _is_socket(self.name) else NoDaemon
            return kind(f"no daemon answers at {self.name}; start one with gpuyard up (or gpuyard serve)")
        return error


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """An address for a socket's path: through a descriptor of its directory if the path is too long."""
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


_AWAY = (502, 503, 504)  # status codes of a proxy while the daemon behind it is away
_ELSEWHERE = (403, 404, 405, 501)  # status codes of other servers for our paths; a daemon would answer in JSON


class Refused(GpuyardError):
    """The daemon said no."""

    def __init__(self, status: int, message: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class Invalid(Refused, UserError):
    """The daemon cannot make sense of the request."""


def refusal(answer: Answer, url: str = "", token: bool = False) -> GpuyardError:
    """The error for an answer; `url` if the daemon is remote, `token` if one was sent."""
    text = _detail(answer)
    if url and text is None and answer.status in _AWAY:
        return NoDaemon(f"there is a proxy at {url}, but no daemon behind it answers; see whether it is up there")
    if url and answer.status in _ELSEWHERE and not _is_json(answer):
        return not_gpuyard(url)
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "elsewhere")
        return GpuyardError(f"{url or 'the daemon'} sends to {where}; give the address there, if you trust it")
    kind = Invalid if answer.status in (400, 422) else Refused
    return kind(answer.status, _sentence(answer, text, url, token))


def not_gpuyard(url: str) -> GpuyardError:
    return GpuyardError(f"what answers at {url} is not gpuyard; check the host, the port and the path")


def _is_json(answer: Answer) -> bool:
    try:
        json.loads(answer.body)
    except ValueError:
        return False
    return True


def _detail(answer: Answer) -> str | None:
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
