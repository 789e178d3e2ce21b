"""A server on loopback TCP, with TLS or without, that sends bytes which no daemon may send."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

from tests.certificates import Certificate


class Server:
    """Answers connections one after the other, from the last answer on with that; remembers what was asked."""

    def __init__(self, *answers: bytes, tls: Certificate | None = None) -> None:
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked: list[bytes] = []
        self._context: ssl.SSLContext | None = None
        if tls is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls.file, tls.key)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                line = self._context.wrap_socket(connection, server_side=True) if self._context else connection
                with line:
                    self.asked.append(line.recv(65536))
                    line.sendall(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextlib.contextmanager
def answering(*answers: bytes, tls: Certificate | None = None) -> Iterator[Server]:
    server = Server(*answers, tls=tls)
    try:
        yield server
    finally:
        server.close()
