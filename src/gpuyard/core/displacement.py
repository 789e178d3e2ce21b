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
    Flags,
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
    tail = _sums_from(demand.gpus[holders.rows])
    limit = NO_LIMIT
    blocked = False
    i = 0
    behind = 0  # holders before this one have had their turn
    while True:
        turn = _holders_before(order[i], keys[i], holders.rows, holder_keys) if i < len(order) else n
        again = _next_victim(victim, behind, turn)
        if again < turn:
            row = holders.rows[again]
            behind = again + 1
            own = held_spot(holders, again)
            if fits_in_place(site, row, own):
                claim(site, row, own)
                victim[again] = 0
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
        if len(spot) == 0 and behind < n and (site.fine or site.pool.idle.sum() + tail[behind] >= demand.gpus[row]):
            spot = _make_room(row, behind, holders, site, victim)
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


def _sums_from(values: Ints) -> Ints:
    """For each position, the sum from there to the end; one more entry for the end itself."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    sums[:-1] = np.cumsum(values[::-1])[::-1]
    return sums


def _holders_before(row: int, key: float, rows: Ints, keys: Floats) -> int:
    """How many holders rank before a waiting job."""
    at = np.searchsorted(keys, key)
    while at < len(keys) and keys[at] == key and rows[at] < row:
        at += 1
    return int(at)


def _next_victim(victim: Ints, begin: int, end: int) -> int:
    for h in range(begin, end):
        if victim[h] == 1:
            return h
    return end


def _make_room(row: int, behind: int, holders: Holders, site: Site, victim: Ints) -> Ints:
    """A spot for a job at the cost of holders behind it, as few and as far behind as will do; empty if none will."""
    k = site.demand.gpus[row]
    pool = site.pool
    trial = on_copy(site)
    live: Ints = np.flatnonzero(victim[behind:] == 0) + behind
    if site.fine:
        for h in live:
            release(trial, holders.rows[h], held_spot(holders, h))
    else:
        trial.pool.idle[:] += np.bincount(_bins_of(holders, behind, victim[behind:] == 0), minlength=len(pool.idle))
    if not fits(trial, row):
        return NOBODY
    if not site.fine and (site.code != CONSOLIDATE or k <= (pool.first[1:] - pool.first[:-1]).max()):
        _spare_by_count(k, site.code == CONSOLIDATE, live, holders, trial.pool.idle, victim)
        trial.pool.idle[:] -= np.bincount(_bins_of(holders, behind, victim[behind:] == 0), minlength=len(pool.idle))
    else:
        _spare_by_trial(row, live, holders, trial, victim)
    pool.idle[:] = trial.pool.idle
    pool.tenants[:] = trial.pool.tenants
    pool.memory[:] = trial.pool.memory
    pool.compute[:] = trial.pool.compute
    return place(site, row)


def _bins_of(holders: Holders, begin: int, those: Flags) -> Ints:
    """The bins of some of the holders from `begin` on."""
    first = holders.ends[begin - 1] if begin > 0 else 0
    sizes = holders.ends[begin:].copy()
    sizes[1:] -= holders.ends[begin:-1]
    sizes[0] -= first
    return holders.bins[first:][np.repeat(those, sizes)]


def _spare_by_count(k: int, one_node: bool, live: Ints, holders: Holders, idle: Ints, victim: Ints) -> None:
    """Mark as victims those who cannot keep their spots if k GPUs are to be idle, on one node or anywhere."""
    if not one_node:
        room = idle.sum() - k
        for h in live:
            size = len(held_spot(holders, h))
            if size <= room:
                room -= size
            else:
                victim[h] = 1
        return
    left = idle.copy()
    nodes = (left >= k).sum()
    for h in live:
        spot = held_spot(holders, h)
        lost = 0
        for n in spot:
            left[n] -= 1
            if left[n] == k - 1:
                lost += 1
        if lost < nodes:
            nodes -= lost
        else:
            victim[h] = 1
            for n in spot:
                left[n] += 1


def _spare_by_trial(row: int, live: Ints, holders: Holders, trial: Site, victim: Ints) -> None:
    """Let holders keep their spots while the job can still be placed; the others are victims."""
    for h in live:
        spot = held_spot(holders, h)
        claim(trial, holders.rows[h], spot)
        if not fits(trial, row):
            release(trial, holders.rows[h], spot)
            victim[h] = 1
