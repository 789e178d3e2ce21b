"""Waiting for something to happen to a job, or to anything, without asking again and again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

from fastapi import Query

from gpuyard.arrays import array_of
from gpuyard.daemon.journal import Record

_ANYTHING = ""
_LONGEST = 30.0

Wait = Annotated[float, Query(ge=0, le=_LONGEST, description="Seconds to wait for it.")]


class Watch:
    """Who waits for what; lives in the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self.over = False
        """Whether nobody is to wait any more."""

    def committed(self, records: Iterable[Record]) -> None:
        """Events are on disk. Called by the yard's thread."""
        jobs = {record.job for record in records if record.job is not None}
        arrays = {array for job in jobs if (array := array_of(job))}
        self._loop.call_soon_threadsafe(self._wake, jobs | arrays)

    def tell(self, topic: str) -> None:
        """Something has happened that is no event. Called by any thread."""
        self._loop.call_soon_threadsafe(self._release, topic)

    def end(self) -> None:
        """Let nobody wait any more: the daemon ends, and whoever asks is to be answered at once."""
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
        """Return when something has happened to the job (or at all), or the seconds are over."""
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
