"""A plan in the making: the site as it fills, and what every discipline needs to place jobs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gpuyard.core.loops.backfill import (
    Holders,
    Starts,
    forget_limits,
    is_too_large,
    new_limits,
    new_starts,
    note_too_large,
)
from gpuyard.core.loops.placement import claim, fits, pick, place, release
from gpuyard.core.loops.pool import (
    EMPTY,
    FGD,
    NO_TASKS,
    PACKING,
    Demand,
    Flags,
    Floats,
    Ints,
    Pool,
    Site,
    copy_pool,
    on_copy,
)
from gpuyard.core.loops.sharing import DemandKey, NodeScores, demand_key, goes_by_node
from gpuyard.core.plan import Plan, Snapshot, Start
from gpuyard.core.policy import Policy
from gpuyard.core.queue_features import foreseen
from gpuyard.core.reasons import Harm


class DraftSite:
    def __init__(self, site: Site, changed: list[int] | None = None) -> None:
        self.site = site
        self._known: dict[DemandKey, NodeScores] = {}
        self._seen: dict[DemandKey, int] = {}
        self.changed: list[int] = [] if changed is None else changed
        """Nodes on which jobs were placed, in order; sites of one pool share it."""

    def spot(self, row: int) -> Ints:
        if self._is_scored(row):
            return self._scores(row).spot()
        return place(self.site, row)

    def fits(self, row: int) -> bool:
        if self._is_scored(row):
            return self._scores(row).fits
        return fits(self.site, row)

    def claim(self, row: int, spot: Ints) -> None:
        claim(self.site, row, spot)
        self._note(spot)

    def release(self, row: int, spot: Ints) -> None:
        release(self.site, row, spot)
        self._note(spot)

    def _note(self, spot: Ints) -> None:
        if self.site.fine:
            self.changed += self.site.pool.node[spot].tolist()

    def _is_scored(self, row: int) -> bool:
        return not (self.site.parts and row in self.site.parts) and goes_by_node(self.site, row)

    def _scores(self, row: int) -> NodeScores:
        key = demand_key(self.site.demand, row)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = NodeScores(self.site, row)
        elif stale := self.changed[self._seen[key] :]:
            known.update(np.array(sorted(set(stale)), dtype=np.int64))
        self._seen[key] = len(self.changed)
        return known


def reserve(head: int, holders: Holders, site: Site) -> tuple[float, Site]:
    """`backfill.reserve` for many holders: when the head is expected to fit, and the site at that instant without it.

    Room only grows while holders leave, so a search by halves finds the instant.
    """
    until = holders.until
    last = np.flatnonzero(np.append(until[1:] != until[:-1], [True] * bool(len(until))))
    gone = fewest_gone(head, holders, site, last + 1)
    return (np.inf if gone < 0 else float(until[gone - 1])), without(site, holders, gone)


def fewest_gone(row: int, holders: Holders, site: Site, counts: Ints) -> int:
    """The least of some ascending numbers of holders after whose end a job fits; -1 if it never does."""
    low, high, step = -1, len(counts), 1  # it does not fit after `low`, and does after `high`
    while high - low > 1:
        probe = min(low + step, high - 1) if high == len(counts) else (low + high) // 2
        if fits(without(site, holders, int(counts[probe])), row):
            high = probe
        else:
            low, step = probe, 2 * step
    return -1 if high == len(counts) else int(counts[high])


def without(site: Site, holders: Holders, gone: int) -> Site:
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
    """Give back CPUs and host memory for each GPU that was left; an empty node is exactly empty."""
    nodes, count = pool.node[bins], len(pool.idle)
    pool.cpus[:] += np.bincount(nodes, weights=np.repeat(cpus, sizes), minlength=count)
    pool.host[:] += np.bincount(nodes, weights=np.repeat(host, sizes), minlength=count)
    left = np.bincount(nodes, minlength=count) > 0
    empty = left & (np.asarray(pool.idle) == np.asarray(pool.size))
    pool.cpus[empty], pool.host[empty] = pool.all_cpus[empty], pool.all_host[empty]


@dataclass(slots=True)
class Draft:
    snapshot: Snapshot
    policy: Policy
    code: int
    salt: int
    restricted: Demand | None = None
    """Demand, if reservations or jobs that slow each other down keep jobs from some GPUs."""
    harm: Callable[[Site, int], Harm | None] | None = None
    """The neighbour that keeps a row out (`CoLocation.why`), where the placement looks at neighbours."""
    found: list[tuple[int, Ints]] = field(default_factory=list)  # rows that start, with their spots
    victims: list[int] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    limits: Ints = field(default_factory=new_limits)  # what did not fit so far
    _site: Site | None = None
    _draft_site: DraftSite | None = None

    @property
    def fine(self) -> bool:
        """Whether bins are GPUs: a job shares or names them, the placement looks at each of them, or a GPU that becomes
        free may stay unused because it is withdrawn or drained."""
        state = self.snapshot.state
        closed = bool(state.withdrawn or state.drained)
        return state.shares or closed or self.code >= PACKING or self.restricted is not None

    @property
    def demand(self) -> Demand:
        return self.snapshot.state.table.demand if self.restricted is None else self.restricted

    @property
    def site(self) -> Site:
        """What is free and not given away yet. Copied when first asked for: many plans change nothing."""
        if self._site is None:
            pool = self.snapshot.state.pool
            if self.fine:
                pool = copy_pool(pool)
            else:  # whole GPUs only: the numbers per node are all that changes, and loops over lists are fast
                pool = pool._replace(size=self.snapshot.state.cluster.nodes, idle=pool.idle.tolist())
            tasks = self.snapshot.state.table.tasks() if self.code == FGD else NO_TASKS
            parts = self.snapshot.state.parts if self.fine else None
            self._site = Site(self.demand, pool, self.code, self.salt, self.fine, tasks, parts)
        return self._site

    @property
    def draft_site(self) -> DraftSite:
        if self._draft_site is None:
            self._draft_site = DraftSite(self.site)
        return self._draft_site

    @property
    def is_long(self) -> bool:
        return len(self.found) >= self.snapshot.most

    @property
    def idle(self) -> int:
        pool = self._site.pool if self._site else self.snapshot.state.pool
        return int(sum(pool.idle))

    def rank(self, rows: Ints) -> Floats:
        """The policy's numbers for these rows, as if the jobs found so far had started; the smallest goes first."""
        state, now = self.snapshot.state, self.snapshot.now
        if not self.found or not self.policy.looks_around:
            return self.policy.rank(state, rows, now)
        with foreseen(state, now, self.site.pool.idle, self.found_rows):
            return self.policy.rank(state, rows, now)

    def run(self, loop: Callable[[Starts], None], *orders: Ints) -> None:
        bins = sum(int(self.demand.gpus[rows].sum()) for rows in orders)
        starts = new_starts(sum(map(len, orders)), bins)._replace(limits=self.limits)
        loop(starts)
        begin = 0
        for i in range(int(starts.size[0])):
            self.found.append((int(starts.rows[i]), starts.bins[begin : starts.ends[i]]))
            begin = starts.ends[i]

    def too_large(self, rows: Ints) -> Flags:
        """Which of these rows are ruled out since jobs that are no larger did not fit; whole GPUs only."""
        out: Flags = is_too_large(self.demand.gpus[rows], self.limits)
        return out

    def note_too_large(self, row: int) -> None:
        note_too_large(int(self.demand.gpus[row]), self.site, self.limits)

    def start(self, row: int) -> bool:
        spot = self.draft_site.spot(row)
        if not len(spot):
            return False
        self.take(row, spot)
        return True

    def take(self, row: int, spot: Ints) -> None:
        self.draft_site.claim(row, spot)
        self.found.append((row, spot))

    def start_over(self) -> None:
        self.found.clear()
        forget_limits(self.limits)
        self._site = self._draft_site = None

    @property
    def found_rows(self) -> Ints:
        return np.array([row for row, _ in self.found], dtype=np.int64)

    def bins(self, gpus: Ints) -> Ints:
        return gpus if self.fine else self.snapshot.state.pool.node[gpus]

    def holders(self, rows: Ints, until: Floats) -> Holders:
        state = self.snapshot.state
        if self.fine:
            spots = [state.spot[row] for row in rows]
            return laid_out(rows, spots, until)
        gpus = self.demand.gpus[rows]
        ends = gpus.cumsum()
        if len(state.cluster.nodes) == 1:
            nodes = np.zeros(ends[-1] if len(ends) else 0, dtype=np.int64)
            return Holders(rows, ends - gpus, ends, nodes, until)
        running = self.snapshot.running
        place_of = np.full(len(running) + 1, len(rows), dtype=np.int64)  # the last is for idle GPUs
        place_of[running.searchsorted(rows)] = np.arange(len(rows))
        places = place_of[np.where(state.occupant >= 0, running.searchsorted(state.occupant), len(running))]
        held = places.argsort(kind="stable")[: ends[-1] if len(ends) else 0]
        return Holders(rows, ends - gpus, ends, state.pool.node[held], until)

    def holders_by_end(self) -> Holders:
        """Running jobs by expected end, with those that start in this plan and without those that stop."""
        table, now = self.snapshot.state.table, self.snapshot.now
        rows = self.snapshot.running
        if self.victims:
            rows = rows[~np.isin(rows, self.victims)]
        left = table.estimate[rows] - table.progress[rows] + table.overhead[rows]
        until = np.where(table.started[rows] == np.inf, now, table.started[rows]) + left
        if not self.found:
            order = until.argsort(kind="stable")
            return self.holders(rows[order], until[order])
        old = self.holders(rows, until)
        new = self.found_rows
        until = np.concatenate((until, now + table.estimate[new] - table.progress[new]))
        order = until.argsort(kind="stable")
        spots = laid_out(new, [spot for _, spot in self.found], until)
        return _in_order(order, np.concatenate((rows, new)), until, old, spots)

    def holders_expecting(self, ends: Mapping[str, float]) -> Holders:
        """The same by other expectations; who is not among these ends nobody knows when."""
        holders, ids = self.holders_by_end(), self.snapshot.state.ids
        until = np.array([ends.get(ids[row], np.inf) for row in holders.rows.tolist()], dtype=np.float64)
        nobody = laid_out(EMPTY, [], until[:0])
        return _in_order(until.argsort(kind="stable"), holders.rows, until, holders, nobody)

    def finish(self) -> Plan:
        """Decide which job gets which GPU, once it is known which jobs keep theirs."""
        state = self.snapshot.state
        self.plan.stops = [state.ids[row] for row in self.victims]
        placed = list(self.found)
        if placed and not self.fine:
            pool = state.pool
            if len(placed) > 1 or self.victims:
                pool = pool._replace(tenants=pool.tenants.copy())
            for row in self.victims:
                pool.tenants[state.spot[row]] = 0
            for n, (row, nodes) in enumerate(self.found):
                gpus = pick(self.code, pool, nodes, self.salt)
                if len(placed) > 1:
                    pool.tenants[gpus] = 1
                placed[n] = (row, gpus)
        self.plan.starts = [Start(state.ids[row], tuple(gpus.tolist())) for row, gpus in placed]
        return self.plan


def laid_out(rows: Ints, spots: list[Ints], until: Floats) -> Holders:
    bins = np.concatenate(spots) if spots else EMPTY
    sizes = np.array([len(spot) for spot in spots], dtype=np.int64)
    ends = np.cumsum(sizes)
    return Holders(rows, ends - sizes, ends, bins, until)


def _in_order(order: Ints, rows: Ints, until: Floats, old: Holders, new: Holders) -> Holders:
    bins = np.concatenate((np.asarray(old.bins, dtype=np.int64), new.bins))
    begins = np.concatenate((old.begins, np.asarray(new.begins) + len(old.bins)))[order]
    sizes = np.concatenate((np.subtract(old.ends, old.begins), np.subtract(new.ends, new.begins)))[order]
    ends = np.cumsum(sizes)
    where = np.arange(len(bins)) + np.repeat(begins - (ends - sizes), sizes)
    return Holders(rows[order], ends - sizes, ends, bins[where], until[order])


def overdue_end_soon(holders: Holders, now: float) -> Holders:
    """Jobs that have outlived their estimate are expected to end next, not in the past."""
    return holders._replace(until=np.maximum(holders.until, np.nextafter(now, np.inf)))
