"""The live loop. One thread owns the state: it takes requests, observes the engine, plans, writes, and then acts.

A turn goes:

    1. wait until a request comes, a process ends, or something is due
    2. let requests and reports become events, and plan; all of it in memory
    3. write the events: one transaction, one fsync, shared by all requests of the turn
    4. answer the requests; launch and stop jobs as the events say

So nothing is acknowledged, launched or stopped that is not on disk, and a submit and its placement share one fsync. The
process may be killed anywhere: what was not written did not happen, and what was written but not done is done by the
next daemon (`recover`). If writing fails, the state is dropped and read again from disk; only the engine's
reports are kept until they are written, since the engine does not repeat them. The same happens where a turn is cut
short by what passes: no file descriptors are left, say.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from gpuyard.config import Settings
from gpuyard.core.events import Charged, ClockSet, Event, MemoryTaken, Opened, Placed, RulesSet, Started
from gpuyard.core.model import Cluster
from gpuyard.core.plan import Start
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.state import State
from gpuyard.daemon.commands import Commands
from gpuyard.daemon.context import Context
from gpuyard.daemon.devices.admission import Admission
from gpuyard.daemon.devices.gpu_shares import refit_shares
from gpuyard.daemon.devices.machine import Machine
from gpuyard.daemon.devices.measurements import seen_on
from gpuyard.daemon.devices.over_limit import OverLimit
from gpuyard.daemon.devices.simulation import Declared
from gpuyard.daemon.jobs.bulk import BulkChanges
from gpuyard.daemon.jobs.estimates import Estimates
from gpuyard.daemon.jobs.launch import task_of
from gpuyard.daemon.jobs.loans import Offers
from gpuyard.daemon.jobs.oom import Ooms
from gpuyard.daemon.jobs.outcomes import Outcomes, dated, salvaged
from gpuyard.daemon.jobs.stops import Stops
from gpuyard.daemon.planning import Planning, check_gpus, rules_to_set
from gpuyard.daemon.store.database import StoreDamaged, StoreFailing, damage_behind
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.engines.base import Ended, Engine, EngineError, LaunchRefused, NeverBegan, Placement, Report
from gpuyard.errors import GpuyardError, UserError, is_passing
from gpuyard.files import point

log = logging.getLogger("gpuyard")
_RETRY = 1.0  # seconds between attempts to write where that failed
_FEW = 4
_SOON = 0.005  # seconds for which it need not be written down that a job began: its claim tells, should we die


class Daemon:
    """The loop. Its thread alone changes the jobs and GPUs of the machine."""

    def __init__(self, store: Store, engine: Engine, machine: Machine, settings: Settings) -> None:
        machine.often = min(machine.often, settings.record_period)
        self.context = context = Context(store, engine, machine, settings)
        self.store, self.engine, self.machine, self.settings = store, engine, machine, settings
        self.clock, self.meters, self.measures = context.clock, context.meters, context.measures
        self.listeners, self.ask, self.record = context.listeners, context.ask, context.record
        self.failing = ""  # why nothing can be written now; empty if all is well
        self.damage = ""  # what is wrong with the store, which no waiting mends; empty if nothing is known to be
        self.expect: Callable[[str], None] = lambda job: None
        """Called with every waiting lease, so that it is dropped when its process ends."""
        self.due_back = np.inf  # when the next turn ends at the latest, on the monotonic clock, unless the thread hangs
        self._looks = 0
        self._written: list[Record] = []  # of which nobody has heard yet
        self._on_disk = False  # whether that has what this turn was asked for
        self._launches: list[Placed] = []
        self._reports: list[Report] = []
        self._poll = select.poll()
        self._poll.register(context.inbox.fileno(), select.POLLIN)
        self._poll.register(engine.fileno(), select.POLLIN)
        self._write_at = np.inf
        self._retry_at = 0.0
        self._take_over: Callable[[float], None] | None = None  # what `open` could not write yet
        self._stopping = False
        self._make_parts(context)

    def _make_parts(self, context: Context) -> None:
        self.declared = Declared(context.settings.jobs_dir)
        self._stops = Stops(context)
        over_limit = OverLimit(context, self._stops)
        self.estimates = Estimates(context)
        admission = Admission(context, self.estimates, self._stops, over_limit)
        self.planning = Planning(context, self._stops, admission, self._place, self.look_at_gpus)
        self.ooms = Ooms(context, self._stops, over_limit)
        self._outcomes = Outcomes(context, self._stops, self.ooms, self.declared)
        self.offers = Offers(context, self.planning, self.look_at_gpus)
        self.commands = Commands(context, self.planning, self.estimates, self._stops, self._outcomes)
        self.bulk = BulkChanges(context, self.commands)
        context.observers += [self.estimates.note, self._note]
        context.measures.listeners.append(over_limit.heard)
        if admission.on:
            context.observers.append(admission.note)
            context.measures.listeners.append(admission.heard)

    @property
    def state(self) -> State:
        return self.context.state

    @property
    def unwritten(self) -> list[Record]:
        return self.context.unwritten

    @property
    def planner(self) -> OrderedPlanner:
        return self.planning.planner

    # -- from other threads -----------------------------------------------------------------------

    def stop(self) -> None:
        self._stopping = True
        self.context.inbox.ring()

    def damaged(self, problem: str) -> None:
        """Note that the store is damaged: nothing is written to it from now on."""
        self.damage = self.damage or problem
        self.context.inbox.ring()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopping:
            timeout = self._timeout()
            self.due_back = time.monotonic() + timeout
            self.turn(timeout)
        try:
            if self._commit([]) and not self.failing:  # first, so that the state is no further than the log
                self.store.keep(self.state)
        except StoreFailing as error:  # the next start takes longer, and that is all
            log.warning("%s", error)

    def turn(self, timeout: float) -> None:
        """One turn; it begins after `timeout` seconds at the latest."""
        self._poll.poll(max(0.0, timeout) * 1000)
        self.due_back = time.monotonic()
        answers: list[tuple[Future[Any], Any]] = []
        self._on_disk = False
        try:
            if self.damage and self.failing != self.damage:
                self._fail(StoreDamaged(self.damage))
            elif self.failing and time.monotonic() >= self._retry_at:
                self._try_again()
            self.context.begin_slice()
            answers = [] if self.failing else self.context.inbox.go_on()
            answers += self.context.inbox.hear(self.failing)
            self._decide_and_act(answers)
        except Exception as error:
            self._give_up(answers, self._problem_of(error))

    def _decide_and_act(self, answers: list[tuple[Future[Any], Any]]) -> None:
        now = self.clock.now()  # after what was asked, which has times of its own
        self._observe(now)
        if not self.failing:
            self._watch_clock(now)
            self.look_at_gpus(now)
            self._stops.warn()
            self._stops.end_overdue(now)
            self.estimates.update_waiting(now)
            self._outcomes.give_up_doomed(now)
            self.offers.settle(now)
            self.planning.plan(now)
            self.offers.look(now)
        if self._may_wait(answers) or not self._commit(answers):
            return
        idle = not self._written and not self.context.inbox
        if len(self._launches) > _FEW or self.context.checkpoints.under_way:
            self._answer(answers)
            answers = []
        self._checkpoint(idle)
        self._carry_out()  # a few starts come before the answers: they are what people wait for
        self._answer(answers)

    def _problem_of(self, error: Exception) -> GpuyardError:
        """The damage that a read came upon, or what passes; any other error is ours."""
        if is_passing(error):
            return EngineError(f"the daemon cannot go on now ({error}); it tries again every second")
        if problem := damage_behind(error, self.store.path)[1]:
            return StoreDamaged(problem)
        raise error

    def _timeout(self) -> float:
        """Seconds until something is due."""
        context = self.context
        more = self.estimates.has_more or context.inbox.is_busy or context.checkpoints.under_way
        if context.inbox or context.new_leases or (more and not self.failing):
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

    def _note(self, event: Event, details: Mapping[str, Any]) -> None:
        self._write_at = min(self._write_at, time.monotonic() + _SOON if isinstance(event, Started) else 0.0)

    def _may_wait(self, answers: list[tuple[Future[Any], Any]]) -> bool:
        """Whether all pending writes are starts: they may share an fsync with the end of a short job."""
        busy = answers or self._launches or self._stops
        return bool(self.context.unwritten) and not busy and time.monotonic() < self._write_at

    def _commit(self, answers: list[tuple[Future[Any], Any]]) -> bool:
        """Write this turn's events; if that fails, so do the requests that made them."""
        self._write_at = np.inf
        records, environments, keyed, intents = self.context.take_unwritten()
        try:
            if records or intents:
                began = time.perf_counter()
                self.store.append(records, environments, keyed.values(), intents)
                self.meters.commits.observe(time.perf_counter() - began)
        except StoreFailing as error:
            self._refuse(answers, error)
            return False
        self._on_disk = True
        if not self.failing:
            self._reports, self._take_over = [], None
        self._written += records
        return True

    def _checkpoint(self, idle: bool) -> None:
        """Before anything else happens: the state must match the log."""
        busy = self.context.inbox.is_busy
        if not self.failing and self.context.checkpoints.make(self.state, idle=idle, busy=busy):
            self.planning.renumbered()

    def _answer(self, answers: list[tuple[Future[Any], Any]]) -> None:
        point("yard:before-answers")
        for answer, value in answers:
            answer.set_result(value)
            point("yard:answered")
        records, self._written = self._written, []
        if records:
            self.meters.note(records)
            for listener in self.listeners:
                listener(records)

    def _refuse(self, answers: list[tuple[Future[Any], Any]], error: StoreFailing) -> None:
        self._fail(error)
        for answer, _ in answers:
            answer.set_exception(error)

    def _fail(self, error: GpuyardError) -> None:
        """Drop what is not written."""
        if isinstance(error, StoreDamaged):
            self.damage = str(error)
        before, self.failing = self.failing, self.damage or str(error)
        if self.failing != before:
            log.error("%s", self.failing)
        self.context.drop_unwritten()
        self.context.inbox.give_up(error)
        self._launches = []
        self._stops.forget()
        self._write_at = np.inf
        self._retry_at = np.inf if self.damage else time.monotonic() + _RETRY

    def _give_up(self, answers: list[tuple[Future[Any], Any]], problem: GpuyardError) -> None:
        """A turn was cut short: go on in a while from what is on disk, as if we had died; not where it is damaged."""
        left = [(answer, value) for answer, value in answers if not answer.done()]
        if self._on_disk:
            self._answer(left)
        for answer, _ in left:
            if not answer.done():
                answer.set_exception(problem)
        self._fail(problem)

    def _try_again(self) -> None:
        """After a failed write: go back to what is on disk, and try to write."""
        try:
            self.context.reload()
            self.estimates.forget()
            (self._take_over or self.recover)(self.clock.now())
        except (StoreFailing, UserError, EngineError) as error:
            self._fail(error)
            return
        log.info("the store can be written again")
        self.failing = ""
        self.planning.forget()

    # -- beginning and recovery -------------------------------------------------------------------

    def open(self, cluster: Cluster, gpus: tuple[str, ...], **details: Any) -> None:
        """Take over the queue. Where nothing can be written now, it is shown, jobs go on, and the rest comes later."""
        state = self.store.load()
        self.context.state = state if state is not None else State(cluster)

        def take_over(now: float) -> None:
            lost = self.store.lost
            found = salvaged(self.context, over=any(lost))
            more = {**details, **({"lost": lost._asdict()} if any(lost) else {}), **self.context.boot.details()}
            if not self.store.last:  # a log begins with this
                self.record(Opened(min([now, *(at for at, _ in found)]), cluster, gpus), **more)
            self.recover(now, found)
            check_gpus(self.store, self.state, cluster, gpus)
            if self.store.last:
                self.record(Opened(now, cluster, gpus), **{**more, **self.context.boot.details()})
            self.planning.take_up_policy(now)
            if (rules := rules_to_set(self.state, self.settings)) is not None:
                self.record(RulesSet(now, rules))

        self._take_over = take_over
        try:
            if self.damage:
                raise StoreDamaged(self.damage)
            take_over(self.clock.now())
            self._commit([])
        except (StoreFailing, EngineError) as error:
            self._fail(error)
        except UserError:
            raise
        except Exception as error:
            self._fail(self._problem_of(error))
        if self.failing and state is None:
            raise UserError(self.failing)

    def recover(self, now: float, more: Sequence[tuple[float, Callable[[], None]]] = ()) -> None:
        """Learn what became of the jobs that ran; `more` has to happen too, each step at its time."""
        self.context.boot.recall(self.store)
        self._watch_clock(now)
        known = {(report.job, report.attempt) for report in self._reports if isinstance(report, Ended)}
        reports: list[Report] = []
        for row in self.state.running.array.tolist():
            job, attempt = self.state.ids[row], self.state.attempt[row]
            if (job, attempt) not in known:  # of those the engine knows no more
                reports.append(self.engine.adopt(job, attempt))
                point("yard:adopted")
        self._reports += self.engine.observe()  # some have ended long ago: that comes before all that happens now
        reports += self._reports
        steps: list[tuple[float, Callable[[], None]]] = [
            (at, partial(self._outcomes.note, report, now)) for at, report in dated(reports, now)
        ]
        for _, step in sorted([*steps, *more], key=itemgetter(0)):
            step()
        for row in self.state.running.array.tolist():
            if row in self.state.recalled:
                self._stops.again(row)
        self._stops.watch_limits()
        self.bulk.resume()
        self.context.new_leases += [view.id for view in self.store.open.values() if view.kind == "lease"]

    def _watch_clock(self, now: float) -> None:
        """Note that the time of day was set: ages go by the time since the machine started."""
        if by := self.context.boot.jump():
            self.record(ClockSet(now, by), **self.context.boot.details())

    # -- what happens -----------------------------------------------------------------------------

    def _observe(self, now: float) -> None:
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
        for event, why in self.machine.changes(self.state, now):
            self.record(event, why=why)
            if isinstance(event, MemoryTaken):
                refit_shares(self.context, now)
        if self.machine.looks != self._looks:
            self._looks = self.machine.looks
            looks = list(self.machine.readings())
            seen = seen_on(looks, self.state)
            self.measures.note(now, seen, self.store.runs)
            for watcher in self.context.watchers:
                watcher(now, [look.reading for look in looks], seen)

    # -- acting -----------------------------------------------------------------------------------

    def _place(self, starts: list[Start], now: float) -> None:
        """Give jobs their GPUs; they are launched when that is written."""
        for start in starts:
            if start.charge is not None and start.admission is not None:
                self.record(Charged(now, start.job, start.charge, start.by, start.admission.why))
            attempt = self.state.attempt[self.state.row_of[start.job]] + 1
            placed = Placed(now, start.job, attempt, start.gpus, start.by)
            self.record(placed, **({} if start.admission is None else {"admission": start.admission.to_json()}))
            self._launches.append(placed)

    def _carry_out(self) -> None:
        launches, self._launches = self._launches, []
        for placed in launches:
            point("yard:before-launch")
            self._launch(placed)
            point("yard:launched")
        self._stops.carry_out(self.engine)
        leases, self.context.new_leases = self.context.new_leases, []
        for job in leases:
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
