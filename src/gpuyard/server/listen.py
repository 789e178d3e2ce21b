"""The sockets: made by us, the Unix one with the mode that we want, and telling who is at the other end."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpuyard.errors import UserError
from gpuyard.server.peers import far_end
from gpuyard.unixhttp import reachable

_CREDENTIALS = struct.Struct("3i")
_MOST_EACH = 250  # connections of one user
_MOST_HEAD = 2**17  # bytes of a request without its body


class Peer(NamedTuple):
    """The process at the other end, as the kernel says."""

    pid: int
    uid: int
    gid: int


class PeerProtocol(HttpToolsProtocol):
    """HTTP, with the peer's credentials in the state of every request, and no more connections than are good for all.

    Each takes a file descriptor, and without any left the daemon could not even look after jobs.
    """

    _open: ClassVar[Counter[int]] = Counter()
    """How many connections each user has."""
    _uid: int | None = None
    _head: int | None = None
    """How much of a request's head has come; None when it is complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask the kernel who it is."""
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            peer = Peer(*_CREDENTIALS.unpack(raw))
            self.app_state: dict[str, Any] = {**self.app_state, "peer": peer}
            self._uid = peer.uid
            self._open[peer.uid] += 1
        elif connection is not None:
            self.app_state = {**self.app_state, "far": far_end(connection) if _is_within(connection) else None}
        self.app_state = {**self.app_state, "abort": transport.abort}
        super().connection_made(transport)
        if self._uid and self._is_too_much(self._uid):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        super().connection_lost(exc)
        if self._uid is not None:
            self._open[self._uid] -= 1
            if not self._open[self._uid]:
                del self._open[self._uid]

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is over."""
        self._head = None
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Go on, unless its head never ends: that would be kept in memory until it does."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > _MOST_HEAD:
                self.transport.abort()

    def _is_too_much(self, uid: int) -> bool:
        """Whether a user has taken a fair part of what there is, or all users together half of it; root may go on."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self._open[uid] > min(_MOST_EACH, most // 4) or self._open.total() > most // 2


def _is_within(connection: socket.socket) -> bool:
    """Whether the other end is on this machine."""
    return ip_address(connection.getpeername()[0]).is_loopback


def listen_on(address: str, port: int) -> socket.socket:
    """A listening socket on TCP."""
    family, *_, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    # asyncio knows by the protocol's number that this is TCP, and lets answers go out at once (TCP_NODELAY).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # who is gone without a word is noticed
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def listen(path: Path, mode: int) -> socket.socket:
    """A listening socket at a path; one that a former daemon left behind is replaced."""
    with _passable(mode):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if mode & 0o007 else 0o700)
    with reachable(str(path)) as address:
        if _answers(address):
            raise UserError(f"something listens at {path} already; choose another place with --socket")
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        former = os.umask(0o777 & ~mode)
        try:
            listener.bind(address)
        finally:
            os.umask(former)
    listener.listen(1024)
    listener.setblocking(False)
    return listener


@contextmanager
def _passable(mode: int) -> Iterator[None]:
    """Where others may connect, they may also pass through the directories that are made for that."""
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
