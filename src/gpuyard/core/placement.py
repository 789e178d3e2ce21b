"""On which GPUs: the free capacity of a cluster, and five ways to choose from it.

Capacity is counted in *bins*. As long as every job takes whole GPUs from anywhere, a bin is a node: the GPUs of
a node are interchangeable, so who gets which one is settled last (`pick`), when it is known who keeps theirs.
Once any job shares a GPU or names the GPUs it wants, bins are the GPUs themselves (`fine`). A job's spot is the
array of its bins, one entry per GPU.

These functions are loops over arrays and integers in numba's subset: they run interpreted here, and compiled
elsewhere, from the same source. They never look at a policy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Counts = Any
"""A number for each node: an array, or a list, which the interpreter walks several times faster."""

FIRST, PACK, SPREAD, CONSOLIDATE, RANDOM = range(5)
PLACEMENTS = {"first": FIRST, "pack": PACK, "spread": SPREAD, "consolidate": CONSOLIDATE, "random": RANDOM}
PLACEMENT_DOCS = {
    "first": "the lowest-numbered GPUs that fit",
    "pack": "best fit: the fullest node or GPU that still has room",
    "spread": "least loaded: the emptiest node or GPU",
    "consolidate": "one node, best fit; whole free nodes if larger; waits rather than spread wider (Helios)",
    "random": "seeded random nodes and GPUs",
}

NOBODY: Ints = np.empty(0, dtype=np.int64)
_SLACK = 1e-9  # shares are sums of decimals: 100 - 33.3 - 33.3 must still hold 33.4 ...
_BYTE = 1e-3  # ... and 16G - 5.3G - 5.3G must still hold 5.4G


class Pool(NamedTuple):
    """Free capacity of a cluster."""

    first: Ints
    """GPU number at which each node begins, and the number of GPUs at the end."""
    size: Counts
    """GPUs of each node."""
    node: Ints
    """Node of each GPU."""
    idle: Counts
    """GPUs without a tenant, per node."""
    tenants: Ints
    """Jobs on each GPU."""
    memory: Floats
    """Bytes left on each GPU."""
    compute: Floats
    """Percent left of each GPU."""
    total: Floats
    """Bytes of each GPU when empty."""


class Demand(NamedTuple):
    """What jobs ask for, by row."""

    gpus: Ints
    memory: Floats
    compute: Floats
    scope: Ints
    """Row of `scopes`; 0 is every GPU."""
    scopes: Flags
    estimate: Floats


class Site(NamedTuple):
    """Everything it takes to place a job: what is asked, what is free, and how to choose."""

    demand: Demand
    pool: Pool
    code: int
    """The placement, as a number."""
    salt: int
    """What random placement depends on."""
    fine: bool
    """Whether bins are GPUs, not nodes."""


def on_copy(site: Site) -> Site:
    """The same site with a pool of its own, to try things out on."""
    pool = site.pool
    if site.fine:
        pool = copy_pool(pool)
    else:  # whole GPUs: the numbers per node are all that changes
        pool = Pool(
            pool.first, pool.size, pool.node, pool.idle.copy(), pool.tenants, pool.memory, pool.compute, pool.total
        )
    return Site(site.demand, pool, site.code, site.salt, site.fine)


def new_pool(nodes: tuple[int, ...], memory: float) -> Pool:
    """An empty cluster."""
    sizes = np.array(nodes, dtype=np.int64)
    gpus = int(sizes.sum())
    return Pool(
        first=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        node=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        size=sizes,
        idle=sizes.copy(),
        tenants=np.zeros(gpus, dtype=np.int64),
        memory=np.full(gpus, memory),
        compute=np.full(gpus, 100.0),
        total=np.full(gpus, memory),
    )


def copy_pool(pool: Pool) -> Pool:
    """A pool to plan on; what never changes is shared."""
    return Pool(
        pool.first, pool.size, pool.node,
        pool.idle.copy(), pool.tenants.copy(), pool.memory.copy(), pool.compute.copy(),
        pool.total,
    )  # fmt: skip


def mix(salt: int, index: Ints) -> npt.NDArray[np.uint64]:
    """Pseudo-random numbers that depend on nothing but their arguments (splitmix64)."""
    z = index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _shuffled(salt: int, n: int) -> Ints:
    return np.argsort(mix(salt, np.arange(n)), kind="mergesort")


def salted(seed: int, number: int) -> int:
    """A salt for the n-th decision under a seed."""
    return int(np.int64(mix(seed & (2**62 - 1), np.array([number]))[0] >> np.uint64(2)))


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
        order = _shuffled(salt, len(idle))
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
    largest = size[0] if k <= size[0] else size[most_idle(size)]
    if k <= largest:
        best = _best_fit(idle, k)
        return np.full(k, best, dtype=np.int64) if best >= 0 else NOBODY
    nodes = np.empty(k, dtype=np.int64)
    left = k
    spare = idle.copy()
    while largest > 0:  # whole free nodes, the largest first
        smaller = 0
        for n in range(len(size)):
            if size[n] == largest and spare[n] == largest and left >= largest:
                nodes[k - left : k - left + largest] = n
                left -= largest
                spare[n] = 0
            elif smaller < size[n] < largest:
                smaller = size[n]
        largest = smaller
    if left > 0:
        n = most_idle(spare)
        if spare[n] < left:
            return NOBODY
        nodes[k - left :] = n
    return nodes


def usable_gpus(site: Site, row: int) -> Flags:
    """Which GPUs have room for a job, one by one."""
    demand, pool = site.demand, site.pool
    if demand.compute[row] >= 100:
        room = pool.tenants == 0
    else:
        room = pool.compute >= demand.compute[row] - _SLACK
    usable: Flags = room & (pool.memory >= demand.memory[row] - _BYTE) & demand.scopes[demand.scope[row]]
    return usable


def choose_gpus(code: int, pool: Pool, usable: Flags, k: int, salt: int) -> Ints:
    """k of the usable GPUs, best first by the placement's own measure; empty where there are too few."""
    if code == CONSOLIDATE:
        per_node = np.bincount(pool.node[usable], minlength=len(pool.idle)).astype(np.int64)
        nodes = _consolidate(pool.size, per_node, k)
        if len(nodes) == 0:
            return NOBODY
        if nodes[0] == nodes[-1]:
            return _pack_one_node(pool, usable, per_node, k)
        gpus = np.empty(k, dtype=np.int64)
        done = 0
        while done < k:
            n = nodes[done]
            here = np.flatnonzero(usable & (pool.node == n))
            took = min(len(here), k - done)
            gpus[done : done + took] = here[:took]
            done += took
        return gpus
    candidates = np.flatnonzero(usable)
    if len(candidates) < k:
        return NOBODY
    if code in (PACK, SPREAD):
        room = pool.compute[candidates] / 100.0 + pool.memory[candidates] / pool.total[candidates]
        sign = 1.0 if code == PACK else -1.0
        candidates = candidates[np.argsort(sign * room, kind="mergesort")]
    elif code == RANDOM:
        candidates = candidates[_shuffled(salt, len(candidates))]
    return candidates[:k].astype(np.int64)


def _pack_one_node(pool: Pool, usable: Flags, per_node: Ints, k: int) -> Ints:
    """The k fullest usable GPUs of the node where they leave the least room behind."""
    best_room = np.inf
    best = NOBODY
    for n in range(len(per_node)):
        if per_node[n] >= k:
            here = np.flatnonzero(usable & (pool.node == n))
            room = pool.compute[here] / 100.0 + pool.memory[here] / pool.total[here]
            order = np.argsort(room, kind="mergesort")[:k]
            if room[order].sum() < best_room:
                best_room = room[order].sum()
                best = here[order].astype(np.int64)
    return best


def takes_any(demand: Demand, row: int) -> bool:
    """Whether a job takes whole GPUs from anywhere."""
    return bool(demand.compute[row] >= 100 and demand.scope[row] == 0)


def place(site: Site, row: int) -> Ints:
    """A spot for a job: its bins, or an empty array where it does not fit now."""
    k = site.demand.gpus[row]
    if not site.fine:
        return choose_nodes(site.code, site.pool.size, site.pool.idle, k, site.salt)
    if takes_any(site.demand, row):
        nodes = choose_nodes(site.code, site.pool.size, site.pool.idle, k, site.salt)
        return pick(site.code, site.pool, nodes, site.salt)
    return choose_gpus(site.code, site.pool, usable_gpus(site, row), k, site.salt)


def fits(site: Site, row: int) -> bool:
    """Whether there is a spot for a job now."""
    if not site.fine and site.code != CONSOLIDATE:
        return bool(sum(site.pool.idle) >= site.demand.gpus[row])
    if needs_one_node(site, row):
        return _best_fit(site.pool.idle, site.demand.gpus[row]) >= 0
    return len(place(site, row)) > 0


def needs_one_node(site: Site, row: int) -> bool:
    """Whether a job of whole GPUs fits exactly where a single node has as many idle."""
    k, size = site.demand.gpus[row], site.pool.size
    return bool(not site.fine and site.code == CONSOLIDATE and (k <= size[0] or k <= size[most_idle(size)]))


def some_node_has(idle: Counts, nodes: Ints, k: int) -> bool:
    """Whether any of these nodes has k idle GPUs."""
    for n in nodes:
        if idle[n] >= k:
            return True
    return False


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
            idle = idle[_shuffled(salt + int(n), len(idle))]
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
    else:
        pool.memory[spot] -= site.demand.memory[row]
        pool.compute[spot] -= site.demand.compute[row]


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
    # An empty GPU is exactly empty, whatever the sums of decimals have come to.
    pool.memory[empty] = pool.total[empty]
    pool.compute[empty] = 100.0


def fits_in_place(site: Site, row: int, spot: Ints) -> bool:
    """Whether exactly this spot is free for a job."""
    if site.fine:
        return bool(usable_gpus(site, row)[spot].all())
    wanted = np.bincount(spot)
    enough = True
    for n in range(len(wanted)):
        enough = enough and wanted[n] <= site.pool.idle[n]
    return enough
