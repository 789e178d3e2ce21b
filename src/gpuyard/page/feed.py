"""What happens in the yard, heard once for everybody who looks.

One stream of events and one of samples come from the daemon, however many look. Whatever happens leads to a *beat*, at
most two a second: every open page shows itself anew, and what several of them ask for is asked for once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from gpuyard.errors import GpuyardError
from gpuyard.page.api import Api, Away, Refused
from gpuyard.page.samples import Samples

log = logging.getLogger("gpuyard.page")
_REST = 0.5  # seconds between beats
_PULSE = 1.0  # seconds after which there is a beat even if nothing happened
_AGAIN = 0.5  # seconds until a daemon that is away is tried again
_FORGET = 120.0  # seconds after which an answer that nobody asked for again is forgotten
_MOST = 300  # answers that are kept: who types on and on in a filter asks for something else each time


class Listener(Protocol):
    """Somebody who wants to know of each beat."""

    def beat(self) -> None: ...


class _Answer:
    """What was asked for, when, and as of which event."""

    __slots__ = ("at", "seen", "task")

    def __init__(self, task: asyncio.Task[Any], seen: int) -> None:
        self.task, self.at, self.seen = task, time.monotonic(), seen


class Feed:
    """The yard as everybody may see it."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.samples = Samples()
        self.listeners: set[Listener] = set()
        self.happened = 0
        """Counts what happened since this process began; what was asked before the latest is old."""
        self.away = False
        self._news = asyncio.Event()
        self._answers: dict[str, _Answer] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to listen."""
        for work in (self._follow_events, self._follow_samples, self._beat):
            self._tasks.append(asyncio.create_task(forever(work)))

    async def stop(self) -> None:
        """Listen no longer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, path: str, keep: float = 5.0, *, until_event: bool = True) -> Any:
        """What the API answers: at most `keep` seconds old, and of after the latest event if that matters."""
        known = self._answers.get(path)
        now = time.monotonic()
        if known is None or now - known.at > keep or (until_event and known.seen != self.happened) or _failed(known):
            known = self._answers[path] = _Answer(asyncio.create_task(self._asked(path)), self.happened)
        return await asyncio.shield(known.task)

    async def _asked(self, path: str) -> Any:
        return await self.api.ask("GET", path)

    async def _follow_events(self) -> None:
        last = ""
        while True:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            try:
                async with self.api.stream("/events", headers) as lines:
                    self._tell(away=False)
                    async for line in lines:
                        if line.startswith("id:"):
                            last = line[3:].strip()
                        elif line.startswith("data:"):
                            self._tell(json.loads(line[5:]))
            except Away:
                pass  # which is told below, as is the end of a stream
            except Refused as error:
                log.warning("events cannot be followed: %s", error)
            self._tell(away=True)
            await asyncio.sleep(_AGAIN)

    def _tell(self, event: dict[str, Any] | None = None, *, away: bool | None = None) -> None:
        if away is not None:
            self.away = away
        self.happened += 1
        self._news.set()

    async def _follow_samples(self) -> None:
        while True:
            if not self.listeners:
                await asyncio.sleep(_REST)
                continue
            try:
                self.samples.add(await self.api.get("/gpus/samples", after=self.samples.last, wait=10))
                self._news.set()
            except Away:
                await asyncio.sleep(_AGAIN)
            except Refused as error:
                log.warning("samples cannot be read: %s", error)
                await asyncio.sleep(10 * _AGAIN)

    async def _beat(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _PULSE)
            self._news.clear()
            for listener in list(self.listeners):
                listener.beat()
            self._forget()
            await asyncio.sleep(_REST)

    def _forget(self) -> None:
        done = [(path, answer) for path, answer in self._answers.items() if answer.task.done()]
        done.sort(key=lambda one: one[1].at)
        old, many = time.monotonic() - _FORGET, len(done) - _MOST
        for number, (path, answer) in enumerate(done):
            if answer.at < old or number < many:
                del self._answers[path]


def _failed(answer: _Answer) -> bool:
    return answer.task.done() and (answer.task.cancelled() or answer.task.exception() is not None)


async def forever(work: Callable[[], Awaitable[None]]) -> None:
    """Do it; if it fails, say so and begin again: a page that stands still without a word would be worse."""
    while True:
        try:
            await work()
        except GpuyardError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("the feed failed, and begins again")
        await asyncio.sleep(_AGAIN)
