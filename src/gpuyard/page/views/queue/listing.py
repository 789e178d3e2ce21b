"""Jobs as rows of the table, and what may be done to each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuyard.arrays import ranges, some_of
from gpuyard.page.parts import STATES, job_path, priority, size, span
from gpuyard.page.table import Action, Column, Row
from gpuyard.page.visit import Viewer

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
class Listed:
    """A job, or the waiting tasks of an array, as the API lists it."""

    key: str
    """The same while tasks of an array start one after the other."""
    id: str
    name: str
    user: str
    state: str
    kind: str
    priority: float
    submitted: float
    array: str = ""
    """The array whose waiting tasks it stands for."""
    tasks: int = 1

    @property
    def label(self) -> str:
        """What to call it in a sentence."""
        if self.tasks > 1:
            return f"the {self.tasks:,} {STATES[self.state]} tasks of job {self.array}"
        return f"job {self.id}"


def listed(columns: Mapping[str, list[Any]]) -> list[Listed]:
    """The jobs of an answer."""
    names = ("id", "name", "user", "state", "kind", "priority", "submitted")
    return [_one(*values) for values in zip(*(columns[name] for name in names), strict=True)]


def _one(id: str, name: str | None, user: str, state: str, kind: str, priority: float, submitted: float) -> Listed:
    some = some_of(id)
    if some is None:
        return Listed(id, id, name or "", user, state, kind, priority, submitted)
    array, tasks = some
    return Listed(f"{array}_[{state}", id, name or "", user, state, kind, priority, submitted, array, len(tasks))


def rows_of(columns: Mapping[str, list[Any]], viewer: Viewer, movable: bool) -> list[Row]:
    """The rows that show them to somebody."""
    return [_row(job, columns, place, viewer, movable) for place, job in enumerate(listed(columns))]


def _row(job: Listed, columns: Mapping[str, list[Any]], place: int, viewer: Viewer, movable: bool) -> Row:
    cell = {name: values[place] for name, values in columns.items()}
    since = cell["started"] if job.state == "running" else cell["waiting_since"]
    cells = (
        {"text": short_id(job), "href": job_path(job.array or job.id), "title": job.label},
        {"text": job.name or "–", "href": job_path(job.array or job.id), "title": "", "tags": cell["tags"]},
        {"state": job.state, "text": STATES.get(job.state, job.state)},
        job.user,
        gpus_of(cell["gpus"], cell["gpu_count"], cell["gpu_memory"]),
        since,
        priority(job.priority),
        standing(cell["state"], cell["reason"], cell["progress"], cell["expected_end"]),
    )
    acts = acts_of(job, viewer)
    return Row(job.key, job.label, cells, acts, bool(acts), movable and bool(acts) and job.state == "queued")


def short_id(job: Listed) -> str:
    """Its id; of many tasks so much as there is room for."""
    return job.id if len(job.id) <= _SHORT else f"{job.id[:_SHORT]}…"


def acts_of(job: Listed, viewer: Viewer) -> tuple[str, ...]:
    """What this viewer may do to it now."""
    if not viewer.owns(job.user):
        return ()
    if job.state == "running":
        return ("cancel",)
    held = () if job.kind == "lease" else ("release",) if job.state == "held" else ("hold",)
    return ("raise", "lower", *held, "cancel")


def gpus_of(gpus: list[int], count: int, memory: int | None) -> str:
    """Which GPUs it has, or how many it asks for, and how much of each."""
    told = f"GPU{'s' * (len(gpus) > 1)} {ranges(gpus)}" if gpus else f"{count} GPU{'s' * (count != 1)}"
    return told if memory is None else f"{told}, {size(memory)}{' each' if count > 1 else ''}"


def standing(
    state: str, reason: str | None, progress: Mapping[str, Any] | None, end: float | None = None
) -> dict[str, Any]:
    """How far it is, when it should end, or why it waits."""
    if state == "running" and progress is not None:
        left = span(progress["remaining"])
        text = f"{100 * progress['fraction']:.0f} %" + (f", {left} left" if left else "")
        return {"fraction": progress["fraction"], "text": f"{text}; {reason}" if reason else text}
    if state == "held":
        return {"fraction": None, "text": "Held until it is released."}
    if reason:
        return {"fraction": None, "text": reason[:1].upper() + reason[1:]}
    return {"fraction": None, "text": "", **({} if end is None else {"end": end})}
