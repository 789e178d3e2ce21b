"""Taking jobs in: one, the tasks of an array, or a batch; all of them, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpuyard.core.events import Held, Submitted
from gpuyard.core.limits.quotas import quota_of
from gpuyard.core.model import Phase, Request, Rules
from gpuyard.daemon.context import Context, Steps, in_slices
from gpuyard.daemon.devices.gpu_shares import fitted_share, permanent_refusal
from gpuyard.daemon.jobs.estimates import Estimates
from gpuyard.daemon.jobs.outcomes import ENDED
from gpuyard.daemon.jobs.profiles import profile_of
from gpuyard.daemon.limits import DEFAULT_QUEUED, waiting_of
from gpuyard.daemon.planning import Planning
from gpuyard.daemon.store.log import hashed
from gpuyard.daemon.store.records import plain_request, request_of
from gpuyard.errors import UserError, suggest
from gpuyard.spec.notation import AFTER, Array, number_of, parse_array, parse_dependency, some_of, task_id
from gpuyard.spec.work import Work, common

T = TypeVar("T")


class Dependencies:
    """Looks jobs up: in the state, among unwritten records, and on disk."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def follow(self, text: str, user: str, name: str, batch: Sequence[NewJobs | None] = ()) -> tuple[str, ...]:
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

    def _who(self, who: str, user: str, batch: Sequence[NewJobs | None]) -> list[tuple[str, Phase]]:
        if who.startswith("@") and who[1:].isdecimal() and len(who) < 12 and int(who[1:]) < len(batch):
            named = batch[int(who[1:])]
            return [(job, Phase.QUEUED) for job in named.ids] if named else []
        found = self._with_id(who) or self._of_array(who) or self._named(who, user)
        if not found:
            known = [name for _, name, of in self._unwritten() if of == user] + self._context.store.names(user)
            raise UserError(
                f"there is no job {who} to follow, neither by its id nor, of {user or 'yours'}, by its name"
                f"{suggest(who, known)}"
            )
        return found

    def _with_id(self, job: str) -> list[tuple[str, Phase]]:
        state = self._context.state
        row = state.row_of.get(job)
        return self._context.store.standing(id=job) if row is None else [(job, state.phase[row])]

    def _of_array(self, array: str) -> list[tuple[str, Phase]]:
        """The tasks that `12` or `12_[3-5]` names; of those that are long over, one of each state will do."""
        if (some := some_of(array)) is None:
            return self._tasks(array) if array.isdecimal() else []
        wanted = {task_id(some[0], task) for task in some[1]}
        found = {job: phase for job, phase in self._rows(some[0]) if job in wanted}
        if len(found) < len(wanted):
            written = reversed(self._context.store.standing(array=some[0]))
            found = {job: phase for job, phase in written if job in wanted} | found
        return list(found.items())

    def _tasks(self, array: str) -> list[tuple[str, Phase]]:
        found = self._rows(array)
        first = next((job for job, phase in found if not phase.over), None)
        if first and (self._context.work_json(first).get("tasks") or (0,))[0] == len(found):
            return found  # all that there are
        return self._context.store.ended(array) + found

    def _rows(self, array: str) -> list[tuple[str, Phase]]:
        """The tasks that the state knows, in their order: these are read quickly, and the others are over."""
        state = self._context.state
        if (number := state.arrays.get(array)) is None:
            return []
        rows = np.flatnonzero(state.table.array[: len(state.ids)] == number).tolist()
        return [(state.ids[row], state.phase[row]) for row in rows]

    def _named(self, name: str, user: str) -> list[tuple[str, Phase]]:
        """The newest open job of a name, else the newest; if it is a task, all of its array."""
        fresh = [job for job, called, of in self._unwritten() if (called, of) == (name, user)]
        if fresh:
            newest = fresh[-1]
        elif written := self._context.store.standing(1, name=name, user=user):
            newest = written[0][0]
        else:
            return []
        array, task, _ = newest.partition("_")
        return self._of_array(array) if task else self._with_id(newest)

    def _all_named(self, name: str, user: str) -> list[tuple[str, Phase]]:
        fresh = [job for job, called, of in self._unwritten() if (called, of) == (name, user)]
        written = [view.id for view in self._context.store.open.values() if view.name == name and view.user == user]
        state = self._context.state
        return [(job, state.phase[state.row_of[job]]) for job in (*written, *fresh)]

    def _unwritten(self) -> Iterator[tuple[str, str, str]]:
        for record in self._context.unwritten:
            if isinstance(record.event, Submitted):
                yield record.event.job, record.details.get("work", {}).get("name", ""), record.event.request.user


MOST_TASKS = 100_000  # jobs that one request may bring
_MOST_WAITS = 1_000_000  # how many jobs all jobs of a request together may wait for
_MOST_BYTES = 2**28  # what all tasks of an array together may describe
_FEW_WAITS = 10_000
SUBMIT = "submit"  # what an intent to record jobs is called
MANY = 100  # jobs that are recorded in one turn; more are written down as one intent, and recorded slice by slice


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

    id: str
    request: Request
    work: Work
    array: str = ""  # as its submitter wrote it
    tasks: tuple[int, ...] = ()
    trials: tuple[NewJobs, ...] = ()  # jobs that profile it first; they are recorded before it
    hold: bool = False
    own_id: bool = False

    @property
    def ids(self) -> list[str]:
        return [task_id(self.id, task) for task in self.tasks] or [self.id]

    @property
    def size(self) -> int:
        return len(self.trials) + (len(self.tasks) or 1)

    @property
    def waits(self) -> int:
        """How many jobs its tasks follow, each counted for each."""
        return (len(self.tasks) or 1) * len(self.request.after)

    def jobs(self) -> Iterator[tuple[str, NewJobs, dict[str, Any]]]:
        """Each job with what it runs, as JSON has it; an array may have many, and is not made at once."""
        for trial in self.trials:
            yield from trial.jobs()
        work = self.work.to_json()
        for task in self.tasks or (None,):
            id = self.id if task is None else task_id(self.id, task)
            own = work if task is None else {**work, "task": task}
            if self.own_id:
                own = {**own, "command": tuple(word.replace("{id}", id) for word in self.work.command)}
            yield id, self, own

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "request": plain_request(self.request), "work": self.work.to_json(),
            "array": self.array, "trials": [trial.to_json() for trial in self.trials],
            "hold": self.hold, "own_id": self.own_id,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NewJobs:
        tasks = parse_array(data["array"]).tasks if data["array"] else ()
        trials = tuple(map(cls.from_json, data["trials"]))
        request, work = request_of(data["request"]), Work.from_json(data["work"])
        return cls(data["id"], request, work, data["array"], tasks, trials, data["hold"], data["own_id"])


class IntakeResult(NamedTuple):
    ids: list[str]  # of each accepted job or array
    refused: list[tuple[int, str]]  # position, from 0 on, and reason of each refused one


def as_batch(entries: Sequence[NewJobs], how: BatchOptions, refused: Sequence[tuple[int, str]]) -> list[NewJobs]:
    if not entries or entries[0].work.row is None:
        return list(entries)
    common: dict[str, Any] = {"batch": (entries[0].id, how.name, how.key)}
    found = [_with(entry, common) for entry in (_in_waves(entries) if how.waves else entries)]
    if refused:
        first = found[0]
        found[0] = first._replace(work=replace(first.work, refusals=tuple(refused)))
    return found


def _in_waves(entries: Sequence[NewJobs]) -> list[NewJobs]:
    """The same, each after the one before. Trials of a wave precede all its rows: each needs a GPU alone."""
    found = list[NewJobs]()
    before: tuple[str, ...] = ()
    for _, several in groupby(entries, key=lambda entry: entry.work.row[1] if entry.work.row is not None else 1):
        wave = list(several)
        trials = tuple(_after(trial, before) for entry in wave for trial in entry.trials)
        follows = (*before, *(f"any:{trial.id}" for trial in trials))
        for entry in wave:
            found.append(_after(entry, follows)._replace(trials=trials))
            follows, trials = tuple(f"begun:{id}" for id in entry.ids), ()
        before = tuple(f"any:{id}" for entry in wave for id in entry.ids)
    return found


def _after(entry: NewJobs, conditions: Sequence[str]) -> NewJobs:
    after = tuple(dict.fromkeys((*entry.request.after, *conditions)))
    return entry._replace(request=replace(entry.request, after=after))


def _with(entry: NewJobs, more: Mapping[str, Any]) -> NewJobs:
    trials = tuple(_with(trial, more) for trial in entry.trials)
    return entry._replace(work=replace(entry.work, **more), trials=trials)


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


class _Asked:
    """What the jobs of one request have to do with each other."""

    def __init__(self) -> None:
        self.contents: dict[str, str] = {}  # environments, scripts and what tasks share, by their hash
        self.trials: dict[str, str] = {}  # the trial jobs, by signature
        self.warnings: list[str] = []


def check_waits(count: int, waits: int) -> None:
    """Refuse jobs of one request that follow too many jobs, all counted together."""
    if waits > _MOST_WAITS:
        raise UserError(
            f"{count:,} jobs that follow {waits:,} jobs together are too many, {_MOST_WAITS:,} are the most; let one "
            "job follow the others, and these follow that one"
        )


class Intake:
    """Accepts jobs. Nothing is recorded unless everything can be."""

    def __init__(self, context: Context, planning: Planning, estimates: Estimates) -> None:
        self._context, self._planning, self._estimates = context, planning, estimates
        self._dependencies = Dependencies(context)
        self._hashed: tuple[Mapping[str, str], tuple[str, str]] | None = None
        """The last environment with its hash and content: jobs that come together mostly share one."""
        self._asked = _Asked()
        self._coming: Counter[str] = Counter()  # jobs of requests that are written down and not recorded yet, by user

    @property
    def warnings(self) -> list[str]:
        """For the user who made the last request."""
        return self._asked.warnings

    def take(self, wanted: Sequence[JobRequest], answer: Callable[[list[str]], T]) -> Steps[T]:
        """Accept jobs; answers by the id of each, or of its array. A dependency on `@0` is one on the first of them."""
        entries, refused = yield from self._entries(wanted)
        _refuse_all(wanted, refused)
        return (yield from self._record(entries, answer([entry.id for entry in entries])))

    def take_batch(
        self,
        wanted: Sequence[JobRequest],
        how: BatchOptions,
        refusals: Sequence[tuple[int, str]],
        answer: Callable[[IntakeResult], T],
    ) -> Steps[T]:
        """Accept the rows that can run here as a batch; `refusals` are rows that were refused before."""
        entries, refused = yield from self._entries(wanted)
        if not how.skip:
            _refuse_all(wanted, refused)
        rows = [(row[0] if (row := wanted[place].work.row) else place + 1, why) for place, why in refused]
        entries = as_batch(entries, how, sorted([*refusals, *rows]))
        return (yield from self._record(entries, answer(IntakeResult([entry.id for entry in entries], refused))))

    def _entries(self, wanted: Sequence[JobRequest]) -> Steps[tuple[list[NewJobs], list[tuple[int, str]]]]:
        """What each becomes, and which are refused and why."""
        entries: list[NewJobs] = []
        refused: list[tuple[int, str]] = []
        batch: list[NewJobs | None] = []
        self._asked = _Asked()
        asked, count, waits = self._asked, 0, 0
        for place, one in enumerate(wanted):
            if place and self._context.slice_is_over:
                yield
                self._asked = asked
            try:
                entries.append(self._entry(one, batch))
            except UserError as error:
                refused.append((place, str(error)))
                batch.append(None)
                continue
            batch.append(entries[-1])
            count += len(entries[-1].tasks) or 1
            waits += entries[-1].waits
            check_waits(count, waits)
            if count > MOST_TASKS:
                raise UserError(f"at most {MOST_TASKS:,} jobs can be submitted at once; use several requests")
        if entries:
            self._check_room(entries[0].request, count)
        return entries, refused

    def _check_room(self, request: Request, count: int) -> None:
        """Refuse jobs beyond what a user, or a group, may have in the queue."""
        state, rules = self._context.state, self._context.state.rules or Rules()
        groups = [f"@{group}" for group in request.group.split(",") if group]
        for who in (request.user, *groups):
            most = quota_of(rules, who).queued or (0 if who.startswith("@") else DEFAULT_QUEUED)
            if not most or len(state.ids) + sum(self._coming.values()) + count <= most:
                continue  # the usual: there are not as many jobs in all
            users = {who}
            if who in groups:
                users = {name for name, n in state.user_of.items() if who[1:] in state.group_of[n].split(",")}
            waiting = waiting_of(state, users) + sum(self._coming[name] for name in users)
            if waiting + count > most:
                raise UserError(
                    f"{who or 'a user'} may have {most:,} jobs in the queue and has {waiting:,}, so {count:,} more are "
                    "too many; submit them when some are over, or ask an admin for more (gpuyard quota set --queued)"
                )

    def _record(self, entries: Sequence[NewJobs], answer: T) -> Steps[T]:
        context, count = self._context, sum(entry.size for entry in entries)
        self._hashed = None  # its owner may change it
        context.environments |= self._asked.contents
        if count <= MANY and (count == 1 or sum(entry.waits for entry in entries) <= _FEW_WAITS):
            for job in (job for entry in entries for job in entry.jobs()):
                self._submitted(*job)
            return answer
        intent = context.intend({"kind": SUBMIT, "entries": [entry.to_json() for entry in entries]})
        for _ in self.go_on(entries, intent):
            yield answer
        return answer

    def go_on(self, entries: Sequence[NewJobs], intent: int, done: int = 0) -> Steps[None]:
        """Record the jobs of a request that is written down, a slice a turn."""
        user, left = entries[0].request.user, sum(entry.size for entry in entries) - done
        self._context.keep_ids(max(number_of(entry.id) for entry in entries))
        self._coming[user] += left

        def record(job: tuple[str, NewJobs, Mapping[str, Any]]) -> None:
            nonlocal left
            self._submitted(*job)
            self._coming[user] -= 1
            left -= 1

        jobs = (job for entry in entries for job in entry.jobs())
        try:
            yield from in_slices(self._context, intent, jobs, record, done)
        finally:  # also where it is begun again from the disk, after a failed write
            self._coming[user] -= left

    def _submitted(self, id: str, entry: NewJobs, work: Mapping[str, Any]) -> None:
        context, now = self._context, self._context.clock.now()
        context.record(Submitted(now, id, entry.request), work=work)
        if entry.hold:
            context.record(Held(now, id))
        if entry.work.kind == "lease":
            context.new_leases.append(id)

    def follow(self, dependency: str, request: Request, name: str) -> tuple[str, ...]:
        """The value of `Request.after` for a job of this name."""
        return self._dependencies.follow(dependency, request.user, name)

    def _entry(self, one: JobRequest, batch: Sequence[NewJobs | None]) -> NewJobs:
        context = self._context
        array = parse_array(one.array) if one.array else None
        request = one.request
        if one.dependency:
            after = self._dependencies.follow(one.dependency, request.user, one.work.name, batch)
            request = replace(request, after=after)
        count = len(array.tasks) if array else 1
        check_waits(count, count * len(request.after))
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
        if array:
            work, request = self._shared(work, request, array, contents)
        self._asked.contents |= contents
        id = context.next_id()
        if array:
            request = replace(request, array=id)
        return NewJobs(id, request, work, one.array, array.tasks if array else (), trials, one.hold, one.own_id)

    def _shared(self, work: Work, request: Request, array: Array, contents: dict[str, str]) -> tuple[Work, Request]:
        """What the tasks of an array run and ask for; what they have in common is stored once."""
        tasks = array.tasks
        work = replace(work, tasks=(len(tasks), tasks[0], tasks[-1]))
        key, content = hashed(common(work.to_json()))
        if len(content) * len(tasks) > _MOST_BYTES:
            raise UserError(
                f"{len(tasks):,} tasks of {len(content):,} bytes each (command, directory, tags, ...) are too many: "
                f"together they may have {_MOST_BYTES // 2**20} MiB; put what is long into a file"
            )
        contents[key] = content
        return replace(work, shared=key), replace(request, at_most=array.at_most)

    def _trials_of(self, work: Work, request: Request, own_id: bool) -> tuple[tuple[NewJobs, ...], Request]:
        """A job that profiles another, if that is wanted and nothing is known; and the other's request, after it."""
        signature = work.signature
        if not (work.profile and signature and work.auto_memory) or self._estimates.is_known(signature):
            return (), request
        other = self._asked.trials.get(signature) or self._estimates.profiler(signature)
        trials: tuple[NewJobs, ...] = ()
        if other is None:
            self._asked.trials[signature] = other = self._context.next_id()
            short, asked = profile_of(work, request, other, own_id)
            trials = (NewJobs(other, asked, short),)
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
