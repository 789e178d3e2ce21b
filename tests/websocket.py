"""A browser's end of a websocket, which reads when it is told to, or never."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from tests.yard import PATIENCE


class Websocket:
    """A browser's end: just enough of RFC 6455."""

    def __init__(self, url: str, path: str, headers: dict[str, str], tls: ssl.SSLContext | None = None) -> None:
        place = urlsplit(url)
        self.socket = socket.create_connection((place.hostname, place.port), PATIENCE)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=place.hostname)
        lines = {"Host": place.netloc, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                 "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", **headers}  # fmt: skip
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.socket.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        self.stream = self.socket.makefile("rb")
        self.status = int(self.stream.readline().split()[1])
        while self.stream.readline() not in (b"\r\n", b""):
            pass

    def __enter__(self) -> Websocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def send(self, text: str) -> None:
        data = text.encode()
        size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
        self.socket.sendall(b"\x81" + size + b"\0\0\0\0" + data)

    def read(self) -> bytes:
        """The next message; empty if it is over. That it is told to end is a message of two bytes."""
        head = self.stream.read(2)
        if len(head) < 2:
            return b""
        size = head[1] & 0x7F
        if size > 125:
            size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
        return self.stream.read(size)
