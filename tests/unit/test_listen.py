"""The daemon's socket on TCP."""

from __future__ import annotations

import socket

from gpuyard.server.listen import listen_on


def test_answers_go_out_at_once() -> None:
    """asyncio sets TCP_NODELAY where it knows that a socket is TCP; else answers wait 40 ms for the other side."""
    with listen_on("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert (accepted.proto, accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == (6, 1)
