"""The compiled driver for policies whose order is known beforehand and that stop no job.

It chooses what the loops in `core.loops.backfill` see, as `core.disciplines` does for single plans: most of a long
queue is never looked at.

Waiting jobs are one set of ranks for each number of GPUs asked for. A set is a tree of bits, 32 to a word: a job is put
in, taken out or found next in a few steps however long the queue is, and nothing is ever moved. The front of every set
is cached. Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import (
    Holders,
    Starts,
    backfill,
    fill,
    forget_limits,
    is_too_large,
    new_starts,
    note_too_large,
    shadow_time,
    wait_for,
)
from gpuyard.core.loops.conservative import conserve
from gpuyard.core.loops.pool import Demand, Floats, Ints, Site, copy_counts
from gpuyard.sim.kernel.schedule import (
    Clock,
    Expected,
    Rules,
    Schedule,
    Work,
    as_holders,
    expect,
    expect_no_more,
    for_plan,
    give_gpus,
    is_any_late,
    is_time_to_plan,
    new_expected,
    next_instant,
    put_off,
    run_from,
    sort_rows,
)

_LOWEST = np.argsort((0x077CB531 << np.arange(32) & 0xFFFFFFFF) >> 27)
"""The lowest bit of a word, by a product with a de Bruijn number (Leiserson, Prokop & Randall 1998)."""


class Order(NamedTuple):
    size: Ints  # GPUs that the jobs of each set ask for, ascending
    set_of: Ints  # each row's set
    at: Ints  # each row's place in its set
    rank: Ints  # each row's place among all
    row_at: Ints  # the rows of one set after another, by rank
    begin: Ints  # where each set begins in `row_at`
    words: Ints
    level: Ints  # where each level of each set's tree begins in `words`, the lowest level first
    front: Ints  # the first waiting row of each set, -1 if there is none
    front_rank: Ints  # its rank; a very large number if there is none
    waiting: Ints  # one number: how many wait


NONE = 2**62


def new_order(by_rank: Ints, gpus: Ints) -> Order:
    sizes = np.bincount(gpus)
    size = np.flatnonzero(sizes)
    counts = sizes[size]
    set_of = (np.cumsum(sizes > 0) - 1)[gpus]
    small = np.uint16 if len(size) < 2**16 else np.int64  # small numbers are sorted much faster
    row_at = by_rank[np.argsort(set_of[by_rank].astype(small), kind="stable")]
    begin = np.cumsum(counts) - counts
    numbers = np.arange(len(by_rank))
    at, rank = np.empty_like(numbers), np.empty_like(numbers)
    at[row_at] = numbers - np.repeat(begin, counts)
    rank[by_rank] = numbers
    depth = 1
    while 32**depth < len(rank):
        depth += 1
    widths = -(-counts[:, None] // 32 ** np.arange(1, depth + 1)[None, :])
    level = np.cumsum(widths.ravel()).reshape(widths.shape) - widths
    return Order(
        size.astype(np.int64), set_of.astype(np.int64), at, rank, row_at.astype(np.int64), begin.astype(np.int64),
        np.zeros(int(widths.sum()), dtype=np.int64), level.astype(np.int64),
        np.full(len(size), -1, dtype=np.int64), np.full(len(size), NONE, dtype=np.int64), np.zeros(1, dtype=np.int64),
    )  # fmt: skip


def _lowest_bit(word: int) -> int:
    return _LOWEST[(((word & -word) * 0x077CB531) & 0xFFFFFFFF) >> 27]


def _down(order: Order, s: int, level: int, i: int) -> int:
    while level > 0:
        level -= 1
        i = i * 32 + _lowest_bit(order.words[order.level[s, level] + i])
    return i


def next_row(order: Order, s: int, row: int) -> int:
    """The waiting row after this one in its set; -1 if there is none."""
    i = order.at[row]
    for level in range(order.level.shape[1]):
        above = order.words[order.level[s, level] + (i >> 5)] & ~((2 << (i & 31)) - 1)
        if above != 0:
            return order.row_at[order.begin[s] + _down(order, s, level, (i & ~31) + _lowest_bit(above))]
        i >>= 5
    return -1


def _set_front(order: Order, s: int, row: int) -> None:
    order.front[s] = row
    order.front_rank[s] = order.rank[row] if row >= 0 else NONE


def put_in(order: Order, row: int) -> None:
    s, i = order.set_of[row], order.at[row]
    for level in range(order.level.shape[1]):
        w = order.level[s, level] + (i >> 5)
        before = order.words[w]
        order.words[w] = before | (1 << (i & 31))
        if before != 0:
            break
        i >>= 5
    if order.rank[row] < order.front_rank[s]:
        _set_front(order, s, row)
    order.waiting[0] += 1


def take_out(order: Order, row: int) -> None:
    s, i = order.set_of[row], order.at[row]
    if order.front[s] == row:
        _set_front(order, s, next_row(order, s, row))
    for level in range(order.level.shape[1]):
        w = order.level[s, level] + (i >> 5)
        order.words[w] &= ~(1 << (i & 31))
        if order.words[w] != 0:
            break
        i >>= 5
    order.waiting[0] -= 1


def first_row(order: Order, most: int, limits: Ints) -> int:
    """The best waiting row that asks for at most `most` GPUs, and is not too large; -1 if there is none."""
    best = -1
    rank = NONE
    for s in range(len(order.size)):
        if order.size[s] > most:
            break
        if order.front_rank[s] < rank and not is_too_large(order.size[s], limits):
            rank = order.front_rank[s]
            best = order.front[s]
    return best


def smallest(order: Order) -> int:
    """How many GPUs the smallest waiting job asks for; a very large number if none waits."""
    for s in range(len(order.size)):
        if order.front[s] >= 0:
            return order.size[s]
    return NONE


STRICT, COMMIT, SKIP, EASY, EASY_SHADOW, CONSERVATIVE = range(6)


class Notes(NamedTuple):
    begun: Ints  # starts so far
    head: Ints  # the row that was chosen and is kept until it fits, -1 if there is none
    stuck: Ints  # the first of the queue, where it did not fit and nothing has been given back since; -1 otherwise


def new_notes() -> Notes:
    return Notes(np.zeros(1, np.int64), np.full(1, -1, np.int64), np.full(1, -1, np.int64))


def run_in_order(
    work: Work, order: Order, site: Site, schedule: Schedule, clock: Clock, starts: Starts, notes: Notes, rules: Rules
) -> None:
    idle, counts, stuck = site.pool.idle, clock.counts, notes.stuck
    while True:
        now = next_instant(clock, work, schedule, idle, rules.discipline == COMMIT)
        if now == np.inf:
            return
        if counts[0] > 0:
            stuck[0] = -1
        if order.waiting[0] == 0 and counts[2] == counts[1] + 1 and rules.every == 0:
            # A job that comes alone, as most do, need not queue if there is room.
            row, here = counts[1], for_plan(site, rules.seed, notes.begun[0])
            if not work.rejected[row] and _start_one(row, work, order, here, schedule, starts, notes, now):
                continue
        eventful = _arrived(clock, work, order, schedule) or counts[0] > 0
        if is_time_to_plan(clock, now, eventful, rules.every):
            _plan_in_order(work, order, for_plan(site, rules.seed, notes.begun[0]), schedule, starts, notes, rules, now)


def _plan_in_order(
    work: Work, order: Order, site: Site, schedule: Schedule, starts: Starts, notes: Notes, rules: Rules, now: float
) -> None:
    discipline = rules.discipline
    forget_limits(starts.limits)
    while order.waiting[0] > 0:
        most = schedule.free[0] if discipline == SKIP else NONE
        row = notes.head[0] if notes.head[0] >= 0 else first_row(order, most, starts.limits)
        if row < 0 or row == notes.stuck[0]:
            break
        if _start_one(row, work, order, site, schedule, starts, notes, now):
            notes.head[0] = -1
            take_out(order, row)
            continue
        if discipline == COMMIT:
            notes.head[0] = row
        if discipline != SKIP:
            notes.stuck[0] = row
            break
        note_too_large(site.demand.gpus[row], site, starts.limits)


def _start_one(
    row: int, work: Work, order: Order, site: Site, schedule: Schedule, starts: Starts, notes: Notes, now: float
) -> bool:
    """Start a job if there is room; returns whether there is."""
    starts.size[0] = 0
    if site.demand.gpus[row] <= schedule.free[0]:
        at = order.begin[order.set_of[row]] + order.at[row]
        fill(order.row_at[at : at + 1], True, site, starts)
        if starts.size[0] > 0:
            notes.begun[0] += 1
            give_gpus(schedule, row, starts.bins[: starts.ends[0]], site.code, site.salt)
            run_from(schedule, row, now, now + work.run[row])
    return bool(starts.size[0] > 0)


def _arrived(clock: Clock, work: Work, order: Order, schedule: Schedule) -> bool:
    some = False
    for row in range(clock.counts[1], clock.counts[2]):
        if work.rejected[row]:
            schedule.done[0] += 1
        else:
            put_in(order, row)
            some = True
    return some


def _begin(
    starts: Starts, order: Order, expected: Expected, work: Work, site: Site, schedule: Schedule, now: float
) -> None:
    begin = 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        take_out(order, row)
        give_gpus(schedule, row, starts.bins[begin : starts.ends[i]], site.code, site.salt)
        begin = starts.ends[i]
        run_from(schedule, row, now, now + work.run[row])
        if len(expected.rows) > 0:
            expect(expected, now + site.demand.estimate[row], row, schedule.offset[row], schedule.offset[row + 1])
    starts.size[0] = 0


class BackfillState(NamedTuple):
    starts: Starts
    expected: Expected
    found: Ints  # rows that may be started behind the head
    ranks: Ints  # room for their ranks, and to sort
    spare_rows: Ints
    spare_ranks: Ints


def new_backfill_state(gpus: int, rows: int) -> BackfillState:
    room = (np.empty(rows, dtype=np.int64) for _ in range(4))
    return BackfillState(new_starts(gpus + 1, 2 * gpus + 1), new_expected(gpus + 1), *room)


def run_backfilling(
    work: Work, order: Order, site: Site, later: Site, schedule: Schedule, clock: Clock, state: BackfillState,
    rules: Rules,
) -> None:  # fmt: skip
    """Simulate EASY and the like; `later` is a site like `site` with counts of its own."""
    starts, expected, found, discipline = state.starts, state.expected, state.found, rules.discipline
    begun, head, stuck, shadow, extra = 0, -1, -1, np.inf, 0
    known = 0  # rows before this one were refused under the present reservation, and would be again unless a job starts
    while True:
        now = next_instant(clock, work, schedule, site.pool.idle, discipline == EASY_SHADOW)
        if now == np.inf:
            return
        for i in range(clock.counts[0]):
            row = clock.finished[i]
            expect_no_more(expected, schedule.start[row] + site.demand.estimate[row], row)
            known, stuck = 0, -1
        eventful = _arrived(clock, work, order, schedule) or clock.counts[0] > 0
        if not is_time_to_plan(clock, now, eventful, rules.every):
            continue
        site = for_plan(site, rules.seed, begun)
        if discipline != CONSERVATIVE:
            kept = head if discipline == EASY_SHADOW else -1
            top = _start_heads(kept, stuck, starts, order, expected, work, site, schedule, now)
            begun += starts.size[0]
            if starts.size[0] > 0:
                known = 0
                starts.size[0] = 0
            if discipline == EASY_SHADOW and top >= 0 and top != kept:
                shadow = shadow_time(top, as_holders(expected, schedule.nodes, -np.inf), site.demand, schedule.free[0])
            known = known if top == head else 0
            head = stuck = top
        if schedule.free[0] < smallest(order) or (order.waiting[0] < 2 and discipline != CONSERVATIVE):
            continue
        if discipline == CONSERVATIVE:
            n = _candidates(order, NONE, -1, 0.0, np.inf, NONE, site.demand.estimate, state)
            conserve(found[:n], now, as_holders(expected, schedule.nodes, now), site, starts)
        elif discipline == EASY_SHADOW:
            latest = np.nextafter(shadow, -np.inf)  # done before the shadow time, not at it
            n = _candidates(order, schedule.free[0], head, now, latest, 0, site.demand.estimate, state)
            for i in range(n):
                state.ranks[i] = found[i]  # first come, first served
            sort_rows(state.ranks, found, n, state.spare_ranks, state.spare_rows)
            forget_limits(starts.limits)
            fill(found[:n], False, site, starts)
        else:
            if known == 0 or is_any_late(expected, now):
                shadow = reserve_for(head, expected, schedule.nodes, now, site, later)
                extra = sum(later.pool.idle) - site.demand.gpus[head]
                known = 0
            if known > 0 and not _may_be_new(known, clock.counts[2], work, schedule, now, shadow, extra, site.demand):
                continue
            n = _candidates(order, schedule.free[0], head, now, shadow, extra, site.demand.estimate, state)
            known = clock.counts[2]
            backfill(found[:n], head, shadow, later, now, site, starts)
        if starts.size[0] > 0:
            begun += starts.size[0]
            known = 0
            _begin(starts, order, expected, work, site, schedule, now)


def _start_heads(
    kept: int, stuck: int, starts: Starts, order: Order, expected: Expected, work: Work, site: Site, schedule: Schedule,
    now: float,
) -> int:  # fmt: skip
    """Start the first of the queue while it fits; returns the one that does not, -1 if all did. Counts in `starts`.

    The one that is stuck did not fit, and nothing has been given back since.
    """
    begun = 0
    head = -1
    forget_limits(starts.limits)
    while order.waiting[0] > 0:
        row = kept if kept >= 0 else first_row(order, NONE, starts.limits)
        kept = -1
        if site.demand.gpus[row] <= schedule.free[0] and row != stuck:
            at = order.begin[order.set_of[row]] + order.at[row]
            fill(order.row_at[at : at + 1], True, site, starts)
        if starts.size[0] == 0:
            head = row
            break
        begun += 1
        _begin(starts, order, expected, work, site, schedule, now)
    starts.size[0] = begun
    return head


def reserve_for(head: int, expected: Expected, nodes: Ints, now: float, site: Site, later: Site) -> float:
    """`core.loops.backfill.reserve`, on a site that exists already."""
    copy_counts(site.pool.idle, later.pool.idle)
    first, last = expected.span[0], expected.span[1]
    until = expected.until[first:last]
    if is_any_late(expected, now):
        put_off(expected, now)
        until = expected.late[first:last]
    rows, begins, ends = expected.rows[first:last], expected.begins[first:last], expected.ends[first:last]
    return wait_for(head, Holders(rows, begins, ends, nodes, until), later)


def _candidates(
    order: Order, most: int, head: int, now: float, shadow: float, extra: int, estimate: Floats, state: BackfillState
) -> int:
    """Write, by rank, the waiting rows of at most `most` GPUs that end by the shadow time, or are small enough to stay
    beside it; returns how many."""
    found, ranks, n = state.found, state.ranks, 0
    for s in range(len(order.size)):
        if order.size[s] > most:
            break
        small = order.size[s] <= extra
        row = order.front[s]
        while row >= 0:
            if (small or now + estimate[row] <= shadow) and row != head:
                found[n] = row
                ranks[n] = order.rank[row]
                n += 1
            row = next_row(order, s, row)
    sort_rows(ranks, found, n, state.spare_ranks, state.spare_rows)
    return n


def _may_be_new(
    begin: int, end: int, work: Work, schedule: Schedule, now: float, shadow: float, extra: int, demand: Demand
) -> bool:
    """Whether any row that arrived since the last plan is such a candidate; one that starts makes others move."""
    for row in range(begin, end):
        if demand.gpus[row] > schedule.free[0] or work.rejected[row] or not np.isnan(schedule.start[row]):
            continue
        if demand.gpus[row] <= extra or now + demand.estimate[row] <= shadow:
            return True
    return False
