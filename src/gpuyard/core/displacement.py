"""The inner loop of preemption: who must stop so that a better job can run.

Waiting and running jobs are walked in one order, each taking what it needs from those behind it. Two rules keep
it humane: a job is placed before anybody is stopped for it, and whoever can stay although a better job comes in
does stay, best rank first. Loops in numba's subset, like the disciplines.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.discipline import NO_LIMIT, Holders, Starts, held_spot, start
from gpuyard.core.placement import (
    CONSOLIDATE,
    NOBODY,
    Floats,
    Ints,
    Site,
    claim,
    fits,
    fits_in_place,
    on_copy,
    place,
    release,
    takes_any,
)


def displace(
    order: Ints, keys: Floats, holders: Holders, holder_keys: Floats, stop: bool, site: Site, starts: Starts,
    victim: Ints,
) -> None:  # fmt: skip
    """Decide which of `order` start and which holders stop (`victim` is 1); both are in rank order.

    A victim is looked at again when its own rank comes up: it stays where it is if there is room after all, and moves
    elsewhere if that is all there is. Ties go to the lower row.
    """
    demand, n = site.demand, len(holders.rows)
    limit = NO_LIMIT
    blocked = False
    spoiled = False  # whether there are victims
    i = 0
    behind = 0  # holders before this one have had their turn
    counted = -1  # from where on holders have been counted in `held`
    held = site.pool.idle
    while True:
        turn = _holders_before(order[i], keys[i], holders.rows, holder_keys) if i < len(order) else n
        again = _next_victim(victim, behind, turn) if spoiled else turn
        if again < turn:
            row = holders.rows[again]
            behind = again + 1
            own = held_spot(holders, again)
            if fits_in_place(site, row, own):
                claim(site, row, own)
                victim[again] = 0
                counted = -1
                continue
        elif i < len(order):
            row = order[i]
            behind = turn
            i += 1
        else:
            return
        any_gpu = takes_any(demand, row)
        if blocked or (any_gpu and demand.gpus[row] >= limit):
            continue
        spot = place(site, row)
        if len(spot) == 0 and behind < n:
            if not site.fine and counted != behind:
                held = _held_from(behind, holders, victim, len(site.pool.idle))
                counted = behind
            spot = _make_room(row, behind, held, holders, site, victim)
            if len(spot) > 0:
                spoiled = True
                counted = -1
        if len(spot) > 0:
            start(site, starts, row, spot)
        elif stop:
            blocked = True
            i = len(order)
        elif any_gpu:
            limit = demand.gpus[row]
            if not site.fine:
                small = demand.gpus[order[i:]] < limit
                order, keys, i = order[i:][small], keys[i:][small], 0


def _holders_before(row: int, key: float, rows: Ints, keys: Floats) -> int:
    """How many holders rank before a waiting job; among equals, rows ascend."""
    first = np.searchsorted(keys, key)
    if first == len(keys) or keys[first] != key:
        return int(first)
    last = np.searchsorted(keys, key, side="right")
    return int(first + np.searchsorted(rows[first:last], row))


def _next_victim(victim: Ints, begin: int, end: int) -> int:
    """The first victim from `begin` on, or `end`."""
    some = np.flatnonzero(victim[begin:end])
    return int(begin + some[0]) if len(some) > 0 else end


def _make_room(row: int, behind: int, held: Ints, holders: Holders, site: Site, victim: Ints) -> Ints:
    """A spot for a job at the cost of holders behind it, as few and as far behind as will do; empty if none will.

    Where bins are nodes, `held` is what those holders have of each.
    """
    pool, k = site.pool, site.demand.gpus[row]
    if site.fine:
        return _make_room_by_trial(row, behind, holders, site, victim)
    idle = pool.idle + held
    one_node = site.code == CONSOLIDATE
    if one_node and k > pool.size.max():
        return _make_room_by_trial(row, behind, holders, site, victim)
    if (idle.max() if one_node else idle.sum()) < k:
        return NOBODY
    _spare_by_count(k, one_node, behind, holders, idle, victim)
    pool.idle[:] = idle - _held_from(behind, holders, victim, len(idle))
    return place(site, row)


def _make_room_by_trial(row: int, behind: int, holders: Holders, site: Site, victim: Ints) -> Ints:
    """The same where counting is not enough: take all holders away, and put back those who can stay."""
    trial = on_copy(site)
    live: Ints = np.flatnonzero(victim[behind:] == 0) + behind
    for h in live:
        release(trial, holders.rows[h], held_spot(holders, h))
    if not fits(trial, row):
        return NOBODY
    for h in live:
        spot = held_spot(holders, h)
        claim(trial, holders.rows[h], spot)
        if not fits(trial, row):
            release(trial, holders.rows[h], spot)
            victim[h] = 1
    site.pool.idle[:] = trial.pool.idle
    if site.fine:
        site.pool.tenants[:] = trial.pool.tenants
        site.pool.memory[:] = trial.pool.memory
        site.pool.compute[:] = trial.pool.compute
    return place(site, row)


def _held_from(begin: int, holders: Holders, victim: Ints, nodes: int) -> Ints:
    """What holders from `begin` on, victims left out, have of each node."""
    first = holders.ends[begin - 1] if begin > 0 else 0
    bins = holders.bins[first:]
    if victim[begin:].any():
        sizes = holders.ends[begin:].copy()
        sizes[1:] -= holders.ends[begin:-1]
        sizes[0] -= first
        bins = bins[np.repeat(victim[begin:] == 0, sizes)]
    return np.bincount(bins, minlength=nodes)


def _spare_by_count(k: int, one_node: bool, behind: int, holders: Holders, idle: Ints, victim: Ints) -> None:
    """Mark as victims those who cannot keep their spots if k GPUs are to be idle, on one node or anywhere."""
    ends, bins = holders.ends, holders.bins
    left = idle.copy()
    room = (left >= k).sum() if one_node else left.sum() - k + 1
    end = ends[behind - 1] if behind > 0 else 0
    for h in range(behind, len(ends)):
        begin, end = end, ends[h]
        if victim[h] == 1:
            continue
        lost = 0
        if one_node:
            for i in range(begin, end):
                left[bins[i]] -= 1
                if left[bins[i]] == k - 1:
                    lost += 1
        else:
            lost = end - begin
        if lost < room:
            room -= lost
            continue
        victim[h] = 1
        if one_node:
            for i in range(begin, end):
                left[bins[i]] += 1
