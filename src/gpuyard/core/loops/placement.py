"""Placement: eight ways to choose nodes and GPUs from the free capacity of a cluster, and claiming and releasing them.

These functions are loops over arrays and integers in numba's subset: they run interpreted here, and compiled
elsewhere, from the same source. They never look at a policy. The arrays are those of `pool`; what looks at every
single GPU is in `sharing`. Where jobs take whole GPUs, those of a node are all alike, and a spot is a list of nodes
with one entry per GPU. It is written where the caller says, so that small jobs, the bulk of most traces, allocate
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.core.loops.pool import (
    BYTE,
    CONSOLIDATE,
    EMPTY,
    INTERPRETED,
    PACK,
    PACKING,
    RANDOM,
    SLACK,
    SPREAD,
    Counts,
    Flags,
    Ints,
    Pool,
    Site,
    counts_host,
    on_copy,
    shuffled,
    takes_any,
)
from gpuyard.core.loops.sharing import NodeScores, by_node, choose_gpus, pack_one_node, part_of, room_at, usable_gpus

NO_NODE = 2**62  # more idle GPUs than any node has


def choose_nodes(code: int, size: Counts, idle: Counts, k: int, salt: int, nodes: Ints) -> bool:
    """Write the nodes for k whole GPUs; false where they do not fit."""
    if code == CONSOLIDATE:
        if k > size[0] and k > size[most_idle(size)]:
            return _whole_nodes(size, idle, k, nodes)
        best = best_fit(idle, k)
        if best >= 0:
            _put(nodes, 0, k, best)
        return best >= 0
    if sum(idle) < k:
        return False
    if len(idle) == 1:
        _put(nodes, 0, k, 0)
    elif code == SPREAD:
        _emptiest_first(idle, k, nodes)
    elif code == PACK:
        best = best_fit(idle, k)
        if best >= 0:
            _put(nodes, 0, k, best)
        else:
            _emptiest_whole(idle, k, nodes)
    elif code == RANDOM:
        _fill_in_order(shuffled(salt, len(idle)), idle, k, nodes)
    else:
        _fill_in_order(range(len(idle)), idle, k, nodes)
    return True


def _put(nodes: Ints, begin: int, end: int, n: int) -> None:
    """`nodes[begin:end] = n`; compiling that takes longer than compiling a loop."""
    if INTERPRETED:
        nodes[begin:end] = n
    else:
        for i in range(begin, end):
            nodes[i] = n


def nodes_for(code: int, size: Counts, idle: Counts, k: int, salt: int) -> Ints:
    nodes = np.empty(k, dtype=np.int64)
    return nodes if choose_nodes(code, size, idle, k, salt, nodes) else EMPTY


def has_room(code: int, size: Counts, idle: Counts, k: int) -> bool:
    if code != CONSOLIDATE:
        return bool(sum(idle) >= k)
    if needs_one_node(code, size, k):
        return best_fit(idle, k) >= 0
    return whole_nodes_fit(size, idle, k)


def best_fit(idle: Counts, k: int) -> int:
    """The node with the fewest idle GPUs that has k of them; -1 if none has."""
    best, least = -1, NO_NODE
    for n in range(len(idle)):
        if k <= idle[n] < least:
            best, least = n, idle[n]
            if least == k:
                break
    return best


def most_idle(idle: Counts) -> int:
    best = 0
    for n in range(len(idle)):
        if idle[n] > idle[best]:
            best = n
    return best


def _fill_in_order(order: Any, idle: Counts, k: int, nodes: Ints) -> None:
    done = 0
    for n in order:
        took = min(idle[n], k - done)
        _put(nodes, done, done + took, n)
        done += took
        if done == k:
            break


def _emptiest_whole(idle: Counts, k: int, nodes: Ints) -> None:
    """All idle GPUs of one node after another, the emptiest first."""
    left = idle.copy()
    done = 0
    while done < k:
        n = most_idle(left)
        took = min(left[n], k - done)
        _put(nodes, done, done + took, n)
        left[n] = 0
        done += took


def _emptiest_first(idle: Counts, k: int, nodes: Ints) -> None:
    if k == 1:
        nodes[0] = most_idle(idle)
        return
    left = idle.copy()
    for i in range(k):
        n = most_idle(left)
        nodes[i] = n
        left[n] -= 1


def whole_nodes_fit(size: Counts, idle: Counts, k: int) -> bool:
    """Whether `_whole_nodes` would find room, at less cost: most plans ask only that of a wide job."""
    left = k
    largest = size[most_idle(size)]
    while largest > 0:
        smaller = 0
        for n in range(len(size)):
            if size[n] == largest and idle[n] == largest:
                if left <= largest:  # this one takes all that is left
                    return True
                left -= largest
            elif smaller < size[n] < largest:
                smaller = size[n]
        largest = smaller
    most = 0  # on nodes that are not whole
    for n in range(len(size)):
        if idle[n] < size[n]:
            most = max(most, idle[n])
    return bool(left <= most)


def _whole_nodes(size: Counts, idle: Counts, k: int, nodes: Ints) -> bool:
    """Whole free nodes, the largest first; what is left goes to the node with the most idle GPUs."""
    if not whole_nodes_fit(size, idle, k):
        return False
    left = k
    spare = idle.copy()
    largest = size[most_idle(size)]
    while largest > 0:
        smaller = 0
        for n in range(len(size)):
            if size[n] == largest and spare[n] == largest and left >= largest:
                _put(nodes, k - left, k - left + largest, n)
                left -= largest
                spare[n] = 0
            elif smaller < size[n] < largest:
                smaller = size[n]
        largest = smaller
    if left > 0:
        _put(nodes, k - left, k, most_idle(spare))
    return True


def needs_one_node(code: int, size: Counts, k: int) -> bool:
    return bool(code == CONSOLIDATE and (k <= size[0] or k <= size[most_idle(size)]))


def goes_by_size(site: Site, row: int) -> bool:
    """Whether a job fits wherever there are enough GPUs: it takes whole ones, in one part, and nothing else."""
    return bool(takes_any(site.demand, row) and not (INTERPRETED and site.parts and row in site.parts))


def add_gpus(idle: Counts, nodes: Ints, sign: int) -> None:
    """Count GPUs of these nodes as idle (sign 1), or no longer (-1)."""
    if len(idle) == 1:
        idle[0] += sign * len(nodes)
    else:
        for n in nodes:
            idle[n] += sign


def _consolidated(pool: Pool, usable: Flags, k: int) -> Ints:
    """`consolidate` among the usable GPUs of each node."""
    per_node = np.bincount(pool.node[usable], minlength=len(pool.idle)).astype(np.int64)
    nodes = nodes_for(CONSOLIDATE, pool.size, per_node, k, 0)
    if len(nodes) == 0:
        return EMPTY
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
    """The bins of a job's spot, or an empty array where it does not fit now."""
    if INTERPRETED and site.parts and row in site.parts:
        return place_parts(site, row)
    k = site.demand.gpus[row]
    if not site.fine:
        return nodes_for(site.code, site.pool.size, site.pool.idle, k, site.salt)
    any_gpu = takes_any(site.demand, row)
    if site.code >= PACKING:
        if any_gpu and k > site.pool.size[most_idle(site.pool.size)]:
            return pick(CONSOLIDATE, site.pool, nodes_for(CONSOLIDATE, site.pool.size, site.pool.idle, k, 0), 0)
        return by_node(site, row)
    if counts_host(site.demand, row):
        return by_node(site, row)
    if any_gpu:
        nodes = nodes_for(site.code, site.pool.size, site.pool.idle, k, site.salt)
        return pick(site.code, site.pool, nodes, site.salt)
    if site.code == CONSOLIDATE:
        return _consolidated(site.pool, usable_gpus(site, row), k)
    return choose_gpus(site.code, site.pool, usable_gpus(site, row), k, site.salt)


def place_parts(site: Site, row: int) -> Ints:
    """A spot for a job of several parts, each on one node, the largest first; empty where not all fit."""
    trial, parts, found = on_copy(site), site.parts[row], []
    if max(parts) > np.diff(site.pool.first).max():
        return EMPTY
    node_scores = NodeScores(part_of(trial, row, parts[0]), 0)
    for n, size in enumerate(parts):
        if n and size != parts[n - 1]:
            node_scores = NodeScores(part_of(trial, row, size), 0)
        spot = node_scores.spot()
        if len(spot) == 0:
            return EMPTY
        found.append(spot)
        if n + 1 < len(parts):
            claim(node_scores.site, 0, spot)
            node_scores.changed(spot)
    return np.concatenate(found)


def pieces(site: Site, row: int, spot: Ints) -> list[tuple[Site, Ints]]:
    """The parts of a job, each as row 0 of a site, with its GPUs; parts that share GPUs may have the same ones."""
    ends = np.cumsum(site.parts[row])
    return [(part_of(site, row, int(size)), spot[end - size : end])
            for size, end in zip(site.parts[row], ends.tolist(), strict=True)]  # fmt: skip


def _parts_fit(site: Site, row: int, spot: Ints) -> bool:
    for part, piece in pieces(on_copy(site), row, spot):
        if len(np.unique(part.pool.node[piece])) > 1 or not fits_in_place(part, 0, piece):
            return False
        claim(part, 0, piece)
    return True


def settle(site: Site, row: int, spot: Ints) -> bool:
    """Write a job's spot into `spot`; false where it does not fit now."""
    if not site.fine:
        return choose_nodes(site.code, site.pool.size, site.pool.idle, site.demand.gpus[row], site.salt, spot)
    found = place(site, row)
    if len(found) > 0:
        spot[:] = found
    return len(found) > 0


def fits(site: Site, row: int) -> bool:
    if not site.fine:
        return has_room(site.code, site.pool.size, site.pool.idle, site.demand.gpus[row])
    return len(place(site, row)) > 0


def pick(code: int, pool: Pool, nodes: Ints, salt: int) -> Ints:
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


def claim(site: Site, row: int, spot: Ints) -> None:
    if INTERPRETED and site.parts and row in site.parts:
        for part, piece in pieces(site, row, spot):
            claim(part, 0, piece)
        return
    pool = site.pool
    if not site.fine:
        add_gpus(pool.idle, spot, -1)
        return
    if len(spot) == 1:
        pool.idle[pool.node[spot[0]]] -= pool.tenants[spot[0]] == 0
    else:
        add_gpus(pool.idle, pool.node[spot[pool.tenants[spot] == 0]], -1)
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
    if INTERPRETED and site.parts and row in site.parts:
        for part, piece in pieces(site, row, spot):
            release(part, 0, piece)
        return
    pool = site.pool
    if not site.fine:
        add_gpus(pool.idle, spot, 1)
        return
    pool.tenants[spot] -= 1
    empty = spot[pool.tenants[spot] == 0]
    add_gpus(pool.idle, pool.node[empty], 1)
    if site.demand.compute[row] < 100:
        pool.memory[spot] += site.demand.memory[row]
        pool.compute[spot] += site.demand.compute[row]
    # An empty GPU is exactly empty, whatever the sums of decimals have come to, and so is an empty node.
    pool.memory[empty] = pool.total[empty]
    pool.compute[empty] = 100.0
    pool.kind[empty] = 0
    if counts_host(site.demand, row):
        _add_host(site, row, spot, 1.0)
    for n in pool.node[empty]:  # after the last job, also one that took no CPUs
        if pool.idle[n] == pool.size[n]:
            pool.cpus[n] = pool.all_cpus[n]
            pool.host[n] = pool.all_host[n]


def _add_host(site: Site, row: int, spot: Ints, sign: float) -> None:
    """Give CPUs and host memory back to the nodes of a spot, or take them: each GPU brings its part of the job's."""
    demand, pool = site.demand, site.pool
    cpus, host = sign * demand.cpus[row] / len(spot), sign * demand.host[row] / len(spot)
    for n in pool.node[spot]:
        pool.cpus[n] += cpus
        pool.host[n] += host


def _host_fits(site: Site, row: int, spot: Ints) -> bool:
    demand, pool = site.demand, site.pool
    counts = np.bincount(pool.node[spot])
    enough = True
    for n in np.flatnonzero(counts):
        part = counts[n] / len(spot)
        enough = enough and demand.cpus[row] * part <= pool.cpus[n] + SLACK
        enough = enough and demand.host[row] * part <= pool.host[n] + BYTE
    return enough


def fits_in_place(site: Site, row: int, spot: Ints) -> bool:
    if INTERPRETED and site.parts and row in site.parts:
        return _parts_fit(site, row, spot)
    if site.fine:
        if counts_host(site.demand, row) and not _host_fits(site, row, spot):
            return False
        return bool(room_at(site, row, spot).all())
    idle, enough = site.pool.idle, True
    for n in spot:
        idle[n] -= 1
        enough = enough and idle[n] >= 0
    add_gpus(idle, spot, 1)
    return enough
