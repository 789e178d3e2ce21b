"""Connections on TCP: who takes too many, or never says what they want, is hung up on."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI

from gpuyard.server import serve, sockets

CONNECT = "import socket, sys; c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.readline()"


def with_server(act: Callable[[int], Any]) -> Any:
    """What somebody sees who talks to a server at a port."""

    async def run() -> Any:
        listener = sockets.listen_on("127.0.0.1", 0)
        server = serve._server(FastAPI(), None)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            return await asyncio.to_thread(act, listener.getsockname()[1])
        finally:
            server.should_exit = True
            await task

    return asyncio.run(run())


def test_whoever_never_says_what_they_want_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_HEAD_TIME", 0.2)

    def dawdle(port: int) -> list[bytes]:
        found = []
        for text in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(text)
                try:
                    found.append(connection.recv(100))
                except ConnectionResetError:
                    found.append(b"")
        return found

    assert with_server(dawdle) == [b"", b""]


def test_one_address_gets_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets.PeerProtocol, "_most", 3)
    monkeypatch.setattr(sockets, "far_end", lambda _: None)  # as if from another machine

    def crowd(port: int) -> list[bool]:
        connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(5)]
        found = [_is_answered(connection) for connection in reversed(connections)]  # the last: all have been taken
        for connection in connections:
            connection.close()
        return found

    assert with_server(crowd) == [True, True, True, False, False], "the oldest go, since nothing is asked there"


def _is_answered(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(100).startswith(b"HTTP/1.1 404")
    except OSError:
        return False


def test_who_is_at_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as own:
            assert sockets.far_end(own) is None, "who asks themselves was made to by somebody else"
        asked = [sys.executable, "-c", CONNECT, str(listener.getsockname()[1])]
        with subprocess.Popen(asked, stdin=subprocess.PIPE) as other:
            there = listener.accept()[0]
            found = sockets.far_end(there)
            assert found is not None
            assert (found.uid, sockets.process_with(found)) == (os.geteuid(), other.pid)
            other.communicate(b"\n")
            assert there.recv(1) == b""
            assert sockets.far_end(there) is None, "nobody is there any more"
            there.close()


@pytest.mark.root
def test_root_of_a_container_is_nobody_here() -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-p", "-f", "true"], check=False).returncode:
        pytest.skip("only root can make a namespace for processes, and not in every container; run as root")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = ["unshare", "-p", "-f", sys.executable, "-c", CONNECT, str(listener.getsockname()[1])]
        with subprocess.Popen(asked, stdin=subprocess.PIPE) as other, listener.accept()[0] as there:
            assert sockets.far_end(there) is None
            other.communicate(b"\n")
