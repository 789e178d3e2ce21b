"""What listens where a daemon should: answers that tests make up, also such as no daemon gives."""

from __future__ import annotations

import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any


class StandIn(ThreadingMixIn, UnixStreamServer):
    """Answers every request from a table, and remembers them."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)
        self.path = path
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[Any] = []
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}

    def __enter__(self) -> StandIn:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def finish_request(self, request: Any, client_address: Any) -> None:
        _Handler(request, ("unix", 0), self)


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        target = self.path.removeprefix("/api/v1")
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((method, target, json.loads(raw or b"null")))
        self.server.headers.append(self.headers)
        status, value = self.server.answers.get((method, target), (200, {}))
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def listen(directory: Path) -> socket.socket:
    """A socket that listens in a directory, however long its path is."""
    listening = socket.socket(socket.AF_UNIX)
    handle = os.open(directory, os.O_PATH)
    listening.bind(f"/proc/self/fd/{handle}/gpuyard.sock")
    os.close(handle)
    listening.listen()
    return listening


def answer_once(directory: Path, answer: bytes) -> None:
    """Let something that may not be a daemon answer one request."""
    listening = listen(directory)

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
