"""Real servers on this machine that notifications go to: for mail, and for webhooks."""

from __future__ import annotations

import email
import email.policy
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

from tests.yard import until


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


class Post:
    """A mail server that can be shut and opened again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.mails: list[EmailMessage] = []
        self._controller: Controller | None = None

    @property
    def url(self) -> str:
        """Where apprise sends mail through it."""
        return f"mailto://127.0.0.1:{self.port}?from=gpuyard@box.example&to=ann@example.org"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        """A mail has come."""
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        message["X-To"] = ",".join(envelope.rcpt_tos)
        self.mails.append(message)
        return "250 kept"

    def open(self) -> None:
        """Take mail."""
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()

    def shut(self) -> None:
        """Take none."""
        if self._controller is not None:
            self._controller.stop()
        self._controller = None

    def titled(self, text: str) -> list[EmailMessage]:
        """Mails with a text in their subject."""
        return [mail for mail in list(self.mails) if text in mail["Subject"]]

    def one(self, text: str) -> EmailMessage:
        """The first mail with a text in its subject, once it is there."""
        found: list[EmailMessage] = until(lambda: self.titled(text), f"a mail on {text!r}")
        return found[0]


class Hook:
    """A web server that keeps what is posted to it; at /hang it takes everything and never answers."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.released = threading.Event()
        self.hanging = 0
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.startswith("/hang"):
                    hook.hanging += 1
                    hook.released.wait()
                    self.close_connection = True
                    return
                sender = uid_of(self.client_address[1])
                hook.posts.append({**json.loads(body), "path": self.path, "sender": sender})
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def of(self, job: str) -> list[dict[str, Any]]:
        """What was posted of a job."""
        return [post for post in list(self.posts) if post.get("job") == job]

    @contextmanager
    def running(self) -> Iterator[Hook]:
        """Answer until the end."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def uid_of(port: int) -> int | None:
    """Who has a connection from this port, as the kernel says."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        if parts[1].endswith(f":{port:04X}"):
            return int(parts[7])
    return None
