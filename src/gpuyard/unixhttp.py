"""The daemon of this machine: HTTP over its Unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from gpuyard.errors import GpuyardError, UserError
from gpuyard.transport import NoDaemon

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
