"""Conservative backfilling: a profile of free capacity over time, and a reservation in it for every job.

Loops in numba's subset, like the other disciplines.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import NO_LIMIT, Holders, Starts, bins_taken, held_spot, start
from gpuyard.core.loops.placement import claim, place, release
from gpuyard.core.loops.pool import EMPTY, Floats, Ints, Pool, Site, on_copy, restore, takes_any


class Profile(NamedTuple):
    """Free capacity over the time to come: row i of each array holds from times[i] to times[i + 1]."""

    times: Floats
    idle: Ints
    tenants: Ints
    memory: Floats
    compute: Floats
    kind: Ints
    cpus: Floats
    host: Floats


def new_profile(now: float, holders: Holders, site: Site) -> Profile:
    times = np.unique(np.append(holders.until[holders.until < np.inf], now))
    n, gpus = len(times), len(site.pool.tenants) if site.fine else 0
    nodes = len(site.pool.cpus) if site.fine else 0
    profile = Profile(
        times,
        np.empty((n, len(site.pool.idle)), dtype=np.int64),
        np.empty((n, gpus), dtype=np.int64),
        np.empty((n, gpus)),
        np.empty((n, gpus)),
        np.empty((n, gpus), dtype=np.int64),
        np.empty((n, nodes)),
        np.empty((n, nodes)),
    )
    current = on_copy(site)
    h = 0
    for i in range(n):
        while h < len(holders.rows) and holders.until[h] <= times[i]:
            release(current, holders.rows[h], held_spot(holders, h))
            h += 1
        profile.idle[i] = current.pool.idle
        if site.fine:
            restore(_site_at(profile, site, i).pool, current.pool)
    return profile


def _site_at(profile: Profile, site: Site, i: int) -> Site:
    fixed = site.pool
    pool = Pool(
        fixed.first, fixed.size, fixed.node,
        profile.idle[i], profile.tenants[i], profile.memory[i], profile.compute[i],
        fixed.total,
        profile.kind[i], profile.cpus[i], profile.host[i],
        fixed.all_cpus, fixed.all_host,
    )  # fmt: skip
    return Site(site.demand, pool, site.code, site.salt, site.fine, site.tasks, site.parts)


def _window(profile: Profile, site: Site, begin: int, end: int) -> Site:
    window = on_copy(_site_at(profile, site, begin))
    for j in range(begin + 1, end):
        narrow(window, _site_at(profile, site, j).pool)
    return window


def narrow(site: Site, other: Pool) -> None:
    """Leave of a site's free capacity what is free in another pool of the cluster as well."""
    pool = site.pool
    if site.fine:
        pool.tenants[:] = np.maximum(pool.tenants, other.tenants)
        pool.memory[:] = np.minimum(pool.memory, other.memory)
        pool.compute[:] = np.minimum(pool.compute, other.compute)
        pool.cpus[:] = np.minimum(pool.cpus, other.cpus)
        pool.host[:] = np.minimum(pool.host, other.host)
        pool.idle[:] = np.bincount(pool.node[pool.tenants == 0], minlength=len(pool.idle))
        return
    for n in range(len(pool.idle)):
        pool.idle[n] = min(pool.idle[n], other.idle[n])


def earliest(row: int, profile: Profile, site: Site) -> tuple[int, Ints]:
    """The first row of the profile from which a job fits for as long as it is expected to run, and its spot."""
    times = profile.times
    length = site.demand.estimate[row]
    k = site.demand.gpus[row]
    if takes_any(site.demand, row):
        enough = profile.idle.sum(axis=1) >= k
    else:
        enough = np.ones(len(times), dtype=np.bool_)
    short = np.flatnonzero(~enough)
    until = np.append(times[short], np.inf)[np.searchsorted(short, np.arange(len(times)))]
    for i in np.flatnonzero(enough & (until >= times + length)):
        if not site.fine and len(site.pool.idle) == 1:
            return int(i), np.zeros(k, dtype=np.int64)
        spot = place(_window(profile, site, int(i), int(np.searchsorted(times, times[i] + length))), row)
        if len(spot) > 0:
            return int(i), spot
    return -1, EMPTY


def book(profile: Profile, i: int, row: int, spot: Ints, site: Site) -> Profile:
    end = profile.times[i] + site.demand.estimate[row]
    j = np.searchsorted(profile.times, end)
    if end < np.inf and (j == len(profile.times) or profile.times[j] != end):
        again = np.concatenate((np.arange(j), np.arange(j - 1, len(profile.times))))
        times = profile.times[again]
        times[j] = end
        profile = Profile(
            times, profile.idle[again], profile.tenants[again], profile.memory[again], profile.compute[again],
            profile.kind[again], profile.cpus[again], profile.host[again],
        )  # fmt: skip
    for r in range(i, j):
        claim(_site_at(profile, site, r), row, spot)
    return profile


def conserve(order: Ints, now: float, holders: Holders, site: Site, starts: Starts) -> None:
    """Give every job the earliest reservation that delays no job ahead; those that are due now start."""
    demand = site.demand
    profile = new_profile(now, holders, site)
    least = np.empty(len(order), dtype=np.int64)
    smallest = NO_LIMIT
    for n in range(len(order) - 1, -1, -1):
        smallest = min(smallest, demand.gpus[order[n]]) if takes_any(demand, order[n]) else 0
        least[n] = smallest
    for n in range(len(order)):
        if least[n] > sum(site.pool.idle):
            break  # no job from here on fits now, so their reservations change nothing
        row = order[n]
        i, spot = earliest(row, profile, site)
        if i < 0:
            continue
        profile = book(profile, i, row, spot, site)
        if i == 0:
            taken = bins_taken(starts)
            starts.bins[taken : taken + len(spot)] = spot
            start(site, starts, row, spot)
