"""Which job may overtake which: the inner loops of the disciplines that never stop a job.

A discipline gets rows that are already in the policy's order and decides which of them start, by trying to place them
one after another on a site whose pool is its own copy. Like the placements, these are loops in numba's subset.

The one trick that keeps them fast is the *limit*: free capacity only shrinks while a plan is made, so once a job of k
whole GPUs did not fit, no job of k or more can, and those are not even looked at. There are two limits, since some
placements have two rules: one for jobs that must be on one node, and one for jobs that are wider than any node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.formulas import A
from gpuyard.core.loops.placement import (
    choose_nodes,
    claim,
    fits,
    goes_by_size,
    most_idle,
    needs_one_node,
    release,
    settle,
)
from gpuyard.core.loops.pool import (
    CONSOLIDATE,
    INTERPRETED,
    PACKING,
    Counts,
    Demand,
    Floats,
    Ints,
    Site,
    on_copy,
    takes_any,
)

DISCIPLINES = {
    "strict": "the first job that does not fit blocks all behind it",
    "commit": "strict, and the chosen head is kept until it fits, even if a better job arrives (RLScheduler)",
    "skip": "greedy: whatever fits starts, in order",
    "easy": "backfilling that never delays the head's reservation (Lifka 1995)",
    "easy-shadow": "commit with RLScheduler's backfilling: by requested times, FCFS, no spare-GPU rule",
    "conservative": "backfilling that delays no job ahead: everybody has a reservation (Mu'alem & Feitelson 2001)",
}
NO_LIMIT = 2**62


class Starts(NamedTuple):
    rows: Ints
    ends: Ints  # where each job's spot ends in `bins`
    bins: Ints
    size: Ints  # one number: how many jobs
    limits: Ints
    """GPUs of the smallest job that did not fit in this plan, and of the smallest of those that it says nothing about;
    up to how many GPUs the former rules out jobs, 0 if that is not known yet."""


def new_starts(jobs: int, bins: int) -> Starts:
    return Starts(
        np.empty(jobs, dtype=np.int64),
        np.empty(jobs, dtype=np.int64),
        np.empty(bins, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        new_limits(),
    )


def new_limits() -> Ints:
    return np.array([NO_LIMIT, NO_LIMIT, 0])


def forget_limits(limits: Ints) -> None:
    """A new plan begins; the nodes stay the same."""
    limits[0] = NO_LIMIT
    limits[1] = NO_LIMIT


def is_too_large(k: A, limits: Ints) -> A:
    """Whether a job of k GPUs cannot fit, since one did not that is no larger; for a number or an array of them."""
    return (k >= limits[1]) | ((k >= limits[0]) & (k <= limits[2]))


def note_too_large(k: int, site: Site, limits: Ints) -> None:
    """A job of k GPUs did not fit."""
    if limits[2] == 0:
        limits[2] = _widest_ruled_out(site.code, site.pool.size)
    chain = 0 if k <= limits[2] else 1
    limits[chain] = min(limits[chain], k)


def _widest_ruled_out(code: int, size: Counts) -> int:
    """Up to how many GPUs jobs are ruled out by a smaller one. Where it must be on one node, and no node has room for
    it, a job that is wider than any node may still find whole nodes that are smaller; on nodes of one size there are
    none."""
    if code != CONSOLIDATE and code < PACKING:
        return NO_LIMIT
    if INTERPRETED:
        return NO_LIMIT if min(size) == max(size) else int(max(size))
    largest = size[most_idle(size)]
    for n in range(len(size)):
        if size[n] < largest:
            return int(largest)
    return NO_LIMIT


def bins_taken(starts: Starts) -> int:
    return int(starts.ends[starts.size[0] - 1]) if starts.size[0] > 0 else 0


def start(site: Site, starts: Starts, row: int, spot: Ints) -> None:
    claim(site, row, spot)
    i = starts.size[0]
    starts.rows[i] = row
    starts.ends[i] = bins_taken(starts) + len(spot)
    starts.size[0] = i + 1


class Holders(NamedTuple):
    rows: Ints
    begins: Counts  # where each job's spot begins in `bins`
    ends: Counts
    bins: Counts
    until: Floats  # when each is expected to end


def held_spot(holders: Holders, i: int) -> Ints:
    return np.asarray(holders.bins[holders.begins[i] : holders.ends[i]])


def fill(order: Ints, stop: bool, site: Site, starts: Starts) -> None:
    """Start what fits, in order; with `stop`, the first that does not fit blocks."""
    for row in order:
        k, by_size = site.demand.gpus[row], goes_by_size(site, row)
        if by_size and not stop and is_too_large(k, starts.limits):
            continue
        taken = bins_taken(starts)
        spot = starts.bins[taken : taken + k]
        if settle(site, row, spot):
            start(site, starts, row, spot)
        elif stop:
            return
        elif by_size:
            note_too_large(k, site, starts.limits)


def reserve(head: int, holders: Holders, site: Site) -> tuple[float, Site]:
    later = on_copy(site)
    return wait_for(head, holders, later), later


def wait_for(head: int, holders: Holders, later: Site) -> float:
    """Release holders, one instant after another, until the head fits; returns when that is."""
    pool, k = later.pool, later.demand.gpus[head]
    any_gpu = takes_any(later.demand, head)
    one_node = not later.fine and needs_one_node(later.code, pool.size, k)
    whole_nodes = not later.fine and later.code == CONSOLIDATE and not one_node
    roomy = False  # whether what was released since the last look may have made room
    most = k - 1 if one_node else 0
    free = sum(pool.idle)
    n = len(holders.rows)
    for i in range(n):
        spot = holders.bins[holders.begins[i] : holders.ends[i]]
        release(later, holders.rows[i], spot)
        free += len(spot)
        at = holders.until[i]
        if one_node or whole_nodes:
            for node in spot:
                if whole_nodes and pool.idle[node] == pool.size[node]:
                    roomy, most = True, 0  # the most that a node has which is not whole is another one's now
                elif pool.idle[node] > most:
                    roomy, most = True, pool.idle[node]
        if (i + 1 < n and holders.until[i + 1] == at) or (any_gpu and free < k):
            continue
        if roomy if one_node else (roomy or not whole_nodes) and fits(later, head):
            return float(at)
        roomy = False
    return np.inf


def backfill(order: Ints, head: int, shadow: float, later: Site, now: float, site: Site, starts: Starts) -> None:
    """Start what fits and leaves the head its reservation: done by then, or beside it at that time. Whole GPUs only.

    Like room now, room beside the head only shrinks: where a job of k GPUs found none on any node, none of k or more
    does. `consolidate` places a job wider than any node by another rule, so the one says nothing about the other.
    """
    demand, code, size = site.demand, site.code, site.pool.size
    refused = NO_LIMIT
    forget_limits(starts.limits)
    for row in order:
        k = demand.gpus[row]
        late = now + demand.estimate[row] > shadow
        in_the_way = late and k >= refused and needs_one_node(code, size, k) == needs_one_node(code, size, refused)
        if in_the_way or is_too_large(k, starts.limits):
            continue
        taken = bins_taken(starts)
        spot = starts.bins[taken : taken + k]
        if not settle(site, row, spot):
            note_too_large(k, site, starts.limits)
            continue
        if late and not _stays_beside(later, head, row, spot) and not _elsewhere(later, head, row, site, spot):
            refused = k
            continue
        start(site, starts, row, spot)


def _stays_beside(later: Site, head: int, row: int, spot: Ints) -> bool:
    """Claim a spot at the time of the head's reservation, if the head still fits then."""
    claim(later, row, spot)
    if fits(later, head):
        return True
    release(later, row, spot)
    return False


def _elsewhere(later: Site, head: int, row: int, site: Site, spot: Ints) -> bool:
    """`_stays_beside` on other nodes, best first, where it is not in the present spot. Writes the spot it finds.

    Only `consolidate` cares which GPUs of a cluster are free. Nodes of one size with as many idle GPUs at the time of
    the reservation are alike to the head: where a job on one of them is in its way, so it is on the others.
    """
    k, size, then = site.demand.gpus[row], site.pool.size, later.pool.idle
    if site.code != CONSOLIDATE or sum(then) - k < site.demand.gpus[head]:
        return False
    one_node = needs_one_node(site.code, size, k)
    idle = site.pool.idle.copy()
    while True:
        last = spot[k - 1]
        for n in range(len(idle)):
            if n == last or (one_node and size[n] == size[last] and then[n] == then[last]):
                idle[n] = 0
        if not choose_nodes(site.code, size, idle, k, site.salt, spot):
            return False
        if _stays_beside(later, head, row, spot):
            return True


def shadow_time(head: int, holders: Holders, demand: Demand, idle: int) -> float:
    """RLScheduler's shadow: when the expected ends of running jobs, added up, make room for the head."""
    free = idle
    at = np.inf
    for i in range(len(holders.rows)):
        free += demand.gpus[holders.rows[i]]
        at = holders.until[i]
        if free >= demand.gpus[head]:
            break
    return float(at)
