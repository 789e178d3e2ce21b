"""The event log as JSON or as server-sent events, and the hub that sends new events to all followers."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from fastapi import Header, Query, Request, Response

from gpuyard.api import replies
from gpuyard.daemon.store.reader import EventFilter, Reader
from gpuyard.daemon.store.records import KINDS
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.context import Context
from gpuyard.server.responses import encoded, event_json, reply
from gpuyard.server.routing import AT, NO_JOB, Route, ok
from gpuyard.server.stream.streams import Stream, StreamWriter, Wait, Watch
from gpuyard.spec.notation import array_of

log = logging.getLogger("gpuyard")
_PAUSE = 0.05  # seconds between reads while there are events: many cost little more than one
_LOOK = 5.0  # seconds between reads while there are none
_BEAT = 12.0  # seconds of silence after which a comment is sent
_RETRY = 1000  # milliseconds until a client reconnects
_MOST_EVENTS, _MOST_BYTES = 5000, 2**22  # what the ring holds
_FEW = 50  # events that are read without a thread
_PAGE = 500  # events that are read at once
_PIECE = 2**16  # bytes that are sent at once
_STRIDE = 20_000  # events that are searched at once for the few that match
_EVERYTHING = EventFilter()
_SKIPPED = 1000  # events without a match after which the position is sent


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    seq: int
    kind: str
    job: str
    user: str  # the owner of the job
    data: bytes


class EventChunk(NamedTuple):
    """Events after a position: their bytes, the number of the last one, and the position that was reached."""

    data: bytes
    last: int
    reached: int


class EventHub:
    """Reads new events once, and sends them to all followers; lives in the event loop."""

    def __init__(self, last: Callable[[], int], reader: Callable[[], Reader], watch: Watch) -> None:
        self._log_end, self._reader, self._watch = last, reader, watch
        self._writers: set[StreamWriter] = set()
        self._ring: list[EncodedEvent] = []
        self._size = 0
        self._begin = self._end = 0  # the ring has the events after `_begin` and up to `_end`
        self._joined: dict[int, EventChunk] = {}
        """Chunks for followers of all events, most of whom are at the same position."""
        self._reading: asyncio.Task[None] | None = None
        self._pages = ThreadPoolExecutor(1, "events")

    def __len__(self) -> int:
        return len(self._writers)

    async def follow(self, writer: StreamWriter, after: int | None, wanted: EventFilter) -> None:
        """Send the events after a position, or from now on, until the client disconnects or the daemon ends."""
        now = self._log_end()
        at = announced = now if after is None else min(after, now)  # the log may be shorter after a restore
        await writer.send(b"retry: %d\nid: %d\n\n" % (_RETRY, at))
        spoken = time.monotonic()
        with self._followed_by(writer):
            while not self._watch.over:
                piece = self._piece(at, wanted) or await self._page(at, wanted)
                at, data = piece.reached, piece.data
                announced = piece.last if data else announced
                if at - announced >= _SKIPPED or (not data and time.monotonic() - spoken >= _BEAT):
                    data += b"id: %d\n: still here\n\n" % at
                    announced = at
                if data:
                    await writer.send(data)
                    spoken = time.monotonic()
                elif at >= self._end:
                    await writer.wait()

    @contextmanager
    def _followed_by(self, writer: StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        if self._reading is None or self._reading.done():
            self._ring, self._size = [], 0
            self._begin = self._end = self._log_end()
            self._reading = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._writers.discard(writer)

    async def _run(self) -> None:
        while self._writers and not self._watch.over:
            if self._log_end() == self._end:
                await self._watch.wait(_LOOK)
            try:
                is_all = await self._read_on()
            except Exception as error:  # whatever it is, who follows must not be left waiting
                log.warning("cannot read what happened: %s: %s", type(error).__name__, error)
                await asyncio.sleep(_LOOK)
                continue
            for writer in self._writers:
                writer.wake.set()
            await asyncio.sleep(_PAUSE if is_all else 0.0)
        for writer in self._writers:
            writer.wake.set()

    async def _read_on(self) -> bool:
        """Move new events into the ring, and old ones out; returns whether all were read."""
        until = self._log_end()
        new = until - self._end
        if new <= 0:
            return True
        if new <= _FEW:
            found, self._end = self._read(self._end, until, _EVERYTHING)
        else:
            found, self._end = await self._in_thread(self._end, until, _EVERYTHING)
        self._ring += found
        self._size += sum(len(event.data) for event in found)
        self._joined.clear()
        if len(self._ring) > _MOST_EVENTS or self._size > _MOST_BYTES:
            self._shorten()
        return self._end >= until

    def _shorten(self) -> None:
        left, size = len(self._ring), 0
        while left > len(self._ring) // 2 and size + len(self._ring[left - 1].data) <= _MOST_BYTES // 2:
            left -= 1
            size += len(self._ring[left].data)
        self._begin = self._ring[left - 1].seq
        self._ring, self._size = self._ring[left:], size

    def _piece(self, after: int, wanted: EventFilter) -> EventChunk | None:
        """Events after a position from the ring; None if the ring begins later."""
        if after < self._begin:
            return None
        if after >= self._end:
            return EventChunk(b"", after, after)
        if wanted.everything and after in self._joined:
            return self._joined[after]
        begin = bisect_right(self._ring, after, key=lambda event: event.seq)
        parts, size, last = [], 0, after
        reached = self._end
        for event in self._ring[begin:]:
            if size >= _PIECE:
                reached = last
                break
            if wanted.everything or _wants(wanted, event):
                parts.append(event.data)
                size, last = size + len(event.data), event.seq
        piece = EventChunk(b"".join(parts), last, reached)
        if wanted.everything:
            self._joined[after] = piece
        return piece

    async def _page(self, after: int, wanted: EventFilter) -> EventChunk:
        found, reached = await self._in_thread(after, self._end, wanted)
        return EventChunk(b"".join(event.data for event in found), found[-1].seq if found else after, reached)

    async def _in_thread(self, after: int, until: int, wanted: EventFilter) -> tuple[list[EncodedEvent], int]:
        return await asyncio.get_running_loop().run_in_executor(self._pages, self._read, after, until, wanted)

    def _read(self, after: int, until: int, wanted: EventFilter) -> tuple[list[EncodedEvent], int]:
        if not wanted.everything and not wanted.job:
            until = min(until, after + _STRIDE)
        found: list[EncodedEvent] = []
        size = 0
        for seq, row, user in self._reader().happened(after, until, wanted, _PAGE):
            data = b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, row.kind.encode(), encoded(event_json(seq, row)))
            found.append(EncodedEvent(seq, row.kind, row.job or "", user or "", data))
            size += len(data)
            if size >= _PIECE:
                return found, seq
        return found, found[-1].seq if len(found) == _PAGE else until


def _wants(wanted: EventFilter, event: EncodedEvent) -> bool:
    if wanted.kinds and event.kind not in wanted.kinds:
        return False
    if wanted.user and event.user != wanted.user:
        return False
    return not wanted.job or event.job == wanted.job or array_of(event.job) == wanted.job


_TYPE = "text/event-stream"
_MOST = 2**63 - 1
Number = Annotated[int | None, Query(ge=0, le=_MOST)]
EVENTS: dict[str, Any] = {
    "events": [{"seq": 41, "at": AT, "kind": "Placed", "job": "17", "attempt": 1, "gpus": [0, 1]}], "last": 41,
}  # fmt: skip
STREAM = 'id: 41\nevent: Placed\ndata: {"seq": 41, "kind": "Placed", "job": "17"}\n\n'


class EventRoutes:
    def __init__(self, context: Context, hub: EventHub) -> None:
        self._context, self._hub = context, hub

    @Route(
        "GET /events", "listEvents", "Read the log of events, or follow it", "Events",
        ok("Some of it.", replies.Events, EVENTS, also={"text/event-stream": STREAM}), NO_JOB,
    )  # fmt: skip
    async def events(
        self,
        request: Request,
        after: Annotated[
            Number, Query(description="After this event; a stream begins now unless this is given.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        job: Annotated[str, Query(description="Of this job, or of all tasks of this array.")] = "",
        kind: Annotated[str, Query(description="Of these kinds, with commas between them.")] = "",
        user: Annotated[str, Query(description="Of this user's jobs.")] = "",
        wait: Wait = 0.0,
        last_event_id: Annotated[str, Header(description="Of a stream: the last event that was received.")] = "",
    ) -> Response:
        """The log, from one event on; with `Accept: text/event-stream`, as a stream that goes on."""
        if job:
            tasks.progress(self._context.reader, job)  # fails if there is no such job
        wanted = EventFilter(job, _kinds(kind), user)
        if _TYPE in request.headers.get("accept", ""):
            return self._stream(request, _resumed(last_event_id) if last_event_id else after, wanted)
        return await self._part(after or 0, limit, wanted, wait)

    def _stream(self, request: Request, after: int | None, wanted: EventFilter) -> Response:
        streams, caller = self._context.streams, self._context.permissions.caller(request)
        streams.check(caller)

        async def feed(writer: Any) -> None:
            with streams.one(caller):
                await self._hub.follow(writer, after, wanted)

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would buffer events
        return Stream(request, feed, headers=headers, media_type=_TYPE)

    async def _part(self, after: int, limit: int, wanted: EventFilter, wait: float) -> Response:
        watch = self._context.watch
        end = time.monotonic() + wait
        while True:
            found = await asyncio.to_thread(self._read, after, limit, wanted)
            left = end - time.monotonic()
            if found or left <= 0 or watch.over:
                break
            await watch.wait(left)
        return reply({"events": found, "last": found[-1]["seq"] if found else after})

    def _read(self, after: int, limit: int, wanted: EventFilter) -> list[dict[str, Any]]:
        found, size = list[dict[str, Any]](), 0
        for seq, row, _ in self._context.reader.happened(after, _MOST, wanted, limit):
            found.append(event_json(seq, row))
            size += len(row.data)
            if size > _MOST_BYTES:
                break
        return found


def _kinds(text: str) -> frozenset[str]:
    kinds = frozenset(filter(None, text.split(",")))
    if unknown := kinds - KINDS.keys():
        raise UserError(f"there is no kind of event '{min(unknown)}'; the kinds are {', '.join(sorted(KINDS))}")
    return kinds


def _resumed(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > _MOST:
        raise UserError(f"Last-Event-ID is the number of an event, such as 17, and '{text[:40]}' is none")
    return int(text)
