"""Jobs that come in as a batch: what they have in common, and the order in which they start.

Rows of a wave follow each other's start, and the first of them follows the end of all of the wave before: whatever the
policy says, they start in this order, and a row that drops out hands on whom it waited for (`core.dependencies`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from gpuyard.core.events import Submitted
from gpuyard.core.model import Request
from gpuyard.daemon.views import Work
from gpuyard.daemon.yard import Yard

Job = tuple[str, Request, Work]
Jobs = list[Job]
"""What one wish became: a job, or the tasks of an array."""


@dataclass(frozen=True, slots=True)
class Together:
    """What a batch is called, and how its rows start."""

    name: str
    key: str = ""
    """What tells that a file is the same; empty: nothing does."""
    waves: bool = False
    """Whether rows start in their order, wave by wave; else the policy alone decides."""
    again: bool = False
    """Whether it is a batch of its own though one with this key is open."""
    skip: bool = False
    """Whether rows that can never run here are left out; else nothing is taken because of one."""


class Taking(NamedTuple):
    """One wish, as it is to be recorded."""

    jobs: Jobs
    tried: Jobs
    """Jobs that try it out first, and are recorded first."""


def as_batch(entries: Sequence[Taking], how: Together, refused: Sequence[tuple[int, str]]) -> list[Taking]:
    """The same jobs as a batch."""
    if not entries or entries[0].jobs[0][2].row is None:
        return list(entries)
    first = entries[0].jobs[0]
    common: dict[str, Any] = {"batch": (first[1].array or first[0], how.name, how.key)}
    found = _in_waves(entries) if how.waves else list(entries)
    found = [
        Taking([_with(job, common) for job in one.jobs], [_with(job, common) for job in one.tried]) for one in found
    ]
    if refused:
        found[0] = found[0]._replace(jobs=[_with(job, {"refusals": tuple(refused)}) for job in found[0].jobs])
    return found


def _in_waves(entries: Sequence[Taking]) -> list[Taking]:
    """The same, in their order. What tries rows of a wave out comes before all of them: it wants a GPU alone."""
    found = list[Taking]()
    before: tuple[str, ...] = ()
    for _, several in groupby(entries, key=_wave):
        wave = list(several)
        tried = [_after(job, before) for entry in wave for job in entry.tried]
        follows = (*before, *(f"any:{id}" for id, _, _ in tried))
        for entry in wave:
            found.append(Taking([_after(job, follows) for job in entry.jobs], tried))
            follows, tried = tuple(f"begun:{id}" for id, _, _ in entry.jobs), []
        before = tuple(f"any:{id}" for entry in wave for id, _, _ in entry.jobs)
    return found


def _wave(entry: Taking) -> int:
    row = entry.jobs[0][2].row
    return row[1] if row is not None else 1


def _after(job: Job, wishes: Sequence[str]) -> Job:
    id, request, work = job
    return id, replace(request, after=tuple(dict.fromkeys((*request.after, *wishes)))), work


def _with(job: Job, more: Mapping[str, Any]) -> Job:
    id, request, work = job
    return id, request, replace(work, **more)


def open_batch(yard: Yard, user: str, key: str) -> tuple[str, list[str]] | None:
    """A user's batch with this key of which some jobs are not over, and these; None if there is none."""
    if not key:
        return None
    found: dict[str, list[str]] = {}
    fresh = [
        (record.event.job, record.event.request.user, record.details["work"].get("batch"))
        for record in yard.unwritten
        if isinstance(record.event, Submitted)
    ]
    written = ((view.id, view.user, view.work.get("batch")) for view in yard.store.open.values())
    for id, of, batch in (*written, *fresh):
        if batch and of == user and batch[2] == key:
            found.setdefault(batch[0], []).append(id)
    return next(iter(found.items()), None)
