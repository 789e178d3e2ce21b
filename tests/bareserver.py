"""Servers on loopback TCP that do what no daemon does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

from tests.certificates import Certificate


class Listener:
    """Takes connections one after the other, from when it is made until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                self.answer(connection)

    def answer(self, connection: socket.socket) -> None:
        """What comes of a connection; it is closed afterwards."""
        raise NotImplementedError

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Server(Listener):
    """Sends bytes, with TLS or without, from the last answer on always that; remembers what was asked."""

    def __init__(self, *answers: bytes, tls: Certificate | None = None) -> None:
        self._answers = list(answers)
        self.asked: list[bytes] = []
        self._context: ssl.SSLContext | None = None
        if tls is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls.file, tls.key)
        super().__init__()

    def answer(self, connection: socket.socket) -> None:
        with self._context.wrap_socket(connection, server_side=True) if self._context else connection as line:
            self.asked.append(line.recv(65536))
            line.sendall(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])


@contextlib.contextmanager
def answering(*answers: bytes, tls: Certificate | None = None) -> Iterator[Server]:
    server = Server(*answers, tls=tls)
    try:
        yield server
    finally:
        server.close()
