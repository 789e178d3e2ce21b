"""The route of the log: a part of it as JSON, or all that happens as server-sent events."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Header, Query, Request, Response

from gpuyard.daemon.journal import KINDS
from gpuyard.daemon.reader import Wish
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.answers import event_json, reply
from gpuyard.server.streaming import Stream
from gpuyard.server.watch import Wait

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_TYPE = "text/event-stream"
_MOST = 2**63 - 1
Number = Annotated[int | None, Query(ge=0, le=_MOST)]


class Events:
    """What happened, and what happens."""

    def __init__(self, api: Api) -> None:
        self._api = api

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
            tasks.progress(self._api.reader, job)  # there must be such a job
        wish = Wish(job, _kinds(kind), user)
        if _TYPE in request.headers.get("accept", ""):
            return self._stream(request, _resumed(last_event_id) if last_event_id else after, wish)
        return await self._part(after or 0, limit, wish, wait)

    def _stream(self, request: Request, after: int | None, wish: Wish) -> Response:
        api = self._api
        caller = api.permissions.caller(request)
        api.streams.check(caller)

        async def feed(line: Any) -> None:
            with api.streams.one(caller):
                await api.hub.follow(line, after, wish)

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would keep events back
        return Stream(request, feed, headers=headers, media_type=_TYPE)

    async def _part(self, after: int, limit: int, wish: Wish, wait: float) -> Response:
        watch = self._api.watch
        end = time.monotonic() + wait
        while True:
            found = await asyncio.to_thread(self._read, after, limit, wish)
            left = end - time.monotonic()
            if found or left <= 0 or watch.over:
                break
            await watch.wait(left)
        return reply({"events": found, "last": found[-1]["seq"] if found else after})

    def _read(self, after: int, limit: int, wish: Wish) -> list[dict[str, Any]]:
        return [event_json(seq, row) for seq, row, _ in self._api.reader.happened(after, _MOST, wish, limit)]


def _kinds(text: str) -> frozenset[str]:
    kinds = frozenset(filter(None, text.split(",")))
    if unknown := kinds - KINDS.keys():
        raise UserError(f"there is no kind of event '{min(unknown)}'; the kinds are {', '.join(sorted(KINDS))}")
    return kinds


def _resumed(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > _MOST:
        raise UserError(f"Last-Event-ID is the number of an event, such as 17, and '{text[:40]}' is none")
    return int(text)
