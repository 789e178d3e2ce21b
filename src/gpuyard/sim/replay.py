"""The virtual clock: drive the engine through a trace, jumping from event to event.

This is the readable reference of how time passes in a simulation. At one instant jobs finish first, then jobs
arrive, then one plan is made; disciplines that say so (`stepwise`) get one event at a time, arrivals first.
With rounds, events still happen at their own time, but plans are made at multiples of the round only.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpuyard.core.engine import Engine
from gpuyard.core.events import Chosen, Event, Exited, Placed, Preempted, Renewed, Started
from gpuyard.core.model import Cluster, Request
from gpuyard.core.plan import Plan
from gpuyard.core.planner import OrderedPlanner
from gpuyard.errors import Bug, UserError
from gpuyard.sim.result import Placements, Result, Segments
from gpuyard.sim.trace import Floats, Trace

Progress = Callable[[int, int], None]  # called now and then with the number of jobs done, and of all jobs


def replay(
    trace: Trace,
    cluster: Cluster,
    planner: OrderedPlanner,
    *,
    estimates: Floats,
    restart_cost: Floats | None = None,
    round_length: float = 0.0,
    seed: int = 0,
    log: list[Event] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Simulate a trace. `estimates` is parallel to the trace, and all that planning may know of run times.

    `restart_cost`, too, is parallel to the trace: seconds without progress at each restart of that job. With a
    `round_length`, what happened since the last plan is planned for at its next multiple; give a planner `in_rounds`.
    """
    costs = np.zeros(len(trace)) if restart_cost is None else restart_cost
    check_timing(planner, costs, round_length)
    trace.check()
    if not trace.in_order:
        order = trace.arrival_order()
        trace, estimates, costs = trace.take(order), estimates[order], costs[order]
    clock = _Clock(trace, cluster, planner, estimates, costs, round_length, seed, log, progress)
    began = time.perf_counter()
    clock.run()
    return clock.result(time.perf_counter() - began)


def check_timing(planner: OrderedPlanner, costs: Floats, round_length: float) -> None:
    """Refuse restart costs and rounds under which no simulation would make progress."""
    if not np.all((costs >= 0) & (costs < np.inf)):
        bad = float(costs[int(np.argmin((costs >= 0) & (costs < np.inf)))])
        raise UserError(f"a restart cost is a number of seconds, 0 or more, not {bad:g}")
    if not 0 <= round_length < np.inf:
        raise UserError(f"a round is a number of seconds, 0 or more, not {round_length:g}")
    if round_length and planner.stepwise:
        raise UserError(
            f"discipline {planner.discipline} takes events one at a time and cannot plan in rounds; "
            "leave out --round, or choose another discipline"
        )
    cost, quantum = float(costs.max(initial=0.0)), planner.policy.quantum
    if cost > 0 and planner.policy.sliced and cost >= quantum:
        raise UserError(
            f"a restart costs {cost:g} s and a slice lasts {quantum:g} s, so no job would ever get on; "
            "make the quantum longer"
        )


def in_rounds(planner: OrderedPlanner, length: float) -> OrderedPlanner:
    """The planner with time slices of whole rounds, since a slice can only end where a plan is made."""
    policy = planner.policy
    if not policy.sliced or not 0 < length < np.inf:
        return planner
    whole = replace(policy, quantum=next_round(policy.quantum, length))
    return OrderedPlanner(whole, planner.discipline, planner.placement)


def next_round(time: float, length: float) -> float:
    """The first multiple of `length` at or after a time; the time itself where there are no rounds (length 0)."""
    if not length or time == np.inf:
        return time
    count = math.floor(time / length)
    while count * length < time:  # never by comparing quotients: 3 * 0.1 is not 0.3
        count += 1
    return count * length


class _Clock:
    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        planner: OrderedPlanner,
        estimates: Floats,
        restart_cost: Floats,
        round_length: float,
        seed: int,
        log: list[Event] | None,
        progress: Progress | None,
    ) -> None:
        self.trace, self.cluster, self.planner, self.estimates = trace, cluster, planner, estimates
        self.engine = Engine(cluster, planner, seed=seed, log=log)
        self.restart_cost: list[float] = restart_cost.tolist()
        self.round_length = round_length
        self.progress = progress
        self.submit: list[float] = trace.submit.tolist()
        self.run_time: list[float] = trace.run.tolist()
        self.next_arrival = 0
        self.ends: list[tuple[float, int, int]] = []
        """(time, row, attempt) of every expected end; those of stopped attempts are left in and passed over."""
        self.wake_at = np.inf
        self.eventful = False  # whether anything happened at this instant that a plan could answer
        n = len(trace)
        self.first_start = [np.nan] * n
        self.end = [np.nan] * n
        self.preemptions = [0] * n
        self.placements: list[tuple[int, ...]] = [()] * n
        self.rejected: dict[int, str] = {}
        self.pieces: list[tuple[int, float, float, tuple[int, ...]]] = []
        self.done = 0

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        step = self._one_event if self.planner.stepwise else self._one_instant
        step_of_report = max(1, min(len(self.trace) // 200, 500))
        report = step_of_report
        while (now := step()) is not None:
            if not self.eventful:  # only jobs that were rejected at once: nothing to decide
                continue
            self._obey(self.engine.plan(now), now)
            if self.progress and self.done >= report:
                self.progress(self.done, len(self.trace))
                report = self.done + step_of_report
        if self.done < len(self.trace):
            waiting = [self.engine.state.ids[r] for r in self.engine.state.waiting.array[:3]]
            raise Bug(f"the simulation came to a halt with jobs waiting: {', '.join(waiting)} ...")

    def _one_instant(self) -> float | None:
        now = min(self._next_submit(), self._next_end(), self.wake_at)
        if now == np.inf:
            return None
        self.eventful = now == self.wake_at
        while self._next_end() == now:
            self._exit(now)
        while self._next_submit() == now:
            self._arrive(now)
        if self.eventful and (due := next_round(now, self.round_length)) > now:
            self.eventful = False
            self.wake_at = min(self.wake_at, due)
        return now

    def _one_event(self) -> float | None:
        now = min(self._next_submit(), self._next_end())
        if now == np.inf:
            return None
        self.eventful = False
        if self._next_submit() == now:
            self._arrive(now)
        else:
            self._exit(now)
        return now

    def _next_submit(self) -> float:
        return self.submit[self.next_arrival] if self.next_arrival < len(self.submit) else np.inf

    def _next_end(self) -> float:
        ends, attempt = self.ends, self.engine.state.attempt
        while ends and (ends[0][2] != attempt[ends[0][1]] or not len(self.engine.state.spot[ends[0][1]])):
            heapq.heappop(ends)
        return ends[0][0] if ends else np.inf

    # -- what happens -----------------------------------------------------------------------------

    def _arrive(self, now: float) -> None:
        row = self.next_arrival
        self.next_arrival += 1
        trace = self.trace
        request = Request(
            gpus=int(trace.gpus[row]),
            estimate=float(self.estimates[row]),
            memory=float(trace.memory[row]),
            compute=float(trace.compute[row]),
            priority=float(trace.priority[row]),
            user=trace.users[row],
            weight=float(trace.weight[row]),
            tickets=float(trace.tickets[row]),
            deadline=float(trace.deadline[row]),
            preemptible=bool(trace.preemptible[row]),
            cpus=float(trace.cpus[row]),
            host_memory=float(trace.host_memory[row]),
            gpu_types=trace.gpu_types[row],
        )
        reason = self.engine.submit(now, trace.ids[row], request)
        if reason is None:
            self.eventful = True
        else:
            self.rejected[row] = reason
            self.done += 1

    def _exit(self, now: float) -> None:
        _, row, attempt = heapq.heappop(self.ends)
        self.eventful = True
        self._leave(row, now)
        self.end[row] = now
        self.done += 1
        self.engine.record(Exited(now, self.trace.ids[row], attempt))

    def _leave(self, row: int, now: float) -> None:
        started = float(self.engine.state.table.started[row])
        self.pieces.append((row, started, now, self.placements[row]))

    def _obey(self, plan: Plan, now: float) -> None:
        state, record = self.engine.state, self.engine.record
        for job in plan.stops:
            row = state.row_of[job]
            self._leave(row, now)
            self.preemptions[row] += 1
            record(Preempted(now, job, state.attempt[row]))
        for start in plan.starts:
            row = state.row_of[start.job]
            attempt = state.attempt[row] + 1
            overhead = self.restart_cost[row] if attempt > 1 else 0.0
            record(Placed(now, start.job, attempt, start.gpus))
            record(Started(now, start.job, attempt, overhead))
            if attempt == 1:
                self.first_start[row] = now
            self.placements[row] = start.gpus
            left = self.run_time[row] - float(state.table.progress[row])
            heapq.heappush(self.ends, (now + overhead + left, row, attempt))
        for job in plan.renewals:
            record(Renewed(now, job, state.attempt[state.row_of[job]]))
        if plan.chosen is not None:
            record(Chosen(now, *plan.chosen))
        self.wake_at = next_round(max(plan.wake_at, float(np.nextafter(now, np.inf))), self.round_length)

    def result(self, wall_seconds: float) -> Result:
        sizes = np.array([len(gpus) for *_, gpus in self.pieces], dtype=np.int64)
        return Result(
            trace=self.trace,
            cluster=self.cluster,
            policy=self.planner.text,
            start=np.array(self.first_start),
            end=np.array(self.end),
            preemptions=np.array(self.preemptions, dtype=np.int64),
            placements=Placements.of(self.placements),
            rejected=self.rejected,
            segments=Segments(
                job=np.repeat(np.array([p[0] for p in self.pieces], dtype=np.int64), sizes),
                gpu=np.array([g for *_, gpus in self.pieces for g in gpus], dtype=np.int64),
                start=np.repeat(np.array([p[1] for p in self.pieces], dtype=np.float64), sizes),
                end=np.repeat(np.array([p[2] for p in self.pieces], dtype=np.float64), sizes),
            ),
            wall_seconds=wall_seconds,
        )
