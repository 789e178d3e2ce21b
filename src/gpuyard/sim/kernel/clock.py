"""The virtual clock of the compiled drivers: the same events as in `replay`, in the same order.

At one instant jobs finish first, then jobs arrive, then one plan is made; stepwise disciplines get one event at a time,
arrivals first. With rounds, what has happened is answered at the next multiple of the round. Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.placement import add_gpus
from gpuyard.core.loops.pool import Floats, Ints
from gpuyard.sim.kernel.schedule import Schedule, Work, next_end, take_gpus


class Clock(NamedTuple):
    finished: Ints  # rows that finished at this instant
    counts: Ints  # how many those are; the first row that arrived at this instant; the first that did not arrive yet
    due: Floats  # when the next plan is due although nothing may happen then: a round, or a planner's own wish


def new_clock(most: int) -> Clock:
    return Clock(np.empty(most, np.int64), np.zeros(3, np.int64), np.full(1, np.inf))


def next_instant(clock: Clock, work: Work, schedule: Schedule, idle: Ints, stepwise: bool) -> float:
    """Let the next events happen, and return when they do; infinite if nothing will ever happen again."""
    n, row = len(work.submit), clock.counts[2]
    arrives = work.submit[row] if row < n else np.inf
    now = min(arrives, next_end(schedule.ends), clock.due[0])
    clock.counts[0] = 0
    clock.counts[1] = row
    if now == np.inf:
        return now
    if stepwise and arrives == now:
        clock.counts[2] = row + 1
        return now
    while next_end(schedule.ends) == now:
        done = schedule.ends.row[0]
        take_gpus(schedule, done)
        add_gpus(idle, schedule.nodes[schedule.offset[done] : schedule.offset[done + 1]], 1)
        schedule.end[done] = now
        schedule.done[0] += 1
        clock.finished[clock.counts[0]] = done
        clock.counts[0] += 1
        if stepwise:
            return now
    while row < n and work.submit[row] == now:
        row += 1
    clock.counts[2] = row
    return now


def round_after(time: float, length: float) -> float:
    """The first multiple of `length` at or after a time, as `replay.next_round` has it."""
    count = np.floor(time / length)
    while count * length < time:
        count += 1.0
    return float(count * length)


def is_time_to_plan(clock: Clock, now: float, eventful: bool, every: float) -> bool:
    """Whether a plan is made at this instant; if so, the plan sets the next wake-up."""
    eventful = eventful or clock.due[0] == now
    if every > 0 and eventful:
        clock.due[0] = min(clock.due[0] if clock.due[0] > now else np.inf, round_after(now, every))
        eventful = clock.due[0] <= now
    if eventful:
        clock.due[0] = np.inf
    return eventful
