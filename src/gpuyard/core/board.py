"""A site as a plan goes on: what was given away, and where each kind of job would sit best now."""

from __future__ import annotations

import numpy as np

from gpuyard.core.discipline import Holders
from gpuyard.core.placement import claim, fits, place, release
from gpuyard.core.pool import Floats, Ints, Pool, Site, on_copy
from gpuyard.core.scores import NodeScores, Wish, goes_by_node, wish_of


class Board:
    """A site, with the scores of nodes for the kinds of jobs that were asked for."""

    def __init__(self, site: Site, changed: list[int] | None = None) -> None:
        self.site = site
        self._known: dict[Wish, NodeScores] = {}
        self._seen: dict[Wish, int] = {}
        self.changed: list[int] = [] if changed is None else changed
        """Nodes on which somebody was placed, in order; boards of one pool share it."""

    def spot(self, row: int) -> Ints:
        """Where a job would be placed; empty where there is no room."""
        if self._is_scored(row):
            return self._scores(row).spot()
        return place(self.site, row)

    def fits(self, row: int) -> bool:
        """Whether there is room for a job."""
        if self._is_scored(row):
            return self._scores(row).fits
        return fits(self.site, row)

    def claim(self, row: int, spot: Ints) -> None:
        """Let a job have its spot."""
        claim(self.site, row, spot)
        self._note(spot)

    def release(self, row: int, spot: Ints) -> None:
        """Take it away again."""
        release(self.site, row, spot)
        self._note(spot)

    def _note(self, spot: Ints) -> None:
        if self.site.fine:
            self.changed += self.site.pool.node[spot].tolist()

    def _is_scored(self, row: int) -> bool:
        return not (self.site.parts and row in self.site.parts) and goes_by_node(self.site, row)

    def _scores(self, row: int) -> NodeScores:
        """The scores for jobs of a kind, as they are now."""
        wish = wish_of(self.site.demand, row)
        known = self._known.get(wish)
        if known is None:
            known = self._known[wish] = NodeScores(self.site, row)
        elif stale := self.changed[self._seen[wish] :]:
            known.look_at(np.array(sorted(set(stale)), dtype=np.int64))
        self._seen[wish] = len(self.changed)
        return known


def reserve(head: int, holders: Holders, site: Site) -> tuple[float, Site]:
    """`discipline.reserve` for many holders: when the head is expected to fit, and the site at that instant without it.

    Room only grows while holders leave, so the instant is found by trying a few, in place of one after another.
    """
    until = holders.until
    last = np.flatnonzero(np.append(until[1:] != until[:-1], [True] * bool(len(until))))
    gone = fewest_gone(head, holders, site, last + 1)
    return (np.inf if gone < 0 else float(until[gone - 1])), without(site, holders, gone)


def fewest_gone(row: int, holders: Holders, site: Site, counts: Ints) -> int:
    """The least of some numbers of holders, ascending, after whose leaving a job fits; -1 if it never does."""
    low, high, step = -1, len(counts), 1  # it does not fit after `low`, and does after `high`
    while high - low > 1:
        probe = min(low + step, high - 1) if high == len(counts) else (low + high) // 2
        if fits(without(site, holders, int(counts[probe])), row):
            high = probe
        else:
            low, step = probe, 2 * step
    return -1 if high == len(counts) else int(counts[high])


def without(site: Site, holders: Holders, gone: int) -> Site:
    """A copy of a site that the first so many holders have left; -1: all of them."""
    site = on_copy(site)
    gone = len(holders.rows) if gone < 0 else gone
    if not gone:
        return site
    pool, demand, rows = site.pool, site.demand, holders.rows[:gone]
    sizes = np.asarray(holders.ends[:gone]) - np.asarray(holders.begins[:gone])
    bins, row = np.asarray(holders.bins[: holders.ends[gone - 1]]), np.repeat(rows, sizes)
    share, gpus = demand.compute[row] < 100, len(pool.tenants)
    pool.tenants[:] -= np.bincount(bins, minlength=gpus)
    pool.memory[:] += np.bincount(bins[share], weights=demand.memory[row[share]], minlength=gpus)
    pool.compute[:] += np.bincount(bins[share], weights=demand.compute[row[share]], minlength=gpus)
    empty = np.unique(bins[pool.tenants[bins] == 0])
    pool.idle[:] += np.bincount(pool.node[empty], minlength=len(pool.idle))
    pool.memory[empty] = pool.total[empty]
    pool.compute[empty] = 100.0
    pool.kind[empty] = 0
    _give_host_back(pool, demand.cpus[rows] / sizes, demand.host[rows] / sizes, sizes, bins)
    return site


def _give_host_back(pool: Pool, cpus: Floats, host: Floats, sizes: Ints, bins: Ints) -> None:
    """CPUs and host memory, so much for each GPU of those who left; an empty node is exactly empty."""
    nodes, count = pool.node[bins], len(pool.idle)
    pool.cpus[:] += np.bincount(nodes, weights=np.repeat(cpus, sizes), minlength=count)
    pool.host[:] += np.bincount(nodes, weights=np.repeat(host, sizes), minlength=count)
    left = np.bincount(nodes, minlength=count) > 0
    empty = left & (np.asarray(pool.idle) == np.asarray(pool.size))
    pool.cpus[empty], pool.host[empty] = pool.all_cpus[empty], pool.all_host[empty]
