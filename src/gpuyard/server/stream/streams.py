"""Streaming responses, and waiting for changes."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated

from fastapi import Query, Request, Response
from starlette.types import Receive, Scope, Send

from gpuyard.daemon.store.records import Record
from gpuyard.errors import GpuyardError
from gpuyard.server.auth.permissions import Caller
from gpuyard.spec.notation import array_of

_ANYTHING = ""
_LONGEST = 30.0

Wait = Annotated[float, Query(ge=0, le=_LONGEST, description="Seconds to wait for it.")]


class Watch:
    """Lets requests wait for events of jobs; lives in the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self.over = False  # whether the daemon ends

    def committed(self, records: Iterable[Record]) -> None:
        """Called by the daemon's thread when events are on disk."""
        jobs = {record.job for record in records if record.job is not None}
        arrays = {array for job in jobs if (array := array_of(job))}
        self._loop.call_soon_threadsafe(self._wake, jobs | arrays)

    def tell(self, topic: str) -> None:
        """Wake those who wait for a topic that is no job. Called by any thread."""
        self._loop.call_soon_threadsafe(self._release, topic)

    def end(self) -> None:
        """Wake all: the daemon ends, and requests that wait are answered at once."""
        self.over = True
        self._wake(set(self._waiters))

    def _wake(self, jobs: set[str]) -> None:
        for name in (*jobs, _ANYTHING):
            self._release(name)

    def _release(self, name: str) -> None:
        for waiter in self._waiters.pop(name, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seconds: float, job: str = _ANYTHING) -> None:
        """Return when an event of the job (or any event) has come, or after the seconds."""
        waiter = self._loop.create_future()
        self._waiters[job].add(waiter)
        try:
            await asyncio.wait_for(waiter, seconds)
        except TimeoutError:
            return
        finally:
            self._waiters[job].discard(waiter)
            if not self._waiters[job]:
                del self._waiters[job]


_STUCK = 60.0  # seconds after which a client that takes no data is dropped
_MOST_EACH = 100  # streams of one user
_MOST_BY_PAGE = 400  # the same by the page, where many viewers may share a token


class Disconnected(Exception):
    """The client has disconnected."""


class TooManyStreams(GpuyardError):
    """You have too many streams open; close some."""


class StreamWriter:
    """Sends to one client, at the client's speed: a slow one delays no other."""

    def __init__(self, send: Send, allowed: Callable[[], bool]) -> None:
        self._send, self._allowed = send, allowed
        self.wake = asyncio.Event()  # set when there may be data to send, or the client has gone
        self.gone = False

    async def send(self, data: bytes) -> None:
        """Send a piece when there is room for it; raises `Disconnected`."""
        self.check()
        async with asyncio.timeout(_STUCK):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def check(self) -> None:
        """Raise `Disconnected` if the client has gone, or may not see more."""
        if self.gone or not self._allowed():
            raise Disconnected

    async def wait(self, seconds: float | None = None) -> None:
        """Return when `wake` is set, or after the seconds."""
        if self.gone:
            raise Disconnected
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        self.wake.clear()

    async def hear(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.wake.set()


Feed = Callable[[StreamWriter], Awaitable[None]]


class Stream(Response):
    def __init__(
        self,
        request: Request,
        feed: Feed,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/octet-stream",
    ) -> None:
        # The base class would set Content-Length: 0.
        self.status_code, self.media_type, self.background = status, media_type, None
        self.init_headers(headers)
        self._feed = feed
        self._allowed: Callable[[], bool] = getattr(request.state, "still_allowed", _always)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = StreamWriter(send, self._allowed)
        hearing = asyncio.create_task(writer.hear(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._feed(writer)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (Disconnected, TimeoutError):
            scope.get("state", {}).get("abort", _nothing)()
        finally:
            hearing.cancel()


class Streams:
    """Counts the streams of each user, since each takes a connection."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, bool]] = Counter()

    def check(self, caller: Caller) -> None:
        most = _MOST_BY_PAGE if caller.by_page else _MOST_EACH
        if self._open[_counted_for(caller)] >= most:
            raise TooManyStreams(f"{caller.name} follows by {most} connections already, which is the most; close some")

    @contextmanager
    def one(self, caller: Caller) -> Iterator[None]:
        whose = _counted_for(caller)
        self._open[whose] += 1
        try:
            yield
        finally:
            self._open[whose] -= 1
            if not self._open[whose]:
                del self._open[whose]

    def __len__(self) -> int:
        return self._open.total()


def _counted_for(caller: Caller) -> tuple[str, bool]:
    return caller.name, caller.by_page


def _always() -> bool:
    return True


def _nothing() -> None:
    return
