"""The live loop. One thread owns the yard: it hears what people ask, sees what happened, plans, writes, and then acts.

A turn goes:

    1. wait until somebody asks, a process ends, or something is due
    2. let requests and reports become events, and plan; all of it in memory
    3. write the events: one transaction, one fsync, shared by whoever asked meanwhile
    4. answer those who asked; launch and stop what the events say

So nothing is acknowledged, launched or stopped that is not on disk, and a submit and its placement share one fsync. The
process may be killed anywhere: what was not written did not happen, and what was written but not done is done by the
next life (`recover`). If writing fails, what is in memory is thrown away and read again from disk.
"""

from __future__ import annotations

import heapq
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from gpuyard.config import Settings
from gpuyard.core.checkpoint import compact
from gpuyard.core.engine import validate
from gpuyard.core.events import Chosen, Event, Exited, Opened, Placed, PolicySet, Recalled, Renewed, Requeued, Started
from gpuyard.core.model import Cluster, Phase
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon.choosing import chosen
from gpuyard.daemon.clock import Clock
from gpuyard.daemon.journal import Record
from gpuyard.daemon.machine import Machine
from gpuyard.daemon.store import Store, StoreFailing
from gpuyard.daemon.views import Work, work_of
from gpuyard.engines.base import Ended, Engine, EngineError, LaunchRefused, NeverBegan, Placement, Report, Running, Task
from gpuyard.errors import Bug, UserError
from gpuyard.faults import point
from gpuyard.policyfile import make_planner

log = logging.getLogger("gpuyard")
FALLBACK = "fcfs@strict@first"
_RETRY = 1.0  # seconds between attempts to write, or to launch, where that failed
_FEW = 4
_CHECKPOINTS = 5_000, 20_000  # events between checkpoints: when there is nothing else to do, and at most


class Yard:
    """The jobs and GPUs of one machine, and the only hands that move them."""

    def __init__(self, store: Store, engine: Engine, machine: Machine, settings: Settings) -> None:
        self.store, self.engine, self.machine, self.settings = store, engine, machine, settings
        self.clock = Clock(store.last_at)
        self.planner = make_planner(
            settings.policy,
            discipline=settings.discipline or "easy",
            placement=settings.placement,
            lenient=not settings.discipline,
        )
        self.state: State
        self.failing = ""
        """Why nothing can be written now; empty if all is well."""
        self.on_commit: Callable[[list[Record]], None] = lambda records: None
        self.plan_seconds: deque[float] = deque(maxlen=1000)
        self.environments: dict[str, str] = {}
        """To be written with the next batch."""
        self._pending: list[Record] = []
        self._written: list[Record] = []
        self._newest = store.jobs
        self._launches: list[Placed] = []
        self._stops: list[tuple[str, int, float]] = []
        self._limits: list[tuple[float, str, int]] = []
        self._inbox: deque[tuple[Callable[[], Any], bool, Future[Any]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._poll.register(engine.fileno(), select.POLLIN)
        self._wake_at = np.inf
        self._planned = -1
        self._quiet_until = 0.0
        self._stopping = False

    # -- from other threads -----------------------------------------------------------------------

    def ask(self, command: Callable[[], Any], *, changes: bool = True) -> Future[Any]:
        """Have something done by the yard's own thread; answered when what came of it is on disk.

        What changes nothing is answered also while nothing can be written.
        """
        answer: Future[Any] = Future()
        self._inbox.append((command, changes, answer))
        os.eventfd_write(self._bell, 1)
        return answer

    def stop(self) -> None:
        """End the loop after this turn. Jobs go on running."""
        self._stopping = True
        os.eventfd_write(self._bell, 1)

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn after turn, until told to stop."""
        while not self._stopping:
            self.turn(self._patience())
        if not self.failing:
            self.store.keep(self.state)

    def turn(self, patience: float) -> None:
        """One turn, beginning at the latest after so many seconds."""
        self._poll.poll(max(0.0, patience) * 1000)
        now = self.clock.now()
        if self.failing:
            self._try_again(now)
        answers = self._hear()
        if not self.failing:
            for report in self.engine.observe():
                self._note(report, now)
            self._look_at_gpus(now)
            self._end_overdue(now)
            self._plan(now)
        if not self._commit(answers):
            return
        if len(self._launches) > _FEW:
            self._answer(answers)
            answers = []
        self._carry_out()  # a few starts come before the answers: they are what people wait for
        self._answer(answers)

    def _patience(self) -> float:
        """Seconds until something is due."""
        if self._pending or self._inbox:
            return 0.0
        if self.failing:
            return _RETRY
        ticks, now = time.monotonic(), self.clock.now()
        due = [self._wake_at - now, self.machine.due() - ticks]
        if self._limits:
            due.append(self._limits[0][0] - now)
        if (engine := self.engine.due()) is not None:
            due.append(engine - ticks)
        if self._quiet_until > ticks:
            due.append(self._quiet_until - ticks)
        return max(0.0, min(*due, 3600.0))

    def record(self, event: Event, **details: Any) -> None:
        """Let an event happen; it is written at the end of the turn."""
        apply(self.state, event)
        self._pending.append(Record(event, details))

    def next_id(self) -> str:
        """A name for a new job: its number."""
        self._newest += 1
        return str(self._newest)

    def _hear(self) -> list[tuple[Future[Any], Any]]:
        """Do what was asked for; the answers wait until it is written."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:  # nobody rang
            return []
        answers: list[tuple[Future[Any], Any]] = []
        while self._inbox:
            command, changes, answer = self._inbox.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                if self.failing and changes:
                    raise StoreFailing(self.failing)
                answers.append((answer, command()))
            except Exception as error:  # theirs to handle; a refusal has recorded nothing
                answer.set_exception(error)
        return answers

    def _commit(self, answers: list[tuple[Future[Any], Any]]) -> bool:
        """Write what has happened; if that fails, tell those who wait for it."""
        records, self._pending = self._pending, []
        environments, self.environments = self.environments, {}
        try:
            if records:
                self.store.append(records, environments)
            behind = self.store.last - self.store.checkpointed
            if behind > _CHECKPOINTS[1] or (behind > _CHECKPOINTS[0] and not records and not self._inbox):
                self._checkpoint()
        except StoreFailing as error:
            log.error("%s", error)
            self.failing = str(error)
            self._launches, self._stops = [], []
            for answer, _ in answers:
                answer.set_exception(error)
            return False
        self._written += records
        return True

    def _answer(self, answers: list[tuple[Future[Any], Any]]) -> None:
        """Tell those who wait for it what has been written."""
        point("yard:before-answers")
        for answer, value in answers:
            answer.set_result(value)
        records, self._written = self._written, []
        if records:
            self.on_commit(records)

    def _checkpoint(self) -> None:
        """Forget who is over, and keep the rest, so that the next start need not read the whole log."""
        compact(self.state)
        self._planned = -1
        self.store.keep(self.state)

    def _try_again(self, now: float) -> None:
        """After a failure to write: go back to what is on disk, and see whether it can be written now."""
        self.state = self._loaded()
        self._newest = self.store.jobs
        try:
            self.store.keep(self.state)
        except StoreFailing as error:
            self.failing = str(error)
            return
        log.info("the store can be written again")
        self.failing = ""
        self._wake_at, self._planned = np.inf, -1
        self.recover(now)

    # -- beginning and recovery -------------------------------------------------------------------

    def open(self, cluster: Cluster, gpus: tuple[str, ...], **details: Any) -> None:
        """Take the yard over: fold the log, find out what became of those who ran, and begin."""
        now = self.clock.now()
        state = self.store.load()
        self.state = state if state is not None else State(cluster)
        self.recover(now)
        if len(self.state.running) and state is not None and not self._same_gpus(cluster, gpus):
            jobs = ", ".join(self.state.ids[row] for row in self.state.running.array)
            raise UserError(
                f"job {jobs} still runs on GPUs that the daemon would not have now ({cluster.gpus} in all, before "
                f"{state.cluster.gpus}); start it with the former GPUs, or end the job first"
            )
        self.record(Opened(now, cluster, gpus), **details)
        self._choose_policy(now)
        if not self._commit([]):
            raise UserError(self.failing)

    def _same_gpus(self, cluster: Cluster, gpus: tuple[str, ...]) -> bool:
        before = next((r.event for r in self.store.latest("Opened") if isinstance(r.event, Opened)), None)
        return before is None or (before.cluster == cluster and before.gpus == gpus)

    def _loaded(self) -> State:
        state = self.store.load()
        if state is None:
            raise Bug("the log is empty, although the yard was opened")
        return state

    def recover(self, now: float) -> None:
        """Ask the engine about everybody who is on GPUs according to the log."""
        for row in self.state.running.array.tolist():
            job, attempt = self.state.ids[row], self.state.attempt[row]
            self._note(self.engine.adopt(job, attempt), now)
            point("yard:adopted")
            if row in self.state.recalled and self.state.phase[row] in (Phase.PLACED, Phase.RUNNING):
                self._stops.append((job, attempt, self._work_of(job).grace))
        self._limits = []
        for row in self.state.running.array.tolist():
            self._watch_limit(row)

    def _choose_policy(self, now: float) -> None:
        """The policy of the configuration, unless people chose another since that was last changed."""
        found = chosen(self.store.latest("PolicySet"), self.planner.text)
        if found is None:
            self.record(PolicySet(now, self.planner.text), configured=True)
        else:
            self.planner = found

    # -- what happens -----------------------------------------------------------------------------

    def _note(self, report: Report, now: float) -> None:
        """What the engine saw becomes events."""
        row = self.state.row_of.get(report.job, -1)
        if row < 0 or self.state.attempt[row] != report.attempt:
            return  # an attempt that is over
        phase = self.state.phase[row]
        if phase not in (Phase.PLACED, Phase.RUNNING):
            return
        if isinstance(report, NeverBegan):
            self.record(Requeued(now, report.job, report.attempt))
            return
        if phase is Phase.PLACED:
            handle = {"handle": report.handle} if isinstance(report, Running) else {}
            self.record(Started(self._begun(report, now), report.job, report.attempt), **handle)
            self._watch_limit(row)
        if isinstance(report, Ended):
            self._ended(row, report, now)

    def _begun(self, report: Running | Ended, now: float) -> float:
        """When an attempt began, on our clock: not before it was placed, whatever the machine's clock says."""
        seen = report.at if isinstance(report, Running) else report.began or report.at
        return min(max(seen, self.store.placed_at(report.job)), now)

    def _ended(self, row: int, report: Ended, now: float) -> None:
        started = float(self.state.table.started[row])
        at = report.at if started <= report.at <= now else now
        self.machine.left(self.state.spot[row].tolist())
        cause = self.state.recalled.get(row, "interrupted" if report.interrupted else "")
        if cause == "interrupted" and self._work_of(report.job).requeue:
            self.record(Requeued(at, report.job, report.attempt), message="interrupted, and waits again")
            return
        details = {"message": report.message} if report.message else {}
        self.record(Exited(at, report.job, report.attempt, report.code, cause), **details)

    def _look_at_gpus(self, now: float) -> None:
        for event, why in self.machine.changes(self.state, now):
            self.record(event, why=why)

    def _watch_limit(self, row: int) -> None:
        """Remember when a running job's time will be over."""
        started, job = float(self.state.table.started[row]), self.state.ids[row]
        limit = self._work_of(job).time_limit
        if limit is not None and started < np.inf:
            heapq.heappush(self._limits, (started + limit, job, self.state.attempt[row]))

    def _end_overdue(self, now: float) -> None:
        while self._limits and self._limits[0][0] <= now:
            _, job, attempt = heapq.heappop(self._limits)
            row = self.state.row_of.get(job, -1)
            if row >= 0 and self.state.attempt[row] == attempt and self.state.phase[row] is Phase.RUNNING:
                self.recall(job, "timeout", now)

    def recall(self, job: str, cause: str, now: float, grace: float | None = None, **details: Any) -> None:
        """Tell a job on GPUs to end."""
        row = self.state.row_of[job]
        attempt = self.state.attempt[row]
        if row not in self.state.recalled:
            self.record(Recalled(now, job, attempt, cause), **details)
        self._stops.append((job, attempt, self._work_of(job).grace if grace is None else grace))

    # -- planning and acting ----------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """Decide who starts, if anything has changed since the last plan."""
        if time.monotonic() < self._quiet_until:
            return
        if self.state.version == self._planned and now < self._wake_at:
            return
        if len(self.state.waiting) and self.machine.is_stale():
            self._look_at_gpus(now)
        began = time.perf_counter()
        plan = self.make_plan(now)
        self._wake_at = max(plan.wake_at, now + 0.001)
        for start in plan.starts:
            attempt = self.state.attempt[self.state.row_of[start.job]] + 1
            placed = Placed(now, start.job, attempt, start.gpus)
            self.record(placed)
            self._launches.append(placed)
        for job in plan.renewals:
            self.record(Renewed(now, job, self.state.attempt[self.state.row_of[job]]))
        if plan.chosen is not None:
            self.record(Chosen(now, *plan.chosen))
        self._planned = self.state.version
        self.plan_seconds.append(time.perf_counter() - began)

    def make_plan(self, now: float) -> Plan:
        """A valid plan; a policy that fails is replaced, since the queue must go on."""
        try:
            plan = self.planner.plan(Snapshot(self.state, now))
            validate(self.state, plan)
        except Exception as error:  # a policy may be a user's own code: anything may come out of it
            if self.planner.text == FALLBACK:
                raise
            log.exception("policy %s failed; going on with %s", self.planner.text, FALLBACK)
            self.use(make_planner(FALLBACK), now, because=f"{self.planner.text} failed: {error}")
            return self.make_plan(now)
        return plan

    def use(self, planner: OrderedPlanner, now: float, **details: Any) -> None:
        """Plan by another policy from now on."""
        self.planner = planner
        self.record(PolicySet(now, planner.text), **details)

    def _carry_out(self) -> None:
        """Do what has been written."""
        launches, self._launches = self._launches, []
        stops, self._stops = self._stops, []
        for placed in launches:
            point("yard:before-launch")
            self._launch(placed)
            point("yard:launched")
        for job, attempt, grace in stops:
            self.engine.stop(job, attempt, grace)

    def _launch(self, placed: Placed) -> None:
        work = self._work_of(placed.job)
        now = self.clock.now()
        environment = self.store.environment(work.environment)
        task = Task(placed.job, work.command, work.directory, environment, work.output_limit, work.umask)
        try:
            self.engine.launch(task, placed.attempt, Placement(self.machine.node, placed.gpus))
        except LaunchRefused as error:
            self.record(Exited(now, placed.job, placed.attempt, None), message=str(error))
        except EngineError as error:
            log.warning("job %s cannot be launched now: %s", placed.job, error)
            self.record(Requeued(now, placed.job, placed.attempt), message=f"cannot be launched now: {error}")
            self._quiet_until = time.monotonic() + _RETRY
        else:
            for report in self.engine.observe():
                self._note(report, self.clock.now())

    def _work_of(self, job: str) -> Work:
        return work_of(self.store.open[job])
