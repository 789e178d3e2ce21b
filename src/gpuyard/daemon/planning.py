"""When the daemon plans, and by which policy; plans become events."""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpuyard.config import Settings
from gpuyard.core.engine import validate
from gpuyard.core.events import Chosen, Opened, PolicySet, Renewed
from gpuyard.core.limits.loans import avoid
from gpuyard.core.model import Cluster, Rules
from gpuyard.core.plan import Plan, Snapshot, Start
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.policy import LEARNED, parse_spec
from gpuyard.core.state import State
from gpuyard.daemon.context import Context
from gpuyard.daemon.devices.admission import Admission
from gpuyard.daemon.jobs.stops import Stops
from gpuyard.daemon.store.log import Store
from gpuyard.daemon.store.records import Record
from gpuyard.errors import UserError, told_by
from gpuyard.policies.guard import details_of, forced_hash, guard_of, policy_of_settings, serve_policy
from gpuyard.policies.resolver import make_planner

log = logging.getLogger("gpuyard")


def check_gpus(store: Store, state: State, cluster: Cluster, gpus: tuple[str, ...]) -> None:
    """Refuse other GPUs than before while jobs run on those."""
    before = next((r.event for r in store.latest("Opened") if isinstance(r.event, Opened)), None)
    if before is None or not len(state.running) or (before.cluster == cluster and before.gpus == gpus):
        return
    jobs = ", ".join(state.ids[row] for row in state.running.array)
    raise UserError(
        f"job {jobs} still runs on GPUs that the daemon would not have now ({cluster.gpus} in all, before "
        f"{state.cluster.gpus}); start it with the former GPUs, or end the job first"
    )


class ConfiguredPolicy(NamedTuple):
    planner: OrderedPlanner
    in_place_of: str = ""  # the one that cannot be used; empty: it can
    because: str = ""

    def details(self) -> dict[str, Any]:
        other = {"in_place_of": self.in_place_of, "because": self.because} if self.in_place_of else {}
        return {"configured": True, **other, **details_of(self.planner)}


def configured_policy(store: Store, settings: Settings) -> ConfiguredPolicy:
    """The policy of the settings; if it was in force before and cannot be loaded any more, its replacement."""
    before = next((record for record in store.latest("PolicySet") if record.details.get("configured")), None)
    try:
        with in_time(".py:" in settings.policy):
            return ConfiguredPolicy(
                policy_of_settings(settings, forced_before=forced_hash(before.details) if before else "")
            )
    except UserError as error:
        if before is None or not isinstance(before.event, PolicySet):
            raise
        wanted = before.details.get("in_place_of") or before.event.policy
        spec, own = parse_spec(wanted), ".py:" in wanted
        if not (own or spec.name.startswith(LEARNED)) or spec.name != parse_spec(settings.policy).name:
            raise  # it has never decided here: rather a mistake than an accident
        base = (before.details.get("learned") or {}).get("base") or (own and Settings._field_defaults["policy"])
        text = f"{base}@{spec.discipline}@{spec.placement}" if base else before.event.policy
        log.warning("policy %s cannot be used any more; going on with %s: %s", wanted, text, error)
        return ConfiguredPolicy(make_planner(text), wanted, str(error))


def _is_same_policy(planner: OrderedPlanner, record: Record) -> bool:
    return details_of(planner).get("learned") == record.details.get("learned")


def rules_to_set(state: State, settings: Settings) -> Rules | None:
    """The rules to set, if the settings differ from the log; quotas and weights stay as they were set."""
    former = state.rules or Rules()
    rules = replace(former, half_life=settings.half_life or math.inf, preempts=settings.preempt)
    return rules if rules != state.rules else None


Found = TypeVar("Found")
_REST = 1.0  # seconds for which nothing is planned after a launch that failed
_LONGEST = 10.0  # seconds that a plan by a policy of a user's own may take; when it is tried, `TRIAL`
TRIAL = 1.0
_LATE = 1.0  # seconds by which a plan may be late and still be made for the instant that it was due at


def _default(settings: Settings) -> OrderedPlanner:
    """The built-in policy that decides where no other can."""
    return make_planner(Settings._field_defaults["policy"], discipline="easy", placement=settings.placement)


def failure_of(planner: OrderedPlanner, error: BaseException) -> str:
    """How a policy failed, as `ZeroDivisionError: division by zero`."""
    if isinstance(error, UserError):  # told by the policy itself
        return str(error).removeprefix(f"policy {planner.policy.name} failed: ")
    return told_by(error)


def _failure(wanted: str, instead: str, why: str) -> str:
    return f"policy {wanted} failed ({why}), so {instead} decides; correct it, then gpuyard policy set {wanted}"


class DidNotEnd(BaseException):
    """Code of a user's own was interrupted."""


@contextmanager
def in_time(own: object, most: float = _LONGEST) -> Iterator[None]:
    """Interrupt code of a user's own (if `own`) that takes longer than so many seconds: it may never end."""
    if not own:
        yield
        return
    began, interrupt, here = time.monotonic(), ctypes.pythonapi.PyThreadState_SetAsyncExc, threading.get_ident()
    late = threading.Timer(most, interrupt, (ctypes.c_ulong(here), ctypes.py_object(DidNotEnd)))
    late.daemon = True
    late.start()
    try:
        try:
            yield
        finally:
            late.cancel()
            late.join()
            interrupt(ctypes.c_ulong(here), None)
    except BaseException:
        if time.monotonic() - began <= most:
            raise
    if (taken := time.monotonic() - began) > most:
        raise UserError(f"the policy took {taken:.1f} s, while everybody waits; {most:g} s are allowed")


class Planning:
    def __init__(
        self,
        context: Context,
        stops: Stops,
        admission: Admission,
        place: Callable[[list[Start], float], None],
        look_at_gpus: Callable[[float], None],
    ) -> None:
        self._context, self._stops, self.admission = context, stops, admission
        self._place, self._look_at_gpus = place, look_at_gpus
        self.configured = configured_policy(context.store, context.settings)
        self.planner = self.configured.planner
        self.former: OrderedPlanner | None = None  # what decided before: it decides again if the present one fails
        self.trouble = ""  # what to tell people of the policy: another than they want decides; empty: all is well
        self._failed = ""  # how the present policy failed, until another one is recorded in its place
        if self.configured.in_place_of:
            wanted, because = self.configured.in_place_of, self.configured.because
            self.trouble = f"policy {wanted} cannot be used any more, so {self.planner.text} decides: {because}"
        self.seconds: deque[float] = deque(maxlen=1000)  # what the latest plans took
        self._planned = -1
        self._wake_at = np.inf
        self._quiet_until = 0.0

    def take_up_policy(self, now: float) -> None:
        """Use the policy that an admin set since the configured one was last changed; else the configured one."""
        found, chosen = self.configured, list[Record]()
        for record in self._context.store.latest("PolicySet"):
            if record.details.get("configured") and isinstance(record.event, PolicySet):
                before = record.details.get("in_place_of") or record.event.policy
                if before == (found.in_place_of or found.planner.text):
                    if chosen:
                        self._use_chosen(chosen, now)
                    elif record.event.policy != found.planner.text or not _is_same_policy(found.planner, record):
                        break
                    return
                break
            chosen.append(record)
        self._context.record(PolicySet(now, found.planner.text), **found.details())

    def _use_chosen(self, records: list[Record], now: float) -> None:
        """Use the policy that an admin set, by the newest of these; if it cannot be used now, the one before it."""
        failed, why, usable = set[str](), "", dict[str, OrderedPlanner]()
        wanted, limit = records[0].details.get("in_place_of", ""), self._context.settings.learned_limit
        for record in records:
            assert isinstance(record.event, PolicySet)
            text = record.event.policy
            if len(usable) < 2 and text not in failed and text not in usable:
                try:
                    with in_time(".py:" in text):
                        usable[text] = serve_policy(text, forced_before=forced_hash(record.details), limit=limit)
                except UserError as error:  # its file is gone, for example: the queue must go on
                    log.warning("policy %s cannot be used any more: %s", text, error)
                    failed.add(text)
                    if record is records[0]:
                        wanted, why = text, str(error)
            failed.add(record.details.get("in_place_of", ""))
        self.planner, self.former, *_ = *usable.values(), self.configured.planner, None
        if why:
            self.trouble = f"policy {wanted} cannot be used any more, so {self.planner.text} decides: {why}"
        elif wanted:
            self.trouble = _failure(wanted, self.planner.text, records[0].details.get("because", ""))
        if why or not _is_same_policy(self.planner, records[0]):
            told = {"in_place_of": wanted, "because": why} if why else {"because": "its file has changed"}
            self._context.record(PolicySet(now, self.planner.text), **told, **details_of(self.planner))

    def due(self) -> float:
        """When to plan again though nothing happens, on the monotonic clock."""
        ticks, now = time.monotonic(), self._context.clock.now()
        wake_at = ticks + min(self._wake_at, self.admission.due(now)) - now
        return min(wake_at, self._quiet_until) if self._quiet_until > ticks else wake_at

    def rest(self) -> None:
        """After a failed launch: do not try again at once."""
        self._quiet_until = time.monotonic() + _REST

    def renumbered(self) -> None:
        """The rows of the state have changed, so the last plan does not match them."""
        self._planned = -1

    def forget(self) -> None:
        """The state was read from disk again: there is no plan for it."""
        self._wake_at, self._planned = np.inf, -1

    @property
    def is_current(self) -> bool:
        """Whether nothing has happened since the last plan: no waiting job can use what is idle now."""
        return self._context.state.version == self._planned

    def plan(self, now: float) -> None:
        """Decide which jobs start, if anything has changed since the last plan."""
        context = self._context
        if time.monotonic() < self._quiet_until:
            return
        current = context.state.version == self._planned and not self._failed
        if current and now < self._wake_at and not self.admission.is_due(now):
            return
        if len(context.state.waiting) and context.machine.is_stale():
            self._look_at_gpus(now)
        began, spent = time.perf_counter(), time.thread_time()
        self.admission.charge(now)
        self._place(self._stops.promised(now), now)
        instant = self._instant(now)
        plan = self.make(instant)
        if self._failed:
            self._replace_failed(now)
            plan = self.make(instant)
        self._wake_at = max(plan.wake_at, instant + 0.001)
        self._place(self._stops.obey(plan, now), now)
        for job in plan.renewals:
            context.record(Renewed(now, job, context.state.attempt[context.state.row_of[job]]))
        if plan.chosen is not None:
            context.record(Chosen(now, *plan.chosen))
        self._planned = context.state.version
        self.seconds.append(time.perf_counter() - began)
        context.meters.planned(self.seconds[-1], time.thread_time() - spent)

    def _instant(self, now: float) -> float:
        """The instant to plan for; that of a plan which was due a moment ago, so that slices end exactly."""
        return self._wake_at if now - _LATE < self._wake_at <= now else now

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(self._context.state, now, usage=self.admission.usage(now))

    def make(self, now: float) -> Plan:
        """A valid plan, by a policy that does not fail."""
        return self.by_policy(lambda planner: self.plan_by(planner, now))

    def plan_by(self, planner: OrderedPlanner, now: float) -> Plan:
        plan = planner.plan(self.snapshot(now))
        avoid(self._context.state, plan, now)
        validate(self._context.state, plan)
        return plan

    def by_policy(self, look: Callable[[OrderedPlanner], Found]) -> Found:
        """What follows from the policy in force; if that fails, from the one before it: the queue must go on.

        It records nothing, since whoever asks may only look. `plan` records the change.
        """
        if not self._failed:
            try:
                with in_time(self.planner.policy.source):
                    return look(self.planner)
            except BaseException as error:  # a policy may be a user's own code: anything may come out of it
                if self.planner.text == _default(self._context.settings).text:
                    raise
                self._failed = failure_of(self.planner, error)
                log.warning("policy %s failed", self.planner.text, exc_info=True)
        if self.former is not None and self.former.text != self.planner.text:
            try:
                with in_time(self.former.policy.source):
                    return look(self.former)
            except BaseException:
                log.warning("policy %s, which decided before, failed as well", self.former.text, exc_info=True)
        self.former = _default(self._context.settings)
        return look(self.former)

    def _replace_failed(self, now: float) -> None:
        """Let the policy before the one that failed decide from now on, and say so."""
        wanted, why = self.planner.text, self._failed
        found = self.former or _default(self._context.settings)
        self.use(found, now, in_place_of=wanted, because=why)
        self.former, self.trouble = None, _failure(wanted, found.text, why)

    def use(self, planner: OrderedPlanner, now: float, **details: Any) -> None:
        if (guard := guard_of(self.planner)) is not None:
            self._context.meters.learned.add(guard.counts)
        if planner.text != self.planner.text:
            self.former = self.planner
        self.planner, self.trouble, self._failed = planner, "", ""
        self._stops.take_back(now)
        self._context.record(PolicySet(now, planner.text), **details, **details_of(planner))
