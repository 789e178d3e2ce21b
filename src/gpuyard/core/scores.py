"""Where one kind of job would sit best, node by node, kept up as others are placed: for clusters of many nodes.

`sharing.by_node` scores every node for every job. Within one plan little changes between two jobs of a kind, so here
a score is worked out anew only for nodes that somebody was placed on. The choice is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.core.fragmentation import room
from gpuyard.core.pool import BYTE, NOBODY, PACKING, SLACK, Demand, Flags, Ints, Site, counts_host, takes_any
from gpuyard.core.sharing import Slots, hosts, only, picked, scores

Wish = tuple[float, ...]


def wish_of(demand: Demand, row: int) -> Wish:
    """What a job asks for: those who ask for the same are placed alike."""
    return (
        float(demand.gpus[row]), float(demand.memory[row]), float(demand.compute[row]), float(demand.scope[row]),
        float(demand.cpus[row]), float(demand.host[row]),
    )  # fmt: skip


def goes_by_node(site: Site, row: int) -> bool:
    """Whether a job is placed on one node, by the scores of nodes."""
    if not site.fine or site.demand.gpus[row] > np.diff(site.pool.first).max():
        return False
    if site.code >= PACKING:
        return not takes_any(site.demand, row) or len(site.pool.first) > 1
    return counts_host(site.demand, row)


def part_of(site: Site, row: int, size: int) -> Site:
    """A site on which row 0 is a part of a job, with so many of its GPUs."""
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
    """The GPUs of each node, in rows as wide as the largest, and which of them are not only there to fill it."""
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
        """Whether any node has room."""
        return bool(self._scores.min() < np.inf)

    def spot(self) -> Ints:
        """The GPUs on the best node; empty where there is no room."""
        best = int(self._scores.argmin())
        if self._scores[best] == np.inf:
            return NOBODY
        return picked(self.site, self._row, best, self._slots(slice(best, best + 1), np.array([best])))

    def changed(self, spot: Ints) -> None:
        """Somebody was placed on these GPUs, or left them."""
        self.look_at(np.unique(self.site.pool.node[spot]) if len(spot) > 1 else self.site.pool.node[spot])

    def look_at(self, nodes: Ints) -> None:
        """Work out anew how these nodes are."""
        self._scores[nodes] = np.inf
        self._look(nodes)

    def _slots(self, at: Any, nodes: Ints) -> Slots:
        """`sharing.slots_of`, with what is the same in every plan known already."""
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
