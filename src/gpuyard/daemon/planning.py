"""When it is planned, and by which policy; what a plan says becomes events."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuyard.core.engine import validate
from gpuyard.core.events import Chosen, PolicySet, Renewed
from gpuyard.core.lending import avoid
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import OrderedPlanner
from gpuyard.daemon.opening import configured_policy
from gpuyard.daemon.serving import details_of, guard_of
from gpuyard.daemon.stops import Stops
from gpuyard.policyfile import make_planner

if TYPE_CHECKING:
    from gpuyard.daemon.yard import Yard

log = logging.getLogger("gpuyard")
FALLBACK = "fcfs@strict@first"
_REST = 1.0  # seconds for which nothing is planned after a launch that failed
_LATE = 1.0  # seconds by which a plan may be late and still be made for the instant that it was due at


class Planning:
    """The policy in force, and when it is asked again."""

    def __init__(self, yard: Yard, stops: Stops) -> None:
        self._yard, self._stops = yard, stops
        self.configured = configured_policy(yard.store, yard.settings)
        self.planner = self.configured.planner
        self.trouble = ""
        """What to tell people of the policy: another than they want decides; empty: all is well."""
        if self.configured.in_place_of:
            wanted, because = self.configured.in_place_of, self.configured.because
            self.trouble = f"policy {wanted} cannot be used any more, so {self.planner.text} decides: {because}"
        self.seconds: deque[float] = deque(maxlen=1000)
        """What the latest plans took."""
        self._planned = -1
        self._wake_at = np.inf
        self._quiet_until = 0.0

    def due(self) -> float:
        """When to plan again though nothing has happened, on the monotonic clock."""
        ticks, now = time.monotonic(), self._yard.clock.now()
        wake_at = ticks + min(self._wake_at, self._yard.admitting.due(now)) - now
        return min(wake_at, self._quiet_until) if self._quiet_until > ticks else wake_at

    def rest(self) -> None:
        """Something is wrong with this machine: do not try in a frenzy."""
        self._quiet_until = time.monotonic() + _REST

    def renumbered(self) -> None:
        """The state has other rows now, so the last plan says nothing of it."""
        self._planned = -1

    def forget(self) -> None:
        """The state is another one, read from disk: there was no plan for it."""
        self._wake_at, self._planned = np.inf, -1

    @property
    def is_current(self) -> bool:
        """Whether nothing has happened since the last plan: what is idle now is what nobody who waits can use."""
        return self._yard.state.version == self._planned

    def plan(self, now: float) -> None:
        """Decide who starts, if anything has changed since the last plan."""
        yard = self._yard
        if time.monotonic() < self._quiet_until:
            return
        if yard.state.version == self._planned and now < self._wake_at and not yard.admitting.is_due(now):
            return
        if len(yard.state.waiting) and yard.machine.is_stale():
            yard.look_at_gpus(now)
        began, spent = time.perf_counter(), time.thread_time()
        yard.admitting.charge(now)
        yard.place(self._stops.promised(now), now)
        instant = self._instant(now)
        plan = self.make(instant)
        self._wake_at = max(plan.wake_at, instant + 0.001)
        yard.place(self._stops.obey(plan, now), now)
        for job in plan.renewals:
            yard.record(Renewed(now, job, yard.state.attempt[yard.state.row_of[job]]))
        if plan.chosen is not None:
            yard.record(Chosen(now, *plan.chosen))
        self._planned = yard.state.version
        self.seconds.append(time.perf_counter() - began)
        yard.meters.planned(self.seconds[-1], time.thread_time() - spent)

    def _instant(self, now: float) -> float:
        """The instant to plan for: if a plan was due a moment ago, that one; then a slice is over, not a bit more."""
        return self._wake_at if now - _LATE < self._wake_at <= now else now

    def make(self, now: float) -> Plan:
        """A valid plan; a policy that fails is replaced, since the queue must go on."""
        try:
            plan = self.planner.plan(Snapshot(self._yard.state, now, usage=self._yard.admitting.usage(now)))
            avoid(self._yard.state, plan, now)
            validate(self._yard.state, plan)
        except Exception as error:  # a policy may be a user's own code: anything may come out of it
            if self.planner.text == FALLBACK:
                raise
            log.exception("policy %s failed; going on with %s", self.planner.text, FALLBACK)
            self.use(make_planner(FALLBACK), now, because=f"{self.planner.text} failed: {error}")
            return self.make(now)
        return plan

    def use(self, planner: OrderedPlanner, now: float, **details: Any) -> None:
        """Plan by another policy from now on."""
        if (guard := guard_of(self.planner)) is not None:
            self._yard.meters.learned.add(guard.counts)
        self.planner, self.trouble = planner, ""
        self._stops.take_back(now)
        self._yard.record(PolicySet(now, planner.text), **details, **details_of(planner))
