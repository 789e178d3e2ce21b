"""The compiled driver for policies that judge the whole queue anew at every plan, and stop nobody: all disciplines.

Whoever looks at what surrounds a job, as trained policies do, cannot rank beforehand, and neither can a policy whose
ranks move while jobs wait where others may be started behind the head. As in `core.walks`, ranks are those of the
instant at which a plan begins, whoever starts in it. Loops in numba's subset.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuyard.core.discipline import NO_LIMIT, Starts, backfill, fill, new_starts, shadow_time
from gpuyard.core.pool import Floats, Ints, Site, on_copy
from gpuyard.core.reservation import conserve
from gpuyard.sim.kernel.around import FIRST_CODE, Around, gather_around, look_around
from gpuyard.sim.kernel.clock import Clock, is_time_to_plan, next_instant
from gpuyard.sim.kernel.facts import Facts, gather, note_started, usage_now
from gpuyard.sim.kernel.ranked import COMMIT, CONSERVATIVE, EASY, EASY_SHADOW, SKIP, reserve_for
from gpuyard.sim.kernel.scored import Crowd, best_of, book_events, leave_crowd, runs, without_number
from gpuyard.sim.kernel.yard import (
    Expected,
    Work,
    Yard,
    as_holders,
    expect,
    expect_no_more,
    give_gpus,
    new_expected,
    plan_salt,
    run_from,
)

Judge = Callable[[Floats, int, Floats, Floats], None]
"""A compiled policy: columns, how many rows, its own numbers (a trained one's weights), and where to write."""


def run_judged(
    work: Work, site: Site, yard: Yard, clock: Clock, facts: Facts, crowd: Crowd, around: Around, columns: Ints,
    discipline: int, with_usage: bool, every: float, judge: Judge, weights: Floats,
) -> int:  # fmt: skip
    """Simulate any discipline; returns the row that the policy had no number for, or -1."""
    starts = new_starts(yard.free[0] + 1, 2 * yard.free[0] + 1)
    expected = new_expected(yard.free[0] + 1)
    later = on_copy(site)
    chosen, shadow = np.full(1, -1, np.int64), np.full(1, np.inf)
    stepwise = discipline == COMMIT or discipline == EASY_SHADOW
    surrounded = len(columns) > 0 and columns.max() >= FIRST_CODE
    while True:
        now = next_instant(clock, work, yard, site.pool.idle, stepwise)
        if now == np.inf:
            return -1
        for i in range(clock.counts[0]):
            row = clock.finished[i]
            expect_no_more(expected, yard.start[row] + site.demand.estimate[row], row)
        book_events(work, yard, clock, facts, crowd, with_usage, now)
        if not is_time_to_plan(clock, now, crowd.counts[4] > 0, every) or crowd.counts[0] == 0:
            continue
        if (yard.free[0] == 0 and not stepwise) or (yard.free[0] == 0 and chosen[0] >= 0):
            continue
        salt = plan_salt(site, facts.numbers[2], facts.numbers[1])
        site = Site(site.demand, site.pool, site.code, salt, site.fine, site.tasks)
        if chosen[0] < 0 or site.demand.gpus[chosen[0]] <= yard.free[0]:
            if with_usage:
                usage_now(facts, crowd.running[: crowd.counts[1]], now, crowd.usage)
            if surrounded:
                look_around(around, facts, crowd, site, yard, expected, now)
            wrong = _judge(facts, crowd, around, columns, judge, weights, now)
            if wrong >= 0:
                return wrong
        if discipline == CONSERVATIVE:
            conserve(_by_number(facts, crowd, NO_LIMIT), now, as_holders(expected, yard.nodes, now), site, starts)
        else:
            if stepwise:
                _keep_head(work, site, yard, facts, crowd, expected, starts, with_usage, chosen, shadow, now)
            else:
                head = _begin_best(
                    work, site, yard, facts, crowd, expected, starts, with_usage, discipline == SKIP, now
                )
            if yard.free[0] == 0 or crowd.counts[0] < 2:
                continue
            if discipline == EASY_SHADOW:
                _before_shadow(crowd, site, yard, starts, chosen[0], shadow[0], now)
            elif discipline == EASY:
                _behind(head, crowd, facts, site, later, yard, expected, starts, now)
        _let_begin(work, site, yard, facts, crowd, expected, starts, with_usage, now)


def _judge(facts: Facts, crowd: Crowd, around: Around, columns: Ints, judge: Judge, weights: Floats, now: float) -> int:
    """Work out everybody's number; returns a row without one, or -1."""
    n = crowd.counts[0]
    rows = crowd.rows[:n]
    for c in range(len(columns)):
        if columns[c] >= FIRST_CODE:
            gather_around(around, facts, crowd, columns[c], crowd.values[c])
        else:
            gather(facts, columns[c : c + 1], rows, now, crowd.usage, crowd.values[c : c + 1])
    judge(crowd.values, n, weights, crowd.keys)
    return without_number(crowd, 0)


def _let_begin(
    work: Work, site: Site, yard: Yard, facts: Facts, crowd: Crowd, expected: Expected, starts: Starts,
    with_usage: bool, now: float,
) -> None:  # fmt: skip
    """Let everybody begin whom a loop has started."""
    begin = 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        leave_crowd(facts, crowd, row)
        give_gpus(yard, row, starts.bins[begin : starts.ends[i]], site.code, site.salt)
        begin = starts.ends[i]
        note_started(facts, row, now, 0.0)
        run_from(yard, row, now, now + work.run[row])
        expect(expected, now + site.demand.estimate[row], row, yard.offset[row], yard.offset[row + 1])
        if with_usage:
            runs(crowd, row)
    starts.size[0] = 0


def _begin_best(
    work: Work, site: Site, yard: Yard, facts: Facts, crowd: Crowd, expected: Expected, starts: Starts,
    with_usage: bool, skip: bool, now: float,
) -> int:  # fmt: skip
    """Start the best while they fit; returns the one that does not, -1 if all did. With `skip`, whoever fits."""
    limit = NO_LIMIT
    while crowd.counts[0] > 0:
        row = best_of(facts, crowd, min(yard.free[0], limit - 1) if skip else NO_LIMIT)
        if row < 0:
            return -1
        crowd.near[0] = row
        if site.demand.gpus[row] <= yard.free[0]:
            limit = fill(crowd.near[:1], not skip, limit, site, starts)
        if starts.size[0] > 0:
            _let_begin(work, site, yard, facts, crowd, expected, starts, with_usage, now)
        elif not skip:
            return row
    return -1


def _keep_head(
    work: Work, site: Site, yard: Yard, facts: Facts, crowd: Crowd, expected: Expected, starts: Starts,
    with_usage: bool, chosen: Ints, shadow: Floats, now: float,
) -> None:  # fmt: skip
    """Start heads while they fit; the one that does not is kept until it does, with the shadow time of this instant."""
    if chosen[0] >= 0:
        crowd.near[0] = chosen[0]
        if site.demand.gpus[chosen[0]] <= yard.free[0]:
            fill(crowd.near[:1], True, NO_LIMIT, site, starts)
        if starts.size[0] == 0:
            return
        _let_begin(work, site, yard, facts, crowd, expected, starts, with_usage, now)
    chosen[0] = _begin_best(work, site, yard, facts, crowd, expected, starts, with_usage, False, now)
    if chosen[0] >= 0:
        shadow[0] = shadow_time(chosen[0], as_holders(expected, yard.nodes, -np.inf), site.demand, yard.free[0])


def _by_number(facts: Facts, crowd: Crowd, most: int) -> Ints:
    """Who waits for at most so many GPUs, by number, ties by row."""
    n = 0
    for i in range(crowd.counts[0]):
        if facts.gpus[crowd.rows[i]] <= most:
            crowd.near[n] = i
            n += 1
    places = crowd.near[:n]
    places = places[np.argsort(crowd.rows[places])]
    return crowd.rows[places[np.argsort(crowd.keys[places], kind="mergesort")]]


def _before_shadow(crowd: Crowd, site: Site, yard: Yard, starts: Starts, head: int, shadow: float, now: float) -> None:
    """Start, first come first served, whoever fits and is done before the shadow time."""
    n = 0
    for i in range(crowd.counts[0]):
        row = crowd.rows[i]
        if row != head and site.demand.gpus[row] <= yard.free[0] and now + site.demand.estimate[row] < shadow:
            crowd.near[n] = row
            n += 1
    if n > 0:
        fill(np.sort(crowd.near[:n]), False, NO_LIMIT, site, starts)


def _behind(
    head: int, crowd: Crowd, facts: Facts, site: Site, later: Site, yard: Yard, expected: Expected, starts: Starts,
    now: float,
) -> None:  # fmt: skip
    """Start, by number, whoever fits and leaves the head its reservation."""
    shadow = reserve_for(head, expected, yard.nodes, now, site, later)
    extra = sum(later.pool.idle) - site.demand.gpus[head]
    order = _by_number(facts, crowd, yard.free[0])
    n = 0
    for row in order:
        if row != head and (now + site.demand.estimate[row] <= shadow or site.demand.gpus[row] <= extra):
            order[n] = row
            n += 1
    backfill(order[:n], head, shadow, later, now, site, starts)
