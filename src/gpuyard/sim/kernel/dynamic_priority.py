"""The compiled driver for policies whose order changes while jobs wait, and that stop no job: strict and skip.

How much is computed again depends on what a policy reads. Numbers that are drawn stand until a job starts; numbers that
never change are computed once. Where a job's number moves one way while it waits, its number at a later time bounds it
until then: only jobs whose bound is better than the best number found are looked at closely, and that later time is
chosen so that this is little work. Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import Starts, fill, forget_limits, is_too_large
from gpuyard.core.loops.pool import Floats, Ints, Site
from gpuyard.sim.kernel.job_columns import (
    JobColumns,
    Rank,
    gather,
    note_finished,
    note_started,
    note_submitted,
    usage_now,
)
from gpuyard.sim.kernel.schedule import (
    Clock,
    Schedule,
    Work,
    asks_for_at_most,
    for_plan,
    give_gpus,
    is_time_to_plan,
    next_instant,
    run_from,
)

ONCE, AT_STARTS, EVERY_PLAN, ONE_WAY = range(4)
"""When numbers are computed: at submission, after every start, at every plan, or where bounds are not enough."""


class WaitingJobs(NamedTuple):
    """The waiting jobs, in no order."""

    rows: Ints
    keys: Floats  # their numbers; under ONE_WAY, bounds of them
    place: Ints  # where each row stands, -1 if it does not wait
    near: Ints  # rows that are looked at closely
    near_keys: Floats
    spare: Ints  # room to sort
    spare_keys: Floats
    values: Floats
    running: Ints  # rows that run, ascending; kept only where `usage` is wanted
    usage: Floats
    counts: Ints
    """How many wait; how many run; starts when numbers were drawn; closely looked at since bounds were set; what
    has happened at this instant; the row that was the best the last time."""
    waiting_of: Ints  # how many wait for one GPU, two, and so on
    horizon: Floats  # until when bounds hold, and how far ahead they are set


def new_waiting_jobs(rows: int, columns: int, gpus: int, users: int) -> WaitingJobs:
    rows += 1  # one more, so that what comes after the last may be looked at
    return WaitingJobs(
        rows=np.empty(rows, np.int64),
        keys=np.empty(rows),
        place=np.full(rows, -1, np.int64),
        near=np.empty(rows, np.int64),
        near_keys=np.empty(rows),
        spare=np.empty(rows, np.int64),
        spare_keys=np.empty(rows),
        values=np.empty((max(columns, 1), rows)),
        running=np.empty(gpus + 1, np.int64),
        usage=np.zeros(users),
        counts=np.array([0, 0, -1, 0, 0, -1]),
        waiting_of=np.zeros(gpus + 1, np.int64),
        horizon=np.array([-np.inf, 60.0]),
    )


class PriorityRules(NamedTuple):
    columns: Ints  # codes of the columns that numbers depend on
    when: int  # when they are computed
    with_usage: bool
    strict: bool
    every: float


def run_dynamic_priority(
    work: Work, site: Site, schedule: Schedule, clock: Clock, facts: JobColumns, waiting: WaitingJobs, starts: Starts,
    rules: PriorityRules, rank: Rank,
) -> int:  # fmt: skip
    """Simulate strict or skip; returns the row that the policy had no number for, or -1."""
    while True:
        now = next_instant(clock, work, schedule, site.pool.idle, False)
        if now == np.inf:
            return -1
        before = waiting.counts[0]
        book_events(work, schedule, clock, facts, waiting, rules.with_usage, now)
        wrong = -1
        if rules.when != EVERY_PLAN:
            _number(facts, waiting, rules, rank, now, before, waiting.counts[0])
            wrong = without_number(waiting, before)
        if wrong < 0 and is_time_to_plan(clock, now, waiting.counts[4] > 0, rules.every):
            wrong = _plan_dynamic(work, site, schedule, facts, waiting, starts, rules, rank, now)
        if wrong >= 0:
            return wrong


def book_events(
    work: Work, schedule: Schedule, clock: Clock, facts: JobColumns, waiting: WaitingJobs, with_usage: bool, now: float
) -> None:
    for i in range(clock.counts[0]):
        row = clock.finished[i]
        note_finished(facts, row, now)
        if with_usage:
            runs_no_more(waiting, row)
    waiting.counts[4] = clock.counts[0]
    for row in range(clock.counts[1], clock.counts[2]):
        if work.rejected[row]:
            schedule.done[0] += 1
            continue
        note_submitted(facts, row)
        i = waiting.counts[0]
        waiting.rows[i] = row
        waiting.place[row] = i
        waiting.counts[0] = i + 1
        waiting.counts[4] += 1
        waiting.waiting_of[facts.gpus[row]] += 1


def without_number(waiting: WaitingJobs, begin: int) -> int:
    """The first row, from this place on, that the policy had no number for; -1 if there is none."""
    for i in range(begin, waiting.counts[0]):
        if np.isnan(waiting.keys[i]):
            return int(waiting.rows[i])
    return -1


def _number(
    facts: JobColumns, waiting: WaitingJobs, rules: PriorityRules, rank: Rank, now: float, begin: int, end: int
) -> None:
    n, columns = end - begin, rules.columns
    gather(facts, columns, waiting.rows[begin:end], now, waiting.usage, waiting.values)
    rank(waiting.values, n, waiting.keys[begin:])
    if rules.when == ONE_WAY:
        gather(facts, columns, waiting.rows[begin:end], max(now, waiting.horizon[0]), waiting.usage, waiting.values)
        rank(waiting.values, n, waiting.near_keys)
        for i in range(n):
            later = waiting.near_keys[i]
            if not waiting.keys[begin + i] <= later:  # also where either is not a number
                waiting.keys[begin + i] = later + 0.0 * waiting.keys[begin + i]


def _plan_dynamic(
    work: Work, site: Site, schedule: Schedule, facts: JobColumns, waiting: WaitingJobs, starts: Starts,
    rules: PriorityRules, rank: Rank, now: float,
) -> int:  # fmt: skip
    """Start jobs, the best first; returns a row without a number, or -1."""
    if not asks_for_at_most(schedule.free[0], waiting.waiting_of):
        return -1
    site = for_plan(site, facts.numbers[2], facts.numbers[1])
    wrong = _renumber(facts, waiting, rules, rank, now)
    limits = starts.limits
    forget_limits(limits)
    while wrong < 0 and _any_may_fit(schedule.free[0], waiting.waiting_of, limits):
        most = len(waiting.waiting_of) if rules.strict else schedule.free[0]
        if rules.when == ONE_WAY:
            row = _best_by_bounds(facts, waiting, rules.columns, rank, now, most, limits)
        else:
            row = best_of(facts, waiting, most, limits)
        starts.size[0] = 0
        waiting.near[0] = row
        fill(waiting.near[:1], rules.strict, site, starts)
        if starts.size[0] > 0:
            remove_waiting(facts, waiting, row)
            give_gpus(schedule, row, starts.bins[: starts.ends[0]], site.code, site.salt)
            note_started(facts, row, now, 0.0)
            run_from(schedule, row, now, now + work.run[row])
            if rules.with_usage:
                runs(waiting, row)
        elif rules.strict:
            break
    return wrong


def _any_may_fit(free: int, waiting_of: Ints, limits: Ints) -> bool:
    """Whether a job waits for at most that many GPUs, and is not too large."""
    k = 1
    while k <= free and (waiting_of[k] == 0 or is_too_large(k, limits)):
        k += 1
    return k <= free


def _renumber(facts: JobColumns, waiting: WaitingJobs, rules: PriorityRules, rank: Rank, now: float) -> int:
    """Update numbers or bounds where that is due; returns a row without a number, or -1."""
    n, when = waiting.counts[0], rules.when
    if when == ONCE or (when == AT_STARTS and waiting.counts[2] == facts.numbers[1]):
        return -1
    if when == ONE_WAY:
        if now <= waiting.horizon[0] and waiting.counts[3] <= 2 * n + 64:
            return -1
        if waiting.counts[3] > 2 * n + 64:  # bounds were loose: look less far ahead
            waiting.horizon[1] = max(waiting.horizon[1] * 0.5, 1e-3)
        elif waiting.counts[3] < n:
            waiting.horizon[1] *= 2.0
        waiting.horizon[0] = now + waiting.horizon[1]
        waiting.counts[3] = 0
    if rules.with_usage:
        usage_now(facts, waiting.running[: waiting.counts[1]], now, waiting.usage)
    waiting.counts[2] = facts.numbers[1]
    _number(facts, waiting, rules, rank, now, 0, n)
    return without_number(waiting, 0)


def best_of(facts: JobColumns, waiting: WaitingJobs, most: int, limits: Ints) -> int:
    """The waiting row with the smallest number, ties to the lower row, that asks for at most `most` GPUs, and is not
    too large."""
    best, key = -1, np.inf
    for i in range(waiting.counts[0]):
        row = waiting.rows[i]
        better = waiting.keys[i] <= key and (best < 0 or waiting.keys[i] < key or row < best)
        if better and facts.gpus[row] <= most and not is_too_large(facts.gpus[row], limits):
            best, key = row, waiting.keys[i]
    return best


def _best_by_bounds(
    facts: JobColumns, waiting: WaitingJobs, columns: Ints, rank: Rank, now: float, most: int, limits: Ints
) -> int:
    """`best_of` where bounds are known: first the number of the last best, then all that could be better."""
    last = waiting.counts[5]
    if last < 0 or waiting.place[last] < 0 or facts.gpus[last] > most or is_too_large(facts.gpus[last], limits):
        last = best_of(facts, waiting, most, limits)
    waiting.near[0] = last
    gather(facts, columns, waiting.near[:1], now, waiting.usage, waiting.values)
    rank(waiting.values, 1, waiting.near_keys)
    best, key = waiting.near[0], waiting.near_keys[0]
    reach = key + 1e-12 * abs(key)  # bounds are as good as floating-point numbers are
    n = 0
    for i in range(waiting.counts[0]):
        if waiting.keys[i] <= reach:
            k = facts.gpus[waiting.rows[i]]
            if k <= most and not is_too_large(k, limits):
                waiting.near[n] = waiting.rows[i]
                n += 1
    waiting.counts[5] = best
    if n == 1:  # only the last best
        return best
    waiting.counts[3] += n
    gather(facts, columns, waiting.near[:n], now, waiting.usage, waiting.values)
    rank(waiting.values, n, waiting.near_keys)
    for i in range(n):
        if waiting.near_keys[i] < key or (waiting.near_keys[i] == key and waiting.near[i] < best):
            best, key = waiting.near[i], waiting.near_keys[i]
    waiting.counts[5] = best
    return best


def remove_waiting(facts: JobColumns, waiting: WaitingJobs, row: int) -> None:
    """Remove a job; the last one takes its place."""
    i, last = waiting.place[row], waiting.counts[0] - 1
    waiting.rows[i] = waiting.rows[last]
    waiting.keys[i] = waiting.keys[last]
    waiting.place[waiting.rows[i]] = i
    waiting.place[row] = -1
    waiting.counts[0] = last
    waiting.waiting_of[facts.gpus[row]] -= 1


def runs(waiting: WaitingJobs, row: int) -> None:
    i = waiting.counts[1]
    while i > 0 and waiting.running[i - 1] > row:
        waiting.running[i] = waiting.running[i - 1]
        i -= 1
    waiting.running[i] = row
    waiting.counts[1] += 1


def runs_no_more(waiting: WaitingJobs, row: int) -> None:
    n = waiting.counts[1] - 1
    i = 0
    while waiting.running[i] != row:
        i += 1
    for j in range(i, n):
        waiting.running[j] = waiting.running[j + 1]
    waiting.counts[1] = n
