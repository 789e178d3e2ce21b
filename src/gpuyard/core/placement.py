"""On which GPUs: eight ways to choose from the free capacity of a cluster, and taking it and giving it back.

These functions are loops over arrays and integers in numba's subset: they run interpreted here, and compiled
elsewhere, from the same source. They never look at a policy. The arrays are those of `pool`; what takes a look at every
single GPU is in `sharing`.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.pool import (
    BYTE,
    CONSOLIDATE,
    FIRST,
    NOBODY,
    PACK,
    PACKING,
    PLACEMENT_DOCS,
    PLACEMENTS,
    RANDOM,
    SLACK,
    SPREAD,
    Counts,
    Demand,
    Flags,
    Floats,
    Ints,
    Pool,
    Site,
    copy_pool,
    counts_host,
    mix,
    new_pool,
    on_copy,
    salted,
    shuffled,
    takes_any,
)
from gpuyard.core.sharing import by_node, choose_gpus, pack_one_node, usable_gpus

__all__ = [
    "CONSOLIDATE", "FIRST", "NOBODY", "PACK", "PLACEMENTS", "PLACEMENT_DOCS", "RANDOM", "SPREAD",
    "Counts", "Demand", "Flags", "Floats", "Ints", "Pool", "Site",
    "choose_nodes", "claim", "copy_pool", "fits", "fits_in_place", "mix", "most_idle", "new_pool", "on_copy", "pick",
    "place", "release", "salted", "takes_any",
]  # fmt: skip


def choose_nodes(code: int, size: Counts, idle: Counts, k: int, salt: int) -> Ints:
    """Nodes for k whole GPUs, one entry per GPU; empty where they do not fit."""
    if code == CONSOLIDATE:
        return _consolidate(size, idle, k)
    if sum(idle) < k:
        return NOBODY
    if len(idle) == 1:
        return np.zeros(k, dtype=np.int64)
    if code == SPREAD:
        return _emptiest_first(idle, k)
    if code == PACK:
        best = _best_fit(idle, k)
        if best >= 0:
            return np.full(k, best, dtype=np.int64)
        order = np.argsort(-np.asarray(idle), kind="mergesort")
    elif code == RANDOM:
        order = shuffled(salt, len(idle))
    else:
        order = np.arange(len(idle))
    return _fill_nodes(order, idle, k)


def _best_fit(idle: Counts, k: int) -> int:
    """The node with the fewest idle GPUs that has k of them; -1 if none has."""
    best = -1
    for n in range(len(idle)):
        if idle[n] >= k and (best < 0 or idle[n] < idle[best]):
            best = n
            if idle[n] == k:
                break
    return best


def most_idle(idle: Counts) -> int:
    """The first of the nodes with the most idle GPUs."""
    best = 0
    for n in range(len(idle)):
        if idle[n] > idle[best]:
            best = n
    return best


def _fill_nodes(order: Ints, idle: Counts, k: int) -> Ints:
    nodes = np.empty(k, dtype=np.int64)
    done = 0
    for n in order:
        took = min(idle[n], k - done)
        nodes[done : done + took] = n
        done += took
        if done == k:
            break
    return nodes


def _emptiest_first(idle: Counts, k: int) -> Ints:
    left = idle.copy()
    nodes = np.empty(k, dtype=np.int64)
    for i in range(k):
        n = most_idle(left)
        nodes[i] = n
        left[n] -= 1
    return nodes


def _consolidate(size: Counts, idle: Counts, k: int) -> Ints:
    if k <= size[0] or k <= size[most_idle(size)]:
        best = _best_fit(idle, k)
        return np.full(k, best, dtype=np.int64) if best >= 0 else NOBODY
    nodes = np.empty(k, dtype=np.int64)
    left = k
    spare = idle.copy()
    for n in np.argsort(-np.asarray(size), kind="mergesort"):
        if spare[n] == size[n] and left >= size[n]:
            nodes[k - left : k - left + size[n]] = n
            left -= size[n]
            spare[n] = 0
    if left > 0:
        n = most_idle(spare)
        if spare[n] < left:
            return NOBODY
        nodes[k - left :] = n
    return nodes


def _consolidated(pool: Pool, usable: Flags, k: int) -> Ints:
    """The same for the usable GPUs of each node."""
    per_node = np.bincount(pool.node[usable], minlength=len(pool.idle)).astype(np.int64)
    nodes = _consolidate(pool.size, per_node, k)
    if len(nodes) == 0:
        return NOBODY
    if nodes[0] == nodes[-1]:
        return pack_one_node(pool, usable, per_node, k)
    gpus = np.empty(k, dtype=np.int64)
    done = 0
    while done < k:
        here = np.flatnonzero(usable & (pool.node == nodes[done]))
        took = min(len(here), k - done)
        gpus[done : done + took] = here[:took]
        done += took
    return gpus


def place(site: Site, row: int) -> Ints:
    """A spot for a job: its bins, or an empty array where it does not fit now."""
    k = site.demand.gpus[row]
    if not site.fine:
        return choose_nodes(site.code, site.pool.size, site.pool.idle, k, site.salt)
    any_gpu = takes_any(site.demand, row)
    if site.code >= PACKING:
        if any_gpu and k > site.pool.size[most_idle(site.pool.size)]:
            return pick(CONSOLIDATE, site.pool, _consolidate(site.pool.size, site.pool.idle, k), 0)
        return by_node(site, row)
    if counts_host(site.demand, row):
        return by_node(site, row)
    if any_gpu:
        nodes = choose_nodes(site.code, site.pool.size, site.pool.idle, k, site.salt)
        return pick(site.code, site.pool, nodes, site.salt)
    if site.code == CONSOLIDATE:
        return _consolidated(site.pool, usable_gpus(site, row), k)
    return choose_gpus(site.code, site.pool, usable_gpus(site, row), k, site.salt)


def fits(site: Site, row: int) -> bool:
    """Whether there is a spot for a job now."""
    return len(place(site, row)) > 0


def pick(code: int, pool: Pool, nodes: Ints, salt: int) -> Ints:
    """Idle GPUs, one on each of the nodes given (a node given twice gives two)."""
    gpus = np.empty(len(nodes), dtype=np.int64)
    if len(nodes) == 1 and code != RANDOM:  # most jobs: the first GPU without a tenant
        begin = pool.first[nodes[0]]
        gpus[0] = begin + pool.tenants[begin : pool.first[nodes[0] + 1]].argmin()
        return gpus
    wanted = np.bincount(nodes)
    done = 0
    for n in np.flatnonzero(wanted):
        begin = pool.first[n]
        idle = np.flatnonzero(pool.tenants[begin : pool.first[n + 1]] == 0)
        if code == RANDOM:
            idle = idle[shuffled(salt + int(n), len(idle))]
        gpus[done : done + wanted[n]] = idle[: wanted[n]] + begin
        done += wanted[n]
    return gpus


def _add(idle: Counts, nodes: Ints, sign: int) -> None:
    """Count GPUs of these nodes as idle, or no longer."""
    if len(idle) == 1:
        idle[0] += sign * len(nodes)
    elif len(nodes) == 1:
        idle[nodes[0]] += sign
    elif len(nodes) > 0:
        counts = np.bincount(nodes)
        for n in range(nodes.min(), len(counts)):
            idle[n] += sign * counts[n]


def claim(site: Site, row: int, spot: Ints) -> None:
    """Take a job's spot out of the pool."""
    pool = site.pool
    if not site.fine:
        _add(pool.idle, spot, -1)
        return
    if len(spot) == 1:
        pool.idle[pool.node[spot[0]]] -= pool.tenants[spot[0]] == 0
    else:
        _add(pool.idle, pool.node[spot[pool.tenants[spot] == 0]], -1)
    pool.tenants[spot] += 1
    if site.demand.compute[row] >= 100:
        pool.memory[spot] = -1.0  # no room left, not even for a share of next to nothing
        pool.compute[spot] = 0.0
        pool.kind[spot] = len(spot)
    else:
        pool.memory[spot] -= site.demand.memory[row]
        pool.compute[spot] -= site.demand.compute[row]
        pool.kind[spot] = -1
    if counts_host(site.demand, row):
        _add_host(site, row, spot, -1.0)


def release(site: Site, row: int, spot: Ints) -> None:
    """Give a job's spot back to the pool."""
    pool = site.pool
    if not site.fine:
        _add(pool.idle, spot, 1)
        return
    pool.tenants[spot] -= 1
    empty = spot[pool.tenants[spot] == 0]
    _add(pool.idle, pool.node[empty], 1)
    if site.demand.compute[row] < 100:
        pool.memory[spot] += site.demand.memory[row]
        pool.compute[spot] += site.demand.compute[row]
    # An empty GPU is exactly empty, whatever the sums of decimals have come to, and so is an empty node.
    pool.memory[empty] = pool.total[empty]
    pool.compute[empty] = 100.0
    pool.kind[empty] = 0
    if counts_host(site.demand, row):
        _add_host(site, row, spot, 1.0)
        for n in pool.node[spot]:
            if pool.idle[n] == pool.size[n]:
                pool.cpus[n] = pool.all_cpus[n]
                pool.host[n] = pool.all_host[n]


def _add_host(site: Site, row: int, spot: Ints, sign: float) -> None:
    """Give CPUs and host memory back to the nodes of a spot, or take them: every GPU brings its part of the job's."""
    demand, pool = site.demand, site.pool
    cpus, host = sign * demand.cpus[row] / len(spot), sign * demand.host[row] / len(spot)
    for n in pool.node[spot]:
        pool.cpus[n] += cpus
        pool.host[n] += host


def _host_fits(site: Site, row: int, spot: Ints) -> bool:
    """Whether the nodes of a spot have CPUs and host memory enough."""
    demand, pool = site.demand, site.pool
    counts = np.bincount(pool.node[spot])
    enough = True
    for n in np.flatnonzero(counts):
        part = counts[n] / len(spot)
        enough = enough and demand.cpus[row] * part <= pool.cpus[n] + SLACK
        enough = enough and demand.host[row] * part <= pool.host[n] + BYTE
    return enough


def fits_in_place(site: Site, row: int, spot: Ints) -> bool:
    """Whether exactly this spot is free for a job."""
    if site.fine:
        if counts_host(site.demand, row) and not _host_fits(site, row, spot):
            return False
        return bool(usable_gpus(site, row)[spot].all())
    wanted = np.bincount(spot)
    enough = True
    for n in range(len(wanted)):
        enough = enough and wanted[n] <= site.pool.idle[n]
    return enough
