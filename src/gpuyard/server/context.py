"""What all routes are given: the daemon, its commands, settings, permissions, and readers of its store."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpuyard.config import Settings
from gpuyard.core.reasons import Reason
from gpuyard.daemon.commands import NOBODY, Commands, Due
from gpuyard.daemon.context import Asked, Inbox
from gpuyard.daemon.jobs.progress_reader import Expected, ProgressReader
from gpuyard.daemon.loop import Daemon
from gpuyard.daemon.store.database import damage_behind
from gpuyard.daemon.store.reader import Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.engines.local.processes import READERS
from gpuyard.server.auth.permissions import Permissions
from gpuyard.server.stream.streams import Streams, Watch

_EACH = 2
ASKER: ContextVar[str] = ContextVar("asker", default="")
"""The user whose request is being answered."""


class RequestThreads(ThreadPoolExecutor):
    """Threads in which requests read. One user has few of them, so that nobody waits for what others read."""

    def __init__(self) -> None:
        super().__init__(READERS, "requests")
        self._lock = threading.Lock()
        self._waiting: defaultdict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = defaultdict(deque)
        self._busy: Counter[str] = Counter()

    def submit(self, act: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Run this in a thread, when its user may have one more."""
        whose, answer = ASKER.get(), Future[Any]()
        with self._lock:
            self._waiting[whose].append((answer, partial(act, *arguments, **named)))
            self._begin(whose)
        return answer

    def _begin(self, whose: str) -> None:
        if self._busy[whose] < _EACH and self._waiting[whose]:
            self._busy[whose] += 1
            super().submit(self._run, whose, *self._waiting[whose].popleft())
        elif not self._busy[whose]:
            del self._busy[whose], self._waiting[whose]

    def _run(self, whose: str, answer: Future[Any], act: Callable[[], Any]) -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(act())
            except BaseException as error:
                answer.set_exception(error)
        with self._lock:
            self._busy[whose] -= 1
            self._begin(whose)


class Answers:
    """Brings changes to the daemon's thread and answers to the event loop: all of a turn at once.

    To wake a thread is dear, and changes that come together share an fsync.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._asked: list[Asked] = []
        self._called = False  # whether the event loop will look anyway

    async def to_change(self, inbox: Inbox, command: Callable[[], Any]) -> Any:
        """The answer to a change, which the daemon gets with all others of this turn of the event loop."""
        answer: Future[Any] = Future()
        if not self._asked:
            self._loop.call_soon(self._hand_over, inbox)
        self._asked.append((command, True, answer))
        return await self.wait(answer)

    def _hand_over(self, inbox: Inbox) -> None:
        asked, self._asked = self._asked, []
        inbox.put_all(asked)

    async def wait(self, answer: Future[Any]) -> Any:
        waiter = self._loop.create_future()
        answer.add_done_callback(lambda answer: self._put(waiter, answer))
        try:
            return await waiter
        except asyncio.CancelledError:
            answer.cancel()
            raise

    def _put(self, waiter: asyncio.Future[Any], answer: Future[Any]) -> None:
        self._ready.append((waiter, answer))
        if not self._called and not self._loop.is_closed():
            self._called = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before the look: who comes from now on calls again
        while self._ready:
            waiter, answer = self._ready.popleft()
            if waiter.done():  # who asked has gone
                continue
            if answer.cancelled():
                waiter.cancel()
            elif (error := answer.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(answer.result())


@dataclass(frozen=True, slots=True)
class Context:
    """What the routes of one daemon share. Lives in the event loop, where `watch` is."""

    daemon: Daemon
    commands: Commands
    settings: Settings
    permissions: Permissions
    progress: ProgressReader
    watch: Watch = field(default_factory=Watch)
    streams: Streams = field(default_factory=Streams)
    _answers: Answers = field(default_factory=Answers)
    _local: threading.local = field(default_factory=threading.local)

    @classmethod
    def of(cls, daemon: Daemon, settings: Settings) -> Context:
        progress = ProgressReader(daemon.engine, settings.data_dir / "work")
        return cls(daemon, daemon.commands, settings, Permissions(settings), progress)

    async def ask(self, command: Callable[[], Any]) -> Any:
        """Run a change in the daemon's thread; returns when its events are on disk."""
        return await self._answers.to_change(self.daemon.context.inbox, command)

    async def look(self, command: Callable[[], Any]) -> Any:
        """Run something that changes nothing in the daemon's thread."""
        return await self._answers.wait(self.daemon.ask(command, changes=False))

    async def damage_behind(self, error: Exception) -> str:
        """What is damaged, where something unforeseen failed; if it is the store, the daemon heeds it from now on."""
        path = self.settings.database
        which, problem = await asyncio.to_thread(damage_behind, error, path)
        if problem and which == path:
            self.daemon.damaged(problem)
        return problem

    def job_with(self, pid: int) -> JobView | None:
        """The job that a process belongs to; None if it belongs to none."""
        found = self.daemon.engine.owner(pid)
        return None if found is None else self.daemon.store.open.get(found[0]) or self.reader.job(found[0])

    def ends(self) -> dict[str, Expected]:
        """When running jobs should end. It reads files: for a thread of its own."""
        return self.progress.ends(list(self.daemon.store.open.values()), self.daemon.clock.now())

    async def due(self, reasons: Mapping[str, Reason]) -> Due:
        """The first in line, and when it should start."""
        if not reasons:
            return NOBODY
        ends = await asyncio.to_thread(self.ends)
        due: Due = await self.look(lambda: self.commands.due(reasons, ends))
        return due

    @property
    def reader(self) -> Reader:
        if not hasattr(self._local, "reader"):
            self._local.reader = Reader(self.settings.database)
        reader: Reader = self._local.reader
        return reader
