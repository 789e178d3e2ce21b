"""The compiled driver for policies whose order is known beforehand and that stop nobody.

It chooses what the loops in `core.discipline` get to see, as `core.walks` does for single plans: most of a long queue
is never looked at. Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.discipline import NO_LIMIT, Starts, backfill, fill, new_starts, reserve, shadow_time
from gpuyard.core.pool import Demand, Floats, Ints, Site
from gpuyard.core.reservation import conserve
from gpuyard.sim.kernel.clock import Clock, is_time_to_plan, next_instant
from gpuyard.sim.kernel.order import NONE, Order, first_row, next_row, put_in, smallest, take_out
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

STRICT, COMMIT, SKIP, EASY, EASY_SHADOW, CONSERVATIVE = range(6)


class Notes(NamedTuple):
    """What a driver remembers from plan to plan, one number each."""

    begun: Ints
    """Starts so far."""
    head: Ints
    """The row that was chosen and is kept until it fits, -1 if there is none."""
    stuck: Ints
    """The first of the queue, where it did not fit and nothing has been given back since; -1 otherwise."""


def new_notes() -> Notes:
    """At the beginning."""
    return Notes(np.zeros(1, np.int64), np.full(1, -1, np.int64), np.full(1, -1, np.int64))


def run_in_order(
    work: Work, order: Order, site: Site, yard: Yard, clock: Clock, discipline: int, seed: int, every: float
) -> None:
    """Simulate strict, skip or commit."""
    starts = new_starts(yard.free[0] + 1, 2 * yard.free[0] + 1)
    notes = new_notes()
    idle, counts, stuck = site.pool.idle, clock.counts, notes.stuck
    while True:
        now = next_instant(clock, work, yard, idle, discipline == COMMIT)
        if now == np.inf:
            return
        if counts[0] > 0:
            stuck[0] = -1
        eventful = _arrived(clock, work, order, yard) or counts[0] > 0
        if is_time_to_plan(clock, now, eventful, every):
            _plan_in_order(work, order, site, yard, starts, notes, discipline, seed, now)


def _plan_in_order(
    work: Work, order: Order, site: Site, yard: Yard, starts: Starts, notes: Notes, discipline: int, seed: int,
    now: float,
) -> None:  # fmt: skip
    site = Site(site.demand, site.pool, site.code, plan_salt(site, seed, notes.begun[0]), site.fine, site.tasks)
    limit = NO_LIMIT
    while order.waiting[0] > 0:
        most = min(limit - 1, yard.free[0]) if discipline == SKIP else NONE
        row = notes.head[0] if notes.head[0] >= 0 else first_row(order, most)
        if row < 0 or row == notes.stuck[0]:
            break
        if site.demand.gpus[row] <= yard.free[0]:
            starts.size[0] = 0
            at = order.begin[order.set_of[row]] + order.at[row]
            limit = fill(order.row_at[at : at + 1], discipline != SKIP, limit, site, starts)
            if starts.size[0] > 0:
                notes.begun[0] += 1
                notes.head[0] = -1
                take_out(order, row)
                give_gpus(yard, row, starts.bins[: starts.ends[0]], site.code, site.salt)
                run_from(yard, row, now, now + work.run[row])
                continue
        if discipline == COMMIT:
            notes.head[0] = row
        if discipline != SKIP:
            notes.stuck[0] = row
            break


def _arrived(clock: Clock, work: Work, order: Order, yard: Yard) -> bool:
    """Put those who have arrived into the queue; whether there was anybody."""
    some = False
    for row in range(clock.counts[1], clock.counts[2]):
        if work.rejected[row]:
            yard.done[0] += 1
        else:
            put_in(order, row)
            some = True
    return some


def _begin(starts: Starts, order: Order, expected: Expected, work: Work, site: Site, yard: Yard, now: float) -> None:
    """Let everybody begin whom a loop has started."""
    begin = 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        take_out(order, row)
        give_gpus(yard, row, starts.bins[begin : starts.ends[i]], site.code, site.salt)
        begin = starts.ends[i]
        run_from(yard, row, now, now + work.run[row])
        if len(expected.rows) > 0:
            expect(expected, now + site.demand.estimate[row], row, yard.offset[row], yard.offset[row + 1])
    starts.size[0] = 0


def run_backfilling(
    work: Work, order: Order, site: Site, yard: Yard, clock: Clock, discipline: int, seed: int, every: float
) -> None:
    """Simulate easy, easy-shadow or conservative."""
    starts = new_starts(yard.free[0] + 1, 2 * yard.free[0] + 1)
    expected = new_expected(yard.free[0] + 1)
    by_rank = np.empty(len(order.rank), dtype=np.int64)
    by_rank[order.rank] = np.arange(len(order.rank))
    begun, head, shadow = 0, -1, np.inf
    later = site
    known = 0  # rows before this one were refused under the present reservation, and would be if nobody starts
    while True:
        now = next_instant(clock, work, yard, site.pool.idle, discipline == EASY_SHADOW)
        if now == np.inf:
            return
        for i in range(clock.counts[0]):
            row = clock.finished[i]
            expect_no_more(expected, yard.start[row] + site.demand.estimate[row], row)
            known = 0
        eventful = _arrived(clock, work, order, yard) or clock.counts[0] > 0
        if not is_time_to_plan(clock, now, eventful, every):
            continue
        site = Site(site.demand, site.pool, site.code, plan_salt(site, seed, begun), site.fine, site.tasks)
        if discipline != CONSERVATIVE:
            kept = head if discipline == EASY_SHADOW else -1
            top = _start_heads(kept, starts, order, expected, work, site, yard, now)
            begun += starts.size[0]
            if starts.size[0] > 0:
                known = 0
                starts.size[0] = 0
            if discipline == EASY_SHADOW and top >= 0 and top != kept:
                shadow = shadow_time(top, as_holders(expected, yard.nodes, -np.inf), site.demand, yard.free[0])
            known = known if top == head else 0
            head = top
        if yard.free[0] < smallest(order) or (order.waiting[0] < 2 and discipline != CONSERVATIVE):
            continue
        if discipline == CONSERVATIVE:
            rows = _in_rank_order(_candidates(order, NONE, -1, 0.0, np.inf, NONE, site.demand.estimate), order, by_rank)
            conserve(rows, now, as_holders(expected, yard.nodes, now), site, starts)
        elif discipline == EASY_SHADOW:
            latest = np.nextafter(shadow, -np.inf)  # done before the shadow time, not at it
            fill(np.sort(_candidates(order, yard.free[0], head, now, latest, 0, site.demand.estimate)), False, NO_LIMIT,
                 site, starts)  # fmt: skip
        else:
            if known == 0 or expected.until[0] <= now:
                shadow, later = reserve(head, as_holders(expected, yard.nodes, now), site)
                known = 0
            extra = sum(later.pool.idle) - site.demand.gpus[head]
            if known > 0 and not _may_be_new(known, clock.counts[2], work, yard, now, shadow, extra, site.demand):
                continue
            rows = _candidates(order, yard.free[0], head, now, shadow, extra, site.demand.estimate)
            known = clock.counts[2]
            backfill(_in_rank_order(rows, order, by_rank), head, shadow, later, now, site, starts)
        if starts.size[0] > 0:
            begun += starts.size[0]
            known = 0
            _begin(starts, order, expected, work, site, yard, now)


def _start_heads(
    kept: int, starts: Starts, order: Order, expected: Expected, work: Work, site: Site, yard: Yard, now: float
) -> int:
    """Start the first of the queue while it fits; returns the one that does not, -1 if all did. Counts in `starts`."""
    begun = 0
    head = -1
    while order.waiting[0] > 0:
        row = kept if kept >= 0 else first_row(order, NONE)
        kept = -1
        if site.demand.gpus[row] <= yard.free[0]:
            at = order.begin[order.set_of[row]] + order.at[row]
            fill(order.row_at[at : at + 1], True, NO_LIMIT, site, starts)
        if starts.size[0] == 0:
            head = row
            break
        begun += 1
        _begin(starts, order, expected, work, site, yard, now)
    starts.size[0] = begun
    return head


def _candidates(order: Order, most: int, head: int, now: float, shadow: float, extra: int, estimate: Floats) -> Ints:
    """Waiting rows of at most so many GPUs that are done by the shadow time, or are small enough to stay beside it."""
    found = np.empty(min(order.waiting[0], 256), dtype=np.int64)
    size = 0
    for s in range(len(order.size)):
        if order.size[s] > most:
            break
        small = order.size[s] <= extra
        row = order.front[s]
        while row >= 0:
            if (small or now + estimate[row] <= shadow) and row != head:
                if size == len(found):
                    found = np.concatenate((found, found))
                found[size] = row
                size += 1
            row = next_row(order, s, row)
    return found[:size]


def _may_be_new(
    begin: int, end: int, work: Work, yard: Yard, now: float, shadow: float, extra: int, demand: Demand
) -> bool:
    """Whether any row that arrived since the last plan is such a candidate; one that starts makes others move."""
    for row in range(begin, end):
        if demand.gpus[row] > yard.free[0] or work.rejected[row] or not np.isnan(yard.start[row]):
            continue
        if demand.gpus[row] <= extra or now + demand.estimate[row] <= shadow:
            return True
    return False


def _in_rank_order(rows: Ints, order: Order, by_rank: Ints) -> Ints:
    if len(rows) < 2:
        return rows
    return by_rank[np.sort(order.rank[rows])]
