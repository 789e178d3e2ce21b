"""Jobs of the queue as table rows, and the actions on one or several of them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from nicegui import ui

from gpuyard.errors import GpuyardError
from gpuyard.page import parts
from gpuyard.page.api import Refused, Unavailable
from gpuyard.page.parts import STATES, capitalized, confirm, job_path, size
from gpuyard.page.table import Action, Column, Row
from gpuyard.page.visit import Viewer, Visit
from gpuyard.spec.notation import ranges, some_of

COLUMNS = (
    Column("ID", "link"), Column("Name", "link", grow=True), Column("State", "chip"), Column("User"), Column("GPUs"),
    Column("For", "since", right=True), Column("Priority", "step"), Column("How it stands", "stand", grow=True),
)  # fmt: skip
ACTIONS = (
    Action("raise", "Raise the priority of", key="+"),
    Action("lower", "Lower the priority of", key="-"),
    Action("hold", "Hold", "pause", "h"),
    Action("release", "Release", "play_arrow", "h"),
    Action("cancel", "Cancel", "close", "Delete", danger=True),
)
_SHORT = 40  # characters of an array's id


@dataclass(frozen=True, slots=True)
class ListedJob:
    key: str  # stays the same while tasks of an array start
    id: str
    name: str
    user: str
    state: str
    kind: str
    priority: float
    submitted: float
    array: str = ""  # the array whose waiting tasks it stands for
    tasks: int = 1

    @property
    def label(self) -> str:
        if self.tasks > 1:
            return f"the {self.tasks:,} {STATES[self.state]} tasks of job {self.array}"
        return f"job {self.id}"


def listed(columns: Mapping[str, list[Any]]) -> list[ListedJob]:
    names = ("id", "name", "user", "state", "kind", "priority", "submitted")
    return [_one(*values) for values in zip(*(columns[name] for name in names), strict=True)]


def _one(id: str, name: str | None, user: str, state: str, kind: str, priority: float, submitted: float) -> ListedJob:
    some = some_of(id)
    if some is None:
        return ListedJob(id, id, name or "", user, state, kind, priority, submitted)
    array, tasks = some
    return ListedJob(f"{array}_[{state}", id, name or "", user, state, kind, priority, submitted, array, len(tasks))


def rows_of(columns: Mapping[str, list[Any]], viewer: Viewer, movable: bool) -> list[Row]:
    return [_row(job, columns, place, viewer, movable) for place, job in enumerate(listed(columns))]


def _row(job: ListedJob, columns: Mapping[str, list[Any]], place: int, viewer: Viewer, movable: bool) -> Row:
    cell = {name: values[place] for name, values in columns.items()}
    since = cell["started"] if job.state == "running" else cell["waiting_since"]
    cells = (
        {"text": short_id(job), "href": job_path(job.array or job.id), "title": job.label},
        {"text": job.name or "–", "href": job_path(job.array or job.id), "title": "", "tags": cell["tags"]},
        {"state": job.state, "text": STATES.get(job.state, job.state)},
        job.user,
        gpus_of(cell["gpus"], cell["gpu_count"], cell["gpu_memory"]),
        since,
        parts.priority(job.priority),
        standing(cell["state"], cell["reason"], cell["progress"], cell["expected_end"], cell["expected_by"]),
    )
    acts = actions_of(job, viewer)
    return Row(job.key, job.label, cells, acts, bool(acts), movable and bool(acts) and job.state == "queued")


def short_id(job: ListedJob) -> str:
    """Its id; that of many tasks is cut to the column's width."""
    return job.id if len(job.id) <= _SHORT else f"{job.id[:_SHORT]}…"


def actions_of(job: ListedJob, viewer: Viewer) -> tuple[str, ...]:
    if not viewer.owns(job.user):
        return ()
    if job.state == "running":
        return ("cancel",)
    held = () if job.kind == "lease" else ("release",) if job.state == "held" else ("hold",)
    return ("raise", "lower", *held, "cancel")


def gpus_of(gpus: list[int], count: int, memory: int | None) -> str:
    told = f"GPU{'s' * (len(gpus) > 1)} {ranges(gpus)}" if gpus else f"{count} GPU{'s' * (count != 1)}"
    return told if memory is None else f"{told}, {size(memory)}{' each' if count > 1 else ''}"


def standing(
    state: str, reason: str | None, progress: Mapping[str, Any] | None, end: float | None = None, by: str | None = None
) -> dict[str, Any]:
    if state == "held":
        return {"fraction": None, "text": "Held until it is released."}
    fraction = progress["fraction"] if state == "running" and progress is not None else None
    told = reason or ("longer than expected" if by == "overdue" else "")
    ends = {} if reason or end is None else {"end": end, "by": by}
    text = capitalized(told) if fraction is None else "; ".join(filter(None, (f"{100 * fraction:.0f} %", told)))
    return {"fraction": fraction, "text": text, **ends}


_AT_ONCE = 8
_SHOWN = 5.0  # seconds until a new priority is surely shown, or was changed again by others
_DONE = {"cancel": "Cancelled", "hold": "Held", "release": "Released"}


class JobActions:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._one_at_a_time = asyncio.Lock()
        self._requested: dict[str, tuple[float, float]] = {}
        """Priorities that the table does not show yet, with expiry times: two quick presses are two steps."""

    async def do(self, name: str, jobs: Sequence[ListedJob]) -> None:
        if not jobs or (name == "cancel" and not await self._is_sure(jobs)):
            return
        await self._each(jobs, lambda job: self._visit.api.post(f"/jobs/{quote(job.id, safe='')}/{name}"), _DONE[name])

    async def do_to_all(self, name: str, which: Mapping[str, Any]) -> None:
        """The same to all jobs that match, by one request."""
        if name == "cancel" and not await confirm("Cancel all jobs that match, on all pages?", "Cancel them"):
            return
        try:
            found = await self._visit.api.post("/jobs/bulk", {"action": name, **which})
        except GpuyardError as error:
            self._visit.tell(error)
            return
        ui.notify(f"{_DONE[name]} {found['changed']:,} job{'s' * (found['changed'] != 1)}.", type="positive")
        self._visit.beat()

    async def step(self, job: ListedJob, by: float) -> None:
        requested, until = self._requested.get(job.key, (job.priority, math.inf))
        priority = by + (requested if time.monotonic() < until else job.priority)
        latest = self._requested[job.key] = priority, time.monotonic() + _SHOWN
        async with self._one_at_a_time:
            if self._requested.get(job.key) != latest:
                return  # a later step includes this one
            if not await self.set_priority(job, priority):
                self._requested.pop(job.key, None)

    def shown(self, jobs: Iterable[ListedJob]) -> None:
        """Forget requested priorities that the table shows; not while a request is in flight."""
        for job in () if self._one_at_a_time.locked() else jobs:
            if self._requested.get(job.key, (None, 0.0))[0] == job.priority:
                del self._requested[job.key]

    async def set_priority(self, job: ListedJob, priority: float, told: str = "") -> bool:
        done = (
            told
            or f"{capitalized(job.label)} {'have' if job.tasks > 1 else 'has'} priority {parts.priority(priority)} now."
        )
        edit = self._visit.api.ask("PATCH", f"/jobs/{quote(job.id, safe='')}", {"priority": priority})
        return await self._visit.do(edit, done)

    async def _is_sure(self, jobs: Sequence[ListedJob]) -> bool:
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

    async def _each(self, jobs: Sequence[ListedJob], act: Callable[[ListedJob], Awaitable[object]], done: str) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(job: ListedJob) -> GpuyardError | None:
            async with gate:
                try:
                    await act(job)
                except (Refused, Unavailable) as error:
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


def _counted(jobs: Sequence[ListedJob]) -> str:
    """`3 jobs`; each task counts."""
    return f"{sum(job.tasks for job in jobs):,} jobs"
