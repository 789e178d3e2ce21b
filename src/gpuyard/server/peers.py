"""Whose process is at the other end of a TCP connection within this machine: the kernel knows, and is asked.

A Unix socket has SO_PEERCRED for this. For TCP there is the kernel's list of sockets (`sock_diag`), which has the owner
of the other end, found by its addresses; and /proc, which tells which process has that socket open.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from gpuyard.engines.processes import look

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


class Far(NamedTuple):
    """The socket at the other end."""

    uid: int
    inode: int


def far_end(connection: socket.socket) -> Far | None:
    """Who owns the other end of a connection within this machine; None if that cannot be told."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        here, there = connection.getsockname()[:2], connection.getpeername()[:2]
        found = _ask(connection.family, there, here)
        connection.getpeername()  # fails if it was reset meanwhile: then another may have got the same port
    except (OSError, struct.error):
        return None
    return found if found is not None and _speaks_for_itself(found) else None


def _speaks_for_itself(far: Far) -> bool:
    """Whether the other end is what its user wants: not ourselves, sent here by somebody's wish (a notification, say).

    And if it is root's, and we are, not out of a container: root there should not be root here.
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


def process_with(far: Far) -> int | None:
    """A process that has this socket open; None if there is none that we may see."""
    target = f"socket:[{far.inode}]"
    pids = sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True)
    return next((pid for pid in pids if _has_open(str(pid), target)), None)  # the newest first: who asks often is


def opener_of(far: Far) -> int | None:
    """The process that has this socket open, and not one that it forked meanwhile, which has it as well."""
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
    except OSError:  # it has ended, or is somebody's whose files we may not see
        return False
    return any(_link(f"{folder}/{number}") == target for number in numbers)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile, by another thread say
        return ""


def _ask(family: int, source: tuple[str, int], target: tuple[str, int]) -> Far | None:
    """Look a socket up by its own end and the other."""
    ends = _ENDS.pack(source[1], target[1])
    for address in (source[0], target[0]):
        ends += socket.inet_pton(family, address).ljust(16, b"\0")
    every_state = 0xFFFFFFFF
    body = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, every_state) + ends + _REST.pack(0, _ANY_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + body)
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:  # an error: there is no such socket
        return None
    if _ANSWER.unpack_from(answer, _HEADER.size)[1] not in _CONNECTED:  # another's, on the way to the same ends
        return None
    *_, uid, inode = _OWNER.unpack_from(answer, _HEADER.size + _ANSWER.size + _ID)
    return Far(uid, inode) if inode else None
