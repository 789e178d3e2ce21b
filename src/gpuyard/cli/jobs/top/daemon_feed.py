"""Threads that ask the daemon and carry out commands, so that keys never wait for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuyard.cli.jobs.top.view_state import Part, Row, Snapshot, row_of, rows_of
from gpuyard.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.api.types import LogPart
    from gpuyard.client.client import Client

_RUNNING = 500  # running jobs of a request: they show what is booked on simulated GPUs
_ENDED = 100
_SOON = 0.2  # least seconds between two looks
_BEHIND = 4  # pieces of output that may wait for the screen
_STALE = 5.0  # seconds after which a snapshot is complete again, also without events


class Wanted(NamedTuple):
    text: str = ""
    user: str | None = None
    running: tuple[int, int] = (0, _RUNNING)  # offset and number of rows
    waiting: tuple[int, int] = (0, 100)


class Source:
    """Asks the daemon for snapshots; what cannot have changed is not asked for again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._wanted: Wanted | None = None
        self._last, self._at = -1, 0.0
        self._waiting, self._ended = Part(), Part()
        self._status: dict[str, Any] = {}

    def look(self, wanted: Wanted) -> Snapshot:
        ticks = time.monotonic()
        page = self._page("running", wanted, *wanted.running)
        machine = self._client.gpus()
        if (page[1], wanted) != (self._last, self._wanted) or ticks - self._at > _STALE:
            self._status = self._client.status()
            self._waiting = self._page("queued,held", wanted, *wanted.waiting)[2]
            if page[1] != self._last or self._wanted is None or wanted[:2] != self._wanted[:2]:
                self._ended = self._history(wanted)
            self._last, self._wanted, self._at = page[1], wanted, ticks
        everyone = self._page("running", Wanted(), *Wanted().running)[2] if wanted.text or wanted.user else page[2]
        parts = {"running": page[2], "waiting": self._waiting, "ended": self._ended, "everyone": everyone}
        return Snapshot(
            time.monotonic(), page[0], parts, tuple(machine["gpus"]), machine["simulated"], self._status, page[1]
        )

    def _page(self, state: str, wanted: Wanted, offset: int, limit: int) -> tuple[float, int, Part]:
        text = wanted.text or None
        page = self._client.page(state=state, user=wanted.user, text=text, offset=offset, limit=limit)
        return page.now, page.last, Part(rows_of(page.columns), offset, page.total)

    def _history(self, wanted: Wanted) -> Part:
        rows = map(row_of, self._client.history(limit=_ENDED, user=wanted.user))
        found = tuple(row for row in rows if _has(row, wanted.text))
        return Part(found, 0, len(found))


def _has(row: Row, text: str) -> bool:
    wanted = text.casefold()
    return any(wanted in part.casefold() for part in (row.id, row.name, row.user, row.state))


class Feed:
    """Keeps a snapshot up to date in threads: after every event, and at every interval."""

    def __init__(self, client: Client, interval: float) -> None:
        self._client, self._interval = client, interval
        self._source = Source(client)
        self._changed = threading.Condition()
        self._wanted = Wanted()
        self._poked = False
        self.news: queue.SimpleQueue[Snapshot | str] = queue.SimpleQueue()
        """Snapshots, and messages on why there is none."""
        self._last = -1

    def start(self) -> None:
        for work in (self._look, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def want(self, wanted: Wanted) -> None:
        with self._changed:
            if wanted != self._wanted:
                self._wanted = wanted
                self._changed.notify_all()

    def poke(self) -> None:
        with self._changed:
            self._poked = True
            self._changed.notify_all()

    def _look(self) -> None:
        while True:
            with self._changed:
                wanted, self._poked = self._wanted, False
            begun = time.monotonic()
            try:
                snapshot = self._source.look(wanted)
            except GpuyardError as error:
                self._source = Source(self._client)  # another daemon may know nothing of what this one said
                self.news.put(str(error))
            else:
                self.news.put(snapshot)
                with self._changed:
                    self._last = snapshot.last
                    self._changed.notify_all()
            self._pause(wanted, begun)

    def _pause(self, wanted: Wanted, begun: float) -> None:
        """Wait for the next look: soon after an event, but at most a fifth of the time is spent on looking."""
        pause = begun + max(_SOON, 5 * (time.monotonic() - begun))
        with self._changed:
            self._changed.wait_for(lambda: self._poked or self._wanted != wanted, self._interval)
            if self._wanted == wanted:
                self._changed.wait_for(lambda: self._wanted != wanted, max(pause - time.monotonic(), 0.0))

    def _watch(self) -> None:
        """Wait for events: that is cheaper than a look."""
        seen = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=seen: self._last != seen)  # type: ignore[misc]
                seen = self._last
            try:
                if self._client.events(seen, limit=1, wait=20.0)["events"]:
                    self.poke()
                    continue
            except GpuyardError:
                time.sleep(0.5)
            seen = -1


class CommandRunner:
    """Runs one function after another in a thread, and collects results."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, work: Callable[[], Any]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                self.done.put(work())
            except GpuyardError as error:
                self.done.put(str(error))


class LogPiece(NamedTuple):
    id: str
    data: bytes
    start: int | None  # its offset, if it precedes what was read; None: it follows it
    state: str
    restarted: bool = False


class LogFeed:
    def __init__(self, client: Client, id: str, piece: int) -> None:
        self._client, self.id, self._piece = client, id, piece
        self.pieces: queue.SimpleQueue[LogPiece] = queue.SimpleQueue()
        self.closed = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        offset, attempt = -self._piece, 0
        while not self.closed:
            try:
                part = self._client.log(self.id, offset, size=self._piece, wait=2.0 if attempt else 0.0)
            except GpuyardError:  # the lists say what is wrong, and this goes on when it is right again
                time.sleep(0.5)
                continue
            restarted = attempt > 0 and part.attempt != attempt
            if restarted and offset > 0:
                attempt, offset = part.attempt, 0
                self.pieces.put(LogPiece(self.id, b"", 0, part.state, True))
                continue
            start = max(0, part.next_offset - len(part.data)) if offset < 0 else None
            self.pieces.put(LogPiece(self.id, part.data, start, part.state))
            attempt, offset = part.attempt, part.next_offset
            if part.size - offset > _BEHIND * self._piece:  # too fast to read: skip to the newest
                notice = f"\n[gpuyard: {part.size - self._piece - offset} bytes are not shown]\n"
                offset = part.size - self._piece
                self.pieces.put(LogPiece(self.id, notice.encode(), None, part.state))
                time.sleep(_SOON)
            self._pause(part)

    def _pause(self, part: LogPart) -> None:
        while self.pieces.qsize() > _BEHIND and not self.closed:
            time.sleep(0.02)
        if not part.data:
            time.sleep(0.05 if part.state == "running" else 0.5)


def earlier(client: Client, id: str, start: int, piece: int) -> LogPiece:
    begin = max(0, start - piece)
    try:
        part = client.log(id, begin, size=start - begin)
    except GpuyardError:
        return LogPiece(id, b"", start, "")
    surplus = max(part.next_offset - start, 0)  # what was left out is skipped, so it may be of later
    return LogPiece(id, part.data[: len(part.data) - surplus], begin, "")
