"""The daemon's socket on TCP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.yard import PATIENCE
from uvicorn.server import ServerState

from gpuyard.server import sockets
from gpuyard.server.serve import PassingTroubles
from gpuyard.server.sockets import PeerProtocol, listen, listen_on

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
    monkeypatch.setattr(sockets, "spare_files", lambda: 64)
    assert asyncio.run(_kept(30)) == [False] * 14 + [True] * 16


async def _kept(count: int, *asked: int) -> list[bool]:
    """Which of so many connections are left; those that are named ask for something as soon as they are there."""
    async with asyncio.timeout(PATIENCE), _served() as connect:
        found = []
        for n in range(count):
            found.append(await connect())
            if n in asked:
                found[-1][1].write(HEAD)  # and nothing of its body
            await asyncio.sleep(0.01)
        left = [not reader._eof and reader.exception() is None for reader, _ in found]  # type: ignore[attr-defined]
        for _, writer in found:
            writer.close()
        return left


def test_who_has_too_many_connections_loses_the_oldest_on_which_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "spare_files", lambda: 16)
    assert asyncio.run(_kept(8)) == [False] * 4 + [True] * 4
    assert asyncio.run(_kept(8, 0, 2)) == [True, False, True, False, False, False, True, True]
    assert asyncio.run(_kept(6, 0, 1, 2, 3)) == [True] * 4 + [False] * 2


def test_a_user_takes_no_place_of_others_and_root_has_some_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "spare_files", lambda: 32)
    users = iter([1] * 20 + [2] * 8 + ["net"] * 20 + [3] * 2 + [0] * 4)
    monkeypatch.setattr(PeerProtocol, "_look_at", lambda self, *_: setattr(self, "_whose", next(users)))
    left = asyncio.run(_kept(54))
    shares = [left[:20], left[20:28], left[28:48], left[48:50], left[50:]]
    assert [sum(share) for share in shares] == [4, 4, 4, 2, 4], "users who come later take from those who have most"


def test_without_file_descriptors_a_listener_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(_: socket.socket) -> None:
        tried.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", fail)
    monkeypatch.setattr(sockets, "_PAUSE", PATIENCE)
    with listen_on("127.0.0.1", 0) as listener:
        with pytest.raises(OSError, match="Too many open files"):
            listener.accept()
        for _ in range(1000):
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert len(tried) == 1


def test_asyncio_takes_a_few_connections_at_once() -> None:
    with listen_on("127.0.0.1", 0) as listener, contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        taken = [stack.enter_context(listener.accept()[0]) for _ in range(4)]
        with pytest.raises(BlockingIOError):
            listener.accept()
        taken[0].close()
        stack.enter_context(listener.accept()[0])


def test_what_passes_is_logged_once_and_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    troubles, error = PassingTroubles(), OSError(errno.EMFILE, "Too many open files")
    loop = asyncio.new_event_loop()
    for _ in range(1000):
        troubles.handle(loop, {"message": "cannot accept", "exception": error})
    assert [record.exc_info for record in caplog.records] == [None]
    troubles.handle(loop, {"message": "a mistake", "exception": ValueError("x")})
    assert len(caplog.records) == 2
    loop.close()


def test_a_flood_is_refused_at_once_while_others_wait_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listen(tmp_path / "s", 0o600) as listener, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(6)]
        for one in clients:
            one.connect(str(tmp_path / "s"))
        monkeypatch.setitem(PeerProtocol._crowded, os.geteuid(), math.inf)
        taken = stack.enter_context(listener.accept()[0])
        taken.send(b"hello")
        assert clients[-1].recv(10) == b"hello", "nobody waits behind the last"
        assert all(b"you have too many connections open" in one.recv(1000) for one in clients[:-1])
        with pytest.raises(BlockingIOError):
            listener.accept()
