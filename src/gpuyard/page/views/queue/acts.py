"""What people do to jobs in the queue, alone or several at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import quote

from nicegui import ui

from gpuyard.errors import GpuyardError
from gpuyard.page.api import Away, Refused
from gpuyard.page.parts import confirm
from gpuyard.page.parts import priority as written
from gpuyard.page.views.queue.listing import Listed
from gpuyard.page.visit import Visit

_AT_ONCE = 8
_SHOWN = 5.0  # seconds after which a priority that was set is surely shown, or somebody else set another
_DONE = {"cancel": "Cancelled", "hold": "Held", "release": "Released"}


class Acts:
    """Does what the viewer wants, and says how it went."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._one_at_a_time = asyncio.Lock()
        self._wished: dict[str, tuple[float, float]] = {}
        """Priorities that the table does not show yet, and until when to go by them: two presses are two steps."""

    async def do(self, name: str, jobs: Sequence[Listed]) -> None:
        """Cancel, hold or release; whoever cancels is asked first."""
        if not jobs or (name == "cancel" and not await self._is_sure(jobs)):
            return
        await self._each(jobs, lambda job: self._visit.api.post(f"/jobs/{quote(job.id, safe='')}/{name}"), _DONE[name])

    async def step(self, job: Listed, by: float) -> None:
        """Give a job so much more priority than it has, or is about to have."""
        wished, until = self._wished.get(job.key, (job.priority, math.inf))
        priority = by + (wished if time.monotonic() < until else job.priority)
        wish = self._wished[job.key] = priority, time.monotonic() + _SHOWN
        async with self._one_at_a_time:
            if self._wished.get(job.key) != wish:
                return  # there is a later step, which has this one in it
            if not await self.set_priority(job, priority):
                self._wished.pop(job.key, None)

    def shown(self, jobs: Iterable[Listed]) -> None:
        """Forget wishes that have come true; not while one is on its way, since it may be the last but one."""
        for job in () if self._one_at_a_time.locked() else jobs:
            if self._wished.get(job.key, (None, 0.0))[0] == job.priority:
                del self._wished[job.key]

    async def set_priority(self, job: Listed, priority: float, told: str = "") -> bool:
        """Give a job another priority."""
        done = told or f"{_begin(job.label)} {'have' if job.tasks > 1 else 'has'} priority {written(priority)} now."
        return await self._visit.do(self._edit(job, priority), done)

    async def _edit(self, job: Listed, priority: float) -> None:
        await self._visit.api.ask("PATCH", f"/jobs/{quote(job.id, safe='')}", {"priority": priority})

    async def _is_sure(self, jobs: Sequence[Listed]) -> bool:
        running = sum(job.state == "running" for job in jobs)
        what = jobs[0].label if len(jobs) == 1 else f"these {_counted(jobs)}"
        if len(jobs) == 1 and jobs[0].name:
            what += f" ({jobs[0].name[:80]})"
        more = ""
        if running:
            more = " It is running: what it has done is lost unless it saved it." if len(jobs) == 1 else (
                f" {running} of them {'is' if running == 1 else 'are'} running."
            )  # fmt: skip
        return await confirm(f"Cancel {what}?{more}", "Cancel it" if len(jobs) == 1 else "Cancel them")

    async def _each(self, jobs: Sequence[Listed], act: Callable[[Listed], Awaitable[object]], done: str) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(job: Listed) -> GpuyardError | None:
            async with gate:
                try:
                    await act(job)
                except (Refused, Away) as error:
                    return error
                return None

        errors = [error for error in await asyncio.gather(*map(one, jobs)) if error is not None]
        well = len(jobs) - len(errors)
        if well:
            what = jobs[0].label if len(jobs) == 1 else f"{well} of {len(jobs)}" if errors else _counted(jobs)
            ui.notify(f"{done} {what}.", type="positive")
        if errors:
            self._visit.tell(errors[0])
        self._visit.beat()


def _counted(jobs: Sequence[Listed]) -> str:
    """`3 jobs`, where each task is one."""
    return f"{sum(job.tasks for job in jobs):,} jobs"


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]
