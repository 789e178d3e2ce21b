"""The compiled driver for preemptive policies: what `core.preemption` does for single plans.

Ranks of waiting jobs stand still, so they are worked out when a job joins the queue. Running jobs are ranked at
every plan that may stop one, in the order of the last time, which is nearly right already. Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.discipline import Holders, Starts, bins_taken, new_starts, start
from gpuyard.core.displacement import displace
from gpuyard.core.formulas import slice_over_at
from gpuyard.core.placement import settle
from gpuyard.core.pool import Floats, Ints, Site
from gpuyard.sim.kernel.clock import Clock, is_time_to_plan, next_instant
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
from gpuyard.sim.kernel.yard import (
    Pieces,
    Work,
    Yard,
    add_piece,
    asks_for_at_most,
    give_gpus,
    is_full,
    longer,
    plan_salt,
    run_from,
    take_gpus,
)


class Rules(NamedTuple):
    """How a preemptive policy is to be obeyed."""

    columns: Ints
    """Codes of the columns that ranks depend on."""
    change_columns: Ints
    """The same for the seconds until a rank changes by itself."""
    changes: bool
    """Whether there are such."""
    quantum: float
    sliced: bool
    strict: bool
    any_fixed: bool
    """Whether some jobs may not be stopped."""
    improves: bool
    """Whether the number of a running job never grows."""
    seed: int
    every: float


class Desk(NamedTuple):
    """Arrays to work with, so that plans allocate nothing."""

    running: Ints
    """Rows that run, nearly by rank, and some that have ended."""
    loose: Ints
    """Those of them that may be stopped now, by rank."""
    keys: Floats
    others: Ints
    begins: Ints
    ends: Ints
    bins: Ints
    victim: Ints
    held: Ints
    idle: Ints
    values: Floats
    key: Floats
    """Of every row: its number in the queue."""
    counts: Ints
    """How many rows are in `running`; how many of those may be stopped; GPUs wanted by all who wait; what
    has happened at this instant."""
    waiting_of: Ints
    """How many wait for one GPU, two, and so on."""
    over: Floats
    """Of every row: when its present slice is over, as far as that was worked out."""
    worst: Floats
    """The number that no running job's exceeds, the row behind whom none with that number is, and until when."""


def new_desk(gpus: int, nodes: int, rows: int, columns: int) -> Desk:
    """Arrays for so many GPUs, nodes and jobs, and policies of so many columns."""
    most = gpus + 1
    return Desk(
        np.empty(2 * most, np.int64), np.empty(most, np.int64), np.empty(most), np.empty(most, np.int64),
        np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(most, np.int64),
        np.zeros(nodes, np.int64), np.zeros(nodes, np.int64), np.empty((max(columns, 1), most)), np.empty(rows),
        np.zeros(4, np.int64), np.zeros(gpus + 1, np.int64), np.full(rows, -np.inf), np.array([-np.inf, -1.0, -np.inf]),
    )  # fmt: skip


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
    site = Site(site.demand, site.pool, site.code, plan_salt(site, rules.seed, facts.numbers[1]), site.fine, site.tasks)
    starts.size[0] = 0
    desk.counts[1] = 0
    if not rules.sliced and _everybody_starts(line, starts, site, yard, desk):
        if not rules.improves:
            desk.worst[2] = -np.inf
    elif _nobody_stops(line, desk, rules, now):
        _fill_up(site, yard, clock, facts, line, starts, desk, rules, change, now)
    else:
        wrong = _decide(site, yard, clock, facts, line, starts, desk, rules, rank, change, now)
        if wrong >= 0:
            return wrong
        _forget_victims(desk)
        for h in range(desk.counts[1]):
            if desk.victim[h] == 1:
                row = desk.loose[h]
                add_piece(pieces, yard, row, facts.started[row], now)
                _stop(row, yard, facts, now)
                _queue_up(row, now, facts, line, desk, rules, rank)
    _begin_all(work, site, yard, facts, line, starts, desk, now)
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


def _nobody_stops(line: Line, desk: Desk, rules: Rules, now: float) -> bool:
    """Whether it is known that all running jobs go before all who wait."""
    if rules.sliced or rules.quantum > 0 or now >= desk.worst[2]:
        return False
    key, row = line.keys[line.span[0]], line.rows[line.span[0]]
    return key > desk.worst[0] or (key == desk.worst[0] and row > desk.worst[1])


def _note_worst(desk: Desk, key: float, row: int) -> None:
    if key > desk.worst[0] or (key == desk.worst[0] and row > desk.worst[1]):
        desk.worst[0] = key
        desk.worst[1] = row


def _fill_up(
    site: Site, yard: Yard, clock: Clock, facts: Facts, line: Line, starts: Starts, desk: Desk, rules: Rules,
    change: Rank, now: float,
) -> None:  # fmt: skip
    """Start who fits without anybody being stopped."""
    if asks_for_at_most(yard.free[0], desk.waiting_of):
        _displace(0, site, yard, line, starts, desk, rules)
    if rules.changes and line_length(line) > starts.size[0]:
        soon = _sort_out(site, facts, desk, rules, now)
        for h in range(desk.counts[1]):
            desk.victim[h] = 0
        desk.worst[2] = _wake_at(soon, starts, facts, desk, rules, change, now)
        _forget_victims(desk)
        clock.due[0] = max(desk.worst[2], np.nextafter(now, np.inf))


def _displace(n: int, site: Site, yard: Yard, line: Line, starts: Starts, desk: Desk, rules: Rules) -> None:
    """Let the queue take what it needs from what is idle and from the first n of those who may be stopped."""
    first, last = line.span[0], line.span[1]
    _lay_out(n, yard, desk)
    holders = Holders(desk.loose[:n], desk.begins[:n], desk.ends[:n], desk.bins, desk.keys[:0])
    for b in range(len(desk.held)):
        desk.held[b] = 0
    taken = desk.ends[n - 1] if n > 0 else 0
    displace(
        line.rows[first:last], line.keys[first:last], holders, desk.keys[:n], rules.strict, site, starts,
        desk.victim[:n], desk.held, desk.bins[:taken],
    )  # fmt: skip


def _begin_all(
    work: Work, site: Site, yard: Yard, facts: Facts, line: Line, starts: Starts, desk: Desk, now: float
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
        _note_worst(desk, desk.key[row], row)
        run_from(yard, row, now, now + overhead + (work.run[row] - facts.progress[row]))
        if desk.counts[0] == len(desk.running):
            _forget_ended(facts, desk)
        desk.running[desk.counts[0]] = row
        desk.counts[0] += 1


def _forget_ended(facts: Facts, desk: Desk) -> None:
    """Keep only rows that run."""
    kept = 0
    for i in range(desk.counts[0]):
        if facts.started[desk.running[i]] < np.inf:
            desk.running[kept] = desk.running[i]
            kept += 1
    desk.counts[0] = kept


def _forget_victims(desk: Desk) -> None:
    """Those who may be stopped stand at the end of `running`; keep only who goes on."""
    n = desk.counts[1]
    kept = desk.counts[0] - n
    for h in range(n):
        if desk.victim[h] == 0:
            desk.running[kept] = desk.loose[h]
            kept += 1
    desk.counts[0] = kept


def _decide(
    site: Site, yard: Yard, clock: Clock, facts: Facts, line: Line, starts: Starts, desk: Desk, rules: Rules,
    rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """Re-decide over running and waiting jobs together; returns a row without a number, or -1."""
    soon = _sort_out(site, facts, desk, rules, now)
    n = desk.counts[1]
    gather(facts, rules.columns, desk.loose[:n], now, facts.usage, desk.values)
    rank(desk.values, n, desk.keys)
    for h in range(n):
        desk.victim[h] = 0
        if np.isnan(desk.keys[h]):
            return int(desk.loose[h])
    _sort(desk.keys, desk.loose, n)
    if _anybody_fits(line, yard.free[0], desk, facts):
        ahead = n > 0 and line.keys[line.span[0]] <= desk.keys[n - 1]
        _displace(n if ahead else 0, site, yard, line, starts, desk, rules)
    stops = 0
    desk.worst[0] = -np.inf
    for h in range(n):
        stops += desk.victim[h]
        if desk.victim[h] == 0:
            _note_worst(desk, desk.keys[h], desk.loose[h])
    desk.worst[2] = np.inf if rules.improves and not rules.any_fixed else -np.inf
    if line_length(line) + stops > starts.size[0]:
        at = _wake_at(soon, starts, facts, desk, rules, change, now)
        if rules.changes and not rules.any_fixed:
            desk.worst[2] = at
        clock.due[0] = max(at, np.nextafter(now, np.inf))
    return -1


def _sort_out(site: Site, facts: Facts, desk: Desk, rules: Rules, now: float) -> float:
    """Who runs, and who of them may be stopped now; returns when the first of the others may be."""
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
    """By key, ties by row; quick where it is nearly so."""
    for i in range(1, n):
        key, row = keys[i], rows[i]
        j = i
        while j > 0 and (keys[j - 1] > key or (keys[j - 1] == key and rows[j - 1] > row)):
            keys[j] = keys[j - 1]
            rows[j] = rows[j - 1]
            j -= 1
        keys[j] = key
        rows[j] = row


def _anybody_fits(line: Line, free: int, desk: Desk, facts: Facts) -> bool:
    """Whether any waiting job could find room in what is idle and what those behind it hold."""
    n = desk.counts[1]
    if asks_for_at_most(free, desk.waiting_of):
        return True
    behind = 0
    for i in range(n):
        behind += facts.gpus[desk.loose[i]]
    h = 0
    for i in range(line.span[0], line.span[1]):
        while h < n and desk.keys[h] < line.keys[i]:
            behind -= facts.gpus[desk.loose[h]]
            h += 1
        if h == n:
            return False
        if facts.gpus[line.rows[i]] <= free + behind:
            return True
    return False


def _lay_out(n: int, yard: Yard, desk: Desk) -> None:
    """Lay the spots of the first n holders end to end."""
    end = 0
    for h in range(n):
        row = desk.loose[h]
        desk.begins[h] = end
        for i in range(yard.offset[row], yard.offset[row + 1]):
            desk.bins[end] = yard.nodes[i]
            end += 1
        desk.ends[h] = end


def _wake_at(soon: float, starts: Starts, facts: Facts, desk: Desk, rules: Rules, change: Rank, now: float) -> float:
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
        gather(facts, rules.change_columns, rows[:n], now, facts.usage, desk.values)
        change(desk.values, n, desk.keys)
        for i in range(n):
            row = rows[i]
            # A job that is still restarting makes no progress yet.
            restarting = facts.started[row] + facts.overhead[row] - now if facts.started[row] < np.inf else 0.0
            at = min(at, now + (desk.keys[i] + max(restarting, 0.0)))
    return at
