"""The overview: a tile for each GPU, today's totals, the next jobs and the recently finished ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

from nicegui.element import Element

from gpuyard.page.api import Facts, Refused, Unavailable
from gpuyard.page.feed import Drain, DrainReasons, Feed, Samples, SharedState
from gpuyard.page.parts import brief_epoch
from gpuyard.page.visit import Visit

_GRAIN = 2**24  # bytes; smaller changes of memory use are not sent
_TOLERANCE = 2**26  # bytes beyond its share that a job may use, as in the daemon
_FAILED = ("failed", "timeout", "oom", "interrupted")


def tile(gpu: Facts, jobs: Mapping[str, Facts], now: float, drain: Drain | None = None) -> dict[str, Any]:
    """A GPU without its samples."""
    tenants = [_tenant(id, gpu, jobs.get(id), now) for id in _on(gpu)]
    begin, end = brief_epoch(gpu["reserved_from"]), brief_epoch(gpu["reserved_until"])
    booked = None if begin is None else {"name": gpu["reservation"], "begin": begin, "end": end, "now": begin <= now}
    return {
        "index": gpu["index"], "name": gpu["name"], "simulated": gpu["simulated"], "memory": gpu["memory_total"],
        "kind": kind(gpu, now), "why": gpu["why"] or "", "drained": gpu["drained"],
        "reason": _reason(drain) if gpu["drained"] and drain else "", "booked": booked,
        "jobs": tenants, "shares": _shares(gpu, tenants),
        "others": [_other(process) for process in _processes(gpu) if process["job"] is None],
    }  # fmt: skip


def _reason(drain: Drain) -> str:
    why = drain.why.strip().rstrip(".")
    return f"{why} ({drain.by})" if why and drain.by else why


def _shares(gpu: Facts, tenants: list[dict[str, Any]]) -> dict[str, int] | None:
    """Promised and free memory of a shared GPU; None if one job has all of it."""
    if not tenants or not all(one["promised"] for one in tenants) or gpu["state"] == "unknown":
        return None
    left = int(gpu["memory_left"] // _GRAIN * _GRAIN)
    return {"promised": gpu["memory_promised"], "left": left} if left or len(tenants) > 1 else None


def kind(gpu: Facts, now: float) -> str:
    """State of a GPU for its tile; the most important comes first."""
    if gpu["state"] == "unknown":
        return "lost"
    if gpu["state"] == "foreign":
        return "foreign"
    if gpu["state"] == "ours":
        return "busy"
    if gpu["drained"]:
        return "drained"
    begin = brief_epoch(gpu["reserved_from"])
    return "reserved" if begin is not None and begin <= now else "free"


def waiting(job: Facts) -> dict[str, Any]:
    tasks = job.get("tasks")
    return {
        **_named(job), "since": brief_epoch(job["submitted_at"]), "reason": job["reason"] or "",
        "gpus": job["gpu_count"], "memory": job["gpu_memory"], "tasks": tasks.get("queued", 0) if tasks else 0,
    }  # fmt: skip


def finished(job: Facts) -> dict[str, Any]:
    begin, end = brief_epoch(job["started_at"]), brief_epoch(job["ended_at"])
    return {
        **_named(job), "state": job["state"], "ended": end, "code": job["exit_code"],
        "ran": None if begin is None or end is None else round(end - begin + job["ran_before"], 1),
    }  # fmt: skip


def day(stats: Facts) -> dict[str, Any]:
    """Totals since midnight."""
    outcomes = stats["outcomes"]
    return {
        "hours": round(stats["gpu_hours"], 2), "wait": stats["wait_seconds"]["mean"],
        "done": outcomes.get("succeeded", 0), "failed": sum(outcomes.get(state, 0) for state in _FAILED),
        "cancelled": outcomes.get("cancelled", 0),
    }  # fmt: skip


def midnight(now: datetime) -> str:
    begin = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return begin.isoformat()


def _named(job: Facts) -> dict[str, Any]:
    return {"id": job["id"], "name": job["name"] or "", "user": job["user"], "lease": job["kind"] == "lease"}


def _on(gpu: Facts) -> Iterable[str]:
    """Jobs on a GPU: placed ones, then ended ones that still have processes there."""
    there = (process["job"] for process in _processes(gpu) if process["job"] is not None)
    return dict.fromkeys((*gpu["jobs"], *there))


def _tenant(id: str, gpu: Facts, job: Facts | None, now: float) -> dict[str, Any]:
    own = [process for process in _processes(gpu) if process["job"] == id]
    named = _named(job) if job else {"id": id, "name": "", "user": own[0]["user"] if own else None, "lease": False}
    memory = _rounded(sum(process["memory"] for process in own))
    progress, promised = (job["progress"], job["gpu_memory"]) if job else (None, 0)
    return {
        **named, "memory": memory, "promised": promised or None, "loan": gpu.get("granted") == id,
        "note": (job["reason"] or "") if job and job["adaptive"] else "",
        "over": bool(promised) and memory > promised + _TOLERANCE,
        "started": brief_epoch(job["started_at"]) if job else None,
        "wide": len(job["gpus"]) if job else 1,
        "progress": progress and round(progress["fraction"], 3),
        "end": _awaited(job, now) if job else None,
        "by": job and job["expected_by"],
    }  # fmt: skip


def _other(process: Facts) -> dict[str, Any]:
    return {
        "pid": process["pid"], "user": process["user"], "name": process["name"] or "",
        "memory": _rounded(process["memory"]), "draws": process["graphics"],
    }  # fmt: skip


def _processes(gpu: Facts) -> list[Facts]:
    return gpu.get("processes") or []


def _rounded(size: float) -> int:
    return round(size / _GRAIN) * _GRAIN


def _awaited(job: Facts, now: float) -> float | None:
    """When a job should end; long ago, if it takes longer. By progress it is rounded, lest every update changes it."""
    end = 0.0 if job["expected_by"] == "overdue" else brief_epoch(job["expected_end_at"])
    if end is None or job["expected_by"] != "progress":
        return end
    grain = max(2.0, 10.0 ** len(str(int(end - now))) / 50)
    return round(end / grain) * grain


HEAD = 10  # jobs of the queue, and of the finished ones, that are shown
_PATHS = {
    "/gpus": 2.0,
    "/jobs?state=running&limit=1000": 2.0,
    f"/jobs?state=queued&fold=true&limit={HEAD}": 5.0,
    "/jobs?state=held&columns=true&limit=1": 5.0,
    f"/history?limit={HEAD}": 30.0,
}
"""What is requested, and for how many seconds an answer is used if nothing happens."""
_WHOLE = {"utilization": 1.0, "temperature": 1.0, "power": 1.0, "memory_used": 2.0**20}
"""Samples are sent as whole percent, degrees, watts and mebibytes."""


class EncodedSamples:
    """Samples as JSON, encoded once for all viewers."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._last: float | None = None
        self._cache: dict[float, str] = {}

    def after(self, at: float, gpus: list[int]) -> tuple[float, str]:
        last = self._samples.last
        if last is None or last <= at:
            return at, ""
        if last != self._last:
            self._cache.clear()
            self._last = last
        if at not in self._cache:
            self._cache[at] = self._encoded(at, gpus)
        return last, self._cache[at]

    def _encoded(self, at: float, gpus: list[int]) -> str:
        new = sum(1 for sample in self._samples.at if sample > at)
        values = {
            metric: [[_whole(value, unit) for value in self._samples.latest(gpu, metric, new)] for gpu in gpus]
            for metric, unit in _WHOLE.items()
        }
        times = [round(sample, 1) for sample in list(self._samples.at)[-new:]]
        return json.dumps({"at": times, "gpus": gpus, **values}, separators=(",", ":"))


class OverviewState(SharedState):
    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._drains = DrainReasons(feed)
        self._drained: dict[int, Drain] = {}
        self.curves = EncodedSamples(feed.samples)
        self.gpus: list[int] = []

    async def refresh(self) -> None:
        answers = await asyncio.gather(*(self._feed.ask(path, keep) for path, keep in _PATHS.items()))
        if not self.differs(answers):
            return
        self._drained = await self._drains.of(answers[0]["gpus"])
        self.seen = answers
        self.take(self._compute(*answers))

    def _compute(self, machine: Any, running: Any, queued: Any, held: Any, ended: Any) -> dict[str, Any]:
        now = time.time()
        jobs = {job["id"]: job for job in running["jobs"]}
        self.gpus = [gpu["index"] for gpu in machine["gpus"]]
        tiles = {
            f"gpu {gpu['index']}": tile(gpu, jobs, now, self._drained.get(gpu["index"])) for gpu in machine["gpus"]
        }
        return {
            "order": self.gpus,
            **tiles,
            "counts": {"waiting": queued["total"], "held": held["total"], "running": running["total"]},
            "head": [waiting(job) for job in queued["jobs"]],
            "ended": [finished(job) for job in ended["jobs"]],
        }


def _whole(value: float | None, unit: float) -> int | None:
    return None if value is None else round(value / unit)


_STATS_TIMEOUT = 0.1  # seconds that the tiles wait for the day's totals, which may be slow
_FIRST_TIMEOUT = 1.0  # seconds that a new page waits for its content
_DAY = 30.0  # seconds for which these totals are used


class OverviewElement(Element, component="../assets/overview.js"):
    """The whole overview; changes are sent to the component's `take`."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self._visit = visit
        self._state = visit.feed.shared(OverviewState)
        self._version, self._at = 0, 0.0
        self._day: dict[str, Any] | None = None
        self._props["acts"] = visit.viewer.acts

    async def begin(self) -> None:
        """Send the content with the page if the daemon answers soon; else it follows."""
        with suppress(Unavailable, Refused, TimeoutError):
            async with asyncio.timeout(_FIRST_TIMEOUT):
                self._props["begin"] = await self._news()

    async def show(self) -> None:
        if news := await self._news():
            self.run_method("take", news)

    async def _news(self) -> str:
        """What this viewer has not been sent yet, as JSON."""
        state = self._state
        today = await self._today()
        await state.refresh()
        parts = state.after(self._version)
        self._version = state.version
        self._at, samples = state.curves.after(self._at, state.gpus)
        if not (parts or samples or today):
            return ""
        return _joined(now=f"{time.time():.2f}", parts=parts, samples=samples, day=today)

    async def _today(self) -> str:
        """The day's totals if they changed; empty until the viewer's zone is known."""
        if self._visit.zone is None:
            return ""
        since = quote(midnight(datetime.now(self._visit.zone)), safe="")
        with suppress(TimeoutError, Refused):
            async with asyncio.timeout(_STATS_TIMEOUT):
                stats = await self._visit.feed.ask(f"/stats?since={since}", _DAY, until_event=False)
                found = day(stats)
                if found != self._day:
                    self._day = found
                    return json.dumps(found)
        return ""


def _joined(**parts: str) -> str:
    """A JSON object of values that are already encoded."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items() if text) + "}"


async def build(visit: Visit) -> None:
    screen = OverviewElement(visit)
    await screen.begin()
    visit.live(screen.show)
