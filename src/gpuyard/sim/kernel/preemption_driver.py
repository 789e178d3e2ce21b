"""The compiled driver for preemptive policies: what `core.preemption` does for single plans.

Ranks of waiting jobs do not change, so they are computed when a job joins the queue. Running jobs are ranked as seldom
as their policy allows. Numbers of some policies stand until a time that the policy itself says, as those of `las` do
until they drop: such jobs are kept in rank order from plan to plan, and only numbers that may have changed are computed
again. Others are ranked at every plan that may stop a job, in the order of the last time, which is nearly right
already. Loops in numba's subset.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.loops.backfill import Starts, bins_taken, new_starts, start
from gpuyard.core.loops.formulas import slice_over_at
from gpuyard.core.loops.placement import settle
from gpuyard.core.loops.pool import Floats, Ints, Site
from gpuyard.sim.kernel.clock import Clock, is_time_to_plan, next_instant
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
    SortedQueue,
    anybody_fits,
    change_times,
    join,
    leave,
    line_length,
    take_from,
)
from gpuyard.sim.kernel.schedule import (
    Pieces,
    Schedule,
    Work,
    add_end,
    add_piece,
    asks_for_at_most,
    ends_by,
    give_gpus,
    is_full,
    longer,
    next_end,
    plan_salt,
    remove_end,
    run_from,
    take_gpus,
)


def enlist(row: int, now: float, facts: JobColumns, desk: PreemptionState) -> None:
    """A job begins to run; when its number changes is computed once a job waits."""
    if facts.preemptible[row]:
        join(desk.runners, desk.key[row], row)
        add_end(desk.drops, now, row)
        desk.counts[5] += facts.gpus[row]


def dismiss(row: int, facts: JobColumns, desk: PreemptionState) -> None:
    if desk.drops.place[row] >= 0:
        leave(desk.runners, desk.key[row], row)
        remove_end(desk.drops, row)
        desk.counts[5] -= facts.gpus[row]


def decide_standing(
    site: Site, yard: Schedule, clock: Clock, facts: JobColumns, line: SortedQueue, starts: Starts,
    desk: PreemptionState, rules: PreemptionRules,
    rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """Decide again over running and waiting jobs together; returns a row without a number, or -1."""
    wrong = _rank_due(facts, desk, rules, rank, change, now)
    if wrong >= 0:
        return wrong
    first, last = desk.runners.span[0], desk.runners.span[1]
    rows, keys = desk.runners.rows[first:last], desk.runners.keys[first:last]
    if anybody_fits(rows, keys, desk.counts[5], yard.free[0], line, desk.waiting_of, facts):
        take_from(rows, keys, site, yard, line, starts, desk, rules.strict)
        _dismiss_victims(facts, desk)
    if line_length(line) + desk.counts[4] > starts.size[0]:
        clock.due[0] = max(_wake_for_drops(starts, facts, desk, rules, change, now), np.nextafter(now, np.inf))
    return -1


def _near(time: float) -> float:
    """How far a time may be from its earlier value: rounding, and the tolerance of policies."""
    return 1e-5 + 1e-9 * abs(time)


def _rank_due(
    facts: JobColumns, desk: PreemptionState, rules: PreemptionRules, rank: Rank, change: Rank, now: float
) -> int:
    """Compute the numbers that may have changed by now; returns a row without one, or -1."""
    n = ends_by(desk.drops, now + _near(now), desk.others)
    if n == 0:
        return -1
    gather(facts, rules.columns, desk.others[:n], now, facts.usage, desk.values)
    rank(desk.values, n, desk.keys)
    for i in range(n):
        row, key = desk.others[i], desk.keys[i]
        if np.isnan(key):
            return int(row)
        if key != desk.key[row]:
            leave(desk.runners, desk.key[row], row)
            join(desk.runners, key, row)
            desk.key[row] = key
    change_times(n, facts, desk, rules, change, now)
    for i in range(n):
        row = desk.others[i]
        if np.isnan(desk.keys[i]):
            return int(row)
        remove_end(desk.drops, row)
        add_end(desk.drops, desk.keys[i], row)
    return -1


def _dismiss_victims(facts: JobColumns, desk: PreemptionState) -> None:
    first, stops = desk.runners.span[0], 0
    for h in range(desk.runners.span[1] - first):
        if desk.victim[h] == 1:
            desk.stopped[stops] = desk.runners.rows[first + h]
            stops += 1
    for i in range(stops):
        dismiss(desk.stopped[i], facts, desk)
    desk.counts[4] = stops


def _wake_for_drops(
    starts: Starts, facts: JobColumns, desk: PreemptionState, rules: PreemptionRules, change: Rank, now: float
) -> float:
    """When a rank changes by itself, to the last bit: computed again for all that could be the first."""
    n = starts.size[0]
    for i in range(n):
        desk.others[i] = starts.rows[i]
    first = next_end(desk.drops)
    if first < np.inf:
        desk.others[n] = desk.drops.row[0]
        n += 1
    change_times(n, facts, desk, rules, change, now)
    at = _earliest(n, desk)
    if first < np.inf:
        n = ends_by(desk.drops, at + _near(at), desk.others)
        if n > 1:  # not just the one that was looked at
            change_times(n, facts, desk, rules, change, now)
            at = min(at, _earliest(n, desk))
    return at


def _earliest(n: int, desk: PreemptionState) -> float:
    at = np.inf
    for i in range(n):
        at = min(at, desk.keys[i])
    return at


def nobody_stops(line: SortedQueue, desk: PreemptionState) -> bool:
    """Whether old numbers are enough to see that all running jobs go before all that wait."""
    key, row = line.keys[line.span[0]], line.rows[line.span[0]]
    return key > desk.worst[0] or (key == desk.worst[0] and row > desk.worst[1])


def note_worst(desk: PreemptionState, key: float, row: int) -> None:
    if key > desk.worst[0] or (key == desk.worst[0] and row > desk.worst[1]):
        desk.worst[0] = key
        desk.worst[1] = row


def fill_up(
    site: Site, yard: Schedule, line: SortedQueue, starts: Starts, desk: PreemptionState, rules: PreemptionRules
) -> None:
    """Start what fits without a stop."""
    if asks_for_at_most(yard.free[0], desk.waiting_of):
        take_from(desk.loose[:0], desk.keys[:0], site, yard, line, starts, desk, rules.strict)


def decide_anew(
    site: Site, yard: Schedule, clock: Clock, facts: JobColumns, line: SortedQueue, starts: Starts,
    desk: PreemptionState, rules: PreemptionRules,
    rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """`decide_standing` for policies whose numbers can change at any time: all are computed again."""
    soon = _sort_out(facts, desk, rules, now)
    n = desk.counts[1]
    gather(facts, rules.columns, desk.loose[:n], now, facts.usage, desk.values)
    rank(desk.values, n, desk.keys)
    behind = 0
    for h in range(n):
        desk.victim[h] = 0
        behind += facts.gpus[desk.loose[h]]
        if np.isnan(desk.keys[h]):
            return int(desk.loose[h])
    _sort(desk.keys, desk.loose, n)
    if anybody_fits(desk.loose[:n], desk.keys, behind, yard.free[0], line, desk.waiting_of, facts):
        take_from(desk.loose[:n], desk.keys[:n], site, yard, line, starts, desk, rules.strict)
    _part_from_victims(desk)
    if line_length(line) + desk.counts[4] > starts.size[0]:
        clock.due[0] = max(_wake_at(soon, starts, facts, desk, rules, change, now), np.nextafter(now, np.inf))
    return -1


def forget_ended(facts: JobColumns, desk: PreemptionState) -> None:
    kept = 0
    for i in range(desk.counts[0]):
        if facts.started[desk.running[i]] < np.inf:
            desk.running[kept] = desk.running[i]
            kept += 1
    desk.counts[0] = kept


def _part_from_victims(desk: PreemptionState) -> None:
    """Jobs that may be stopped are at the end of `running`; keep those that go on, and note the last of them."""
    n, stops = desk.counts[1], 0
    kept = desk.counts[0] - n
    desk.worst[0] = -np.inf
    for h in range(n):
        if desk.victim[h] == 1:
            desk.stopped[stops] = desk.loose[h]
            stops += 1
        else:
            desk.running[kept] = desk.loose[h]
            note_worst(desk, desk.keys[h], desk.loose[h])
            kept += 1
    desk.counts[0] = kept
    desk.counts[4] = stops


def _sort_out(facts: JobColumns, desk: PreemptionState, rules: PreemptionRules, now: float) -> float:
    """Which jobs run, and which of them may be stopped now; returns when the first of the others may be."""
    soon = np.inf
    slack = 1e-9 * max(1.0, abs(now))  # nearer than this, look exactly
    loose, others = 0, 0
    for i in range(desk.counts[0]):
        row = desk.running[i]
        if facts.started[row] == np.inf:
            continue
        free_at = now
        if rules.sliced:
            free_at = desk.over[row]
            if now >= free_at - slack:
                free_at = float(slice_over_at(facts.slice_started[row], rules.quantum, now))
                desk.over[row] = free_at
        elif rules.quantum > 0:
            free_at = facts.slice_started[row] + rules.quantum
        stays = rules.any_fixed and not facts.preemptible[row]
        if free_at <= now and not stays:
            desk.loose[loose] = row
            loose += 1
        else:
            desk.others[others] = row
            others += 1
            if not stays:
                soon = min(soon, free_at)
    for i in range(others):
        desk.running[i] = desk.others[i]
    desk.counts[0] = others + loose
    desk.counts[1] = loose
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
    desk: PreemptionState,
    rules: PreemptionRules,
    change: Rank,
    now: float,
) -> float:
    """When the plan could change although nothing happens: a quantum is over, or a rank changes by itself."""
    at = soon
    rows, kept = desk.others, 0
    for h in range(desk.counts[1]):
        if desk.victim[h] == 0:
            rows[kept] = desk.loose[h]
            kept += 1
    if rules.quantum > 0 and (starts.size[0] > 0 or (rules.sliced and kept > 0)):
        at = min(at, now + rules.quantum)
    if rules.changes:
        n = kept
        for i in range(starts.size[0]):
            rows[n] = starts.rows[i]
            n += 1
        change_times(n, facts, desk, rules, change, now)
        for i in range(n):
            at = min(at, desk.keys[i])
    return at


def run_preempting(
    work: Work, site: Site, yard: Schedule, clock: Clock, facts: JobColumns, line: SortedQueue, pieces: Pieces,
    desk: PreemptionState,
    rules: PreemptionRules, rank: Rank, change: Rank,
) -> tuple[int, Pieces]:  # fmt: skip
    """Simulate a preemptive policy; returns the row that it had no number for, or -1, and all stretches of time."""
    starts = new_starts(yard.free[0] + 1, 2 * yard.free[0] + 1)
    while True:
        if is_full(pieces, len(desk.waiting_of)):
            pieces = longer(pieces)
        now = next_instant(clock, work, yard, site.pool.idle, False)
        if now == np.inf:
            return -1, pieces
        wrong = _take_in(work, yard, clock, facts, line, pieces, desk, rules, rank, now)
        if wrong < 0 and is_time_to_plan(clock, now, desk.counts[3] > 0, rules.every) and line_length(line) > 0:
            if is_full(pieces, len(desk.waiting_of)):
                pieces = longer(pieces)
            wrong = _plan(work, site, yard, clock, facts, line, starts, pieces, desk, rules, rank, change, now)
        if wrong >= 0:
            return wrong, pieces


def _take_in(
    work: Work, yard: Schedule, clock: Clock, facts: JobColumns, line: SortedQueue, pieces: Pieces,
    desk: PreemptionState, rules: PreemptionRules,
    rank: Rank, now: float,
) -> int:  # fmt: skip
    """Book finished and arrived jobs; returns a row without a number, or -1."""
    for i in range(clock.counts[0]):
        row = clock.finished[i]
        add_piece(pieces, yard, row, facts.started[row], now)
        note_finished(facts, row, now)
        if rules.standing:
            dismiss(row, facts, desk)
    desk.counts[3] = clock.counts[0]
    for row in range(clock.counts[1], clock.counts[2]):
        if work.rejected[row]:
            yard.done[0] += 1
            continue
        note_submitted(facts, row)
        _queue_up(row, now, facts, line, desk, rules, rank)
        if np.isnan(desk.key[row]):
            return row
        desk.counts[3] += 1
    return -1


def _plan(
    work: Work, site: Site, yard: Schedule, clock: Clock, facts: JobColumns, line: SortedQueue, starts: Starts,
    pieces: Pieces,
    desk: PreemptionState, rules: PreemptionRules, rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """Make a plan and carry it out; returns a row without a number, or -1."""
    site = Site(
        site.demand,
        site.pool,
        site.code,
        plan_salt(site, rules.seed, facts.numbers[1]),
        site.fine,
        site.tasks,
        site.parts,
    )
    starts.size[0] = 0
    desk.counts[1] = 0
    desk.counts[4] = 0
    wrong = -1
    if not rules.sliced and _everybody_starts(line, starts, site, yard, desk):
        pass
    elif rules.standing:
        wrong = decide_standing(site, yard, clock, facts, line, starts, desk, rules, rank, change, now)
    elif rules.improves and nobody_stops(line, desk):
        fill_up(site, yard, line, starts, desk, rules)
    else:
        wrong = decide_anew(site, yard, clock, facts, line, starts, desk, rules, rank, change, now)
    if wrong >= 0:
        return wrong
    for i in range(desk.counts[4]):
        row = desk.stopped[i]
        add_piece(pieces, yard, row, facts.started[row], now)
        _stop(row, yard, facts, now)
        _queue_up(row, now, facts, line, desk, rules, rank)
    _begin_all(work, site, yard, facts, line, starts, desk, rules, now)
    if rules.sliced:
        for h in range(desk.counts[1]):
            if desk.victim[h] == 0:
                note_renewed(facts, desk.loose[h], now)
    return -1


def _queue_up(
    row: int,
    now: float,
    facts: JobColumns,
    line: SortedQueue,
    desk: PreemptionState,
    rules: PreemptionRules,
    rank: Rank,
) -> None:
    """A job joins the queue with the number that it will have there."""
    desk.others[0] = row
    gather(facts, rules.columns, desk.others[:1], now, facts.usage, desk.values)
    rank(desk.values, 1, desk.keys)
    desk.key[row] = desk.keys[0]
    join(line, desk.key[row], row)
    desk.counts[2] += facts.gpus[row]
    desk.waiting_of[facts.gpus[row]] += 1


def _stop(row: int, yard: Schedule, facts: JobColumns, now: float) -> None:
    take_gpus(yard, row)
    yard.preemptions[row] += 1
    note_preempted(facts, row, now)


def _everybody_starts(line: SortedQueue, starts: Starts, site: Site, yard: Schedule, desk: PreemptionState) -> bool:
    """Start all waiting jobs, if there is room without a stop: the usual case on a machine that is not full."""
    if desk.counts[2] > yard.free[0]:
        return False
    idle = site.pool.idle
    for n in range(len(idle)):
        desk.idle[n] = idle[n]
    for i in range(line.span[0], line.span[1]):
        row = line.rows[i]
        taken = bins_taken(starts)
        spot = starts.bins[taken : taken + site.demand.gpus[row]]
        if not settle(site, row, spot):
            for n in range(len(idle)):
                idle[n] = desk.idle[n]
            starts.size[0] = 0
            return False
        start(site, starts, row, spot)
    return True


def _begin_all(
    work: Work,
    site: Site,
    yard: Schedule,
    facts: JobColumns,
    line: SortedQueue,
    starts: Starts,
    desk: PreemptionState,
    rules: PreemptionRules,
    now: float,
) -> None:
    begin = 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        leave(line, desk.key[row], row)
        desk.counts[2] -= facts.gpus[row]
        desk.waiting_of[facts.gpus[row]] -= 1
        give_gpus(yard, row, starts.bins[begin : starts.ends[i]], site.code, site.salt)
        begin = starts.ends[i]
        overhead = 0.0 if np.isnan(yard.start[row]) else work.restart[row]
        note_started(facts, row, now, overhead)
        run_from(yard, row, now, now + overhead + (work.run[row] - facts.progress[row]))
        if rules.standing:
            enlist(row, now, facts, desk)
            continue
        note_worst(desk, desk.key[row], row)
        if desk.counts[0] == len(desk.running):
            forget_ended(facts, desk)
        desk.running[desk.counts[0]] = row
        desk.counts[0] += 1
