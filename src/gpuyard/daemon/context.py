"""What the parts of the daemon share: state, store, engine, machine, clock, settings; and how an event happens.

A part gets the context, never the loop, so it can be made and tested without a daemon. `state` is another object after
a failed write: a part reads it through the context and never keeps it.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from gpuyard.config import Settings
from gpuyard.core.events import Cancelled, Edited, Event, Exited, Started, Submitted
from gpuyard.core.model import Request
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.devices.measurements import Measures, Seen
from gpuyard.daemon.meters import Meters
from gpuyard.daemon.store.database import StoreFailing
from gpuyard.daemon.store.log import Checkpoints, Intent, Store, description
from gpuyard.daemon.store.reader import Answered
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.views import work_of
from gpuyard.engines.base import Engine
from gpuyard.engines.local import processes
from gpuyard.errors import GpuyardError
from gpuyard.gpus.base import Reading
from gpuyard.spec.work import Work

_Answer = TypeVar("_Answer")
SLICE = 0.005  # seconds of a turn that a long request may take at most; to write what it did takes three times as long
_LONG_TURN = 0.015  # seconds: after a longer turn the next slice is shorter
_LEAST_SLICE = 0.2  # of a slice: turns may all be long, by the starts of many jobs
log = logging.getLogger("gpuyard")
_STUCK = 300.0  # seconds
_JUMP = 1.0  # seconds that the time of day may differ from the time that passed: it is always corrected a little
_COARSE = 0.1  # seconds by which the times of files may lag behind


class Clock:
    """Continues where an earlier daemon stopped, and follows the time of day where that is ahead."""

    def __init__(self, not_before: float = 0.0) -> None:
        self._now = max(not_before, time.time())
        self._ticks = time.monotonic()

    def now(self) -> float:
        ticks = time.monotonic()
        self._now = max(self._now + (ticks - self._ticks), time.time())
        self._ticks = ticks
        return self._now

    def booted(self) -> float:
        """When the machine started, by this clock: that changes with the time of day, and with nothing else."""
        return self.now() - time.clock_gettime(time.CLOCK_BOOTTIME)


class Boot:
    """When the machine started, by the daemon's clock: what changes when the time of day is set, and at no other time.

    The log keeps it, so that a jump is noticed that happened while no daemon ran.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._life = clock, processes.life()
        self._at = clock.booted()

    def recall(self, store: Store) -> None:
        """Go on with what the log says of this boot, if it says anything."""
        found = [record for kind in ("Opened", "ClockSet") for record in islice(store.latest(kind), 1)]
        known = [record for record in found if record.details.get("life") == self._life]
        if known:
            self._at = float(max(known, key=lambda record: record.event.at).details["booted"])

    def details(self) -> dict[str, Any]:
        """What the log keeps."""
        return {"life": self._life, "booted": round(self._at, 3)}

    def jump(self) -> float:
        """Seconds by which the clock has jumped since the last look; 0 if it has not."""
        by = round(self._clock.booted() - self._at, 3)
        if abs(by) <= _JUMP:
            return 0.0
        self._at += by
        return by


class Times:
    """The time of each job's last event, and of all, so that times by other clocks stay in order."""

    def __init__(self, written: Callable[[str], float], last: Callable[[], float] = lambda: 0.0) -> None:
        self._written, self._last_written = written, last
        self._latest: dict[str, float] = {}
        self.last = last()  # no event is earlier than the one before it

    def note(self, event: Event) -> None:
        self.last = event.at
        job = getattr(event, "job", None)
        if job is None:
            return
        if isinstance(event, Exited | Cancelled):
            self._latest.pop(job, None)
        else:
            self._latest[job] = event.at

    def forget(self) -> None:
        """Keep only what is written."""
        self._latest, self.last = {}, self._last_written()

    def began(self, job: str, at: float, now: float) -> float:
        """The start by the machine's clock: not before the placement, not after now."""
        return min(max(at, self._before(job), self.last), now)

    def ended(self, job: str, at: float, now: float) -> float:
        """The end by the machine's clock; now, if the clock was set back."""
        before = self._before(job)
        return max(at, before, self.last) if before - _COARSE <= at <= now else now

    def _before(self, job: str) -> float:
        before = self._latest.get(job)
        return self._written(job) if before is None else before


Asked = tuple[Callable[[], Any], bool, Future[Any]]  # a command, whether it changes anything, and its answer
Steps = Generator[Any, None, _Answer]
"""A long command: it yields where others may come between, and returns its answer."""


class Inbox:
    def __init__(self) -> None:
        self._waiting: deque[Asked] = deque()
        self._long: deque[tuple[Steps[Any], Future[Any]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rung = False  # whether the loop will look anyway: to ring costs a system call

    def __len__(self) -> int:
        return len(self._waiting)

    def fileno(self) -> int:
        return self._bell

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def put(self, command: Callable[[], Any], changes: bool) -> Future[Any]:
        answer: Future[Any] = Future()
        self.put_all([(command, changes, answer)])
        return answer

    def put_all(self, asked: Iterable[Asked]) -> None:
        self._waiting.extend(asked)
        self.ring()

    def hear(self, problem: str) -> list[tuple[Future[Any], Any]]:
        """Run the requests; answers wait for the write. With a problem, requests that change something are refused."""
        with suppress(BlockingIOError):  # it was not rung
            os.eventfd_read(self._bell)
        self._rung = False  # before the look: who comes from now on rings again
        answers: list[tuple[Future[Any], Any]] = []
        while self._waiting:
            command, changes, answer = self._waiting.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                if problem and changes:
                    raise StoreFailing(problem)
                value = command()
                if isinstance(value, Generator):
                    answers += self._step(value, answer)
                else:
                    answers.append((answer, value))
            except Exception as error:  # theirs to handle; a refusal has recorded nothing
                answer.set_exception(error)
        return answers

    @property
    def is_busy(self) -> bool:
        """Whether there is a long request to go on with."""
        return bool(self._long)

    def resume(self, steps: Steps[Any]) -> None:
        """Go on with a long request whose client is gone."""
        self._long.append((steps, Future()))

    def go_on(self) -> list[tuple[Future[Any], Any]]:
        """Let the next long request do its next step; its answer waits for the write as well."""
        if not self._long:
            return []
        steps, answer = self._long.popleft()
        try:
            return self._step(steps, answer)
        except Exception as error:
            answer.set_exception(error)
            return []

    def _step(self, steps: Steps[Any], answer: Future[Any]) -> list[tuple[Future[Any], Any]]:
        """The answer, if this was the last step; most requests have only one."""
        try:
            next(steps)
        except StopIteration as end:
            return [(answer, end.value)]
        self._long.append((steps, answer))
        return []

    def give_up(self, error: Exception) -> None:
        """After a failed write: what a long request has still to do is read from disk again."""
        while self._long:
            steps, answer = self._long.popleft()
            steps.close()
            answer.set_exception(error)


class BackgroundThread(ABC):
    """A part that works beside the daemon, in a thread of its own, step by step; a step that fails is not its end."""

    retry = 60.0  # seconds after a step that failed

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0
        self.problem = ""  # what the last step failed of; empty: it did not
        self._moved_at: float | None = None  # when a step that is under way last came on, on the monotonic clock
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def state(self) -> str:
        """`ok`, `failing`, `stuck` or `dead`; `off` before its start and after its end."""
        moved_at = self._moved_at
        if self._thread.ident is None or self._over.is_set():
            return "off"
        if not self._thread.is_alive():
            return "dead"
        if moved_at is not None and time.monotonic() - moved_at > _STUCK:
            return "stuck"
        return "failing" if self.problem else "ok"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._over.is_set():  # after that: who ends us sets this first
                return self._end()
            self._move()
            try:
                rest, self.problem = self._step(), ""
            except Exception as error:  # whatever a user has caused: the next step is another one
                rest = self.retry
                self._fail(error)
            self._moved_at = None
            self._wake.wait(rest)

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        former, self.problem = self.problem, f"{type(error).__name__}: {error}"
        if self.problem != former:
            expected = isinstance(error, GpuyardError | OSError | sqlite3.Error)
            text = "the %s thread cannot go on, and tries again in %.0f s: %s"
            log.error(text, self.name, self.retry, self.problem, exc_info=None if expected else error)

    def _end(self) -> None:  # noqa: B027
        """What this thread is to do last."""

    def _move(self) -> None:
        """Note that a step comes on."""
        self._moved_at = time.monotonic()

    @abstractmethod
    def _step(self) -> float | None:
        """Do what there is to do; returns the seconds until the next step, None: until somebody sets `_wake`."""


class Absent(BackgroundThread):
    """One that could not be made."""

    state = property(lambda self: "dead")

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name)
        self.problem = problem

    def _step(self) -> None: ...


class Context:
    """The daemon as its parts see it. Only the loop's thread may change it."""

    def __init__(self, store: Store, engine: Engine, machine: Machine, settings: Settings) -> None:
        self.store, self.engine, self.machine, self.settings = store, engine, machine, settings
        self.state: State
        self.clock = Clock(store.last_at)
        self.boot = Boot(self.clock)
        self.times = Times(store.latest_at, lambda: store.last_at)
        self.meters = Meters(store.open, store.latest_at)
        self.measures = Measures(settings.data_dir / "measures.json")  # what running jobs use of their GPUs
        self.measures.gpu_memory = max((float(device.memory) for device in machine.gpus.devices), default=0.0)
        self.checkpoints = Checkpoints(store)
        self.inbox = Inbox()
        self.observers: list[Callable[[Event, Mapping[str, Any]], None]] = []
        """Called with each event and its details just before the state changes."""
        self.listeners: list[Callable[[list[Record]], None]] = []
        """Called with the records that were written, by the loop's thread: they must be quick."""
        self.watchers: list[Callable[[float, Sequence[Reading], Sequence[Seen]], None]] = []
        """Called with each look at GPUs and jobs, by the thread that looked: they must be quick."""
        self.unwritten: list[Record] = []  # records of this turn
        self.environments: dict[str, str] = {}
        """Environments and scripts by their hash, to be written with the next records."""
        self.answers: dict[tuple[str, str], Answered] = {}
        """Answers to requests with a key, by user and key, to be written with the next records."""
        self.intents: dict[int, Intent | None] = {}
        """Long requests by number, to be written with the next records: how far they are; None: they are done."""
        self._intent = store.last_intent
        self._slice, self._slice_began, self._slice_end = SLICE, 0.0, 0.0
        self.threads: list[BackgroundThread] = []
        """What works beside the daemon."""
        self.new_leases: list[str] = []
        """Waiting leases whose process the engine must watch as soon as they are written."""
        self._descriptions: dict[str, Record] = {}
        """The latest unwritten description of each job: one turn may bring thousands."""
        self._newest = self._taken = max(store.newest, engine.last_job())

    def ask(self, command: Callable[[], _Answer], *, changes: bool = True) -> Future[_Answer]:
        """Run a command in the loop's thread; the answer comes when its events are on disk. For any thread.

        A command that changes nothing is answered also while nothing can be written.
        """
        return self.inbox.put(command, changes)

    def record(self, event: Event, **details: Any) -> None:
        """Let an event happen, not before the last one; the loop writes it at the end of the turn."""
        if event.at < self.times.last:
            event = replace(event, at=self.times.last)
        for observe in self.observers:
            observe(event, details)
        apply(self.state, event)
        record = Record(event, details)
        self.unwritten.append(record)
        if isinstance(event, Submitted | Edited):
            self._descriptions[event.job] = record
        self.times.note(event)
        if isinstance(event, Started):
            self.machine.began()

    def intend(self, what: Mapping[str, Any]) -> int:
        """Write down a long request with what the present turn does of it: a restart goes on with it."""
        self._intent += 1
        self.intents[self._intent] = Intent(0, json.dumps(what, separators=(",", ":")))
        return self._intent

    def paused(self, intent: int, done: int) -> None:
        """So much of a long request is done when this turn is written."""
        before = self.intents.get(intent)
        self.intents[intent] = Intent(done, before.what if before else "")

    def begin_slice(self) -> None:
        """A turn begins; long requests get less of it if the last one took long, by whatever."""
        now = time.monotonic()
        took, self._slice_began = now - self._slice_began, now
        wanted = self._slice * (0.5 if took > _LONG_TURN else 1.2)
        self._slice = min(SLICE, max(_LEAST_SLICE * SLICE, wanted)) if self.inbox.is_busy else SLICE
        self._slice_end = now + self._slice

    @property
    def slice_is_over(self) -> bool:
        """Whether a long request has to let others come between."""
        return time.monotonic() >= self._slice_end

    def take_unwritten(
        self,
    ) -> tuple[list[Record], dict[str, str], dict[tuple[str, str], Answered], dict[int, Intent | None]]:
        """Pending writes: records, environments, answers and intents."""
        found = self.unwritten, self.environments, self.answers, self.intents
        self.unwritten, self.environments, self.answers, self.intents = [], {}, {}, {}
        self._descriptions = {}
        return found

    def drop_unwritten(self) -> None:
        """After a failed write: only what is on disk has happened."""
        self.take_unwritten()
        self.new_leases = []
        self.times.forget()

    def reload(self) -> None:
        self.state = self.store.load() or self.state
        self._newest = max(self.store.newest, self._taken)
        self.store.keep(self.state)

    def next_id(self) -> str:
        """The id of a new job: a number that no job has had, nor any file of the engine."""
        self._newest += 1
        return str(self._newest)

    def keep_ids(self, newest: int) -> None:
        """No new job gets an id up to this one."""
        self._newest = max(self._newest, newest)

    def description(self, job: str) -> tuple[Work, Request]:
        """What a job runs and asks for, also when it is over."""
        return description(job, self.store, self._descriptions)

    def work_of(self, job: str) -> Work:
        record = self._descriptions.get(job)
        return Work.from_json(record.details["work"]) if record else work_of(self.store.open[job])

    def work_json(self, job: str) -> Mapping[str, Any]:
        record = self._descriptions.get(job)
        work: Mapping[str, Any] = record.details["work"] if record is not None else self.store.open[job].work
        return work


def in_slices(
    context: Context, intent: int, jobs: Iterable[_Answer], act: Callable[[_Answer], None], done: int = 0
) -> Steps[None]:
    """Carry out what is written down, a slice a turn; `done` of it are done already, before a restart."""
    for place, job in enumerate(jobs):
        if place < done:
            continue
        if context.slice_is_over:
            context.paused(intent, place)
            yield
        act(job)
    context.intents[intent] = None


def at_once(steps: Steps[_Answer]) -> _Answer:
    """The answer of a long command, with all of it in one turn."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: _Answer = end.value
            return answer
