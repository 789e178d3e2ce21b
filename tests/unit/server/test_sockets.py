"""The daemon's socket on TCP."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from tests.yard import PATIENCE
from uvicorn.server import ServerState

from gpuyard.server import sockets
from gpuyard.server.sockets import PeerProtocol, listen_on

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


def test_answers_go_out_at_once() -> None:
    """asyncio sets TCP_NODELAY where it knows that a socket is TCP; else answers wait 40 ms for the other side."""
    for tls in (False, True):
        with listen_on("127.0.0.1", 0, tls) as listener, socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert (accepted.proto, accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == (6, 1)


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Reads a request, and takes its time to answer."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@asynccontextmanager
async def _served() -> AsyncIterator[Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]]:
    """A way to connect to a server of ours in this process."""
    config = uvicorn.Config(_app, http=PeerProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    listener = listen_on("127.0.0.1", 0)
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: PeerProtocol(config=config, server_state=state, app_state={}), sock=listener
    )
    async with server:
        yield lambda: asyncio.open_connection(*listener.getsockname())


def test_a_request_comes_within_a_time_also_the_second_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_HEAD_TIME", 0.2)
    monkeypatch.setattr(sockets, "_BODY_TIME", 0.2)

    async def hung_up_after(*sent: bytes) -> int:
        """How many answers came before."""
        async with asyncio.timeout(PATIENCE), _served() as connect:
            reader, writer = await connect()
            answers = 0
            for part in sent:
                writer.write(part)
                if part.endswith(b"{}"):
                    assert b" 204 " in await reader.readuntil(b"\r\n\r\n")
                    answers += 1
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
            return answers

    assert asyncio.run(hung_up_after(HEAD + b"{}", b"GET / HTTP/1.1\r\nX")) == 1
    assert asyncio.run(hung_up_after(HEAD + b"{")) == 0
    assert asyncio.run(hung_up_after(HEAD + b"{}", HEAD + b"{}", HEAD + b"{")) == 2


def test_behind_a_proxy_connections_of_this_machine_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerProtocol, "proxied", True)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))

    async def taken() -> int:
        async with asyncio.timeout(PATIENCE), _served() as connect:
            found = [await connect() for _ in range(30)]
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await found[-1][0].readexactly(1)
            left = sum(not reader.at_eof() and reader.exception() is None for reader, _ in found)
            for _, writer in found:
                writer.close()
            return left

    assert asyncio.run(taken()) == 16
