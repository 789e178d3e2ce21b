"""What users ask of the queue: requests with a key, previews of policies, changes of jobs, explanations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpuyard.core.check import check_policy
from gpuyard.core.draft import Draft
from gpuyard.core.events import Cancelled, Edited, Held, Released
from gpuyard.core.explanation import blockers, expected_fit, rivals
from gpuyard.core.limits.gates import Gates, gated
from gpuyard.core.limits.reservations import restricted
from gpuyard.core.loops.pool import Ints
from gpuyard.core.model import Phase, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.reasons import Dependency, Priority, Reason, Reserved, Resources
from gpuyard.core.state import State
from gpuyard.daemon.context import Context, Steps, at_once
from gpuyard.daemon.devices.gpu_shares import fitted_share, permanent_refusal
from gpuyard.daemon.jobs.estimates import Estimates
from gpuyard.daemon.jobs.intake import Intake, JobRequest, NewJobs
from gpuyard.daemon.jobs.outcomes import ENDED, Outcomes
from gpuyard.daemon.jobs.progress_reader import Expected
from gpuyard.daemon.jobs.stops import REQUEUED, Stops
from gpuyard.daemon.planning import TRIAL, Planning, failure_of, in_time
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.reader import Answered
from gpuyard.errors import UserError
from gpuyard.policies.guard import guard_of, serve_policy
from gpuyard.spec.fields import WHILE_RUNNING
from gpuyard.spec.work import Work

T = TypeVar("T")
KEPT = 7 * 86400.0  # seconds for which an answer is kept


class KeyedRequest(NamedTuple):
    user: str
    key: str
    request: str  # a hash of what is asked for


class Idempotency:
    """Makes requests with a key happen once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._under_way: set[tuple[str, str]] = set()  # user and key of long requests that are not written down yet

    def once(self, sent: KeyedRequest, act: Callable[[], Any]) -> tuple[Any, bool] | Steps[tuple[Any, bool]]:
        """The answer, and whether it was given before. For the loop's thread, which serialises requests."""
        context = self._context
        known = context.answers.get((sent.user, sent.key)) or context.store.answer(sent.user, sent.key)
        if known is not None:
            return known_answer(sent, known), True
        if (sent.user, sent.key) in self._under_way:
            raise NotNow(f"a request with the Idempotency-Key '{sent.key}' is being carried out; ask again later")
        answer = act()
        return self._steps(sent, answer) if isinstance(answer, Generator) else (self._kept(sent, answer), False)

    def _kept(self, sent: KeyedRequest, answer: Any) -> Any:
        now, text = self._context.clock.now(), json.dumps(answer, separators=(",", ":"))
        self._context.answers[sent.user, sent.key] = Answered(*sent, text, now)
        return answer

    def _steps(self, sent: KeyedRequest, steps: Steps[Any]) -> Steps[tuple[Any, bool]]:
        """The same of a long request; it yields its answer as soon as it is written down: both go to disk together."""
        who = sent.user, sent.key
        self._under_way.add(who)
        try:
            while True:
                try:
                    begun = next(steps)
                except StopIteration as end:
                    return self._kept(sent, end.value), False
                if begun is not None and who in self._under_way:
                    self._kept(sent, begun)
                    self._under_way.discard(who)
                yield
        finally:
            self._under_way.discard(who)


def known_answer(sent: KeyedRequest, known: Answered) -> Any:
    if known.request != sent.request:
        raise UserError(
            f"the Idempotency-Key '{sent.key}' came with another request before; give every request a key of its own"
        )
    return json.loads(known.answer)


FIRST = 20  # jobs of the queue's head in a preview
_KEEP = 5.0  # seconds: ranks may change though nothing happens
_MOST_KEPT = 32


class MovedJob(NamedTuple):
    """A waiting job with its place in the queue, from 1 on."""

    id: str
    name: str
    user: str
    place: int
    was: int


@dataclass(frozen=True, slots=True)
class Preview:
    policy: str  # in full
    starts: list[str]  # who would start now
    stops: list[str]  # who would be stopped now, to wait again
    order: list[MovedJob]  # the head of the queue in the new order
    moved: int  # how many waiting jobs would have another place
    waiting: int
    note: str | None  # what this does not tell


class Previews:
    def __init__(self, context: Context, planning: Planning) -> None:
        self._context, self._planning = context, planning
        self._kept: dict[str, tuple[float, Preview]] = {}
        self._of: tuple[State, int, str] | None = None

    def of(self, planner: OrderedPlanner) -> Preview:
        context = self._context
        of = context.state, context.state.version, self._planning.planner.text
        if self._of != of or len(self._kept) >= _MOST_KEPT:
            self._of, self._kept = of, {}
        until, found = self._kept.get(planner.text, (0.0, None))
        if found is None or time.monotonic() >= until:
            found = self.look(planner)
            self._kept[planner.text] = time.monotonic() + _KEEP, found
        return found

    def look(self, planner: OrderedPlanner) -> Preview:
        state, now = self._context.state, self._context.clock.now()
        try:
            with in_time(planner.policy.source, TRIAL):
                plan = self._planning.plan_by(planner, now)
                new = _order(planner, state, now)
        except BaseException as error:  # a policy may be a user's own code: anything may come out of it
            why = failure_of(planner, error)
            raise UserError(f"policy {planner.text} fails on this queue ({why}), so it cannot be used") from error
        before = self._planning.by_policy(lambda present: _order(present, state, now))
        places = {row: n for n, row in enumerate(before.tolist(), 1)}
        was = np.array([places[row] for row in new.tolist()], dtype=np.int64)
        moved = int(np.count_nonzero(was != np.arange(1, len(new) + 1)))
        order = [self._moved(row, n, places[row]) for n, row in enumerate(new[:FIRST].tolist(), 1)]
        starts = [start.job for start in plan.starts]
        return Preview(planner.text, starts, plan.stops, order, moved, len(new), _note(planner, state))

    def _moved(self, row: int, place: int, was: int) -> MovedJob:
        job = self._context.state.ids[row]
        view = self._context.store.open.get(job)
        return MovedJob(job, view.name if view else "", view.user if view else "", place, was)


def _order(planner: OrderedPlanner, state: State, now: float) -> Ints:
    """The waiting rows in a policy's order; those that may not be chosen yet come last."""
    rows = state.waiting.array
    may = Gates(state, now).may if gated(state, now) else np.ones(len(rows), dtype=np.bool_)
    if not len(rows):
        return rows
    chosen = rows[may]
    ranked = chosen[np.argsort(planner.policy.rank(state, chosen, now), kind="stable")] if len(chosen) else chosen
    return np.concatenate((ranked, rows[~may]))


def _note(planner: OrderedPlanner, state: State) -> str | None:
    notes = []
    if "draw" in planner.policy.columns:
        notes.append("the order is drawn by lot: this is the present draw, and there is another after every start")
    if state.promises:
        notes.append("GPUs are being freed for jobs that were promised them; under another policy they are given anew")
    return "; ".join(notes) or None


_FATAL = ("it fails", "it returned an array")  # what `check_policy` finds that would stop the queue
_SLOW = 0.003  # seconds: what takes longer to find is kept for a moment, so that many requests do not hold up the loop
_WORTH = 30  # times as long
_STALE = 0.5  # seconds at most


class NotNow(UserError):
    """That cannot be done to a job in its present state."""


class Edit(NamedTuple):
    given: set[str]  # names of the fields that change
    change: Callable[[Work, Request], tuple[Work, Request]]
    dependency: str | None = None  # None: it stays


class Due(NamedTuple):
    """The job that is first in line, and when enough should be free for it; `at` None: nobody knows."""

    job: str
    at: float | None
    by: str = ""  # as in `Expected`, of the job that has to end last


NOBODY = Due("", None)


@dataclass(frozen=True, slots=True)
class Why:
    reason: Reason
    ahead: list[str]  # waiting jobs that go first, in order
    blockers: list[str]  # jobs that would have to end first, where the end of just these would help
    due: Due = NOBODY


class Commands:
    """The requests of users. All of it runs in the loop's thread."""

    def __init__(
        self, context: Context, planning: Planning, estimates: Estimates, stops: Stops, outcomes: Outcomes
    ) -> None:
        self._context, self._planning, self._estimates = context, planning, estimates
        self._stops, self._outcomes = stops, outcomes
        self._intake = Intake(context, planning, estimates)
        self.submitting, self.submitting_batch = self._intake.take, self._intake.take_batch  # a slice a turn
        self._previews = Previews(context, planning)
        self._reasons: dict[str, Reason] = {}
        self._reasons_of: tuple[State, int, float] | None = None
        self._recent_until = 0.0

    def submit(self, work: Work, request: Request, environment: Mapping[str, str], hold: bool = False) -> str:
        """Accept a job; returns its id."""
        return self.submit_all([JobRequest(work, request, environment, hold)])[0]

    def submit_all(self, wanted: Sequence[JobRequest]) -> list[str]:
        """Accept jobs, or none of them; returns the id of each, or of its array."""
        return at_once(self.submitting(wanted, list))

    def resume_submits(self, entries: Sequence[Mapping[str, Any]], intent: int, done: int) -> Steps[None]:
        """Go on with a submit that was written down."""
        return self._intake.go_on([NewJobs.from_json(entry) for entry in entries], intent, done)

    @property
    def warnings(self) -> list[str]:
        return self._intake.warnings

    def edit(self, job: str, edit: Edit) -> None:
        work, request = self.edited(job, edit)
        self._context.record(Edited(self._context.clock.now(), job, request), work=work.to_json())
        if "time_limit" in edit.given and self._phase(job) is Phase.RUNNING:
            self._stops.limit_changed(job)

    def edited(self, job: str, edit: Edit) -> tuple[Work, Request]:
        """What a job would run and ask for after an edit; refuses what cannot be."""
        context, (given, change, dependency) = self._context, edit
        if self._phase(job) in (Phase.PLACED, Phase.RUNNING) and (fixed := given - WHILE_RUNNING):
            raise NotNow(
                f"job {job} runs already, so its {', '.join(sorted(fixed)).replace('_', ' ')} cannot change any "
                f"more; what can is {', '.join(sorted(WHILE_RUNNING)).replace('_', ' ')}"
            )
        work, request = change(*self.description(job))
        if dependency is not None:
            request = replace(request, after=_without(job, self._intake.follow(dependency, request, work.name)))
        begin = float(context.state.table.begin[context.state.row_of[job]])
        if "begin" not in given and begin != request.begin:  # the time of a retry is not in what was asked for
            request = replace(request, begin=begin)
        if "gpu_memory" in given:
            work, request = self._estimates.fitted(work, request)
        if self._phase(job) not in (Phase.PLACED, Phase.RUNNING):
            request = fitted_share(context, request)
        if (refusal := permanent_refusal(context, self._planning.planner, request, work)) is not None:
            raise UserError(f"job {job} could never run here: it {refusal}")
        return work, request

    def description(self, job: str) -> tuple[Work, Request]:
        """What a job runs and asks for, also when it is over."""
        return self._context.description(job)

    def give_back(self, job: str) -> None:
        phase = self._phase(job)
        view = self._context.store.open[job]
        if view.kind != "lease":
            raise NotNow(f"job {job} is no lease; gpuyard cancel {job} ends it")
        message = "given back" if phase in (Phase.PLACED, Phase.RUNNING) else "given up by whoever asked for it"
        self._outcomes.end_lease(job, self._context.clock.now(), message)

    def cancel(self, job: str, grace: float | None = None, by: str = "") -> None:
        context, now = self._context, self._context.clock.now()
        phase = self._phase(job)
        who = {"by": by} if by else {}
        if phase in (Phase.PLACED, Phase.RUNNING):
            self._stops.recall(job, "cancelled", now, grace, **who)
        elif self._is_lease(job):
            self._outcomes.end_lease(job, now, "cancelled while it waited" + (f" by {by}" if by else ""), **who)
        else:
            context.record(Cancelled(now, job), **who)

    def requeue(self, job: str) -> None:
        """Ask a running job to end, after which it waits again; one that waits is left alone."""
        if self._is_lease(job):
            raise NotNow(f"{job} is a lease, and does not run by itself; gpuyard release {job} gives it back")
        if self._phase(job) in (Phase.PLACED, Phase.RUNNING):
            self._stops.recall(job, REQUEUED, self._context.clock.now())

    def hold(self, job: str) -> None:
        phase = self._phase(job)
        if phase in (Phase.PLACED, Phase.RUNNING):
            raise NotNow(f"job {job} runs already; only a waiting job can be held")
        if phase is Phase.QUEUED:
            self._context.record(Held(self._context.clock.now(), job))

    def release(self, job: str) -> None:
        if self._phase(job) is Phase.HELD:
            self._context.record(Released(self._context.clock.now(), job))

    def set_policy(
        self, text: str, discipline: str | None, placement: str | None, by: str = "", force: bool = False
    ) -> str:
        """Set another policy, if it can rank the present queue and ordinary ones. Returns it in full."""
        context, planner = self._context, self._another(text, discipline, placement, force)
        self._previews.look(planner)
        with in_time(planner.policy.source, TRIAL):
            found = check_policy(planner.policy) if planner.policy.source else []
        if problem := next((one for one in found if one.startswith(_FATAL)), ""):
            raise UserError(f"policy {planner.text} cannot be used: {problem}")
        self._planning.use(planner, context.clock.now(), **({"by": by} if by else {}))
        return planner.text

    def preview(self, text: str, discipline: str | None, placement: str | None) -> Preview:
        return self._previews.of(self._another(text, discipline, placement, force=True))

    def _another(self, text: str, discipline: str | None, placement: str | None, force: bool) -> OrderedPlanner:
        """Another policy; what is not given is as if that policy were configured."""
        settings = self._context.settings
        with in_time(".py:" in text):
            return serve_policy(
                text,
                discipline=discipline or settings.discipline or "easy",
                placement=placement or settings.placement,
                lenient=discipline is None,  # a preemptive policy cannot have all disciplines
                force=force,
                limit=settings.learned_limit,
            )

    def learned(self) -> dict[str, Any] | None:
        """Facts of a trained policy in force; None: another kind is in force."""
        guard = guard_of(self._planning.planner)
        return guard.report() if guard is not None else None

    def policy(self) -> tuple[OrderedPlanner, float, str]:
        """The policy in force, since when, and why it is not the one that was set; empty: it is."""
        since = next(record.event.at for record in self._context.store.latest("PolicySet"))
        return self._planning.planner, since, self._planning.trouble

    def reasons(self) -> dict[str, Reason]:
        context = self._context
        of = context.state, context.state.version, self._planning.admission.stamp
        if self._reasons_of != of:
            began = time.thread_time()
            now = context.clock.now()
            self._reasons = self._planning.by_policy(lambda planner: self._planning.plan_by(planner, now).held)
            self._reasons_of = of
            spent = time.thread_time() - began
            self._recent_until = time.monotonic() + min(_STALE, _WORTH * spent) if spent > _SLOW else 0.0
        return self._reasons

    def recent_reasons(self) -> dict[str, Reason] | None:
        """The same as of a moment ago, where they take long to find; None: ask again. For any thread."""
        return self._reasons if time.monotonic() < self._recent_until else None

    def due(self, reasons: Mapping[str, Reason], ends: Mapping[str, Expected]) -> Due:
        """The first in line, and when it should start; `ends`: when running jobs should end.

        Nobody is first where whatever fits may go ahead. Of the jobs behind the first nothing is known: those before
        them may run for any time.
        """
        first, state = next(iter(reasons), ""), self._context.state
        row = state.row_of.get(first)
        if row is None or state.phase[row] is not Phase.QUEUED or not isinstance(reasons[first], Resources):
            return NOBODY

        def look(planner: OrderedPlanner) -> Due:
            if planner.discipline == "skip":
                return NOBODY
            at = expected_fit(self._draft(planner), row, _instants(ends))
            return Due(first, at, next((end.by for end in ends.values() if at is not None and end.at == at), ""))

        return self._planning.by_policy(look)

    def _draft(self, planner: OrderedPlanner) -> Draft:
        state, now = self._context.state, self._context.clock.now()
        demand = restricted(state, now) or state.table.demand  # GPU by GPU: some may be drained
        return Draft(Snapshot(state, now), planner.policy, planner.code, 0, demand)

    def explain(self, job: str, ends: Mapping[str, Expected]) -> Why | None:
        """Why a job waits; None if it does not, or is held. `ends`: when running jobs should end."""
        if self._phase(job) is not Phase.QUEUED:
            return None
        reasons = self.reasons()
        if job not in reasons:  # it starts in this very moment
            return None
        reason, state = reasons[job], self._context.state
        if isinstance(reason, Dependency):
            return Why(reason, [], reason.jobs)
        if not isinstance(reason, Resources | Priority | Reserved):
            return Why(reason, [], [])  # no job's end would help it
        ahead, row = list(reasons)[: list(reasons).index(job)], state.row_of[job]
        others = np.array([state.row_of[other] for other in ahead], dtype=np.int64)

        def look(planner: OrderedPlanner) -> list[int]:
            draft = self._draft(planner)
            return [] if len(rivals(draft, row, others)) else blockers(draft, row, _instants(ends))

        found = self._planning.by_policy(look)
        return Why(reason, ahead, [state.ids[row] for row in found], self.due(reasons, ends))

    def facts(self) -> dict[str, Any]:
        context = self._context
        spans = [1000 * seconds for seconds in self._planning.seconds]
        plan = {"last_ms": spans[-1], "mean_ms": sum(spans) / len(spans), "max_ms": max(spans)} if spans else {}
        return {
            "policy": self._planning.planner.text, "plan": plan, "withdrawn": dict(context.state.withdrawn),
            "learned": self.learned(), "warnings": [self._planning.trouble] if self._planning.trouble else [],
        }  # fmt: skip

    def _is_lease(self, job: str) -> bool:
        view = self._context.store.open.get(job)
        return view is not None and view.kind == "lease"

    def _phase(self, job: str) -> Phase:
        """The phase of a job that is not over; else raises."""
        state = self._context.state
        row = state.row_of.get(job)
        if row is None:
            if self._context.store.standing(id=job):
                raise NotNow(f"job {job} is over")
            raise NoSuchJob(f"there is no job {job} (gpuyard ps lists them)")
        if state.phase[row].over:
            raise over(job, state.phase[row])
        return state.phase[row]


def _instants(ends: Mapping[str, Expected]) -> dict[str, float]:
    return {job: end.at for job, end in ends.items() if end.at is not None}


def over(job: str, state: str) -> NotNow:
    return NotNow(f"job {job} is over: it {ENDED.get(Phase(state), state)}")


def _without(job: str, after: tuple[str, ...]) -> tuple[str, ...]:
    """A job of a singleton has the name that it waits for: drop that condition. No job can follow itself."""
    if f"any:{job}" in after:
        after = tuple(wish for wish in after if wish != f"any:{job}")
    if any(wish.partition(":")[2] == job for wish in after):
        raise UserError(f"job {job} cannot follow itself")
    return after
