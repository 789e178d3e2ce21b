"""The listening sockets, and which process is at the other end of a connection."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpuyard.client.transport import reachable
from gpuyard.engines.local.processes import look, spare_files
from gpuyard.errors import UserError, is_passing
from gpuyard.server.auth.hosts import is_loopback, network_of

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_ENDS = struct.Struct("!HH")
_REST = struct.Struct("=I8s")
_ANSWER = struct.Struct("=4B")
_OWNER = struct.Struct("=5I")
_ANY_COOKIE = b"\xff" * 8
_CONNECTED = (1, 4, 5)  # states in which one can have sent us something: established, or done with that
_ID = 48  # bytes of the two ends, as the kernel writes them


class RemoteSocket(NamedTuple):
    uid: int
    inode: int


def far_end(connection: socket.socket) -> RemoteSocket | None:
    """The owner of the other end of a connection within this machine; None if the kernel does not tell."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        found = _query_kernel(connection.family, there, here)
        connection.getpeername()  # fails after a reset: another process may have got the port
    except (OSError, struct.error):
        return None
    return found if found is not None and _is_own_request(found) else None


def _is_own_request(far: RemoteSocket) -> bool:
    """Whether its user sent the request, and not the daemon itself (a notification to its own URL, say).

    If the daemon is root's, also not root in a container, who should not be root here.
    """
    if far.uid != os.geteuid():
        return True
    if far.uid != 0:
        return not _has_open("self", f"socket:[{far.inode}]")
    pid = process_with(far)
    return pid is not None and pid != os.getpid() and _namespace(pid) == _namespace(os.getpid())


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def process_with(far: RemoteSocket) -> int | None:
    """A process that has this socket open; None if we may see none."""
    target = f"socket:[{far.inode}]"
    pids = sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)
    return next((pid for pid in pids if _has_open(str(pid), target)), None)  # the newest first: most clients are


def opener_of(far: RemoteSocket) -> int | None:
    """The process that opened this socket, and not a child that inherited it."""
    pid = process_with(far)
    while pid is not None and (process := look(pid)) is not None:
        if not _has_open(str(process.parent), f"socket:[{far.inode}]"):
            break
        pid = process.parent
    return pid


def _has_open(pid: str, target: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:  # it has ended, or we may not see its files
        return False
    return any(_link(f"{folder}/{number}") == target for number in numbers)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _query_kernel(family: int, source: tuple[str, int], target: tuple[str, int]) -> RemoteSocket | None:
    ends = _ENDS.pack(source[1], target[1])
    for address in (source[0], target[0]):
        ends += socket.inet_pton(family, address).ljust(16, b"\0")
    every_state = 0xFFFFFFFF
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, every_state) + ends + _REST.pack(0, _ANY_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + body)
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:  # no such socket
        return None
    if _ANSWER.unpack_from(answer, _HEADER.size)[1] not in _CONNECTED:  # of another process, still connecting
        return None
    *_, uid, inode = _OWNER.unpack_from(answer, _HEADER.size + _ANSWER.size + _ID)
    return RemoteSocket(uid, inode) if inode else None


_CREDENTIALS = struct.Struct("3i")
_MOST_EACH = 250  # connections of one user
_BACKLOG = 4096  # connections that wait to be taken
_REFUSED_AT_ONCE = 20
_AT_ONCE = 4  # connections that are taken before the first of them is looked at
_MAKES_ROOM = 0.05  # seconds between connections that are made room for where a user has too many
_PAUSE = 0.5  # seconds; asyncio comes back after one
_CROWDED = json.dumps(
    {"title": "Unavailable", "status": 503, "detail": "you have too many connections open; close some, and try again"}
).encode()
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_CROWDED), _CROWDED)
)
_PAGE_USER = -1  # stands for a user's number
_MOST_HEAD = 2**17  # bytes of a request without its body
_HEAD_TIME, _BODY_TIME = 30.0, 300.0  # seconds in which a request's head, and then its body, must have come


class Peer(NamedTuple):
    pid: int
    uid: int
    gid: int


def most_connections() -> int:
    """How many connections the limit of open files leaves room for."""
    return spare_files() // 2


class AcceptedSocket(socket.socket):
    """An accepted connection, which nobody counts until it has a protocol; with TLS, until its handshake is over."""

    waiting: ClassVar[dict[int, str]] = {}  # networks of clients, by file descriptor; empty: no TLS

    def close(self) -> None:
        self.waiting.pop(self.fileno(), None)
        super().close()


class Listener(socket.socket):
    """A listening socket that takes a few connections at once, and rests where no file descriptor is left.

    asyncio would take all that wait before it looks at the first of them, and go on trying where it cannot.
    """

    _rest_until = 0.0

    def listen(self, backlog: int = 0) -> None:
        """Let clients wait; asyncio would let only as many wait as it takes at once."""
        super().listen(_BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        if self._is_busy() or time.monotonic() < self._rest_until:
            raise BlockingIOError
        try:
            taken, address = self._next()
        except OSError as error:
            if is_passing(error) and not isinstance(error, BlockingIOError):
                self._rest_until = time.monotonic() + _PAUSE
            raise
        connection = AcceptedSocket(self.family, self.type, self.proto, fileno=taken.detach())
        AcceptedSocket.waiting[connection.fileno()] = ""
        return connection, address

    def _next(self) -> tuple[socket.socket, Any]:
        """The next connection; those of a flood are refused at once while others wait behind them."""
        taken, address = super().accept()
        with suppress(OSError):  # no other waits
            for _ in range(_REFUSED_AT_ONCE):
                if not PeerProtocol.is_flooded_by(taken):
                    break
                other, where = super().accept()
                with taken, suppress(OSError):  # it has gone
                    taken.send(_REFUSAL)
                taken, address = other, where
        return taken, address

    def _is_busy(self) -> bool:
        return sum(not whose for whose in AcceptedSocket.waiting.values()) >= min(_AT_ONCE, most_connections())


class TlsListener(Listener):
    """A listening socket that drops connections of clients with too many unfinished handshakes."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        AcceptedSocket.waiting[connection.fileno()] = whose = network_of(str(address[0]))
        networks, most = [one for one in AcceptedSocket.waiting.values() if one], most_connections() // 2
        if len(networks) > most or networks.count(whose) > most // 2:
            connection.close()
            raise ConnectionAbortedError("too many connections from there are being set up")
        return connection, address


class PeerProtocol(HttpToolsProtocol):
    """HTTP, with the peer's credentials in the state of every request, and no more connections than are good for all.

    Each takes a file descriptor, and without any left the daemon could not even look after jobs. A new connection that
    is one too many takes the place of the oldest on which nothing is asked; if there is none, it is refused.
    """

    proxied: ClassVar[bool] = False  # whether a proxy of this machine sends the requests of all clients
    is_page: ClassVar[Callable[[int], bool]] = staticmethod(lambda pid: False)
    """Whether a process is the page's, which sends the requests of all viewers."""
    _open: ClassVar[dict[int | str, dict[PeerProtocol, None]]] = {}
    """Connections of each user of this machine, and of each network beyond it, the oldest first."""
    _crowded: ClassVar[dict[int | str, float]] = {}
    """When a user or a network last had too many."""
    _whose: int | str | None = None
    _most = _MOST_EACH
    _timer: asyncio.TimerHandle | None = None
    _websocket: Any = None  # the protocol that the connection was handed over to
    _head: int | None = None  # bytes of the request's head so far; None when it is complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            peer = _peer_of(connection)
            self.app_state: dict[str, Any] = {**self.app_state, "peer": peer}
            self._whose = peer.uid
            if type(self).is_page(peer.pid):
                self.app_state = {**self.app_state, "page": True}
                self._whose, self._most = _PAGE_USER, most_connections()
        elif connection is not None:
            self._look_at(connection, transport.get_extra_info("peername"))
        if connection is not None:
            AcceptedSocket.waiting.pop(connection.fileno(), None)
        self._hurry(_HEAD_TIME, transport)
        self.app_state = {**self.app_state, "abort": transport.abort, "connection": {}}  # what all its requests share
        super().connection_made(transport)
        if self._whose is not None:
            self._open.setdefault(self._whose, {})[self] = None
            self._make_room(self._whose)

    def _look_at(self, connection: socket.socket, peer: tuple[Any, ...] | None) -> None:
        """Find out who is at the other end of TCP: a user of this machine, or an address."""
        address = str(peer[0]) if peer else ""
        within = is_loopback(address)
        far = far_end(connection) if within else None
        self.app_state = {**self.app_state, "far": far}
        self._whose = network_of(address) if far is None else far.uid
        if self.proxied and within:  # the proxy has many
            self._most = most_connections()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        self._leave()

    def _leave(self) -> None:
        """Count it no more."""
        own = self._open.get(self._whose, {}) if self._whose is not None else {}
        own.pop(self, None)
        if self._whose in self._open and not own:
            del self._open[self._whose]
            self._crowded.pop(self._whose, None)

    def _hurry(self, seconds: float, transport: asyncio.Transport) -> None:
        """Close the connection after this time."""
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message_begin(self) -> None:
        self._head = 0
        self._hurry(_HEAD_TIME, self.transport)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        self._hurry(_BODY_TIME, self.transport)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The timer is for the request only: the response may take its time."""
        self._stop_timer()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Close the connection if the head is too long: all of it is kept in memory."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _MOST_HEAD:
                self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over for good; it is counted until it ends."""
        self._stop_timer()
        self.connections.discard(self)
        proxy: Any = self.ws_protocol_class
        self._websocket = proxy.take(self.scope, self.url, self.transport, self._handed_back)
        self.connections.add(self._websocket)
        self.transport.set_protocol(self._websocket)

    def _handed_back(self, error: Exception | None) -> None:
        self.connections.discard(self._websocket)
        self.connection_lost(error)

    def _make_room(self, whose: int | str) -> None:
        """Close another connection, or this one, if a user or a network, all networks, or all have too many.

        One has half of all at most, and so have networks, so that this machine's users can always connect; root can
        also where the others have all.
        """
        most, counts = most_connections(), {who: len(some) for who, some in self._open.items()}
        networks = {who: count for who, count in counts.items() if isinstance(who, str)}
        if counts[whose] > min(self._most, most // 2):
            crowded = whose
        elif isinstance(whose, str) and sum(networks.values()) > most // 2:
            crowded = max(networks, key=networks.__getitem__)
        elif sum(counts.values()) > most + (most // 8 if whose == 0 else 0):
            crowded = max(counts, key=counts.__getitem__)
        else:
            return
        idle = next((one for one in self._open[crowded] if one is not self and one.is_idle), None)
        self._crowded[crowded] = time.monotonic()
        if idle is not None:
            idle._leave()
            idle.transport.abort()
        else:
            self._leave()
            self.transport.write(_REFUSAL)
            self.transport.abort()

    @classmethod
    def is_flooded_by(cls, connection: socket.socket) -> bool:
        """Whether it is of a user or network that has too many, and for whom room was made just now.

        To find out takes little, and all others wait meanwhile: the kernel hands out connections in their order.
        """
        return bool(cls._crowded) and time.monotonic() < cls._crowded.get(_whose(connection), 0.0) + _MAKES_ROOM

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered; one that has not come completely does not count."""
        return self._websocket is None and (self.cycle is None or self.cycle.response_complete)


def _whose(connection: socket.socket) -> int | str:
    if connection.family == socket.AF_UNIX:
        return _peer_of(connection).uid
    with suppress(OSError, struct.error):
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        if not is_loopback(there[0]):
            return network_of(there[0])
        if (far := _query_kernel(connection.family, there, here)) is not None:
            return far.uid
    return ""


def _peer_of(connection: socket.socket) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def listen_on(address: str, port: int, tls: bool = False) -> socket.socket:
    family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = TlsListener if tls else Listener
    listener = kind(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # explicit, so that asyncio sets TCP_NODELAY
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices clients that vanish
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    listener.listen()
    listener.setblocking(False)
    return listener


def listen(path: Path, mode: int) -> socket.socket:
    """A listening Unix socket; a stale one of an earlier daemon is replaced."""
    with _passable(mode):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if mode & 0o007 else 0o700)
    with reachable(str(path)) as address:
        if _answers(address):
            raise UserError(f"something listens at {path} already; choose another place with --socket")
        path.unlink(missing_ok=True)
        listener = Listener(socket.AF_UNIX)
        former = os.umask(0o777 & ~mode)
        try:
            listener.bind(address)
        finally:
            os.umask(former)
    listener.listen()
    listener.setblocking(False)
    return listener


@contextmanager
def _passable(mode: int) -> Iterator[None]:
    former = os.umask(0o022 if mode & 0o007 else 0o077)
    try:
        yield
    finally:
        os.umask(former)


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
    return True
