"""Running jobs whose numbers stand until a time that the policy itself tells, as those of `las` do until they drop.

They are kept in rank order from plan to plan, and only numbers that may have changed are worked out again. Loops in
numba's subset.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.discipline import Starts
from gpuyard.core.pool import Site
from gpuyard.sim.kernel.clock import Clock
from gpuyard.sim.kernel.desk import Desk, Rules, anybody_fits, change_times, take_from
from gpuyard.sim.kernel.ends import add_end, ends_by, next_end, remove_end
from gpuyard.sim.kernel.facts import Facts, Rank, gather
from gpuyard.sim.kernel.line import Line, join, leave, line_length
from gpuyard.sim.kernel.yard import Yard


def enlist(row: int, now: float, facts: Facts, desk: Desk) -> None:
    """A job begins to run; when its number changes is worked out once somebody waits."""
    if facts.preemptible[row]:
        join(desk.runners, desk.key[row], row)
        add_end(desk.drops, now, row)
        desk.counts[5] += facts.gpus[row]


def dismiss(row: int, facts: Facts, desk: Desk) -> None:
    """A job runs no more."""
    if desk.drops.place[row] >= 0:
        leave(desk.runners, desk.key[row], row)
        remove_end(desk.drops, row)
        desk.counts[5] -= facts.gpus[row]


def decide_standing(
    site: Site, yard: Yard, clock: Clock, facts: Facts, line: Line, starts: Starts, desk: Desk, rules: Rules,
    rank: Rank, change: Rank, now: float,
) -> int:  # fmt: skip
    """Re-decide over running and waiting jobs together; returns a row without a number, or -1."""
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
    """How far a time may be from what it was worked out to be earlier: roundings, and what policies allow for them."""
    return 1e-5 + 1e-9 * abs(time)


def _rank_due(facts: Facts, desk: Desk, rules: Rules, rank: Rank, change: Rank, now: float) -> int:
    """Work out the numbers that may have changed by now; returns a row without one, or -1."""
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


def _dismiss_victims(facts: Facts, desk: Desk) -> None:
    """Note who has to stop."""
    first, stops = desk.runners.span[0], 0
    for h in range(desk.runners.span[1] - first):
        if desk.victim[h] == 1:
            desk.stopped[stops] = desk.runners.rows[first + h]
            stops += 1
    for i in range(stops):
        dismiss(desk.stopped[i], facts, desk)
    desk.counts[4] = stops


def _wake_for_drops(starts: Starts, facts: Facts, desk: Desk, rules: Rules, change: Rank, now: float) -> float:
    """When a rank changes by itself, to the last bit: worked out anew for all who could be the first."""
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


def _earliest(n: int, desk: Desk) -> float:
    at = np.inf
    for i in range(n):
        at = min(at, desk.keys[i])
    return at
