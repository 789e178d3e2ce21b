"""Placement GPU by GPU, for jobs that share GPUs, name them, or take CPUs and host memory of a node.

There are two ways. While GPUs alone count, placements look at GPUs wherever they are (`choose_gpus`). A job that also
takes CPUs or host memory goes on one node, and so does every job under `packing`, `clustering` and `fgd`: nodes are
scored, the lowest score wins, ties go to the lowest node, and then GPUs are chosen on it (`by_node`). A job that wants
more GPUs than any node has is spread over the nodes with the most room.

`by_node` scores every node for every job. Within one plan little changes between two jobs of a kind, so `NodeScores`
computes a score again only for nodes on which a job was placed. The choice is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuyard.core.loops.fragmentation import fullest, grades, room
from gpuyard.core.loops.pool import (
    BYTE,
    CLUSTERING,
    CONSOLIDATE,
    EMPTY,
    FGD,
    FIRST,
    PACK,
    PACKING,
    RANDOM,
    SLACK,
    SPREAD,
    Demand,
    Flags,
    Floats,
    Ints,
    Pool,
    Site,
    counts_host,
    mix,
    shuffled,
    takes_any,
)


class Slots(NamedTuple):
    """The GPUs of some nodes, a row for each node, as wide as the largest node of the cluster."""

    nodes: Ints
    gpus: Ints  # GPU numbers; where a node has fewer GPUs, its own last one again, never usable
    usable: Flags  # which of them have room for the job
    free: Floats  # how much of each GPU is free, 0 to 1


def usable_gpus(site: Site, row: int) -> Flags:
    demand, pool = site.demand, site.pool
    if demand.compute[row] >= 100:
        enough = pool.tenants == 0
    else:
        enough = pool.compute >= demand.compute[row] - SLACK
    usable: Flags = enough & (pool.memory >= demand.memory[row] - BYTE) & demand.scopes[demand.scope[row]]
    return usable


def room_at(site: Site, row: int, spot: Ints) -> Flags:
    demand, pool = site.demand, site.pool
    if demand.compute[row] >= 100:
        enough = pool.tenants[spot] == 0
    else:
        enough = pool.compute[spot] >= demand.compute[row] - SLACK
    usable: Flags = enough & (pool.memory[spot] >= demand.memory[row] - BYTE) & demand.scopes[demand.scope[row]][spot]
    return usable


def slots_of(site: Site, row: int, nodes: Ints) -> Slots:
    demand, pool = site.demand, site.pool
    sizes = pool.first[nodes + 1] - pool.first[nodes]
    column = np.arange(np.diff(pool.first).max())
    real = column[None, :] < sizes[:, None]
    gpus = pool.first[nodes][:, None] + np.minimum(column[None, :], sizes[:, None] - 1)
    flat = gpus.ravel()
    if demand.compute[row] >= 100:
        enough = pool.tenants[flat] == 0
    else:
        enough = pool.compute[flat] >= demand.compute[row] - SLACK
    usable = enough & (pool.memory[flat] >= demand.memory[row] - BYTE) & demand.scopes[demand.scope[row]][flat]
    free = room(pool.compute[flat], pool.memory[flat], pool.total[flat])
    return Slots(nodes, gpus, usable.reshape(gpus.shape) & real, np.where(real, free.reshape(gpus.shape), 0.0))


def hosts(site: Site, row: int, slots: Slots) -> Flags:
    demand, pool = site.demand, site.pool
    enough: Flags = slots.usable.sum(1) >= demand.gpus[row]
    enough &= pool.cpus[slots.nodes] >= demand.cpus[row] - SLACK
    enough &= pool.host[slots.nodes] >= demand.host[row] - BYTE
    return enough


def only(slots: Slots, chosen: Flags) -> Slots:
    return Slots(slots.nodes[chosen], slots.gpus[chosen], slots.usable[chosen], slots.free[chosen])


def scores(site: Site, row: int, slots: Slots) -> Floats:
    """How well a job would sit on each of these nodes, all of which have room for it; the lowest is best."""
    code = site.code
    if code == FIRST:
        return slots.nodes.astype(np.float64)
    if code == RANDOM:
        return lots(site.salt, slots.nodes)
    if code == FGD:
        return grades(site.demand, site.pool, site.tasks, row, slots.nodes, slots.gpus, slots.usable)[0]
    if code == PACKING:
        return _packing(site, row, slots)
    if code == CLUSTERING:
        return _clustering(site, row, slots)
    left = _left(site, row, slots, code != CONSOLIDATE)
    return -left if code == SPREAD else left


def lots(salt: int, nodes: Ints) -> Floats:
    return mix(salt, nodes).astype(np.float64)


def _left(site: Site, row: int, slots: Slots, with_cpus: bool) -> Floats:
    pool, k = site.pool, site.demand.gpus[row]
    share = max(site.demand.compute[row] / 100.0, site.demand.memory[row] / pool.total[0])
    left: Floats = (slots.free.sum(1) - k * share) / slots.free.shape[1]
    counted = pool.all_cpus < np.inf
    if with_cpus and counted.any():
        most = pool.all_cpus[counted].max()
        cpus = np.where(counted, pool.cpus, 0.0)[slots.nodes]
        left = left + (cpus - site.demand.cpus[row]) / most
    return left


def _packing(site: Site, row: int, slots: Slots) -> Floats:
    pool, k = site.pool, site.demand.gpus[row]
    if k == 0:
        return np.zeros(len(slots.nodes))
    taken = fullest(slots.free, slots.usable, k)
    idle = (pool.tenants[slots.gpus.ravel()] == 0).reshape(slots.gpus.shape)
    needed = (taken & idle).sum(1).astype(np.float64)
    size = (pool.first[slots.nodes + 1] - pool.first[slots.nodes]).astype(np.float64)
    whole = np.asarray(pool.idle)[slots.nodes] == size
    # Tenths of a GPU are near enough: among nodes alike in that, the lowest goes first, and fills up.
    tight: Floats = np.floor(10.0 * np.where(taken, slots.free, 0.0).sum(1) + SLACK)
    steps = 100.0 * slots.free.shape[1]
    score: Floats = np.where(whole, 2.0 * steps + size, np.where(needed > 0, steps + needed, tight))
    return score


def _clustering(site: Site, row: int, slots: Slots) -> Floats:
    """Nodes with this kind of job alone, with this kind among others, idle nodes, other nodes; the fullest first."""
    pool, k = site.pool, site.demand.gpus[row]
    if k == 0:
        return np.zeros(len(slots.nodes))
    kind = k if site.demand.compute[row] >= 100 else -1
    there = pool.kind[slots.gpus.ravel()].reshape(slots.gpus.shape)
    same = (there == kind).sum(1) > 0
    others = ((there != kind) & (there != 0)).sum(1) > 0
    group = np.where(same, np.where(others, 1.0, 0.0), np.where(others, 3.0, 2.0))
    width = slots.free.shape[1]
    # As in the paper's artifact, 25 grades of fullness; among equals the lowest node goes first, and fills up.
    score: Floats = 100.0 * group - np.floor(25.0 * (width - slots.free.sum(1)) / width + SLACK)
    return score


def choose_node(site: Site, row: int) -> int:
    slots = slots_of(site, row, np.arange(len(site.pool.first) - 1))
    slots = only(slots, hosts(site, row, slots))
    if len(slots.nodes) == 0:
        return -1
    return int(slots.nodes[scores(site, row, slots).argmin()])


def gpus_on(site: Site, row: int, node: int) -> Ints:
    return picked(site, row, node, slots_of(site, row, np.array([node])))


def picked(site: Site, row: int, node: int, slots: Slots) -> Ints:
    k = site.demand.gpus[row]
    if site.code == FGD and k == 1:
        best = grades(site.demand, site.pool, site.tasks, row, slots.nodes, slots.gpus, slots.usable)[1]
        return slots.gpus[0, best[0] : best[0] + 1].copy()
    here = slots.gpus[0][slots.usable[0]]
    if site.code == RANDOM:
        here = here[shuffled(site.salt + node, len(here))]
    elif site.code != FIRST:
        free = slots.free[0][slots.usable[0]]
        here = here[np.argsort(-free if site.code == SPREAD else free, kind="mergesort")]
    return np.sort(here[:k])


def by_node(site: Site, row: int) -> Ints:
    """A spot on one node, or, for a job larger than any, on the nodes with the most room; empty where there is none."""
    k = site.demand.gpus[row]
    if k > np.diff(site.pool.first).max():
        return _over_nodes(site, row)
    node = choose_node(site, row)
    return gpus_on(site, row, node) if node >= 0 else EMPTY


def _over_nodes(site: Site, row: int) -> Ints:
    pool, demand, k = site.pool, site.demand, site.demand.gpus[row]
    usable = usable_gpus(site, row)
    per_node = np.bincount(pool.node[usable], minlength=len(pool.first) - 1)
    gpus = np.empty(k, dtype=np.int64)
    done = 0
    for n in np.argsort(-per_node, kind="mergesort"):
        took = min(per_node[n], k - done)
        while took > 0 and (
            demand.cpus[row] * took / k > pool.cpus[n] + SLACK or demand.host[row] * took / k > pool.host[n] + BYTE
        ):
            took -= 1
        begin = pool.first[n]
        gpus[done : done + took] = np.flatnonzero(usable[begin : pool.first[n + 1]])[:took] + begin
        done += took
        if done == k:
            return gpus
    return EMPTY


def choose_gpus(code: int, pool: Pool, usable: Flags, k: int, salt: int) -> Ints:
    """k of the usable GPUs, best first by the placement's own measure; empty where there are too few."""
    candidates = np.flatnonzero(usable)
    if len(candidates) < k:
        return EMPTY
    if code in (PACK, SPREAD):
        left = pool.compute[candidates] / 100.0 + pool.memory[candidates] / pool.total[candidates]
        sign = 1.0 if code == PACK else -1.0
        candidates = candidates[np.argsort(sign * left, kind="mergesort")]
    elif code == RANDOM:
        candidates = candidates[shuffled(salt, len(candidates))]
    return candidates[:k].astype(np.int64)


def pack_one_node(pool: Pool, usable: Flags, per_node: Ints, k: int) -> Ints:
    best_room = np.inf
    best = EMPTY
    for n in range(len(per_node)):
        if per_node[n] >= k:
            here = np.flatnonzero(usable & (pool.node == n))
            left = pool.compute[here] / 100.0 + pool.memory[here] / pool.total[here]
            order = np.argsort(left, kind="mergesort")[:k]
            if left[order].sum() < best_room:
                best_room = left[order].sum()
                best = here[order].astype(np.int64)
    return best


DemandKey = tuple[float, ...]


def demand_key(demand: Demand, row: int) -> DemandKey:
    """A job's demand as a key: jobs with the same key are placed alike."""
    return (
        float(demand.gpus[row]), float(demand.memory[row]), float(demand.compute[row]), float(demand.scope[row]),
        float(demand.cpus[row]), float(demand.host[row]),
    )  # fmt: skip


def goes_by_node(site: Site, row: int) -> bool:
    if not site.fine or site.demand.gpus[row] > np.diff(site.pool.first).max():
        return False
    if site.code >= PACKING:
        return not takes_any(site.demand, row) or len(site.pool.first) > 1
    return counts_host(site.demand, row)


def part_of(site: Site, row: int, size: int) -> Site:
    """A site on which row 0 is a part of a job, with `size` of its GPUs."""
    demand = site.demand
    one = np.array([row])
    share = size / demand.gpus[row]
    return site._replace(
        demand=Demand(
            np.array([size]), demand.memory[one], demand.compute[one], demand.scope[one], demand.scopes,
            demand.estimate[one], demand.cpus[one] * share, demand.host[one] * share,
        ),
        parts=None,
    )  # fmt: skip


_known: list[tuple[Ints, Ints, Flags]] = []
"""GPUs of the nodes of the clusters that were looked at last, as they do not change."""


def _seats(first: Ints) -> tuple[Ints, Flags]:
    """The GPUs of each node, in rows as wide as the largest, and which entries are real and not padding."""
    for known, gpus, real in _known:
        if known is first:
            return gpus, real
    sizes = np.diff(first)
    column = np.arange(sizes.max())
    real = column[None, :] < sizes[:, None]
    gpus = first[:-1][:, None] + np.minimum(column[None, :], sizes[:, None] - 1)
    _known[:] = [*_known[-7:], (first, gpus, real)]
    return gpus, real


class NodeScores:
    """The scores of all nodes for one kind of job; infinite where it finds no room."""

    def __init__(self, site: Site, row: int) -> None:
        self.site, self._row = site, row
        self._gpus, self._real = _seats(site.pool.first)
        self._scores = np.full(len(self._gpus), np.inf)
        self._look(np.arange(len(self._scores)))

    @property
    def fits(self) -> bool:
        return bool(self._scores.min() < np.inf)

    def spot(self) -> Ints:
        best = int(self._scores.argmin())
        if self._scores[best] == np.inf:
            return EMPTY
        return picked(self.site, self._row, best, self._slots(slice(best, best + 1), np.array([best])))

    def changed(self, spot: Ints) -> None:
        self.update(np.unique(self.site.pool.node[spot]) if len(spot) > 1 else self.site.pool.node[spot])

    def update(self, nodes: Ints) -> None:
        self._scores[nodes] = np.inf
        self._look(nodes)

    def _slots(self, at: Any, nodes: Ints) -> Slots:
        """`slots_of`, with what is the same in every plan known already."""
        pool, demand, row = self.site.pool, self.site.demand, self._row
        gpus, real = self._gpus[at], self._real[at]
        memory, compute = pool.memory[gpus], pool.compute[gpus]
        if demand.compute[row] >= 100:
            usable = pool.tenants[gpus] == 0
        else:
            usable = compute >= demand.compute[row] - SLACK
        usable &= memory >= demand.memory[row] - BYTE
        if scope := demand.scope[row]:
            usable &= demand.scopes[scope][gpus]
        return Slots(nodes, gpus, usable & real, np.where(real, room(compute, memory, pool.total[gpus]), 0.0))

    def _look(self, nodes: Ints) -> None:
        slots = self._slots(slice(None) if len(nodes) == len(self._gpus) else nodes, nodes)
        slots = only(slots, hosts(self.site, self._row, slots))
        if len(slots.nodes):
            self._scores[slots.nodes] = scores(self.site, self._row, slots)
