"""Routes of statistics over a span of time: jobs, GPU usage by user, interference between jobs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Response

from gpuyard.api import replies, types
from gpuyard.core.colocation import AVOIDED, NEVER
from gpuyard.core.policy import CONSIDERATE
from gpuyard.daemon.background.interference import Interference
from gpuyard.daemon.store.statistics import HOUR, Window, statistics, usage
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.predict.slowdowns import Finding
from gpuyard.server.context import Context
from gpuyard.server.request_fields import Since
from gpuyard.server.responses import iso, reply
from gpuyard.server.routing import AT, LATER, Route, ok

_STATS_SPAN = 24 * HOUR
_STATES = ("queued", "held", "running")
_USAGE_SPAN, _MOST_USAGE = 5_000, 20_000

_TOOK: dict[str, Any] = {
    "count": 40, "mean": 610.5, "median": 300.0, "p90": 1800.0, "p99": 7200.0,
    "histogram": {"edges": [1.0, 60.0, 3600.0], "counts": [0, 4, 32, 4]},
}  # fmt: skip
STATS: dict[str, Any] = {
    "since": AT, "until": LATER, "gpus": 4, "submitted": 52, "ended": 40, "outcomes": {"succeeded": 38, "failed": 2},
    "gpu_hours": 71.5, "utilization": 0.74, "wait_seconds": _TOOK, "run_seconds": _TOOK,
    "users": [{"user": "ann", "gpu_hours": 71.5, "submitted": 52, "ended": 40, "energy_wh": 15730.0}],
    "tags": [{"tag": "paper", "gpu_hours": 12.5, "submitted": 8, "ended": 8}],
    "queue": {"queued": 7, "held": 1, "running": 4, "gpus_wanted": 9},
}  # fmt: skip
USAGE: dict[str, Any] = {
    "since": 1794735000.0, "until": 1794821400.0, "gpus": 4, "more": False,
    "columns": {
        "job": ["17", "12"], "name": ["train", "eval"], "user": ["ann", "bob"], "kind": ["job", "job"],
        "gpu": [[0, 1], [2]], "begin": [1794820000.0, 1794810000.0], "end": [None, 1794813600.0],
        "state": ["running", "succeeded"], "attempt": [1, 1],
    },
}  # fmt: skip
INTERFERENCE: dict[str, Any] = {
    "considered": True,
    "pairs": [
        {
            "sufferer": {"signature": "5b1f2c9e", "name": "train", "job": "17"},
            "beside": {"signature": "a90c44d1", "name": "eval", "job": "12"}, "slowdown": 2.4, "verdict": "apart",
            "evidence": "progress", "seconds": 184.0, "at": AT,
        }
    ],
}  # fmt: skip


class StatisticsRoutes:
    def __init__(self, context: Context, interference: Interference) -> None:
        self._context, self._interference = context, interference
        self._one_stats, self._one_usage = asyncio.Lock(), asyncio.Lock()  # each may read a hundred thousand jobs

    @Route(
        "GET /stats", "getStats", "What was done in a span of time", "Events", ok("What.", replies.Stats, STATS), (422,)
    )
    async def stats(
        self,
        since: Annotated[Since, Query(description="From then on; a day before the end unless given.")] = None,
        until: Annotated[Since, Query(description="Until then; until now unless given.")] = None,
    ) -> Response:
        """What happened in a span of time, and how the queue stands now."""
        begin, end = span_of(since, until, time.time())
        devices = self._context.daemon.machine.gpus.devices
        window = Window(begin, end, len(devices), max((float(d.memory) for d in devices), default=0.0) or 1.0)
        async with self._one_stats:
            found = await asyncio.to_thread(statistics, self._context.settings.database, window)
        views = list(self._context.daemon.store.open.values())
        for user in found["users"]:
            user["energy_wh"] = self._energy(user, views, begin, end)
        states = Counter(view.state for view in views)
        wanted = sum(view.work["gpu_count"] for view in views if view.state == "queued")
        queue = {**{state: states[state] for state in _STATES}, "gpus_wanted": wanted}
        return reply({"since": iso(begin), "until": iso(end), "gpus": len(devices), **found, "queue": queue})

    def _energy(self, user: dict[str, Any], views: list[JobView], begin: float, end: float) -> float | None:
        """Watt-hours of a user's jobs in a span of time, running ones included."""
        known = [] if user["energy_wh"] is None else [user["energy_wh"]]
        for view in views:
            live = self._context.daemon.measures.live(view) if view.user == user["user"] else None
            if live and live["energy_wh"] is not None and view.started is not None and live["seconds"] > 0:
                inside = min(end, view.started + live["seconds"]) - max(begin, view.started)
                known.append(live["energy_wh"] * min(1.0, max(0.0, inside / live["seconds"])))
        return round(sum(known), 3) if known else None

    @Route("GET /usage", "getUsage", "Who was on which GPU when", "Events", ok("Who.", types.Usage, USAGE), (422,))
    async def usage(
        self,
        since: Annotated[Since, Query(description="From then on; a day before the end unless given.")] = None,
        until: Annotated[Since, Query(description="Until then; until now unless given.")] = None,
        limit: Annotated[
            int, Query(ge=1, le=_MOST_USAGE, description="At most so many, the latest of them.")
        ] = _USAGE_SPAN,
    ) -> Response:
        """Who was on which GPU when: every attempt of every job in a span of time, those that began last first."""
        begin, end = span_of(since, until, time.time())
        gpus = len(self._context.daemon.machine.gpus.devices)

        def look() -> Response:
            columns, more = usage(self._context.settings.database, begin, end, limit)
            return reply({"since": begin, "until": end, "gpus": gpus, "more": more, "columns": columns})

        async with self._one_usage:
            return await asyncio.to_thread(look)

    @Route(
        "GET /interference", "getInterference", "What do jobs that share a GPU do to each other?", "GPUs",
        ok("What was seen.", replies.Interference, INTERFERENCE),
    )  # fmt: skip
    async def interference(self) -> Response:
        """What jobs of each kind suffer beside those of another on one GPU, as far as it was seen; the worst first."""
        known = sorted(self._interference.known.values(), key=lambda one: (-one.slowdown, one.sufferer, one.beside))
        considered = self._context.daemon.planner.placement == CONSIDERATE
        return reply({"considered": considered, "pairs": [_pair(one) for one in known]})


def span_of(
    since: datetime | None, until: datetime | None, now: float, usual: float = _STATS_SPAN
) -> tuple[float, float]:
    """The requested span; by default it ends now, and is a day (or `usual`) long."""
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


def _pair(one: Finding) -> dict[str, Any]:
    return {
        "sufferer": _kind(one, 0), "beside": _kind(one, 1), "slowdown": round(one.slowdown, 3),
        "verdict": verdict(one.slowdown), "evidence": one.evidence, "seconds": round(one.seconds, 1), "at": iso(one.at),
    }  # fmt: skip


def _kind(one: Finding, which: int) -> dict[str, str]:
    """A kind of jobs: its signature, the name of its jobs, and the last job that was observed."""
    signature = (one.sufferer, one.beside)[which]
    return {"signature": signature, "name": one.names[which], "job": one.jobs[which]}


def verdict(slowdown: float) -> str:
    """What placement `considerate` makes of it."""
    if slowdown >= NEVER:
        return "apart"
    return "avoided" if slowdown >= AVOIDED else "together"
