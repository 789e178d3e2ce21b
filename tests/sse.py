"""Who follows server-sent events, byte by byte as they come: what the daemon really sends is what counts."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.yard import PATIENCE, Yard


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the daemon's Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("gpuyard", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@contextlib.contextmanager
def asked(yard: Yard, target: str, headers: Mapping[str, str] | None = None) -> Iterator[http.client.HTTPResponse]:
    """An answer, of which nothing but the head was read."""
    with contextlib.closing(UnixConnection(yard.client.socket)) as connection:
        connection.request("GET", target, headers=dict(headers or {}))
        with connection.getresponse() as answer:
            yield answer


def get(yard: Yard, target: str, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    """A whole answer: status, headers in lower case, body."""
    with asked(yard, target, headers) as answer:
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


class Event(NamedTuple):
    """What a client of server-sent events gets."""

    id: str
    kind: str
    data: Any


class Events:
    """A stream of events, and the number to go on from if it ends."""

    def __init__(self, yard: Yard, query: str = "", last: str = "") -> None:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        self.last = last
        self.retry = ""
        self.comments = 0
        self._open = contextlib.ExitStack()
        self.answer = self._open.enter_context(asked(yard, f"/api/v1/events{query}", headers))
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.getheader("content-type", "").startswith("text/event-stream")

    def __iter__(self) -> Iterator[Event]:
        """Events as the standard says: without data there is none, but the number counts."""
        kind, data = "", ""
        for raw in self.answer:
            line = raw.decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if not line:
                if data:
                    yield Event(self.last, kind, json.loads(data))
                kind, data = "", ""
            elif not name:
                self.comments += 1
            elif name == "id":
                self.last = value
            elif name == "event":
                kind = value
            elif name == "data":
                data = value
            elif name == "retry":
                self.retry = value
            else:
                raise AssertionError(f"no field of an event: {line!r}")

    def take(self, count: int) -> list[Event]:
        """The next events."""
        found = iter(self)
        return [next(found) for _ in range(count)]

    def until(self, kind: str, job: str) -> list[Event]:
        """All up to one of a kind that happened to a job."""
        taken = []
        for event in self:
            taken.append(event)
            if (event.kind, event.data["job"]) == (kind, job):
                return taken
        raise AssertionError(f"the stream ended before {kind} of job {job}: {taken}")

    def close(self) -> None:
        """Hang up."""
        self._open.close()
