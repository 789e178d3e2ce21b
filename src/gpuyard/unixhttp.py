"""One HTTP request over a Unix socket.

`http.client` would do, but it imports the e-mail parser and TLS, which takes longer than the request itself. HTTP/1.0
is all that is needed: one request, one answer without chunks, and the server closes.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuyard.errors import GpuyardError, UserError

_LONGEST = 107
"""Bytes of a path that fit into a socket address on Linux."""


class NoDaemon(GpuyardError):
    """No daemon answers; start one with gpuyard up (or gpuyard serve)."""


class Answer(NamedTuple):
    """What came back; the headers' names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def request(path: str, method: str, target: str, body: bytes = b"", timeout: float = 30.0) -> Answer:
    """Send one request to the server that listens at a path."""
    head = f"{method} {target} HTTP/1.0\r\nHost: gpuyard\r\n"
    if body or method in ("POST", "PUT"):
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            with reachable(path) as address:
                connection.connect(address)
            _send(connection, f"{head}\r\n".encode("ascii") + body)
            with connection.makefile("rb") as stream:
                raw = stream.read()
    except TimeoutError as error:
        raise NoDaemon(f"the daemon at {path} did not answer within {timeout:.4g} seconds; try again") from error
    except PermissionError as error:
        raise GpuyardError(f"you may not connect to {path}; ask whoever runs that daemon") from error
    except (FileNotFoundError, NotADirectoryError, ConnectionError) as error:
        raise NoDaemon(f"no daemon answers at {path}; start one with gpuyard up (or gpuyard serve)") from error
    return _parse(raw, path)


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


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the server may have answered before it read all; the answer says why
        connection.sendall(data)


def _parse(raw: bytes, path: str) -> Answer:
    head, separator, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    cut = len(body) < int(headers.get("content-length", 0))
    if not separator or cut:
        raise NoDaemon(f"the daemon at {path} hung up in the middle of its answer; see whether gpuyard status answers")
    if not parts[0].startswith("HTTP/") or not parts[1].isdigit():
        raise GpuyardError(f"what listens at {path} is not gpuyard's daemon; give another --socket")
    return Answer(int(parts[1]), headers, body)
