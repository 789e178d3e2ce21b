"""The route of what the yard did in a span of time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import Query, Response

from gpuyard.daemon.statistics import HOUR, Window, statistics
from gpuyard.errors import UserError
from gpuyard.server.answers import reply
from gpuyard.server.fields import Since
from gpuyard.server.times import iso

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_USUAL = 24 * HOUR
_STATES = ("queued", "held", "running")


class Stats:
    """Numbers of jobs, of GPU-hours, and how long things took."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._one_at_a_time = asyncio.Lock()

    async def stats(
        self,
        since: Annotated[Since, Query(description="From then on; a day before the end unless given.")] = None,
        until: Annotated[Since, Query(description="Until then; until now unless given.")] = None,
    ) -> Response:
        """What happened in a span of time, and how the queue stands now."""
        now = time.time()
        end = min(now, _seconds(until, now))
        begin = _seconds(since, end - _USUAL)
        if begin >= end:
            raise UserError(f"the span is empty: since ({iso(begin)}) must be before until ({iso(end)}) and before now")
        devices = self._api.yard.machine.gpus.devices
        window = Window(begin, end, len(devices), max((float(d.memory) for d in devices), default=0.0) or 1.0)
        async with self._one_at_a_time:  # it may look at a hundred thousand jobs
            found = await asyncio.to_thread(statistics, self._api.settings.database, window)
        views = list(self._api.yard.store.open.values())
        states = Counter(view.state for view in views)
        wanted = sum(view.work["gpu_count"] for view in views if view.state == "queued")
        queue = {**{state: states[state] for state in _STATES}, "gpus_wanted": wanted}
        return reply({"since": iso(begin), "until": iso(end), "gpus": len(devices), **found, "queue": queue})


def _seconds(given: datetime | None, usual: float) -> float:
    try:
        return usual if given is None else given.timestamp()
    except (OverflowError, ValueError, OSError):
        raise UserError(f"{given} is no time that can be told; write for example 2026-11-20T08:00:00Z") from None
