"""The compiled driver for preemptive policies: what `core.preemption` does for single plans.

Ranks of waiting jobs do not change, so they are computed when a job joins the queue. Running jobs are ranked as seldom
as their policy allows. Numbers of some policies stand until a time that the policy itself says, as those of `las` do
until they drop: such jobs are kept in rank order from plan to plan, and only numbers that may have changed are computed
again. Others are ranked at every plan that may stop a job, in the order of the last time, which is nearly right
already. Loops in numba's subset.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.loops.backfill import Starts, bins_taken, start
from gpuyard.core.loops.formulas import slice_over_at
from gpuyard.core.loops.placement import settle
from gpuyard.core.loops.pool import Floats, Ints, Site, copy_counts
from gpuyard.core.loops.victims import SortedJobs, next_set
from gpuyard.sim.kernel.job_columns import (
    JobColumns,
    Rank,
    gather,
    note_finished,
    note_preempted,
    note_renewed,
    note_started,
    note_submitted,
)
from gpuyard.sim.kernel.preemption_state import (
    PreemptionRules,
    PreemptionState,
    any_job_fits,
    change_times,
    from_the_first,
    join,
    leave,
    take_from,
)
from gpuyard.sim.kernel.schedule import (
    Clock,
    Pieces,
    Schedule,
    Work,
    add_end,
    add_piece,
    ends_by,
    for_plan,
    give_gpus,
    is_full,
    is_time_to_plan,
    next_end,
    next_instant,
    remove_end,
    run_from,
    take_gpus,
)

FULL = -2


def enlist(row: int, facts: JobColumns, state: PreemptionState) -> None:
    """A job begins to run. Its number changes no sooner than was computed before, since it stood still meanwhile."""
    if facts.preemptible[row]:
        join(state.runners, 0, state.key[row], row)
        add_end(state.drops, state.over[row], row)
        state.counts[5] += facts.gpus[row]


def dismiss(row: int, facts: JobColumns, state: PreemptionState) -> None:
    if state.drops.place[row] >= 0:
        leave(state.runners, 0, state.key[row], row)
        remove_end(state.drops, row)
        state.counts[5] -= facts.gpus[row]


def decide_incrementally(
    site: Site, schedule: Schedule, clock: Clock, facts: JobColumns, starts: Starts, state: PreemptionState,
    rules: PreemptionRules, rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """Decide again over running and waiting jobs together; returns a row without a number, or -1."""
    wrong = _rank_due(facts, state, rules, rank, change, now)
    if wrong >= 0:
        return wrong
    first, last = state.runners.first[0], state.runners.last[0]
    rows, keys = state.runners.rows[first:last], state.runners.keys[first:last]
    if any_job_fits(rows, keys, state.counts[5], schedule.free[0], state, facts):
        take_from(rows, keys, site, schedule, starts, state, rules.strict)
        _dismiss_victims(facts, state)
    if state.counts[6] + state.counts[4] > starts.size[0]:
        clock.due[0] = max(_wake_for_drops(starts, facts, state, rules, change, now), np.nextafter(now, np.inf))
    return -1


def _near(time: float) -> float:
    """How far a time may be from its earlier value: rounding, and the tolerance of policies."""
    return 1e-5 + 1e-9 * abs(time)


def _rank_due(
    facts: JobColumns, state: PreemptionState, rules: PreemptionRules, rank: Rank, change: Rank, now: float
) -> int:
    """Compute the numbers that may have changed by now; returns a row without one, or -1."""
    n = ends_by(state.drops, now + _near(now), state.others)
    if n == 0:
        return -1
    gather(facts, rules.columns, state.others[:n], now, facts.usage, state.values)
    rank(state.values, n, state.keys)
    for i in range(n):
        row, key = state.others[i], state.keys[i]
        if np.isnan(key):
            return int(row)
        if key != state.key[row]:
            leave(state.runners, 0, state.key[row], row)
            join(state.runners, 0, key, row)
            state.key[row] = key
    change_times(n, facts, state, rules, change, now)
    for i in range(n):
        row = state.others[i]
        if np.isnan(state.keys[i]):
            return int(row)
        remove_end(state.drops, row)
        add_end(state.drops, state.keys[i], row)
    return -1


def _dismiss_victims(facts: JobColumns, state: PreemptionState) -> None:
    first, stops = state.runners.first[0], 0
    for h in range(state.counts[7], state.runners.last[0] - first):
        if state.victim[h] == 1:
            state.stopped[stops] = state.runners.rows[first + h]
            stops += 1
    for i in range(stops):
        dismiss(state.stopped[i], facts, state)
    state.counts[4] = stops


def _wake_for_drops(
    starts: Starts, facts: JobColumns, state: PreemptionState, rules: PreemptionRules, change: Rank, now: float
) -> float:
    """When a rank changes by itself, to the last bit: computed again for all that could be the first."""
    n = starts.size[0]
    for i in range(n):
        state.others[i] = starts.rows[i]
    first = next_end(state.drops)
    if first < np.inf:
        state.others[n] = state.drops.row[0]
        n += 1
    change_times(n, facts, state, rules, change, now)
    for i in range(starts.size[0]):
        state.over[state.others[i]] = state.keys[i]
    at = _earliest(n, state)
    if first < np.inf:
        n = ends_by(state.drops, at + _near(at), state.others)
        if n > 1:  # not just the one that was looked at
            change_times(n, facts, state, rules, change, now)
            at = min(at, _earliest(n, state))
    return at


def _earliest(n: int, state: PreemptionState) -> float:
    at = np.inf
    for i in range(n):
        at = min(at, state.keys[i])
    return at


def no_job_stops(queue: SortedJobs, state: PreemptionState) -> bool:
    """Whether old numbers are enough to see that all running jobs go before all that wait."""
    best = queue.at[from_the_first(queue)]
    key, row = queue.keys[best], queue.rows[best]
    return key > state.worst[0] or (key == state.worst[0] and row > state.worst[1])


def note_worst(state: PreemptionState, key: float, row: int) -> None:
    if key > state.worst[0] or (key == state.worst[0] and row > state.worst[1]):
        state.worst[0] = key
        state.worst[1] = row


def fill_up(
    site: Site, schedule: Schedule, facts: JobColumns, starts: Starts, state: PreemptionState, rules: PreemptionRules
) -> None:
    """Start what fits without a stop."""
    if any_job_fits(state.loose[:0], state.keys[:0], 0, schedule.free[0], state, facts):
        take_from(state.loose[:0], state.keys[:0], site, schedule, starts, state, rules.strict)


def decide_from_scratch(
    site: Site, schedule: Schedule, clock: Clock, facts: JobColumns, starts: Starts, state: PreemptionState,
    rules: PreemptionRules, rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """`decide_incrementally` for policies whose numbers can change at any time: all are computed again."""
    soon = _sort_out(facts, state, rules, now)
    n = state.counts[1]
    gather(facts, rules.columns, state.loose[:n], now, facts.usage, state.values)
    rank(state.values, n, state.keys)
    behind = 0
    for h in range(n):
        state.victim[h] = 0
        behind += facts.gpus[state.loose[h]]
        if np.isnan(state.keys[h]):
            return int(state.loose[h])
    _sort(state.keys, state.loose, n)
    if any_job_fits(state.loose[:n], state.keys, behind, schedule.free[0], state, facts):
        take_from(state.loose[:n], state.keys[:n], site, schedule, starts, state, rules.strict)
    _part_from_victims(state)
    if state.counts[6] + state.counts[4] > starts.size[0]:
        clock.due[0] = max(_wake_at(soon, starts, facts, state, rules, change, now), np.nextafter(now, np.inf))
    return -1


def forget_ended(facts: JobColumns, state: PreemptionState) -> None:
    kept = 0
    for i in range(state.counts[0]):
        if facts.started[state.running[i]] < np.inf:
            state.running[kept] = state.running[i]
            kept += 1
    state.counts[0] = kept


def _part_from_victims(state: PreemptionState) -> None:
    """Jobs that may be stopped are at the end of `running`; keep those that go on, and note the last of them."""
    n, stops = state.counts[1], 0
    kept = state.counts[0] - n
    state.worst[0] = -np.inf
    for h in range(n):
        if state.victim[h] == 1:
            state.stopped[stops] = state.loose[h]
            stops += 1
        else:
            state.running[kept] = state.loose[h]
            note_worst(state, state.keys[h], state.loose[h])
            kept += 1
    state.counts[0] = kept
    state.counts[4] = stops


def _sort_out(facts: JobColumns, state: PreemptionState, rules: PreemptionRules, now: float) -> float:
    """Which jobs run, and which of them may be stopped now; returns when the first of the others may be."""
    soon = np.inf
    slack = 1e-9 * max(1.0, abs(now))  # nearer than this, look exactly
    loose, others = 0, 0
    for i in range(state.counts[0]):
        row = state.running[i]
        if facts.started[row] == np.inf:
            continue
        free_at = now
        if rules.sliced:
            free_at = state.over[row]
            if now >= free_at - slack:
                free_at = float(slice_over_at(facts.slice_started[row], rules.quantum, now))
                state.over[row] = free_at
        elif rules.quantum > 0:
            free_at = facts.slice_started[row] + rules.quantum
        stays = rules.any_fixed and not facts.preemptible[row]
        if free_at <= now and not stays:
            state.loose[loose] = row
            loose += 1
        else:
            state.running[others] = row
            others += 1
            if not stays:
                soon = min(soon, free_at)
    state.counts[0] = others + loose
    state.counts[1] = loose
    return soon


def _sort(keys: Floats, rows: Ints, n: int) -> None:
    """By key, ties by row; fast where it is nearly sorted."""
    for i in range(1, n):
        key, row = keys[i], rows[i]
        j = i
        while j > 0 and (keys[j - 1] > key or (keys[j - 1] == key and rows[j - 1] > row)):
            keys[j] = keys[j - 1]
            rows[j] = rows[j - 1]
            j -= 1
        keys[j] = key
        rows[j] = row


def _wake_at(
    soon: float,
    starts: Starts,
    facts: JobColumns,
    state: PreemptionState,
    rules: PreemptionRules,
    change: Rank,
    now: float,
) -> float:
    """When the plan could change although nothing happens: a quantum is over, or a rank changes by itself."""
    at = soon
    rows, kept = state.others, 0
    for h in range(state.counts[1]):
        if state.victim[h] == 0:
            rows[kept] = state.loose[h]
            kept += 1
    if rules.quantum > 0 and (starts.size[0] > 0 or (rules.sliced and kept > 0)):
        at = min(at, now + rules.quantum)
    if rules.changes:
        n = kept
        for i in range(starts.size[0]):
            rows[n] = starts.rows[i]
            n += 1
        change_times(n, facts, state, rules, change, now)
        for i in range(n):
            at = min(at, state.keys[i])
    return at


def run_preempting(
    work: Work, site: Site, schedule: Schedule, clock: Clock, facts: JobColumns, starts: Starts, pieces: Pieces,
    state: PreemptionState, rules: PreemptionRules, rank: Rank, change: Rank,
) -> int:  # fmt: skip
    """Simulate a preemptive policy; returns the row that it had no number for, or -1, or FULL.

    FULL asks for longer `pieces`; called again with them, it goes on.
    """
    while True:
        if is_full(pieces, 2 * len(state.stopped)):  # at one instant all may end, and as many be stopped
            return FULL
        now = next_instant(clock, work, schedule, site.pool.idle, False)
        if now == np.inf:
            return -1
        wrong = _take_in(work, schedule, clock, facts, pieces, state, rules, rank, now)
        if wrong < 0 and is_time_to_plan(clock, now, state.counts[3] > 0, rules.every):
            wrong = _plan(work, site, schedule, clock, facts, starts, pieces, state, rules, rank, change, now)
        if wrong >= 0:
            return wrong


def _take_in(
    work: Work, schedule: Schedule, clock: Clock, facts: JobColumns, pieces: Pieces, state: PreemptionState,
    rules: PreemptionRules, rank: Rank, now: float,
) -> int:  # fmt: skip
    """Book finished and arrived jobs; returns a row without a number, or -1."""
    for i in range(clock.counts[0]):
        row = clock.finished[i]
        add_piece(pieces, schedule, row, facts.started[row], now)
        note_finished(facts, row, now)
        if rules.ranks_hold:
            dismiss(row, facts, state)
    state.counts[3] = clock.counts[0]
    for row in range(clock.counts[1], clock.counts[2]):
        if work.rejected[row]:
            schedule.done[0] += 1
            continue
        note_submitted(facts, row)
        _rank_one(row, now, facts, state, rules, rank)
        if np.isnan(state.key[row]):
            return row
        _queue_up(row, facts, state)
        state.counts[3] += 1
    return -1


def _plan(
    work: Work, site: Site, schedule: Schedule, clock: Clock, facts: JobColumns, starts: Starts, pieces: Pieces,
    state: PreemptionState, rules: PreemptionRules, rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """Make a plan and carry it out; returns a row without a number, or -1."""
    queue = state.queue
    if state.counts[6] == 0:
        return -1
    site = for_plan(site, rules.seed, facts.numbers[1])
    starts.size[0] = 0
    state.counts[1] = 0
    state.counts[4] = 0
    wrong = -1
    if not rules.sliced and _start_all(queue, starts, site, schedule, state):
        pass
    elif rules.ranks_hold:
        wrong = decide_incrementally(site, schedule, clock, facts, starts, state, rules, rank, change, now)
    elif rules.improves and no_job_stops(queue, state):
        fill_up(site, schedule, facts, starts, state, rules)
    else:
        wrong = decide_from_scratch(site, schedule, clock, facts, starts, state, rules, rank, change, now)
    if wrong >= 0:
        return wrong
    for i in range(state.counts[4]):
        row = state.stopped[i]
        add_piece(pieces, schedule, row, facts.started[row], now)
        _stop(row, schedule, facts, now)
        if not rules.ranks_hold:
            _rank_one(row, now, facts, state, rules, rank)
        _queue_up(row, facts, state)
    _begin_all(work, site, schedule, facts, starts, state, rules, now)
    if rules.sliced:
        for h in range(state.counts[1]):
            if state.victim[h] == 0:
                note_renewed(facts, state.loose[h], now)
    return -1


def _rank_one(
    row: int, now: float, facts: JobColumns, state: PreemptionState, rules: PreemptionRules, rank: Rank
) -> None:
    state.others[0] = row
    gather(facts, rules.columns, state.others[:1], now, facts.usage, state.values)
    rank(state.values, 1, state.keys)
    state.key[row] = state.keys[0]


def _queue_up(row: int, facts: JobColumns, state: PreemptionState) -> None:
    join(state.queue, state.set_of[facts.gpus[row]], state.key[row], row)
    state.counts[2] += facts.gpus[row]
    state.counts[6] += 1


def _stop(row: int, schedule: Schedule, facts: JobColumns, now: float) -> None:
    remove_end(schedule.ends, row)
    take_gpus(schedule, row)
    schedule.preemptions[row] += 1
    note_preempted(facts, row, now)


def _start_all(queue: SortedJobs, starts: Starts, site: Site, schedule: Schedule, state: PreemptionState) -> bool:
    """Start all waiting jobs, if there is room without a stop: the usual case on a machine that is not full."""
    if state.counts[2] > schedule.free[0]:
        return False
    idle = site.pool.idle
    if state.counts[6] > 1:
        copy_counts(idle, state.idle)
    for i in range(state.counts[6]):
        s = next_set(queue, len(queue.at)) if i > 0 else from_the_first(queue)
        row = queue.rows[queue.at[s]]
        taken = bins_taken(starts)
        spot = starts.bins[taken : taken + site.demand.gpus[row]]
        if not settle(site, row, spot):
            if i > 0:
                copy_counts(state.idle, idle)
            starts.size[0] = 0
            return False
        start(site, starts, row, spot)
        queue.at[s] += 1
    return True


def _begin_all(
    work: Work,
    site: Site,
    schedule: Schedule,
    facts: JobColumns,
    starts: Starts,
    state: PreemptionState,
    rules: PreemptionRules,
    now: float,
) -> None:
    begin = 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        leave(state.queue, state.set_of[facts.gpus[row]], state.key[row], row)
        state.counts[2] -= facts.gpus[row]
        state.counts[6] -= 1
        give_gpus(schedule, row, starts.bins[begin : starts.ends[i]], site.code, site.salt)
        begin = starts.ends[i]
        overhead = 0.0 if np.isnan(schedule.start[row]) else work.restart[row]
        note_started(facts, row, now, overhead)
        run_from(schedule, row, now, now + overhead + (work.run[row] - facts.progress[row]))
        if rules.ranks_hold:
            enlist(row, facts, state)
            continue
        note_worst(state, state.key[row], row)
        if state.counts[0] == len(state.running):
            forget_ended(facts, state)
        state.running[state.counts[0]] = row
        state.counts[0] += 1
