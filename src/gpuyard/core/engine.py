"""The engine turns events into state and state into plans. A driver makes the events and obeys the plans.

event -> (log) -> apply -> plan -> validated -> driver -> event ...
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.events import Charged, Event, Placed, Rejected, Submitted
from gpuyard.core.loops.placement import claim, fits_in_place, release
from gpuyard.core.loops.pool import Demand, on_copy
from gpuyard.core.model import Cluster, Phase, Request
from gpuyard.core.plan import Plan, Planner, Snapshot, Start
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.core.usage.admission import Usage
from gpuyard.core.usage.charging import settle
from gpuyard.errors import Bug, UserError


class BadPlan(Bug):
    """A planner asked for what cannot be done."""


class Engine:
    """One queue: its state, its planner, and the log of events, where one is kept."""

    def __init__(self, cluster: Cluster, planner: Planner, *, seed: int = 0, log: list[Event] | None = None) -> None:
        self.state = State(cluster, seed)
        self.planner = planner
        self.log = log

    def record(self, event: Event) -> None:
        apply(self.state, event)
        if self.log is not None:
            self.log.append(event)

    def submit(self, at: float, job: str, request: Request) -> str | None:
        """Take a job in; if it can never run here it is rejected, and the reason returned."""
        if job in self.state.row_of:
            raise UserError(f"there is a job {job} already")
        self.record(Submitted(at, job, request))
        reason = self.planner.refuses(self.state, request)
        if reason is not None:
            self.record(Rejected(at, job, reason))
        return reason

    def settle(self, now: float, usage: Usage | None) -> None:
        for event in settle(self.state, usage, now):
            self.record(event)

    def place(self, now: float, start: Start) -> Placed:
        if start.charge is not None:
            self.record(Charged(now, start.job, start.charge, start.by))
        attempt = self.state.attempt[self.state.row_of[start.job]] + 1
        placed = Placed(now, start.job, attempt, start.gpus, start.by)
        self.record(placed)
        return placed

    def plan(self, now: float, usage: Usage | None = None) -> Plan:
        """What should happen now; checked, so that no planner can corrupt the state."""
        plan = self.planner.plan(Snapshot(self.state, now, usage=usage))
        if plan.starts or plan.stops or plan.renewals:
            validate(self.state, plan)
        return plan


def validate(state: State, plan: Plan) -> None:
    """Refuse a plan that overbooks a GPU, splits a gang, starts a job twice, or stops what may not be stopped."""
    stopped = [_row(state, job, "stops") for job in plan.stops]
    for row in stopped:
        if state.phase[row] is not Phase.RUNNING or not state.table.preemptible[row]:
            raise BadPlan(f"the plan stops job {state.ids[row]}, which is not a running job that may be preempted")
        if row in state.recalled:
            raise BadPlan(f"the plan stops job {state.ids[row]}, which is about to end already")
    started = [_row(state, start.job, "starts") for start in plan.starts]
    for row, start in zip(started, plan.starts, strict=True):
        if state.phase[row] is not Phase.QUEUED and row not in stopped:
            raise BadPlan(f"the plan starts job {start.job}, which is not waiting")
        if row in state.promises:
            raise BadPlan(f"the plan starts job {start.job}, which was promised other GPUs")
        wanted = state.table.gpus[row]
        twice = wanted > 1 and len(set(start.gpus)) != wanted and row not in state.parts  # parts may share a GPU
        if len(start.gpus) != wanted or twice:
            raise BadPlan(f"the plan gives job {start.job} {start.gpus}, and it needs {wanted} GPUs")
        if min(start.gpus) < 0 or max(start.gpus) >= state.cluster.gpus:
            raise BadPlan(f"the plan puts job {start.job} on GPUs that do not exist: {start.gpus}")
    if len(set(started)) < len(started) or len(set(stopped)) < len(stopped):
        raise BadPlan("the plan starts or stops a job twice")
    for job in plan.renewals:
        if state.phase[_row(state, job, "renews")] is not Phase.RUNNING or job in plan.stops:
            raise BadPlan(f"the plan renews job {job}, which does not go on running")
    _check_room(state, stopped, started, plan.starts)


def _check_room(state: State, stopped: list[int], started: list[int], starts: list[Start]) -> None:
    spots = [np.array(start.gpus, dtype=np.int64) for start in starts]
    if not state.shares:  # whole GPUs only: no two jobs may meet
        alone = len(started) == 1 and not stopped
        tenants = state.pool.tenants if alone else state.pool.tenants.copy()
        for row in stopped:
            tenants[state.spot[row]] -= 1
        for row, spot in zip(started, spots, strict=True):
            if tenants[spot].max():
                raise BadPlan(f"the plan puts job {state.ids[row]} on GPUs that are taken: {spot.tolist()}")
            if not alone:
                tenants[spot] += 1
        return
    site = on_copy(state.site())
    charges = {row: start.charge for row, start in zip(started, starts, strict=True) if start.charge is not None}
    if charges:
        site = site._replace(demand=_charged(state, charges))
    for row in stopped:
        release(site, row, state.spot[row])
    for row, spot in zip(started, spots, strict=True):
        if not fits_in_place(site, row, spot):
            raise BadPlan(f"the plan puts job {state.ids[row]} on GPUs without room for it: {spot.tolist()}")
        claim(site, row, spot)


def _charged(state: State, charges: dict[int, float]) -> Demand:
    """What jobs are charged, if some start with less than they were charged before."""
    memory = state.table.demand.memory.copy()
    for row, charge in charges.items():
        if not 0 <= charge <= memory[row]:
            raise BadPlan(f"the plan counts job {state.ids[row]} with {charge:g} bytes, and it needs {memory[row]:g}")
        memory[row] = charge
    return state.table.demand._replace(memory=memory)


def _row(state: State, job: str, verb: str) -> int:
    if job not in state.row_of:
        raise BadPlan(f"the plan {verb} a job that does not exist: {job}")
    return state.row_of[job]
