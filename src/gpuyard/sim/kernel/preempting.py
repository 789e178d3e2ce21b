"""The compiled driver for preemptive policies: what `core.preemption` does for single plans.

Ranks of waiting jobs stand still, so they are worked out when a job joins the queue. Running jobs are ranked as seldom
as their policy allows: see `standing` and `anew`. Loops in numba's subset.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.discipline import Starts, bins_taken, new_starts, start
from gpuyard.core.placement import settle
from gpuyard.core.pool import Site
from gpuyard.sim.kernel.anew import decide_anew, fill_up, forget_ended, nobody_stops, note_worst
from gpuyard.sim.kernel.clock import Clock, is_time_to_plan, next_instant
from gpuyard.sim.kernel.desk import Desk, Rules
from gpuyard.sim.kernel.facts import (
    Facts,
    Rank,
    gather,
    note_finished,
    note_preempted,
    note_renewed,
    note_started,
    note_submitted,
)
from gpuyard.sim.kernel.line import Line, join, leave, line_length
from gpuyard.sim.kernel.standing import decide_standing, dismiss, enlist
from gpuyard.sim.kernel.yard import (
    Pieces,
    Work,
    Yard,
    add_piece,
    give_gpus,
    is_full,
    longer,
    plan_salt,
    run_from,
    take_gpus,
)


def run_preempting(
    work: Work, site: Site, yard: Yard, clock: Clock, facts: Facts, line: Line, pieces: Pieces, desk: Desk,
    rules: Rules, rank: Rank, change: Rank,
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
    work: Work, yard: Yard, clock: Clock, facts: Facts, line: Line, pieces: Pieces, desk: Desk, rules: Rules,
    rank: Rank, now: float,
) -> int:  # fmt: skip
    """Book who has finished and who has arrived; returns a row without a number, or -1."""
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
    work: Work, site: Site, yard: Yard, clock: Clock, facts: Facts, line: Line, starts: Starts, pieces: Pieces,
    desk: Desk, rules: Rules, rank: Rank, change: Rank, now: float,
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


def _queue_up(row: int, now: float, facts: Facts, line: Line, desk: Desk, rules: Rules, rank: Rank) -> None:
    """A job joins the queue with the number that it will have there."""
    desk.others[0] = row
    gather(facts, rules.columns, desk.others[:1], now, facts.usage, desk.values)
    rank(desk.values, 1, desk.keys)
    desk.key[row] = desk.keys[0]
    join(line, desk.key[row], row)
    desk.counts[2] += facts.gpus[row]
    desk.waiting_of[facts.gpus[row]] += 1


def _stop(row: int, yard: Yard, facts: Facts, now: float) -> None:
    take_gpus(yard, row)
    yard.preemptions[row] += 1
    note_preempted(facts, row, now)


def _everybody_starts(line: Line, starts: Starts, site: Site, yard: Yard, desk: Desk) -> bool:
    """Start all that waits, if there is room without stopping anybody: the usual case on a machine that is not full."""
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
    work: Work, site: Site, yard: Yard, facts: Facts, line: Line, starts: Starts, desk: Desk, rules: Rules, now: float
) -> None:
    """Let everybody begin whom the plan starts."""
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
