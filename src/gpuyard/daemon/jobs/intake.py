"""Taking jobs in: one, the tasks of an array, or a batch; all of them, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from gpuyard.core.events import Held, Submitted
from gpuyard.core.model import Phase, Request
from gpuyard.daemon.context import Context
from gpuyard.daemon.devices.gpu_shares import fitted_share, permanent_refusal
from gpuyard.daemon.jobs.estimates import Estimates
from gpuyard.daemon.jobs.outcomes import ENDED
from gpuyard.daemon.jobs.profiles import profile_of
from gpuyard.daemon.planning import Planning
from gpuyard.daemon.store.log import hashed
from gpuyard.errors import UserError, suggest
from gpuyard.spec.notation import AFTER, Array, parse_array, parse_dependency, some_of, task_id
from gpuyard.spec.work import Work


class Dependencies:
    """Looks jobs up: in the state, among unwritten records, and on disk."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def follow(self, text: str, user: str, name: str, batch: Sequence[Sequence[str]] = ()) -> tuple[str, ...]:
        """The value of `Request.after`. `@2` is the third job of a batch."""
        found: list[str] = []
        for how, who in parse_dependency(text):
            if how == "singleton":
                found += [f"any:{job}" for job, phase in self._all_named(name, user) if not phase.over]
                continue
            for job, phase in self._who(who, user, batch):
                if not phase.over:
                    found.append(f"{how}:{job}")
                elif how in ("ok", "notok") and (how == "ok") != (phase is Phase.SUCCEEDED):
                    raise UserError(
                        f"job {job} {ENDED.get(phase, phase)}, so a job that is to follow it "
                        f"({AFTER[how]}:{who}) could never start"
                    )
        return tuple(dict.fromkeys(found))

    def _who(self, who: str, user: str, batch: Sequence[Sequence[str]]) -> list[tuple[str, Phase]]:
        if who.startswith("@") and who[1:].isdecimal() and len(who) < 12 and int(who[1:]) < len(batch):
            return [(job, Phase.QUEUED) for job in batch[int(who[1:])]]
        found = self._with_id(who) or self._of_array(who) or self._named(who, user)
        if not found:
            known = [name for _, name, of in self._unwritten() if of == user] + self._context.store.names(user)
            raise UserError(
                f"there is no job {who} to follow, neither by its id nor, of {user or 'yours'}, by its name"
                f"{suggest(who, known)}"
            )
        return found

    def _with_id(self, job: str) -> list[tuple[str, Phase]]:
        if job in self._context.state.row_of:
            return [(job, self._phase(job, "queued"))]
        return [(s.id, Phase(s.state)) for s in self._context.store.standing(id=job)]

    def _of_array(self, array: str) -> list[tuple[str, Phase]]:
        state = self._context.state
        if (some := some_of(array)) is not None:
            wanted = {task_id(some[0], task) for task in some[1]}
            return [(job, phase) for job, phase in self._of_array(some[0]) if job in wanted]
        if not array.isdecimal():
            return []
        written = [(s.id, self._phase(s.id, s.state)) for s in self._context.store.standing(array=array)]
        written.sort(key=lambda task: int(task[0].partition("_")[2]))
        fresh = [(job, self._phase(job, "queued")) for job, _, _ in self._unwritten() if job.startswith(f"{array}_")]
        return written + [(job, phase) for job, phase in fresh if job in state.row_of]

    def _named(self, name: str, user: str) -> list[tuple[str, Phase]]:
        """The newest open job of a name, else the newest; if it is a task, all of its array."""
        fresh = [job for job, called, of in self._unwritten() if (called, of) == (name, user)]
        if fresh:
            newest = fresh[-1]
        elif written := self._context.store.standing(1, name=name, user=user):
            newest = written[0].id
        else:
            return []
        array, task, _ = newest.partition("_")
        return self._of_array(array) if task else self._with_id(newest)

    def _all_named(self, name: str, user: str) -> list[tuple[str, Phase]]:
        fresh = [job for job, called, of in self._unwritten() if (called, of) == (name, user)]
        written = [view.id for view in self._context.store.open.values() if (view.name, view.user) == (name, user)]
        return [(job, self._phase(job, "queued")) for job in (*written, *fresh)]

    def _unwritten(self) -> Iterator[tuple[str, str, str]]:
        for record in self._context.unwritten:
            if isinstance(record.event, Submitted):
                yield record.event.job, record.details.get("work", {}).get("name", ""), record.event.request.user

    def _phase(self, job: str, otherwise: str) -> Phase:
        state = self._context.state
        row = state.row_of.get(job)
        return state.phase[row] if row is not None else Phase(otherwise)


Job = tuple[str, Request, Work]  # a job with its id, as it is recorded
MOST_TASKS = 100_000  # jobs that one request may bring
_MOST_WAITS = 1_000_000  # how many jobs all tasks of an array together may wait for


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A submission: a job, or an array of them."""

    work: Work
    request: Request
    environment: Mapping[str, str] = field(default_factory=dict)  # ignored if `work` has the hash of a stored one
    hold: bool = False
    dependency: str = ""
    array: str = ""
    script: str = ""  # the text that it runs
    own_id: bool = False  # whether `{id}` in its command is its id


@dataclass(frozen=True, slots=True)
class BatchOptions:
    name: str
    key: str = ""  # identifies the file of the batch; empty: nothing does
    waves: bool = False  # whether rows start in their order, wave by wave; else the policy alone decides
    again: bool = False  # whether it is a batch of its own though one with this key is open
    skip: bool = False  # whether rows that can never run here are left out; else one such row refuses the batch


class NewJobs(NamedTuple):
    """What one submission becomes: a job, or the tasks of an array."""

    jobs: list[Job]
    trials: list[Job]  # jobs that profile it first; they are recorded before it
    hold: bool = False

    @property
    def id(self) -> str:
        id, request, _ = self.jobs[0]
        return request.array or id


class IntakeResult(NamedTuple):
    ids: list[str]  # of each accepted job or array
    refused: list[tuple[int, str]]  # position, from 0 on, and reason of each refused one


def as_batch(entries: Sequence[NewJobs], how: BatchOptions, refused: Sequence[tuple[int, str]]) -> list[NewJobs]:
    if not entries or entries[0].jobs[0][2].row is None:
        return list(entries)
    common: dict[str, Any] = {"batch": (entries[0].id, how.name, how.key)}
    found = [
        entry._replace(jobs=_with(entry.jobs, common), trials=_with(entry.trials, common))
        for entry in (_in_waves(entries) if how.waves else entries)
    ]
    if refused:
        found[0] = found[0]._replace(jobs=_with(found[0].jobs, {"refusals": tuple(refused)}))
    return found


def _in_waves(entries: Sequence[NewJobs]) -> list[NewJobs]:
    """The same, each after the one before. Trials of a wave precede all its rows: each needs a GPU alone."""
    found = list[NewJobs]()
    before: tuple[str, ...] = ()
    for _, several in groupby(entries, key=_wave):
        wave = list(several)
        trials = [_after(job, before) for entry in wave for job in entry.trials]
        follows = (*before, *(f"any:{id}" for id, _, _ in trials))
        for entry in wave:
            found.append(entry._replace(jobs=[_after(job, follows) for job in entry.jobs], trials=trials))
            follows, trials = tuple(f"begun:{id}" for id, _, _ in entry.jobs), []
        before = tuple(f"any:{id}" for entry in wave for id, _, _ in entry.jobs)
    return found


def _wave(entry: NewJobs) -> int:
    row = entry.jobs[0][2].row
    return row[1] if row is not None else 1


def _after(job: Job, conditions: Sequence[str]) -> Job:
    id, request, work = job
    return id, replace(request, after=tuple(dict.fromkeys((*request.after, *conditions)))), work


def _with(jobs: Sequence[Job], more: Mapping[str, Any]) -> list[Job]:
    return [(id, request, replace(work, **more)) for id, request, work in jobs]


def open_batch(context: Context, user: str, key: str) -> tuple[str, list[str]] | None:
    """A user's batch with this key of which some jobs are not over, and these; None if there is none."""
    if not key:
        return None
    found: dict[str, list[str]] = {}
    fresh = [
        (record.event.job, record.event.request.user, record.details["work"].get("batch"))
        for record in context.unwritten
        if isinstance(record.event, Submitted)
    ]
    written = ((view.id, view.user, view.work.get("batch")) for view in context.store.open.values())
    for id, of, batch in (*written, *fresh):
        if batch and of == user and batch[2] == key:
            found.setdefault(batch[0], []).append(id)
    return next(iter(found.items()), None)


class Intake:
    """Accepts jobs. Nothing is recorded unless everything can be."""

    def __init__(self, context: Context, planning: Planning, estimates: Estimates) -> None:
        self._context, self._planning, self._estimates = context, planning, estimates
        self._dependencies = Dependencies(context)
        self._hashed: tuple[Mapping[str, str], tuple[str, str]] | None = None
        """The last environment with its hash and content: jobs that come together mostly share one."""
        self._contents: dict[str, str] = {}  # environments and scripts of this request, by their hash
        self._trials: dict[str, str] = {}  # the trial jobs of this request, by signature
        self.warnings: list[str] = []  # for the user who made the last request

    def take(self, wanted: Sequence[JobRequest]) -> list[str]:
        """Accept jobs; returns the id of each, or of its array. A dependency on `@0` is one on the first of them."""
        entries, refused = self._entries(wanted)
        _refuse_all(wanted, refused)
        return self._record(entries)

    def take_batch(
        self, wanted: Sequence[JobRequest], how: BatchOptions, refusals: Sequence[tuple[int, str]] = ()
    ) -> IntakeResult:
        """Accept the rows that can run here as a batch; `refusals` are rows that were refused before."""
        entries, refused = self._entries(wanted)
        if not how.skip:
            _refuse_all(wanted, refused)
        rows = [(row[0] if (row := wanted[place].work.row) else place + 1, why) for place, why in refused]
        return IntakeResult(self._record(as_batch(entries, how, sorted([*refusals, *rows]))), refused)

    def _entries(self, wanted: Sequence[JobRequest]) -> tuple[list[NewJobs], list[tuple[int, str]]]:
        entries: list[NewJobs] = []
        refused: list[tuple[int, str]] = []
        batch: list[list[str]] = []
        self._contents, self._trials, self.warnings = {}, {}, []
        count = 0  # a running sum: to count again for each of 100,000 jobs would hold up the loop for minutes
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

    def _record(self, entries: Sequence[NewJobs]) -> list[str]:
        context, now = self._context, self._context.clock.now()
        self._hashed = None  # its owner may change it
        context.environments |= self._contents
        for entry in entries:
            for job, request, work in entry.trials:
                context.record(Submitted(now, job, request), work=work.to_json())
            for job, request, work in entry.jobs:
                context.record(Submitted(now, job, request), work=work.to_json())
                if entry.hold:
                    context.record(Held(now, job))
                if work.kind == "lease":
                    context.new_leases.append(job)
        return [entry.id for entry in entries]

    def follow(self, dependency: str, request: Request, name: str) -> tuple[str, ...]:
        """The value of `Request.after` for a job of this name."""
        return self._dependencies.follow(dependency, request.user, name)

    def _entry(self, one: JobRequest, batch: Sequence[Sequence[str]]) -> NewJobs:
        context = self._context
        array = parse_array(one.array) if one.array else None
        request = one.request
        if one.dependency:
            after = self._dependencies.follow(one.dependency, request.user, one.work.name, batch)
            request = replace(request, after=after)
        if array and len(array.tasks) * len(request.after) > _MOST_WAITS:
            raise UserError(
                f"{len(array.tasks):,} tasks that each follow {len(request.after):,} jobs are too many; put a job "
                "between the two that follows the first and is followed by the second"
            )
        work, request = self._estimates.fitted(one.work, request)
        request = fitted_share(context, request)
        if request.kind != work.signature:
            request = replace(request, kind=work.signature)
        refusal = permanent_refusal(context, self._planning.planner, request, work) or self._estimates.refusal(work)
        if refusal is not None:
            lease = one.work.kind == "lease"
            raise UserError(f"this {'lease can never begin' if lease else 'job can never run'} here: it {refusal}")
        work, contents = self._with_contents(work, one)
        if (warning := self._estimates.warning(work, request)) and warning not in self.warnings:
            self.warnings.append(warning)
        trials, request = self._trials_of(work, request, one.own_id)
        self._contents |= contents
        return NewJobs(_jobs(context.next_id(), request, work, array, one.own_id), trials, one.hold)

    def _trials_of(self, work: Work, request: Request, own_id: bool) -> tuple[list[Job], Request]:
        """A job that profiles another, if that is wanted and nothing is known; and the other's request, after it."""
        signature = work.signature
        if not (work.profile and signature and work.auto_memory) or self._estimates.is_known(signature):
            return [], request
        other = self._trials.get(signature) or self._estimates.profiler(signature)
        trials: list[Job] = []
        if other is None:
            self._trials[signature] = other = self._context.next_id()
            short, asked = profile_of(work, request, other, own_id)
            trials = [(other, asked, short)]
        return trials, replace(request, after=tuple(dict.fromkeys((*request.after, f"any:{other}"))))

    def _with_contents(self, work: Work, one: JobRequest) -> tuple[Work, dict[str, str]]:
        """The work with the hashes of its environment and script; and both, by their hash."""
        contents = dict[str, str]()
        for known in filter(None, (work.environment, work.script)):  # of a job that this is a copy of
            contents[known] = self._context.store.kept(known)
        if not work.environment:
            if self._hashed is None or self._hashed[0] is not one.environment:
                self._hashed = one.environment, hashed(one.environment)
            key, content = self._hashed[1]
            work, contents[key] = replace(work, environment=key), content
        if one.script:
            key, content = hashed(one.script)
            work, contents[key] = replace(work, script=key), content
        return work, contents


def _refuse_all(wanted: Sequence[JobRequest], refused: Sequence[tuple[int, str]]) -> None:
    for place, why in refused:
        which = f"job {place + 1} of {len(wanted)} ({wanted[place].work.name}): " if len(wanted) > 1 else ""
        raise UserError(f"{which}{why}")


def _jobs(id: str, request: Request, work: Work, array: Array | None, own_id: bool) -> list[Job]:
    if array is None:
        return [(id, request, _with_id(work, id) if own_id else work)]
    tasks = array.tasks
    request = replace(request, array=id, at_most=array.at_most)
    all_of_them = (len(tasks), tasks[0], tasks[-1])
    works = [(task_id(id, task), replace(work, task=task, tasks=all_of_them)) for task in tasks]
    return [(task, request, _with_id(own, task) if own_id else own) for task, own in works]


def _with_id(work: Work, id: str) -> Work:
    return replace(work, command=tuple(word.replace("{id}", id) for word in work.command))
