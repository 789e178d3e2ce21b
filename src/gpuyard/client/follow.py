"""Following jobs and logs across restarts of the daemon: no event is lost or repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from gpuyard.api.types import OVER, Event, LogPart
from gpuyard.client.connection import POLL, Connection, query_of
from gpuyard.client.retry import Absence, to_stderr
from gpuyard.client.transport import NoDaemon, Reply
from gpuyard.errors import GpuyardError

_SILENCE = 60.0  # seconds without even a comment after which an event stream counts as cut
_PAUSE = 0.05
_SSE = "text/event-stream"
_MAY_BE_LAST = ("Exited", "Cancelled", "Rejected")
"""Events after which a job may be over; it may also be tried once more."""


class Log(Protocol):
    """A source of a job's output: the daemon, or the output file."""

    def log(
        self, id: str, offset: int = 0, *, size: int = 2**20, attempt: int | None = None, wait: float = 0.0
    ) -> LogPart:
        """A part of the output, as from `Client.log`."""
        ...


def output_of(
    log: Log,
    job: str,
    offset: int = 0,
    attempt: int | None = None,
    say: Callable[[str], None] = to_stderr,
    *,
    seen: int | None = None,
) -> Iterator[bytes]:
    """A job's output as it is written, until the job is over; another attempt starts at its beginning.

    `offset` is of the attempt `seen`, by default of the present one."""
    seen, absence = attempt or seen, Absence(say=say)
    while True:
        try:
            part = log.log(job, offset, attempt=attempt, wait=POLL)
        except NoDaemon as error:
            absence.endure(error)
            continue
        absence.over()
        if seen and part.attempt and seen != part.attempt and offset > 0:  # 0: one file for all
            seen, offset = part.attempt, 0
            continue
        seen, offset = part.attempt, part.next_offset
        if part.data:
            yield part.data
        elif part.state in OVER:
            return
        else:
            time.sleep(_PAUSE)


class EventCalls(Connection):
    def events(
        self, after: int = 0, *, limit: int | None = None, job: str | None = None, wait: float = 0.0
    ) -> dict[str, Any]:
        """Events after a number, or of one job; with `wait`, wait for the next one."""
        wait = min(wait, POLL)
        query: dict[str, Any] = {"after": after, "limit": limit, "job": job}
        return self._get("/events", patience=wait, **query, wait=f"{wait:.3f}" if wait > 0 else None)

    def follow_events(self, after: int | None = None, *, job: str | None = None) -> Iterator[Event]:
        """Every event after a number (0: all) as it happens, for ever; of one job, until that is over.

        By default those from now on; of a job, all. Continues after a restart of the daemon without losing or repeating
        any.
        """
        if after is None:
            after = self._last_event() if job is None else 0
        return self._follow(after, job)

    def _follow(self, last: int, job: str | None) -> Iterator[Event]:
        absence = Absence(say=self.say)
        while True:
            try:
                over = job is not None and self._is_over(job)  # asked first: no event after that is missed
                for event in self._past(last, job) if over else self._events_after(last, job, absence):
                    if event["seq"] > last:
                        last = event["seq"]
                        yield event
                    if not over and job is not None and event["kind"] in _MAY_BE_LAST and self._is_over(job):
                        break
                if over:
                    return
            except NoDaemon as error:
                if not self._reached:
                    raise
                absence.endure(error)
            else:
                time.sleep(_PAUSE)  # the daemon ends, or had no event

    def _is_over(self, job: str) -> bool:
        from urllib.parse import quote

        return self._get(f"/jobs/{quote(job, safe='')}")["state"] in OVER

    def _past(self, last: int, job: str | None) -> Iterator[Event]:
        """What has happened until now, page by page."""
        while page := self.events(last, job=job)["events"]:
            yield from page
            last = page[-1]["seq"]

    def _last_event(self) -> int:
        return int(self._get("/jobs", columns="true", limit=1)["last"])

    def _events_after(self, last: int, job: str | None, absence: Absence) -> Iterator[Event]:
        """Events of a stream until it ends; a daemon without streams is polled."""
        target = "/events" + query_of(after=last, job=job)
        headers = {"Accept": _SSE, "Last-Event-ID": str(last)}
        with self._stream(target, silence=self.timeout + _SILENCE, headers=headers) as reply:
            absence.over()
            if reply.headers.get("content-type", "").startswith(_SSE):
                yield from _events_in(reply)
                return
            reply.read()
        yield from cast("list[Event]", self.events(last, job=job, wait=POLL)["events"])


def _events_in(reply: Reply) -> Iterator[Event]:
    number, data = "", list[str]()
    for line in _lines(reply.pieces()):
        if not line:
            if data:
                yield _event(number, "\n".join(data))
            data = []
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif name == "id":
            number = value.strip()


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode(errors="replace")


def _event(number: str, text: str) -> Event:
    try:
        found = json.loads(text)
        return cast(Event, {**found, "seq": int(found.get("seq", number or -1))})
    except (ValueError, TypeError, AttributeError) as error:
        raise GpuyardError("the daemon's stream of events is not to be understood; is it of this version?") from error
