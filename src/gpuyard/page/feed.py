"""The daemon's event stream, read once for all viewers: events, GPU samples, reasons of drains."""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from gpuyard.errors import GpuyardError
from gpuyard.page.api import Api, Refused, Unavailable

SAMPLES_KEPT = 120  # per GPU
METRICS = ("utilization", "memory_used", "temperature", "power")
Curves = dict[str, deque[float | None]]
T = TypeVar("T")


class Samples:
    def __init__(self) -> None:
        self.at: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self._curves: dict[int, Curves] = {}

    @property
    def last(self) -> float | None:
        """Time of the latest sample, in seconds since the epoch."""
        return self.at[-1] if self.at else None

    def add(self, answer: Mapping[str, Any]) -> None:
        self.at.extend(answer["at"])
        for gpu in answer["gpus"]:
            curves = self._curves.setdefault(gpu["index"], {name: deque(maxlen=SAMPLES_KEPT) for name in METRICS})
            for name in METRICS:
                curves[name].extend(gpu.get(name) or [None] * len(answer["at"]))

    def of(self, gpu: int, metric: str) -> Sequence[float | None]:
        curves = self._curves.get(gpu)
        return list(curves[metric]) if curves else []

    def latest(self, gpu: int, metric: str, count: int) -> list[float | None]:
        """So many samples up to the last; None where there was none yet."""
        known = list(self.of(gpu, metric)[-count:])
        return [None] * (count - len(known)) + known


log = logging.getLogger("gpuyard.page")
_REST = 0.5  # seconds between beats
_HEARTBEAT = 1.0  # seconds until a beat without any event
_RETRY = 0.5  # seconds until the next try if the daemon is away
_FORGET = 120.0  # seconds after which an answer is dropped
_MAX_ANSWERS = 300  # answers that are kept: typing in a filter makes many different requests


class Listener(Protocol):
    """An open page, called at every beat."""

    def beat(self) -> None: ...


class _Answer:
    __slots__ = ("at", "seen", "task")

    def __init__(self, task: asyncio.Task[Any], seen: int) -> None:
        self.task, self.at, self.seen = task, time.monotonic(), seen

    @property
    def failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class Feed:
    def __init__(self, api: Api) -> None:
        self.api = api
        self.samples = Samples()
        self.listeners: set[Listener] = set()
        self.happened = 0  # number of events so far; answers from before the latest event are outdated
        self.away = False
        self._news = asyncio.Event()
        self._answers: dict[str, _Answer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._shared: dict[Callable[[Feed], Any], Any] = {}

    async def start(self) -> None:
        for work in (self._follow_events, self._follow_samples, self._beat):
            self._tasks.append(asyncio.create_task(run_forever(work)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, path: str, keep: float = 5.0, *, until_event: bool = True) -> Any:
        """The API's answer: at most `keep` seconds old, and (by default) no older than the latest event."""
        known = self._answers.get(path)
        now = time.monotonic()
        if known is None or now - known.at > keep or (until_event and known.seen != self.happened) or known.failed:
            known = self._answers[path] = _Answer(asyncio.create_task(self.api.ask("GET", path)), self.happened)
        return await asyncio.shield(known.task)

    def shared(self, kind: Callable[[Feed], T]) -> T:
        if kind not in self._shared:
            self._shared[kind] = kind(self)
        found: T = self._shared[kind]
        return found

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
                            self._tell(away=False)
            except Unavailable:
                pass  # handled below, as is the end of a stream
            except Refused as error:
                log.warning("events cannot be followed: %s", error)
            self._tell(away=True)
            await asyncio.sleep(_RETRY)

    def _tell(self, *, away: bool) -> None:
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
            except Unavailable:
                await asyncio.sleep(_RETRY)
            except Refused as error:
                log.warning("samples cannot be read: %s", error)
                await asyncio.sleep(10 * _RETRY)

    async def _beat(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _HEARTBEAT)
            self._news.clear()
            for listener in list(self.listeners):
                listener.beat()
            self._forget()
            await asyncio.sleep(_REST)

    def _forget(self) -> None:
        done = [(path, answer) for path, answer in self._answers.items() if answer.task.done()]
        done.sort(key=lambda one: one[1].at)
        old, many = time.monotonic() - _FORGET, len(done) - _MAX_ANSWERS
        for number, (path, answer) in enumerate(done):
            if answer.at < old or number < many:
                del self._answers[path]


async def run_forever(work: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine, and restart it when it fails, so that open pages do not freeze silently."""
    while True:
        try:
            await work()
        except GpuyardError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("the feed failed, and begins again")
        await asyncio.sleep(_RETRY)


class VersionedParts:
    def __init__(self) -> None:
        self.version = 0
        self._parts: dict[str, Any] = {}
        self._since: dict[str, int] = {}
        self._encoded: dict[int, str] = {}

    def take(self, parts: Mapping[str, Any]) -> None:
        gone = {name: None for name, part in self._parts.items() if part is not None and name not in parts}
        changed = {name: part for name, part in {**parts, **gone}.items() if self._parts.get(name) != part}
        if not changed:
            return
        self.version += 1
        self._parts |= changed
        self._since |= dict.fromkeys(changed, self.version)
        self._encoded.clear()

    def after(self, version: int) -> str:
        """Changes since a version, as JSON; empty if there are none."""
        if version >= self.version:
            return ""
        if version not in self._encoded:
            new = {name: part for name, part in self._parts.items() if self._since[name] > version}
            self._encoded[version] = json.dumps(new, separators=(",", ":"))
        return self._encoded[version]


class SharedState(VersionedParts):
    """A view's parts, computed once for all viewers; get it by `Feed.shared`."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self.seen: Sequence[Any] = ()  # the answers from which the parts were computed

    def differs(self, answers: Sequence[Any]) -> bool:
        return len(answers) != len(self.seen) or any(map(operator.is_not, answers, self.seen))


class Drain(NamedTuple):
    """Why a GPU was drained, and by whom; both may be empty."""

    why: str
    by: str


class DrainReasons:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._drained: list[int] = []
        self._found: dict[int, Drain] = {}

    async def of(self, gpus: Sequence[Mapping[str, Any]]) -> dict[int, Drain]:
        drained = [gpu["index"] for gpu in gpus if gpu["drained"]]
        if drained != self._drained:
            answer = await self._feed.ask("/events?kind=GpusDrained&limit=10000", 0.0) if drained else {"events": []}
            self._drained, self._found = drained, drain_reasons(answer["events"])
        return self._found


def drain_reasons(events: Sequence[Mapping[str, Any]]) -> dict[int, Drain]:
    found: dict[int, Drain] = {}
    for event in events:
        found |= dict.fromkeys(event.get("gpus") or (), Drain(event.get("reason") or "", event.get("by") or ""))
    return found
