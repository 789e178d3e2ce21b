"""The output of jobs: a piece, a range of bytes, or a stream."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response

from gpuyard.daemon.background.retention import check_kept
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.views import JobView
from gpuyard.server import tasks
from gpuyard.server.context import Context
from gpuyard.server.problems import problem
from gpuyard.server.routing import NO_JOB, TEXT, Answer, Headers, Route, owner
from gpuyard.server.stream.streams import Disconnected, Stream, StreamWriter, Wait

_LOOK = 0.1  # seconds between reads of a log
_MOST = 2**22
_FARTHEST = 2**62
_PIECE = 2**18  # bytes that are read at once for a stream
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_NUMBER: dict[str, Any] = {"type": "integer"}
_HEADERS: Headers = {
    "X-Next-Offset": {"description": "Where the next piece begins, if it is not followed.", "schema": _NUMBER},
    "X-Log-Size": {"description": "Bytes that there are.", "schema": _NUMBER},
    "X-Job-State": {"description": "How the job stands.", "schema": TEXT},
    "X-Attempt": {"description": "Whose output this is.", "schema": _NUMBER},
}
_RANGE_HEADERS: Headers = {
    **_HEADERS,
    "Content-Range": {"description": "Which bytes of how many.", "required": True, "schema": TEXT},
}


class LogRoutes:
    def __init__(self, context: Context) -> None:
        self._context = context

    @Route(
        "GET /jobs/{job}/log", "getLog", "Read what a job prints", "Jobs",
        {
            200: Answer("A piece of its output, or all that comes.", bytes, headers=_HEADERS),
            206: Answer("The range of it that was asked for.", bytes, headers=_RANGE_HEADERS),
        },
        (*NO_JOB, 409, 410, 416), may=owner("read the output of job {job}"),
    )  # fmt: skip
    async def log(
        self,
        request: Request,
        job: str,
        offset: Annotated[int, Query(ge=-_FARTHEST, le=_FARTHEST)] = 0,
        size: Annotated[int, Query(ge=1, le=_MOST)] = 2**16,
        attempt: Annotated[int, Query(ge=0, le=_FARTHEST)] = 0,
        wait: Wait = 0.0,
        follow: Annotated[bool, Query(description="Go on until the attempt is over.")] = False,
        range: Annotated[str, Header(description="Bytes, as in `bytes=100-199`, `bytes=100-`, `bytes=-100`.")] = "",
    ) -> Response:
        """A piece of a job's output, from `offset` on or by `Range`; with `follow`, all of it as it comes."""
        view = tasks.alone(self._context.reader, job)
        which = self._attempt(view, attempt)
        if follow:
            return self._followed(request, view.id, which, offset)
        if range.startswith("bytes=") and "if-range" not in request.headers:
            return await self._ranged(request, view, which, range)
        return await self._piece(view.id, attempt, offset, size, wait)

    def _attempt(self, view: JobView, wanted: int) -> int:
        if view.kind == "lease":
            raise NotNow(f"job {view.id} is a lease: gpuyard did not start its process, and has no output of it")
        if wanted > view.attempt:
            had = f"{view.attempt or 'no'} attempt{'' if view.attempt == 1 else 's'}"
            raise NoSuchJob(f"job {view.id} has had {had}, so there is no output of attempt {wanted}")
        which = wanted or view.attempt
        check_kept(self._context.settings, view, which)
        return which

    async def _piece(self, job: str, attempt: int, offset: int, size: int, wait: float) -> Response:
        """Output from an offset on; waits for some until the time is over."""
        context = self._context
        end = time.monotonic() + wait
        while True:
            view = tasks.first(context.reader, job)
            which = self._attempt(view, attempt)
            after, data = context.daemon.engine.read_log(job, which, offset, size) if which else (max(offset, 0), b"")
            if data or view.over or time.monotonic() >= end or context.watch.over:
                break
            await context.watch.wait(min(_LOOK, max(0.001, end - time.monotonic())), job)
        headers = {"X-Next-Offset": str(after), **self._facts(view, which)}
        return Response(data, media_type="application/octet-stream", headers=headers)

    async def _ranged(self, request: Request, view: JobView, which: int, text: str) -> Response:
        """A range of bytes; where output was dropped to keep a limit, zeros stand for it."""
        engine, job = self._context.daemon.engine, view.id
        whole = engine.log_size(job, which) if which else 0
        found = _bytes(text, whole)
        if found is None and not whole and _is_tail(text):  # the tail of an empty log is no error (RFC 9110)
            return Response(b"", media_type="application/octet-stream", headers=self._facts(view, which))
        if found is None:
            refusal = problem(416, f"job {job} has printed {whole} bytes; ask for one range of these, not {text[:60]}")
            refusal.headers["Content-Range"] = f"bytes */{whole}"
            return refusal
        begin, end = found
        caller = self._context.permissions.caller(request)
        self._context.streams.check(caller)

        async def feed(writer: StreamWriter) -> None:
            at = begin
            with self._context.streams.one(caller):
                while at < end:
                    size = min(_PIECE, end - at)
                    at, data = await asyncio.to_thread(engine.read_log, job, which, at, size, exact=True)
                    if not data:  # the job has truncated its output, and the length is sent already
                        raise Disconnected
                    await writer.send(data)

        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{whole}", "Content-Length": str(end - begin)}
        return Stream(request, feed, 206, {**headers, **self._facts(view, which)})

    def _followed(self, request: Request, job: str, which: int, offset: int) -> Response:
        """The output of an attempt until its end; of a waiting job, that of its next attempt."""
        caller = self._context.permissions.caller(request)
        self._context.streams.check(caller)

        async def feed(writer: StreamWriter) -> None:
            with self._context.streams.one(caller):
                await self._follow(writer, job, which, offset)

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Stream(request, feed, headers=headers | ({"X-Attempt": str(which)} if which else {}))

    async def _follow(self, writer: StreamWriter, job: str, which: int, at: int) -> None:
        context = self._context
        engine = context.daemon.engine
        while True:
            writer.check()
            view = context.daemon.store.open.get(job) or tasks.first(context.reader, job)
            which = which or view.attempt
            over = view.over or (which and (view.attempt > which or view.state != "running"))
            while which and (at < 0 or at < engine.log_size(job, which)):
                former = at
                at, data = await asyncio.to_thread(engine.read_log, job, which, at, _PIECE)
                if not data or at == former:
                    break
                await writer.send(data)
            if over:
                return
            if context.watch.over:  # not the end of the job: the client follows on with the next daemon
                raise Disconnected
            await context.watch.wait(_LOOK, job)

    def _facts(self, view: JobView, which: int) -> dict[str, str]:
        return {
            "Accept-Ranges": "bytes",
            "X-Log-Size": str(self._context.daemon.engine.log_size(view.id, which) if which else 0),
            "X-Job-State": view.state,
            "X-Attempt": str(which),
        }


def _is_tail(text: str) -> bool:
    match = _RANGE.fullmatch(text.replace(" ", ""))
    return match is not None and not match[1] and match[2].strip("0") != ""


def _bytes(text: str, whole: int) -> tuple[int, int] | None:
    """The first byte of a range, and the one after its last; None if there is no such range."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None or match[1] + match[2] == "":
        return None
    if not match[1]:
        begin, end = max(0, whole - int(match[2])), whole
    else:
        begin, end = int(match[1]), min(whole, int(match[2]) + 1 if match[2] else whole)
    return (begin, end) if begin < end else None
