"""The live loop. One thread owns the yard: it hears what people ask, sees what happened, plans, writes, and then acts.

A turn goes:

    1. wait until somebody asks, a process ends, or something is due
    2. let requests and reports become events, and plan; all of it in memory
    3. write the events: one transaction, one fsync, shared by whoever asked meanwhile
    4. answer those who asked; launch and stop what the events say

So nothing is acknowledged, launched or stopped that is not on disk, and a submit and its placement share one fsync. The
process may be killed anywhere: what was not written did not happen, and what was written but not done is done by the
next life (`recover`). If writing fails, what is in memory is thrown away and read again from disk; only the engine's
reports are kept until they are written, since nobody would tell us again.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from gpuyard.config import Settings
from gpuyard.core.events import Charged, Edited, Event, MemoryTaken, Opened, Placed, RulesSet, Started, Submitted
from gpuyard.core.model import Cluster, Phase, Request
from gpuyard.core.plan import Start
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon.clock import Clock, Times
from gpuyard.daemon.devices.admission import Admission
from gpuyard.daemon.devices.gpu_shares import refit_shares
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.devices.measurements import Measures, Seen, seen_on
from gpuyard.daemon.devices.over_limit import OverLimit
from gpuyard.daemon.devices.simulation import Declared
from gpuyard.daemon.inbox import Inbox
from gpuyard.daemon.jobs.estimates import Estimates
from gpuyard.daemon.jobs.launch import task_of
from gpuyard.daemon.jobs.loans import Offers
from gpuyard.daemon.jobs.oom import Ooms
from gpuyard.daemon.jobs.outcomes import Outcomes
from gpuyard.daemon.jobs.stops import Stops
from gpuyard.daemon.meters import Meters
from gpuyard.daemon.planning import Planning, check_gpus, rules_to_set, take_up_policy
from gpuyard.daemon.store.log import Checkpoints, Store, StoreFailing, description
from gpuyard.daemon.store.reader import Answered
from gpuyard.daemon.store.records import Record
from gpuyard.daemon.store.views import work_of
from gpuyard.engines.base import Engine, EngineError, LaunchRefused, NeverBegan, Placement, Report
from gpuyard.errors import GpuyardError, UserError
from gpuyard.faults import point
from gpuyard.gpus.base import Reading
from gpuyard.spec.work import Work

log = logging.getLogger("gpuyard")
_RETRY = 1.0  # seconds between attempts to write where that failed
_FEW = 4
_SOON = 0.005  # seconds for which it need not be written down that a job began: its claim tells, should we die


class Yard:
    """The jobs and GPUs of one machine, and the only hands that move them."""

    def __init__(self, store: Store, engine: Engine, machine: Machine, settings: Settings) -> None:
        self.store, self.engine, self.machine, self.settings = store, engine, machine, settings
        machine.often = min(machine.often, settings.record_period)
        self.clock = Clock(store.last_at)
        self.state: State
        self.failing = ""
        """Why nothing can be written now; empty if all is well."""
        self.listeners: list[Callable[[list[Record]], None]] = []
        """Told of what was written, by the yard's own thread: they must be quick."""
        self.watchers: list[Callable[[float, Sequence[Reading], Sequence[Seen]], None]] = []
        """Told what each look showed of GPUs and of jobs, by the thread that looked: they must be quick."""
        self.expect: Callable[[str], None] = lambda job: None
        """Told of every lease that waits, so that somebody sees if nobody waits for it any more."""
        self.meters = Meters(store.open, store.latest_at)
        self.measures = Measures(settings.data_dir / "measures.json")
        """What running jobs use of their GPUs."""
        self.measures.gpu_memory = max((float(device.memory) for device in machine.gpus.devices), default=0.0)
        self.declared = Declared(settings.jobs_dir)
        """What jobs are said to use of simulated GPUs."""
        self._looks = 0
        self.due_back = np.inf
        """When the thread will have turned again, on the monotonic clock, if nothing is wrong with it."""
        self.environments: dict[str, str] = {}
        """To be written with the next batch."""
        self.answers: dict[tuple[str, str], Answered] = {}
        """To requests with a key, by user and key; written with what they tell of."""
        self._pending: list[Record] = []
        self._said: dict[str, Record] = {}
        """What jobs run and ask for according to what is not yet written: thousands may be told in one turn."""
        self._written: list[Record] = []
        self._newest = self._taken = max(store.newest, engine.last_job())
        self._launches: list[Placed] = []
        self._times = Times(store.latest_at)
        self._stops = Stops(self, self._work_of)
        self.planning = Planning(self, self._stops)
        self._offences = OverLimit(self)
        self.measures.listeners.append(self._offences.heard)
        self.admitting = Admission(self)
        """What is known of the use of GPUs, where that counts."""
        if self.admitting.on:
            self.measures.listeners.append(self.admitting.heard)
        self._ooms = Ooms(self, self._offences)
        self._outcomes = Outcomes(self, self._stops, self._times, self._ooms, self._work_of)
        self.offers = Offers(self, self._work_of)
        """Who is lent GPUs that nobody else can use."""
        self._expected: list[str] = []
        self._reports: list[Report] = []
        self.checkpoints = Checkpoints(store)
        self.estimates = Estimates(self)
        self._inbox = Inbox()
        self._poll = select.poll()
        self._poll.register(self._inbox.fileno(), select.POLLIN)
        self._poll.register(engine.fileno(), select.POLLIN)
        self._write_at = np.inf
        self._retry_at = 0.0
        self._stopping = False

    # -- from other threads -----------------------------------------------------------------------

    def ask(self, command: Callable[[], Any], *, changes: bool = True) -> Future[Any]:
        """Have something done by the yard's own thread; answered when what came of it is on disk.

        What changes nothing is answered also while nothing can be written.
        """
        return self._inbox.put(command, changes)

    def stop(self) -> None:
        """End the loop after this turn. Jobs go on running."""
        self._stopping = True
        self._inbox.ring()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn after turn, until told to stop."""
        while not self._stopping:
            patience = self._patience()
            self.due_back = time.monotonic() + patience
            self.turn(patience)
        try:
            if self._commit([]) and not self.failing:  # first, so that the state is no further than the log
                self.store.keep(self.state)
        except StoreFailing as error:  # the next start takes longer, and that is all
            log.warning("%s", error)

    def turn(self, patience: float) -> None:
        """One turn, beginning at the latest after so many seconds."""
        self._poll.poll(max(0.0, patience) * 1000)
        self.due_back = time.monotonic()
        if self.failing and time.monotonic() >= self._retry_at:
            self._try_again()
        answers = self._inbox.hear(self.failing)
        now = self.clock.now()  # after what was asked, which has times of its own
        self._observe(now)
        if not self.failing:
            self.look_at_gpus(now)
            self._stops.warn()
            self._stops.end_overdue(now)
            self.estimates.tell(now)
            self._outcomes.give_up_doomed(now)
            self.offers.settle(now)
            self.planning.plan(now)
            self.offers.look(now)
        if self._may_wait(answers) or not self._commit(answers):
            return
        if len(self._launches) > _FEW:
            self._answer(answers)
            answers = []
        self._carry_out()  # a few starts come before the answers: they are what people wait for
        self._answer(answers)

    def _patience(self) -> float:
        """Seconds until something is due."""
        if self._inbox or self._expected or (self.estimates.has_more_to_tell and not self.failing):
            return 0.0
        ticks = time.monotonic()
        due = [ticks + 3600.0, self._write_at]
        if (engine := self.engine.due()) is not None:
            due.append(engine)
        if self.failing:
            due.append(self._retry_at)
        else:
            due += [self.planning.due(), self.machine.due(), self._stops.due(), self.offers.due()]
        return max(0.0, min(due) - ticks)

    def record(self, event: Event, **details: Any) -> None:
        """Let an event happen; it is written at the end of the turn."""
        self.estimates.note(event, details)
        self.admitting.note(event)
        apply(self.state, event)
        self._pending.append(Record(event, details))
        if isinstance(event, Submitted | Edited):
            self._said[event.job] = self._pending[-1]
        self._times.note(event)
        if isinstance(event, Started):
            self.machine.began()
        self._write_at = min(self._write_at, time.monotonic() + _SOON if isinstance(event, Started) else 0.0)

    @property
    def planner(self) -> OrderedPlanner:
        """The policy that decides now."""
        return self.planning.planner

    @property
    def unwritten(self) -> list[Record]:
        """What was recorded in this turn."""
        return self._pending

    def next_id(self) -> str:
        """A name for a new job: a number that none has had, also where the store is younger than the engine's files."""
        self._newest += 1
        return str(self._newest)

    def _may_wait(self, answers: list[tuple[Future[Any], Any]]) -> bool:
        """Whether there is nothing to write but that jobs began, which a short job's end may share an fsync with."""
        busy = answers or self._launches or self._stops
        return bool(self._pending) and not busy and time.monotonic() < self._write_at

    def _commit(self, answers: list[tuple[Future[Any], Any]]) -> bool:
        """Write what has happened; if that fails, tell those who wait for it."""
        records, self._pending, self._write_at = self._pending, [], np.inf
        self._said = {}
        environments, self.environments = self.environments, {}
        answers_kept, self.answers = self.answers, {}
        try:
            if records:
                began = time.perf_counter()
                self.store.append(records, environments, answers_kept.values())
                self.meters.commits.observe(time.perf_counter() - began)
        except StoreFailing as error:
            log.error("%s", error)
            self._fail(error)
            for answer, _ in answers:
                answer.set_exception(error)
            return False
        if not self.failing:
            self._reports = []
        self._written += records
        if not self.failing and self.checkpoints.make(self.state, idle=not records and not self._inbox):
            self.planning.renumbered()
        return True

    def _answer(self, answers: list[tuple[Future[Any], Any]]) -> None:
        """Tell those who wait for it what has been written."""
        point("yard:before-answers")
        for answer, value in answers:
            answer.set_result(value)
            point("yard:answered")
        records, self._written = self._written, []
        if records:
            self.meters.note(records)
            for listener in self.listeners:
                listener(records)

    def _fail(self, error: GpuyardError) -> None:
        """Give up what is not written, for now."""
        self.failing = str(error)
        self._pending, self._launches, self._expected, self._said = [], [], [], {}
        self._stops.forget()
        self._write_at = np.inf
        self._times.forget()
        self._retry_at = time.monotonic() + _RETRY

    def _try_again(self) -> None:
        """After a failure to write: go back to what is on disk, and see whether it can be written now."""
        try:
            self.state = self.store.load() or self.state
            self._newest = max(self.store.newest, self._taken)
            self.store.keep(self.state)
            self.estimates.forget()
            self.recover(self.clock.now())
        except (StoreFailing, UserError, EngineError) as error:
            self._fail(error)
            return
        log.info("the store can be written again")
        self.failing = ""
        self.planning.forget()

    # -- beginning and recovery -------------------------------------------------------------------

    def open(self, cluster: Cluster, gpus: tuple[str, ...], **details: Any) -> None:
        """Take the yard over: fold the log, find out what became of those who ran, and begin."""
        now = self.clock.now()
        state = self.store.load()
        self.state = state if state is not None else State(cluster)
        self.recover(now)
        check_gpus(self.store, self.state, cluster, gpus)
        self.record(Opened(now, cluster, gpus), **details)
        take_up_policy(self, now)
        if (rules := rules_to_set(self.state, self.settings)) is not None:
            self.record(RulesSet(now, rules))
        if not self._commit([]):
            raise UserError(self.failing)

    def recover(self, now: float) -> None:
        """Ask the engine about everybody who is on GPUs according to the log."""
        for report in self._reports:  # first: of these the engine knows no more
            self._outcomes.note(report, now)
        for row in self.state.running.array.tolist():
            job, attempt = self.state.ids[row], self.state.attempt[row]
            self._outcomes.note(self.engine.adopt(job, attempt), now)
            point("yard:adopted")
            if row in self.state.recalled and self.state.phase[row] in (Phase.PLACED, Phase.RUNNING):
                self._stops.again(row)
        self._stops.watch_limits()
        self._expected += [view.id for view in self.store.open.values() if view.kind == "lease"]

    # -- what happens -----------------------------------------------------------------------------

    def _observe(self, now: float) -> None:
        """See what the engine saw. While nothing can be written, that waits."""
        try:
            reports = self.engine.observe()
        except EngineError as error:
            log.warning("%s", error)
            time.sleep(0.05)  # it may want to look again at once
            return
        self._reports += reports
        if self.failing:
            return
        for report in reports:
            self._outcomes.note(report, now)
            if isinstance(report, NeverBegan):
                self.planning.rest()

    def look_at_gpus(self, now: float) -> None:
        """Let what changed about the GPUs become events."""
        for event, why in self.machine.changes(self.state, now):
            self.record(event, why=why)
            if isinstance(event, MemoryTaken):
                refit_shares(self, now)
        if self.machine.looks != self._looks:
            self._looks = self.machine.looks
            looks = list(self.machine.readings())
            seen = seen_on(looks, self.state)
            self.measures.note(now, seen, self.store.runs)
            for watcher in self.watchers:
                watcher(now, [look.reading for look in looks], seen)

    def limit_changed(self, job: str) -> None:
        """A job's time limit is another one from now on."""
        self._stops.limit_changed(job)

    def recall(self, job: str, cause: str, now: float, grace: float | None = None, **details: Any) -> None:
        """Tell a job on GPUs to end."""
        self._stops.recall(job, cause, now, grace, **details)

    def ran_out(self, job: str, attempt: int, gpu: int, wanted: int) -> None:
        """A simulated GPU does not have the bytes that a job wants of it, so the job dies."""
        self._ooms.ran_out(job, attempt, gpu, wanted)

    def description(self, job: str) -> tuple[Work, Request]:
        """What a job runs and asks for, also when it is over."""
        return description(job, self.store, self._said)

    def wishes(self, job: str) -> Mapping[str, Any]:
        """What an open job is to run, as JSON has it."""
        said = self._said.get(job)
        work: Mapping[str, Any] = said.details["work"] if said is not None else self.store.open[job].work
        return work

    def is_offended(self, gpu: int) -> bool:
        """Whether somebody takes more of a GPU than it asked for, and is stopped for that."""
        return self._offences.stops(gpu)

    def watch_lease(self, job: str) -> None:
        """Once it is on disk, see to it that a waiting lease is given up if its process ends."""
        self._expected.append(job)

    def end_lease(self, job: str, now: float, message: str, **details: Any) -> None:
        """Its holder does not need a lease any more, or whoever waits for it does not."""
        self._outcomes.end_lease(job, now, message, **details)

    # -- acting -----------------------------------------------------------------------------------

    def place(self, starts: list[Start], now: float) -> None:
        """Give jobs their GPUs; they are launched when that is written."""
        for start in starts:
            if start.charge is not None and start.admission is not None:
                self.record(Charged(now, start.job, start.charge, start.by, start.admission.why))
            attempt = self.state.attempt[self.state.row_of[start.job]] + 1
            placed = Placed(now, start.job, attempt, start.gpus, start.by)
            self.record(placed, **({} if start.admission is None else {"admission": start.admission.to_json()}))
            self._launches.append(placed)

    def _carry_out(self) -> None:
        """Do what has been written."""
        launches, self._launches = self._launches, []
        for placed in launches:
            point("yard:before-launch")
            self._launch(placed)
            point("yard:launched")
        self._stops.carry_out(self.engine)
        expected, self._expected = self._expected, []
        for job in expected:
            self.expect(job)

    def _launch(self, placed: Placed) -> None:
        user = self.store.open[placed.job].user if self.settings.shared else ""
        try:
            size = self.machine.least_memory(placed.gpus)
            control = f"unix:{self.settings.socket}"
            task = task_of(self.store.open[placed.job], placed, self.store, self.machine.node, user, size, control)
            self.engine.launch(task, placed.attempt, Placement(self.machine.node, placed.gpus))
        except LaunchRefused as error:
            self._outcomes.refused(placed, str(error), self.clock.now())
        except EngineError as error:
            message = f"cannot be launched now: {error}"
            log.warning("job %s %s", placed.job, message)
            self._outcomes.postponed(placed, message, self.clock.now())
            self.planning.rest()
        else:
            self._observe(self.clock.now())

    def _work_of(self, job: str) -> Work:
        said = self._said.get(job)
        return Work.from_json(said.details["work"]) if said else work_of(self.store.open[job])
