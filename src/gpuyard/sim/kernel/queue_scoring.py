"""The compiled driver for policies that score the whole queue at every plan, and stop no job: all disciplines.

A policy that reads queue features, as trained policies do, cannot rank beforehand, and neither can one whose ranks move
while jobs wait where others may start behind the head. As in `core.disciplines`, a policy with queue features scores
again after every start of a head. Loops in numba's subset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import NO_LIMIT, Starts, backfill, fill, forget_limits, shadow_time
from gpuyard.core.loops.conservative import conserve
from gpuyard.core.loops.formulas import ENDLESS, LENGTHS, OVERDUE
from gpuyard.core.loops.pool import Floats, Ints, Site
from gpuyard.sim.kernel.dynamic_priority import WaitingJobs, best_of, book_events, remove_waiting, runs, without_number
from gpuyard.sim.kernel.job_columns import COLUMN_CODES, ESTIMATE, JobColumns, gather, note_started, usage_into
from gpuyard.sim.kernel.schedule import (
    Clock,
    Expected,
    Rules,
    Schedule,
    Work,
    as_holders,
    asks_for_at_most,
    expect,
    expect_no_more,
    for_plan,
    give_gpus,
    is_time_to_plan,
    next_instant,
    run_from,
    sort_rows,
)
from gpuyard.sim.kernel.static_priority import COMMIT, CONSERVATIVE, EASY, EASY_SHADOW, SKIP, reserve_for

FIRST_CODE = 32
FEATURE_CODES = {
    name: code
    for code, name in enumerate(
        (
            "usage_share", "opening", "suitable", "shorter", "idle", "hole", "queue", "queue_work", "shadow",
            "capacity",
        ),
        FIRST_CODE,
    )
}  # fmt: skip
CODES = COLUMN_CODES | FEATURE_CODES  # all columns that a compiled policy may ask for
USAGE_SHARE, OPENING, SUITABLE, SHORTER, IDLE, HOLE, QUEUE, QUEUE_WORK, SHADOW, CAPACITY = range(32, 42)


class FeatureArrays(NamedTuple):
    """`core.queue_features.QueueFeatures`, in arrays that every plan writes."""

    length: Ints  # of every row: which power of two its estimate is below
    lengths: Ints
    below: Floats  # how many waiting jobs are of shorter lengths
    room: Ints
    delay: Floats
    numbers: Floats
    """Idle GPUs, those of the node that has most, how many wait, GPU-seconds that they ask for, GPU-seconds that all
    users have had, GPUs of the cluster, the first waiting row, how many entries of `room` there are."""


def new_features(length: Ints, gpus: int) -> FeatureArrays:
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


def measure_features(
    features: FeatureArrays,
    facts: JobColumns,
    waiting: WaitingJobs,
    site: Site,
    schedule: Schedule,
    expected: Expected,
    now: float,
) -> None:
    numbers = features.numbers
    numbers[0] = schedule.free[0]
    most = 0
    for n in range(len(site.pool.idle)):
        most = max(most, site.pool.idle[n])
    numbers[1] = most
    _measure_jobs(features, facts, waiting)
    features.room[0] = schedule.free[0]
    features.delay[0] = 0.0
    count, first = 1, expected.span[0]
    for i in range(first, expected.span[1]):
        row = expected.rows[i]
        features.room[count] = features.room[count - 1] + facts.gpus[row]
        until = schedule.start[row] + min(facts.asked[ESTIMATE, row], ENDLESS)
        features.delay[count] = max(until - now, OVERDUE)
        count += 1
    numbers[7] = count


def _measure_jobs(features: FeatureArrays, facts: JobColumns, waiting: WaitingJobs) -> None:
    n, work, first = waiting.counts[0], 0.0, -1
    for b in range(len(features.lengths)):
        features.lengths[b] = 0
    for i in range(n):
        row = waiting.rows[i]
        work += min(facts.asked[ESTIMATE, row], ENDLESS) * facts.gpus[row]
        features.lengths[features.length[row]] += 1
        if first < 0 or row < first:
            first = row
    below = 0
    for b in range(len(features.lengths)):
        features.below[b] = below
        below += features.lengths[b]
    features.numbers[2] = n
    features.numbers[3] = work
    features.numbers[4] = 0.0
    for user in range(len(waiting.usage)):
        features.numbers[4] += waiting.usage[user]
    features.numbers[6] = first


def _opening(features: FeatureArrays, gpus: int) -> float:
    """Seconds until `gpus` GPUs are expected to be idle."""
    low, high = 0, int(features.numbers[7])
    end = high
    while low < high:
        middle = (low + high) >> 1
        if features.room[middle] < gpus:
            low = middle + 1
        else:
            high = middle
    return features.delay[low] if low < end else ENDLESS


def _shorter(features: FeatureArrays, row: int) -> float:
    length = features.length[row]
    return (features.below[length] + 0.5 * features.lengths[length]) / max(features.numbers[2], 1.0)


def gather_feature(features: FeatureArrays, facts: JobColumns, waiting: WaitingJobs, column: int, out: Floats) -> None:
    n = waiting.counts[0]
    if column == OPENING:
        for i in range(n):
            out[i] = _opening(features, facts.gpus[waiting.rows[i]])
    elif column == SHORTER:
        for i in range(n):
            out[i] = _shorter(features, waiting.rows[i])
    elif column == USAGE_SHARE:
        total = max(features.numbers[4], 1.0)
        for i in range(n):
            out[i] = waiting.usage[facts.user[waiting.rows[i]]] / total
    else:
        number = 0.0
        if column in (IDLE, SUITABLE):
            number = features.numbers[0]
        elif column == HOLE:
            number = features.numbers[1]
        elif column == QUEUE:
            number = features.numbers[2]
        elif column == QUEUE_WORK:
            number = features.numbers[3]
        elif column == SHADOW:
            number = _opening(features, facts.gpus[int(features.numbers[6])])
        elif column == CAPACITY:
            number = features.numbers[5]
        for i in range(n):
            out[i] = number


Scorer = Callable[[Floats, int, Floats, Floats], None]
"""A compiled policy: columns, how many rows, its own numbers (a trained one's weights), and where to write."""


class ScoringState(NamedTuple):
    work: Work
    schedule: Schedule
    facts: JobColumns
    waiting: WaitingJobs
    features: FeatureArrays
    expected: Expected
    starts: Starts
    columns: Ints
    with_features: bool  # whether the policy looks around, and so must look again after every start
    with_usage: bool
    held: Floats  # of every user: room for what is being had
    chosen: Ints  # the head that is kept until it fits, -1 if there is none
    shadow: Floats
    begun: Ints  # how many have been started in this plan
    wrong: Ints  # A row that the policy had no number for, -1 if there is none


def run_queue_scoring(
    scoring: ScoringState, site: Site, later: Site, clock: Clock, rules: Rules, scorer: Scorer, weights: Floats
) -> int:
    """Simulate any discipline; returns the row that the policy had no number for, or -1.

    `later` is a site like `site` with counts of its own.
    """
    work, schedule, facts, waiting = scoring.work, scoring.schedule, scoring.facts, scoring.waiting
    discipline = rules.discipline
    stepwise = discipline in (COMMIT, EASY_SHADOW)
    while True:
        now = next_instant(clock, work, schedule, site.pool.idle, stepwise)
        if now == np.inf or scoring.wrong[0] >= 0:
            return scoring.wrong[0]
        for i in range(clock.counts[0]):
            row = clock.finished[i]
            expect_no_more(scoring.expected, schedule.start[row] + site.demand.estimate[row], row)
        book_events(work, schedule, clock, facts, waiting, scoring.with_usage, now)
        if not is_time_to_plan(clock, now, waiting.counts[4] > 0, rules.every) or waiting.counts[0] == 0:
            continue
        if (scoring.chosen[0] >= 0 or not stepwise) and not asks_for_at_most(schedule.free[0], waiting.waiting_of):
            continue
        scoring.begun[0] = 0
        site = for_plan(site, facts.numbers[2], facts.numbers[1])
        head = _keep_head(scoring, site, now) if stepwise else -1
        if head < 0:
            head = _begin_best(scoring, site, discipline, scorer, weights, now)
            if stepwise and head >= 0:
                _choose(scoring, site, head)
        if discipline == CONSERVATIVE:
            for i in range(waiting.counts[0]):
                waiting.near[i] = waiting.rows[i]
            order = _by_number(waiting, waiting.counts[0])
            conserve(order, now, as_holders(scoring.expected, schedule.nodes, now), site, scoring.starts)
        elif discipline == EASY_SHADOW and head >= 0:
            _before_shadow(scoring, site, now)
        elif discipline == EASY and head >= 0:
            _behind(head, scoring, site, later, now)
        _let_begin(scoring, site, now)


def _score_all(scoring: ScoringState, site: Site, scorer: Scorer, weights: Floats, now: float) -> None:
    facts, waiting, columns = scoring.facts, scoring.waiting, scoring.columns
    if scoring.with_usage:
        usage_into(facts, waiting.running[: waiting.counts[1]], now, scoring.held, waiting.usage)
    if scoring.with_features:
        measure_features(scoring.features, facts, waiting, site, scoring.schedule, scoring.expected, now)
    n = waiting.counts[0]
    facts.numbers[1] -= scoring.begun[0]  # random numbers are drawn once for a plan
    for c in range(len(columns)):
        if columns[c] >= FIRST_CODE:
            gather_feature(scoring.features, facts, waiting, columns[c], waiting.values[c])
        else:
            gather(facts, columns[c : c + 1], waiting.rows[:n], now, waiting.usage, waiting.values[c : c + 1])
    facts.numbers[1] += scoring.begun[0]
    scorer(waiting.values, n, weights, waiting.keys)
    scoring.wrong[0] = without_number(waiting, 0)


def _let_begin(scoring: ScoringState, site: Site, now: float) -> None:
    starts, schedule = scoring.starts, scoring.schedule
    begin = 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        remove_waiting(scoring.facts, scoring.waiting, row)
        give_gpus(schedule, row, starts.bins[begin : starts.ends[i]], site.code, site.salt)
        begin = starts.ends[i]
        note_started(scoring.facts, row, now, 0.0)
        run_from(schedule, row, now, now + scoring.work.run[row])
        expect(scoring.expected, now + site.demand.estimate[row], row, schedule.offset[row], schedule.offset[row + 1])
        if scoring.with_usage:
            runs(scoring.waiting, row)
    scoring.begun[0] += starts.size[0]
    starts.size[0] = 0


def _begin_best(scoring: ScoringState, site: Site, discipline: int, scorer: Scorer, weights: Floats, now: float) -> int:
    """Start the best while they fit, or whatever fits; returns the one that does not, -1 if all did.

    Under `conservative` no job is started here, but all are scored.
    """
    waiting, schedule, starts = scoring.waiting, scoring.schedule, scoring.starts
    skip = discipline == SKIP
    forget_limits(starts.limits)
    scored = False
    while waiting.counts[0] > 0 and scoring.wrong[0] < 0:
        if not scored:
            _score_all(scoring, site, scorer, weights, now)
            scored = True
        if discipline == CONSERVATIVE:
            return -1
        row = best_of(scoring.facts, waiting, schedule.free[0] if skip else NO_LIMIT, starts.limits)
        if row < 0:
            return -1
        waiting.near[0] = row
        if site.demand.gpus[row] <= schedule.free[0]:
            fill(waiting.near[:1], not skip, site, starts)
        if starts.size[0] > 0:
            _let_begin(scoring, site, now)
            scored = not scoring.with_features
        elif not skip:
            return row
    return -1


def _keep_head(scoring: ScoringState, site: Site, now: float) -> int:
    """Start the head that was kept if it fits now; returns it if it does not, -1 if there is none any more."""
    row = scoring.chosen[0]
    if row < 0 or site.demand.gpus[row] > scoring.schedule.free[0]:
        return row
    scoring.waiting.near[0] = row
    fill(scoring.waiting.near[:1], True, site, scoring.starts)
    if scoring.starts.size[0] == 0:
        return row
    _let_begin(scoring, site, now)
    scoring.chosen[0] = -1
    return -1


def _choose(scoring: ScoringState, site: Site, head: int) -> None:
    scoring.chosen[0] = head
    holders = as_holders(scoring.expected, scoring.schedule.nodes, -np.inf)
    scoring.shadow[0] = shadow_time(head, holders, site.demand, scoring.schedule.free[0])


def _by_number(waiting: WaitingJobs, n: int) -> Ints:
    """The first n rows in `near` by number, ties by row."""
    for i in range(n):
        waiting.near_keys[i] = waiting.keys[waiting.place[waiting.near[i]]]
    sort_rows(waiting.near_keys, waiting.near, n, waiting.spare_keys, waiting.spare)
    return waiting.near[:n]


def _before_shadow(scoring: ScoringState, site: Site, now: float) -> None:
    """Start, first come first served, jobs that fit and end before the head's shadow time."""
    waiting, demand, free = scoring.waiting, site.demand, scoring.schedule.free[0]
    n = 0
    for i in range(waiting.counts[0]):
        row = waiting.rows[i]
        if row != scoring.chosen[0] and demand.gpus[row] <= free and now + demand.estimate[row] < scoring.shadow[0]:
            waiting.near[n] = row
            waiting.near_keys[n] = row
            n += 1
    if n > 0:
        sort_rows(waiting.near_keys, waiting.near, n, waiting.spare_keys, waiting.spare)
        forget_limits(scoring.starts.limits)
        fill(waiting.near[:n], False, site, scoring.starts)


def _behind(head: int, scoring: ScoringState, site: Site, later: Site, now: float) -> None:
    waiting, demand, free = scoring.waiting, site.demand, scoring.schedule.free[0]
    if not asks_for_at_most(free, waiting.waiting_of):
        return
    shadow = reserve_for(head, scoring.expected, scoring.schedule.nodes, now, site, later)
    extra = sum(later.pool.idle) - demand.gpus[head]
    n = 0
    for i in range(waiting.counts[0]):
        row = waiting.rows[i]
        if row != head and demand.gpus[row] <= free and (
            now + demand.estimate[row] <= shadow or demand.gpus[row] <= extra
        ):  # fmt: skip
            waiting.near[n] = row
            n += 1
    if n > 0:
        backfill(_by_number(waiting, n), head, shadow, later, now, site, scoring.starts)
