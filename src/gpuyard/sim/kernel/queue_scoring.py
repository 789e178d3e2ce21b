"""The compiled driver for policies that score the whole queue at every plan, and stop no job: all disciplines.

A policy that reads queue features, as trained policies do, cannot rank beforehand, and neither can one whose ranks move
while jobs wait where others may start behind the head. As in `core.disciplines`, a policy with queue features scores
again after every start of a head. Loops in numba's subset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import NO_LIMIT, Starts, backfill, fill, new_starts, shadow_time
from gpuyard.core.loops.conservative import conserve
from gpuyard.core.loops.formulas import ENDLESS, LENGTHS, OVERDUE
from gpuyard.core.loops.pool import Floats, Ints, Site, on_copy
from gpuyard.sim.kernel.clock import Clock, is_time_to_plan, next_instant
from gpuyard.sim.kernel.dynamic_priority import WaitingJobs, best_of, book_events, leave_crowd, runs, without_number
from gpuyard.sim.kernel.job_columns import COLUMN_CODES, ESTIMATE, JobColumns, gather, note_started, usage_into
from gpuyard.sim.kernel.schedule import (
    Expected,
    Schedule,
    Work,
    as_holders,
    asks_for_at_most,
    expect,
    expect_no_more,
    give_gpus,
    new_expected,
    plan_salt,
    run_from,
)
from gpuyard.sim.kernel.static_priority import COMMIT, CONSERVATIVE, EASY, EASY_SHADOW, SKIP, reserve_for

FIRST_CODE = 32
AROUND_CODES = {
    name: code
    for code, name in enumerate(
        (
            "usage_share", "opening", "suitable", "shorter", "idle", "hole", "queue", "queue_work", "shadow",
            "capacity",
        ),
        FIRST_CODE,
    )
}  # fmt: skip
CODES = COLUMN_CODES | AROUND_CODES
"""All columns that a compiled policy may ask for."""
USAGE_SHARE, OPENING, SUITABLE, SHORTER, IDLE, HOLE, QUEUE, QUEUE_WORK, SHADOW, CAPACITY = range(32, 42)


class FeatureArrays(NamedTuple):
    """`core.queue_features.QueueFeatures`, in arrays that every plan writes."""

    length: Ints
    """Of every row: which power of two its estimate is below."""
    lengths: Ints
    below: Floats
    """How many who wait are of shorter lengths."""
    room: Ints
    delay: Floats
    numbers: Floats
    """Idle GPUs, those of the node that has most, how many wait, GPU-seconds that they ask for, GPU-seconds that all
    users have had, GPUs of the cluster, the first who waits, how many entries of `room` there are."""


def new_around(length: Ints, gpus: int) -> FeatureArrays:
    numbers = np.zeros(8)
    numbers[5] = gpus
    return FeatureArrays(
        length,
        np.zeros(LENGTHS, np.int64),
        np.zeros(LENGTHS),
        np.zeros(gpus + 2, np.int64),
        np.zeros(gpus + 2),
        numbers,
    )


def look_around(
    around: FeatureArrays,
    facts: JobColumns,
    crowd: WaitingJobs,
    site: Site,
    yard: Schedule,
    expected: Expected,
    now: float,
) -> None:
    numbers = around.numbers
    numbers[0] = yard.free[0]
    most = 0
    for n in range(len(site.pool.idle)):
        most = max(most, site.pool.idle[n])
    numbers[1] = most
    _look_at_jobs(around, facts, crowd)
    around.room[0] = yard.free[0]
    around.delay[0] = 0.0
    count, first = 1, expected.span[0]
    for i in range(first, expected.span[1]):
        row = expected.rows[i]
        around.room[count] = around.room[count - 1] + facts.gpus[row]
        until = yard.start[row] + min(facts.asked[ESTIMATE, row], ENDLESS)
        around.delay[count] = max(until - now, OVERDUE)
        count += 1
    numbers[7] = count


def _look_at_jobs(around: FeatureArrays, facts: JobColumns, crowd: WaitingJobs) -> None:
    n, work, first = crowd.counts[0], 0.0, -1
    for b in range(len(around.lengths)):
        around.lengths[b] = 0
    for i in range(n):
        row = crowd.rows[i]
        work += min(facts.asked[ESTIMATE, row], ENDLESS) * facts.gpus[row]
        around.lengths[around.length[row]] += 1
        if first < 0 or row < first:
            first = row
    below = 0
    for b in range(len(around.lengths)):
        around.below[b] = below
        below += around.lengths[b]
    around.numbers[2] = n
    around.numbers[3] = work
    around.numbers[4] = 0.0
    for user in range(len(crowd.usage)):
        around.numbers[4] += crowd.usage[user]
    around.numbers[6] = first


def _opening(around: FeatureArrays, gpus: int) -> float:
    """Seconds until so many GPUs are expected to be idle."""
    low, high = 0, int(around.numbers[7])
    end = high
    while low < high:
        middle = (low + high) >> 1
        if around.room[middle] < gpus:
            low = middle + 1
        else:
            high = middle
    return around.delay[low] if low < end else ENDLESS


def _shorter(around: FeatureArrays, row: int) -> float:
    """The share of the queue that is expected to be shorter."""
    length = around.length[row]
    return (around.below[length] + 0.5 * around.lengths[length]) / max(around.numbers[2], 1.0)


def gather_around(around: FeatureArrays, facts: JobColumns, crowd: WaitingJobs, column: int, out: Floats) -> None:
    """Write one of these columns for all waiting jobs."""
    n = crowd.counts[0]
    if column == OPENING:
        for i in range(n):
            out[i] = _opening(around, facts.gpus[crowd.rows[i]])
    elif column == SHORTER:
        for i in range(n):
            out[i] = _shorter(around, crowd.rows[i])
    elif column == USAGE_SHARE:
        total = max(around.numbers[4], 1.0)
        for i in range(n):
            out[i] = crowd.usage[facts.user[crowd.rows[i]]] / total
    else:
        number = 0.0
        if column in (IDLE, SUITABLE):
            number = around.numbers[0]
        elif column == HOLE:
            number = around.numbers[1]
        elif column == QUEUE:
            number = around.numbers[2]
        elif column == QUEUE_WORK:
            number = around.numbers[3]
        elif column == SHADOW:
            number = _opening(around, facts.gpus[int(around.numbers[6])])
        elif column == CAPACITY:
            number = around.numbers[5]
        for i in range(n):
            out[i] = number


Judge = Callable[[Floats, int, Floats, Floats], None]
"""A compiled policy: columns, how many rows, its own numbers (a trained one's weights), and where to write."""


class ScoringState(NamedTuple):
    """What the scoring function reads, and what is kept from plan to plan."""

    work: Work
    yard: Schedule
    facts: JobColumns
    crowd: WaitingJobs
    around: FeatureArrays
    expected: Expected
    starts: Starts
    columns: Ints
    surrounded: bool
    """Whether the policy looks around, and so must look again after every start."""
    with_usage: bool
    held: Floats
    """Of every user: room for what is being had."""
    chosen: Ints
    """The head that is kept until it fits, -1 if there is none."""
    shadow: Floats
    begun: Ints
    """How many have been started in this plan."""
    wrong: Ints
    """A row that the policy had no number for, -1 if there is none."""


def run_judged(
    work: Work, site: Site, yard: Schedule, clock: Clock, facts: JobColumns, crowd: WaitingJobs,
    around: FeatureArrays, columns: Ints,
    discipline: int, with_usage: bool, every: float, judge: Judge, weights: Floats,
) -> int:  # fmt: skip
    """Simulate any discipline; returns the row that the policy had no number for, or -1."""
    bench = ScoringState(
        work, yard, facts, crowd, around, new_expected(yard.free[0] + 1),
        new_starts(yard.free[0] + 1, 2 * yard.free[0] + 1), columns,
        len(columns) > 0 and columns.max() >= FIRST_CODE, with_usage, np.zeros(len(crowd.usage)),
        np.full(1, -1, np.int64), np.full(1, np.inf), np.zeros(1, np.int64), np.full(1, -1, np.int64),
    )  # fmt: skip
    later = on_copy(site)
    stepwise = discipline in (COMMIT, EASY_SHADOW)
    while True:
        now = next_instant(clock, work, yard, site.pool.idle, stepwise)
        if now == np.inf or bench.wrong[0] >= 0:
            return bench.wrong[0]
        for i in range(clock.counts[0]):
            row = clock.finished[i]
            expect_no_more(bench.expected, yard.start[row] + site.demand.estimate[row], row)
        book_events(work, yard, clock, facts, crowd, with_usage, now)
        if not is_time_to_plan(clock, now, crowd.counts[4] > 0, every) or crowd.counts[0] == 0:
            continue
        if (bench.chosen[0] >= 0 or not stepwise) and not asks_for_at_most(yard.free[0], crowd.waiting_of):
            continue
        bench.begun[0] = 0
        salt = plan_salt(site, facts.numbers[2], facts.numbers[1])
        site = Site(site.demand, site.pool, site.code, salt, site.fine, site.tasks, site.parts)
        head = _keep_head(bench, site, now) if stepwise else -1
        if head < 0:
            head = _begin_best(bench, site, discipline, judge, weights, now)
            if stepwise and head >= 0:
                _choose(bench, site, head)
        if discipline == CONSERVATIVE:
            crowd.near[: crowd.counts[0]] = crowd.rows[: crowd.counts[0]]
            order = _by_number(crowd, crowd.counts[0])
            conserve(order, now, as_holders(bench.expected, yard.nodes, now), site, bench.starts)
        elif discipline == EASY_SHADOW and head >= 0:
            _before_shadow(bench, site, now)
        elif discipline == EASY and head >= 0:
            _behind(head, bench, site, later, now)
        _let_begin(bench, site, now)


def _judge(bench: ScoringState, site: Site, judge: Judge, weights: Floats, now: float) -> None:
    facts, crowd, columns = bench.facts, bench.crowd, bench.columns
    if bench.with_usage:
        usage_into(facts, crowd.running[: crowd.counts[1]], now, bench.held, crowd.usage)
    if bench.surrounded:
        look_around(bench.around, facts, crowd, site, bench.yard, bench.expected, now)
    n = crowd.counts[0]
    facts.numbers[1] -= bench.begun[0]  # lots are drawn once for a plan, whoever starts in it
    for c in range(len(columns)):
        if columns[c] >= FIRST_CODE:
            gather_around(bench.around, facts, crowd, columns[c], crowd.values[c])
        else:
            gather(facts, columns[c : c + 1], crowd.rows[:n], now, crowd.usage, crowd.values[c : c + 1])
    facts.numbers[1] += bench.begun[0]
    judge(crowd.values, n, weights, crowd.keys)
    bench.wrong[0] = without_number(crowd, 0)


def _let_begin(bench: ScoringState, site: Site, now: float) -> None:
    starts, yard = bench.starts, bench.yard
    begin = 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        leave_crowd(bench.facts, bench.crowd, row)
        give_gpus(yard, row, starts.bins[begin : starts.ends[i]], site.code, site.salt)
        begin = starts.ends[i]
        note_started(bench.facts, row, now, 0.0)
        run_from(yard, row, now, now + bench.work.run[row])
        expect(bench.expected, now + site.demand.estimate[row], row, yard.offset[row], yard.offset[row + 1])
        if bench.with_usage:
            runs(bench.crowd, row)
    bench.begun[0] += starts.size[0]
    starts.size[0] = 0


def _begin_best(bench: ScoringState, site: Site, discipline: int, judge: Judge, weights: Floats, now: float) -> int:
    """Start the best while they fit, or whatever fits; returns the one that does not, -1 if all did.

    Under `conservative` no job is started here, but all are scored.
    """
    crowd, yard, starts = bench.crowd, bench.yard, bench.starts
    skip = discipline == SKIP
    limit = NO_LIMIT
    judged = False
    while crowd.counts[0] > 0 and bench.wrong[0] < 0:
        if not judged:
            _judge(bench, site, judge, weights, now)
            judged = True
        if discipline == CONSERVATIVE:
            return -1
        row = best_of(bench.facts, crowd, min(yard.free[0], limit - 1) if skip else NO_LIMIT)
        if row < 0:
            return -1
        crowd.near[0] = row
        if site.demand.gpus[row] <= yard.free[0]:
            limit = fill(crowd.near[:1], not skip, limit, site, starts)
        if starts.size[0] > 0:
            _let_begin(bench, site, now)
            judged = not bench.surrounded
        elif not skip:
            return row
    return -1


def _keep_head(bench: ScoringState, site: Site, now: float) -> int:
    """Start the head that was kept if it fits now; returns it if it does not, -1 if there is none any more."""
    row = bench.chosen[0]
    if row < 0 or site.demand.gpus[row] > bench.yard.free[0]:
        return row
    bench.crowd.near[0] = row
    fill(bench.crowd.near[:1], True, NO_LIMIT, site, bench.starts)
    if bench.starts.size[0] == 0:
        return row
    _let_begin(bench, site, now)
    bench.chosen[0] = -1
    return -1


def _choose(bench: ScoringState, site: Site, head: int) -> None:
    """Keep a head until it fits, with the shadow time of this instant."""
    bench.chosen[0] = head
    holders = as_holders(bench.expected, bench.yard.nodes, -np.inf)
    bench.shadow[0] = shadow_time(head, holders, site.demand, bench.yard.free[0])


def _by_number(crowd: WaitingJobs, n: int) -> Ints:
    """The first n rows in `near` by number, ties by row."""
    rows = np.sort(crowd.near[:n])
    for i in range(n):
        crowd.near_keys[i] = crowd.keys[crowd.place[rows[i]]]
    return rows[np.argsort(crowd.near_keys[:n], kind="mergesort")] if n > 1 else rows


def _before_shadow(bench: ScoringState, site: Site, now: float) -> None:
    """Start, first come first served, jobs that fit and end before the head's shadow time."""
    crowd, demand, free = bench.crowd, site.demand, bench.yard.free[0]
    n = 0
    for i in range(crowd.counts[0]):
        row = crowd.rows[i]
        if row != bench.chosen[0] and demand.gpus[row] <= free and now + demand.estimate[row] < bench.shadow[0]:
            crowd.near[n] = row
            n += 1
    if n > 0:
        fill(np.sort(crowd.near[:n]), False, NO_LIMIT, site, bench.starts)


def _behind(head: int, bench: ScoringState, site: Site, later: Site, now: float) -> None:
    """Start, by number, jobs that fit and leave the head its reservation."""
    crowd, demand, free = bench.crowd, site.demand, bench.yard.free[0]
    if not asks_for_at_most(free, crowd.waiting_of):
        return
    shadow = reserve_for(head, bench.expected, bench.yard.nodes, now, site, later)
    extra = sum(later.pool.idle) - demand.gpus[head]
    n = 0
    for i in range(crowd.counts[0]):
        row = crowd.rows[i]
        if row != head and demand.gpus[row] <= free and (
            now + demand.estimate[row] <= shadow or demand.gpus[row] <= extra
        ):  # fmt: skip
            crowd.near[n] = row
            n += 1
    if n > 0:
        backfill(_by_number(crowd, n), head, shadow, later, now, site, bench.starts)
