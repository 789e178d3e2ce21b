"""The route of what the yard did in a span of time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Response

from gpuyard.daemon.statistics import HOUR, Window, statistics
from gpuyard.daemon.views import JobView
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
        begin, end = span_of(since, until, time.time())
        devices = self._api.yard.machine.gpus.devices
        window = Window(begin, end, len(devices), max((float(d.memory) for d in devices), default=0.0) or 1.0)
        async with self._one_at_a_time:  # it may look at a hundred thousand jobs
            found = await asyncio.to_thread(statistics, self._api.settings.database, window)
        views = list(self._api.yard.store.open.values())
        for user in found["users"]:
            user["energy_wh"] = self._energy(user, views, begin, end)
        states = Counter(view.state for view in views)
        wanted = sum(view.work["gpu_count"] for view in views if view.state == "queued")
        queue = {**{state: states[state] for state in _STATES}, "gpus_wanted": wanted}
        return reply({"since": iso(begin), "until": iso(end), "gpus": len(devices), **found, "queue": queue})

    def _energy(self, user: dict[str, Any], views: list[JobView], begin: float, end: float) -> float | None:
        """What a user's jobs took of energy in a span of time: of those that are over, and of those that run."""
        known = [] if user["energy_wh"] is None else [user["energy_wh"]]
        for view in views:
            live = self._api.yard.measures.live(view) if view.user == user["user"] else None
            if live and live["energy_wh"] is not None and view.started is not None and live["seconds"] > 0:
                inside = min(end, view.started + live["seconds"]) - max(begin, view.started)
                known.append(live["energy_wh"] * min(1.0, max(0.0, inside / live["seconds"])))
        return round(sum(known), 3) if known else None


def span_of(since: datetime | None, until: datetime | None, now: float, usual: float = _USUAL) -> tuple[float, float]:
    """The span of time that somebody means: the day (or so) before its end, and until now, if not said."""
    end = min(now, _seconds(until, now))
    begin = _seconds(since, end - usual)
    if begin >= end:
        raise UserError(f"the span is empty: since ({iso(begin)}) must be before until ({iso(end)}) and before now")
    return begin, end


def _seconds(given: datetime | None, usual: float) -> float:
    try:
        return usual if given is None else given.timestamp()
    except (OverflowError, ValueError, OSError):
        raise UserError(f"{given} is no time that can be told; write for example 2026-11-20T08:00:00Z") from None
