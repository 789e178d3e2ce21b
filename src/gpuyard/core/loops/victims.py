"""The inner loop of preemption: which jobs must stop so that a better job can run.

Waiting and running jobs are visited in one order, each taking what it needs from those behind it. Two rules keep
preemptions few: a job is placed without a stop where possible, and a victim that can stay although a better job comes
in does stay, best rank first. Loops in numba's subset, like the disciplines.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import Holders, Starts, bins_taken, held_spot, is_too_large, note_too_large, start
from gpuyard.core.loops.placement import claim, fits, fits_in_place, goes_by_size, has_room, most_idle, release, settle
from gpuyard.core.loops.pool import (
    CONSOLIDATE,
    INTERPRETED,
    Counts,
    Ints,
    Site,
    copy_counts,
    on_copy,
    restore,
)


class SortedJobs(NamedTuple):
    """Jobs in sets, each in rank order: waiting jobs are in one set for each number of GPUs, so that all jobs of a size
    that cannot fit are passed over at once, however many wait."""

    keys: Counts
    rows: Counts
    gpus: Counts  # that the jobs of each set ask for; 0: jobs that ask for more than a number of GPUs
    first: Counts  # where each set begins in `keys` and `rows`
    last: Counts  # and where it ends
    at: Counts  # the next job of each set, while a plan is made
    room: Counts = ()  # where the room of each set begins, and of the last one ends, where jobs come and go


def next_set(waiting: SortedJobs, sets: int) -> int:
    """Which of the first sets has the best job that was not looked at yet; -1 if none has any."""
    best, key, row = -1, np.inf, 0
    for s in range(sets):
        i = waiting.at[s]
        if i == waiting.last[s]:
            continue
        if best < 0 or waiting.keys[i] < key or (waiting.keys[i] == key and waiting.rows[i] < row):
            best, key, row = s, waiting.keys[i], waiting.rows[i]
    return best


def _leave_out(waiting: SortedJobs, sets: int, limits: Ints) -> int:
    """Pass over the jobs of the first sets that are too large; returns how many sets are left to look at."""
    left = 0
    for s in range(sets):
        if waiting.gpus[s] > 0 and is_too_large(waiting.gpus[s], limits):
            waiting.at[s] = waiting.last[s]
        elif waiting.at[s] < waiting.last[s]:
            left = s + 1
    return left


def choose_victims(
    waiting: SortedJobs, holders: Holders, holder_keys: Counts, stop: bool, site: Site, starts: Starts, victim: Counts,
    held: Counts, flat: Ints,
) -> None:  # fmt: skip
    """Decide which waiting jobs start and which holders, in rank order, stop (`victim` becomes 1).

    A victim is tried again when its own rank comes up: it stays where it is if there is room after all, and moves
    elsewhere if that is all there is. Ties go to the lower row. `held` is a zero for each node, to count with, and
    `flat` is the holders' bins as an array, where Python runs this.
    """
    demand, n, sets = site.demand, len(victim), len(waiting.at)
    blocked = False
    spoiled = False  # whether there are victims
    behind = 0  # holders before this one have had their turn
    counted = n  # from here on, what holders have is in `held`
    while True:
        s, turn = next_set(waiting, sets), n
        if s >= 0:
            i = waiting.at[s]
            turn = before(waiting.keys[i], waiting.rows[i], holder_keys, holders.rows)
        again = _next_victim(victim, behind, turn) if spoiled else turn
        if again < turn:
            row = holders.rows[again]
            behind = again + 1
            if _stays(again, holders, site, victim):
                continue
        elif s >= 0:
            row = waiting.rows[waiting.at[s]]
            waiting.at[s] += 1
            behind = turn
        else:
            return
        k, by_size = demand.gpus[row], goes_by_size(site, row)
        if blocked or (by_size and is_too_large(k, starts.limits)):
            continue
        taken = bins_taken(starts)
        spot = starts.bins[taken : taken + k]
        found = settle(site, row, spot)
        if not found and behind < n:
            if not site.fine:
                _count(behind, counted, holders, victim, flat, held)
            counted = behind
            found = _make_room(row, behind, held, holders, site, victim) and settle(site, row, spot)
            spoiled = spoiled or found
        if found:
            start(site, starts, row, spot)
        elif stop:
            blocked, sets = True, 0
        elif by_size:
            note_too_large(k, site, starts.limits)
            if behind == n and not spoiled and not site.fine:  # all that is left is what is idle
                starts.limits[1] = min(starts.limits[1], sum(site.pool.idle) + 1)
            sets = _leave_out(waiting, sets, starts.limits)


def _stays(again: int, holders: Holders, site: Site, victim: Counts) -> bool:
    """Whether a victim can stay where it is after all; if so, it does."""
    row, own = holders.rows[again], held_spot(holders, again)
    if not fits_in_place(site, row, own):
        return False
    claim(site, row, own)
    victim[again] = 0
    return True


def before(key: float, row: int, keys: Counts, rows: Ints) -> int:
    """How many of those rows, which are in rank order, go before a job; ties go to the lower row."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key or (keys[middle] == key and rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    return low


def _next_victim(victim: Counts, begin: int, end: int) -> int:
    for h in range(begin, end):
        if victim[h] == 1:
            return h
    return end


def _count(begin: int, counted: int, holders: Holders, victim: Counts, flat: Ints, held: Counts) -> None:
    """Make `held` what holders from `begin` on have of each node, victims left out; it was that from `counted` on."""
    if INTERPRETED and counted == len(victim):  # so far none was counted, and none is a victim
        held[:] = np.bincount(flat[holders.begins[begin] :], minlength=len(held)).tolist()
        return
    sign = 1 if begin < counted else -1
    for h in range(min(begin, counted), max(begin, counted)):
        if victim[h] == 0 and len(held) == 1:
            held[0] += sign * (holders.ends[h] - holders.begins[h])
        elif victim[h] == 0:
            for i in range(holders.begins[h], holders.ends[h]):
                held[holders.bins[i]] += sign


def _add_bins(h: int, sign: int, holders: Holders, counts: Counts) -> None:
    begin, end = holders.begins[h], holders.ends[h]
    if len(counts) == 1:
        counts[0] += sign * (end - begin)
    else:
        for i in range(begin, end):
            counts[holders.bins[i]] += sign


def _make_room(row: int, behind: int, held: Counts, holders: Holders, site: Site, victim: Counts) -> bool:
    """Make room for a job by stopping holders behind it, as few and as far behind as possible; false if impossible."""
    pool, k = site.pool, site.demand.gpus[row]
    one_node = site.code == CONSOLIDATE
    if site.fine:
        return _make_room_by_trial(row, behind, held, holders, site, victim)
    if one_node and k > pool.size[0] and k > pool.size[most_idle(pool.size)]:
        return _in_reach(k, held, site) and _make_room_by_trial(row, behind, held, holders, site, victim)
    room = 0  # how much may be given back: nodes that have enough, or GPUs beyond those needed
    for n in range(len(held)):
        reach = pool.idle[n] + held[n]
        room += (1 if reach >= k else 0) if one_node else reach
    if not one_node:
        room -= k - 1
    if room <= 0:
        return False
    for n in range(len(held)):
        pool.idle[n] += held[n]
    _spare_by_count(k, one_node, room, behind, held, holders, pool.idle, victim)
    return True


def _in_reach(k: int, held: Counts, site: Site) -> bool:
    pool = site.pool
    for n in range(len(held)):
        pool.idle[n] += held[n]
    enough = has_room(site.code, pool.size, pool.idle, k)
    for n in range(len(held)):
        pool.idle[n] -= held[n]
    return enough


def _spare_by_count(
    k: int, one_node: bool, room: int, behind: int, held: Counts, holders: Holders, idle: Counts, victim: Counts
) -> None:
    """Give holders their spots back while k GPUs stay idle, on one node or anywhere; the others are victims."""
    for h in range(behind, len(victim)):
        begin, end = holders.begins[h], holders.ends[h]
        if victim[h] == 1:
            continue
        lost = end - begin
        if one_node:
            lost = 0
            for i in range(begin, end):
                idle[holders.bins[i]] -= 1
                lost += 1 if idle[holders.bins[i]] == k - 1 else 0
        elif lost < room and len(idle) == 1:
            idle[0] -= lost
        elif lost < room:
            _add_bins(h, -1, holders, idle)
        if lost < room:
            room -= lost
            continue
        victim[h] = 1
        _add_bins(h, -1, holders, held)
        if one_node:
            _add_bins(h, 1, holders, idle)


def _make_room_by_trial(row: int, behind: int, held: Counts, holders: Holders, site: Site, victim: Counts) -> bool:
    """`_make_room` where counting is not enough: release all holders, and put back those that can stay."""
    trial = on_copy(site) if site.fine else site
    before_trial = site.pool.idle.copy()
    for h in range(behind, len(victim)):
        if victim[h] == 0:
            release(trial, holders.rows[h], held_spot(holders, h))
    if not fits(trial, row):
        copy_counts(before_trial, site.pool.idle)
        return False
    for h in range(behind, len(victim)):
        if victim[h] == 1:
            continue
        spot = held_spot(holders, h)
        claim(trial, holders.rows[h], spot)
        if not fits(trial, row):
            release(trial, holders.rows[h], spot)
            victim[h] = 1
            if not site.fine:
                for n in spot:
                    held[n] -= 1
    if site.fine:
        restore(site.pool, trial.pool)
    return True
