"""Running jobs that are ranked at every plan that may stop one, in the order of the last time: nearly right already.

Loops in numba's subset.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.discipline import Starts
from gpuyard.core.formulas import slice_over_at
from gpuyard.core.pool import Floats, Ints, Site
from gpuyard.sim.kernel.clock import Clock
from gpuyard.sim.kernel.desk import Desk, Rules, anybody_fits, change_times, take_from
from gpuyard.sim.kernel.facts import Facts, Rank, gather
from gpuyard.sim.kernel.line import Line, line_length
from gpuyard.sim.kernel.yard import Yard, asks_for_at_most


def nobody_stops(line: Line, desk: Desk) -> bool:
    """Whether old numbers will do to see that all running jobs go before all who wait."""
    key, row = line.keys[line.span[0]], line.rows[line.span[0]]
    return key > desk.worst[0] or (key == desk.worst[0] and row > desk.worst[1])


def note_worst(desk: Desk, key: float, row: int) -> None:
    """A job runs with that number."""
    if key > desk.worst[0] or (key == desk.worst[0] and row > desk.worst[1]):
        desk.worst[0] = key
        desk.worst[1] = row


def fill_up(site: Site, yard: Yard, line: Line, starts: Starts, desk: Desk, rules: Rules) -> None:
    """Start who fits without anybody being stopped."""
    if asks_for_at_most(yard.free[0], desk.waiting_of):
        take_from(desk.loose[:0], desk.keys[:0], site, yard, line, starts, desk, rules.strict)


def decide_anew(
    site: Site, yard: Yard, clock: Clock, facts: Facts, line: Line, starts: Starts, desk: Desk, rules: Rules,
    rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """Re-decide over running and waiting jobs together; returns a row without a number, or -1."""
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


def forget_ended(facts: Facts, desk: Desk) -> None:
    """Keep only rows that run."""
    kept = 0
    for i in range(desk.counts[0]):
        if facts.started[desk.running[i]] < np.inf:
            desk.running[kept] = desk.running[i]
            kept += 1
    desk.counts[0] = kept


def _part_from_victims(desk: Desk) -> None:
    """Those who may be stopped stand at the end of `running`; keep who goes on, and note the last of them."""
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


def _sort_out(facts: Facts, desk: Desk, rules: Rules, now: float) -> float:
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
        change_times(n, facts, desk, rules, change, now)
        for i in range(n):
            at = min(at, desk.keys[i])
    return at
