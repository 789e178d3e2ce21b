"""Taking jobs in: one, the tasks of an array, or all that a file describes; all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuyard.arrays import Array, parse_array, task_id
from gpuyard.core.events import Held, Submitted
from gpuyard.core.model import Request
from gpuyard.daemon.register import Register
from gpuyard.daemon.store import hashed
from gpuyard.daemon.views import Work
from gpuyard.daemon.yard import Yard
from gpuyard.errors import UserError

MOST_TASKS = 100_000
"""Jobs that one request may bring."""
_MOST_WAITS = 1_000_000
"""How many jobs all tasks of an array together may wait for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job, or an array of them, as somebody wants it."""

    work: Work
    request: Request
    environment: Mapping[str, str] = field(default_factory=dict)
    """Not looked at if `work` has the hash of one that is kept already."""
    hold: bool = False
    dependency: str = ""
    array: str = ""
    script: str = ""
    """The text that it runs."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is to be recorded of one wish."""

    id: str
    jobs: list[tuple[str, Request, Work]]
    kept: dict[str, str]
    hold: bool


class Intake:
    """Where jobs come in. Nothing is recorded unless everything can be."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._register = Register(yard)

    def take(self, wanted: Sequence[Wanted]) -> list[str]:
        """Take jobs in; returns the id of each, or of its array. A dependency on `@0` is one on the first of them."""
        entries: list[_Entry] = []
        batch: list[list[str]] = []
        count = 0  # kept along: the yard waits for this, and to count anew for each of 100,000 takes minutes
        for one in wanted:
            try:
                entries.append(self._entry(one, batch))
            except UserError as error:
                if len(wanted) == 1:
                    raise
                which = f"job {len(entries) + 1} of {len(wanted)} ({one.work.name})"
                raise UserError(f"{which}: {error}") from error
            batch.append([job for job, _, _ in entries[-1].jobs])
            count += len(batch[-1])
            if count > MOST_TASKS:
                raise UserError(f"at most {MOST_TASKS:,} jobs can be submitted at once; use several requests")
        yard, now = self._yard, self._yard.clock.now()
        for entry in entries:
            yard.environments |= entry.kept
            for job, request, work in entry.jobs:
                yard.record(Submitted(now, job, request), work=work.to_json())
                if entry.hold:
                    yard.record(Held(now, job))
                if work.kind == "lease":
                    yard.watch_lease(job)
        return [entry.id for entry in entries]

    def follow(self, dependency: str, request: Request, name: str) -> tuple[str, ...]:
        """What `Request.after` is to hold for a job of this name."""
        return self._register.follow(dependency, request.user, name)

    def _entry(self, one: Wanted, batch: Sequence[Sequence[str]]) -> _Entry:
        yard = self._yard
        array = parse_array(one.array) if one.array else None
        request = one.request
        if one.dependency:
            after = self._register.follow(one.dependency, request.user, one.work.name, batch)
            request = replace(request, after=after)
        if array and len(array.tasks) * len(request.after) > _MOST_WAITS:
            raise UserError(
                f"{len(array.tasks):,} tasks that each follow {len(request.after):,} jobs are too many; put a job "
                "between the two that follows the first and is followed by the second"
            )
        refusal = never(yard, request)
        if refusal is not None:
            lease = one.work.kind == "lease"
            raise UserError(f"this {'lease can never begin' if lease else 'job can never run'} here: it {refusal}")
        work, kept = self._kept(one)
        id = yard.next_id()
        return _Entry(id, list(_jobs(id, request, work, array)), kept, one.hold)

    def _kept(self, one: Wanted) -> tuple[Work, dict[str, str]]:
        """The work, with the hashes of what is kept by itself, and that."""
        work, kept = one.work, dict[str, str]()
        for known in filter(None, (work.environment, work.script)):  # of a job that this is a copy of
            kept[known] = self._yard.store.kept(known)
        if not work.environment:
            key, content = hashed(one.environment)
            work, kept[key] = replace(work, environment=key), content
        if one.script:
            key, content = hashed(one.script)
            work, kept[key] = replace(work, script=key), content
        return work, kept


def never(yard: Yard, request: Request) -> str | None:
    """Why a job can never run here; None if it can. The core speaks of clusters, and this is a machine."""
    refusal = yard.planner.refuses(yard.state, request)
    return None if refusal is None else refusal.replace("the cluster has", "this machine has")


def _jobs(id: str, request: Request, work: Work, array: Array | None) -> list[tuple[str, Request, Work]]:
    if array is None:
        return [(id, request, work)]
    tasks = array.tasks
    request = replace(request, array=id, at_most=array.at_most)
    all_of_them = (len(tasks), tasks[0], tasks[-1])
    return [(task_id(id, task), request, replace(work, task=task, tasks=all_of_them)) for task in tasks]
