"""Taking jobs in: one, the tasks of an array, or all that a file describes; all of them, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuyard.arrays import Array, parse_array, task_id
from gpuyard.core.events import Held, Submitted
from gpuyard.core.model import Request
from gpuyard.daemon.batches import Taking, Together, as_batch
from gpuyard.daemon.profiles import profile_of
from gpuyard.daemon.register import Register
from gpuyard.daemon.sizing import never, seated
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
    own_id: bool = False
    """Whether `{id}` in its command is its id."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is to be recorded of one wish."""

    id: str
    jobs: list[tuple[str, Request, Work]]
    kept: dict[str, str]
    hold: bool
    tried: tuple[tuple[str, Request, Work], ...] = ()
    """A job that tries it out first."""


class Taken(NamedTuple):
    """What became of several wishes."""

    ids: list[str]
    """Of each that was taken, or of its array."""
    refused: list[tuple[int, str]]
    """Which of them were not, from 0 on, and why."""


class Intake:
    """Where jobs come in. Nothing is recorded unless everything can be."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._register = Register(yard)
        self._hashed: tuple[Mapping[str, str], tuple[str, str]] | None = None
        """The environment that was looked at last, as it is kept: jobs that come together mostly share one."""
        self._tried: dict[str, str] = {}
        """What jobs of this request try out, by signature."""
        self.warnings: list[str] = []
        """What to tell whoever made the last request."""

    def take(self, wanted: Sequence[Wanted]) -> list[str]:
        """Take jobs in; returns the id of each, or of its array. A dependency on `@0` is one on the first of them."""
        entries, refused = self._entries(wanted)
        _refuse_all(wanted, refused)
        return self._record(entries)

    def take_batch(self, wanted: Sequence[Wanted], how: Together, refusals: Sequence[tuple[int, str]] = ()) -> Taken:
        """Take those in that can run here, as a batch, of which some rows were refused before."""
        entries, refused = self._entries(wanted)
        if not how.skip:
            _refuse_all(wanted, refused)
        rows = [(row[0] if (row := wanted[place].work.row) else place + 1, why) for place, why in refused]
        taking = [Taking(entry.jobs, list(entry.tried)) for entry in entries]
        together = as_batch(taking, how, sorted([*refusals, *rows]))
        joined = [replace(e, jobs=t.jobs, tried=tuple(t.tried)) for e, t in zip(entries, together, strict=True)]
        return Taken(self._record(joined), refused)

    def _entries(self, wanted: Sequence[Wanted]) -> tuple[list[_Entry], list[tuple[int, str]]]:
        """What is to be recorded of wishes, and which of them cannot be granted."""
        entries: list[_Entry] = []
        refused: list[tuple[int, str]] = []
        batch: list[list[str]] = []
        self._tried, self.warnings = {}, []
        count = 0  # kept along: the yard waits for this, and to count anew for each of 100,000 takes minutes
        for place, one in enumerate(wanted):
            try:
                entries.append(self._entry(one, batch))
            except UserError as error:
                refused.append((place, str(error)))
                batch.append([])
                continue
            batch.append([job for job, _, _ in entries[-1].jobs])
            count += len(batch[-1])
            if count > MOST_TASKS:
                raise UserError(f"at most {MOST_TASKS:,} jobs can be submitted at once; use several requests")
        return entries, refused

    def _record(self, entries: Sequence[_Entry]) -> list[str]:
        yard, now = self._yard, self._yard.clock.now()
        self._hashed = None  # who gave it may change it
        for entry in entries:
            yard.environments |= entry.kept
            for job, request, work in entry.tried:
                yard.record(Submitted(now, job, request), work=work.to_json())
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
        expected, request = yard.estimates.fitted(one.work, request)
        request = replace(seated(yard, request), kind=expected.signature)
        refusal = never(yard, request, expected) or yard.estimates.refusal(expected)
        if refusal is not None:
            lease = one.work.kind == "lease"
            raise UserError(f"this {'lease can never begin' if lease else 'job can never run'} here: it {refusal}")
        work, kept = self._kept(replace(one, work=expected))
        if (warning := yard.estimates.warning(work, request)) and warning not in self.warnings:
            self.warnings.append(warning)
        tried, request = self._tried_first(work, request, one.own_id)
        id = yard.next_id()
        return _Entry(id, list(_jobs(id, request, work, array, one.own_id)), kept, one.hold, tried)

    def _tried_first(
        self, work: Work, request: Request, own_id: bool
    ) -> tuple[tuple[tuple[str, Request, Work], ...], Request]:
        """The job that tries another out, if that is wanted and nothing is known; and what the other asks for then."""
        yard, signature = self._yard, work.signature
        if not (work.profile and signature and work.auto_memory) or yard.estimates.is_known(signature):
            return (), request
        other = self._tried.get(signature) or yard.estimates.profiler(signature)
        tried: tuple[tuple[str, Request, Work], ...] = ()
        if other is None:
            self._tried[signature] = other = yard.next_id()
            short, wish = profile_of(work, request, other, own_id)
            tried = ((other, wish, short),)
        return tried, replace(request, after=tuple(dict.fromkeys((*request.after, f"any:{other}"))))

    def _kept(self, one: Wanted) -> tuple[Work, dict[str, str]]:
        """The work, with the hashes of what is kept by itself, and that."""
        work, kept = one.work, dict[str, str]()
        for known in filter(None, (work.environment, work.script)):  # of a job that this is a copy of
            kept[known] = self._yard.store.kept(known)
        if not work.environment:
            key, content = self._environment(one.environment)
            work, kept[key] = replace(work, environment=key), content
        if one.script:
            key, content = hashed(one.script)
            work, kept[key] = replace(work, script=key), content
        return work, kept

    def _environment(self, given: Mapping[str, str]) -> tuple[str, str]:
        if self._hashed is None or self._hashed[0] is not given:
            self._hashed = given, hashed(given)
        return self._hashed[1]


def _refuse_all(wanted: Sequence[Wanted], refused: Sequence[tuple[int, str]]) -> None:
    """Take nothing, if something cannot be taken."""
    for place, why in refused:
        which = f"job {place + 1} of {len(wanted)} ({wanted[place].work.name}): " if len(wanted) > 1 else ""
        raise UserError(f"{which}{why}")


def _jobs(
    id: str, request: Request, work: Work, array: Array | None, own_id: bool = False
) -> list[tuple[str, Request, Work]]:
    if array is None:
        return [(id, request, _told(work, id) if own_id else work)]
    tasks = array.tasks
    request = replace(request, array=id, at_most=array.at_most)
    all_of_them = (len(tasks), tasks[0], tasks[-1])
    works = [(task_id(id, task), replace(work, task=task, tasks=all_of_them)) for task in tasks]
    return [(task, request, _told(own, task) if own_id else own) for task, own in works]


def _told(work: Work, id: str) -> Work:
    """The work with the job's id where its command asks for that."""
    return replace(work, command=tuple(word.replace("{id}", id) for word in work.command))
