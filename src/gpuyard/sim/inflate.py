"""How full can a cluster get? Jobs arrive one by one, start at once or not at all, and never leave.

The experiment of Weng et al. (ATC'23): the trace's jobs come in a random order, then jobs drawn from it at random,
until they want a given multiple of the cluster's GPUs. How much of the GPUs is allocated in the end depends on
placement alone, not on run times or policies. Nodes are taken in a random order, too, since ties go to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuyard.core.loops.fragmentation import Kind, fragments, kind_of, typical
from gpuyard.core.loops.placement import claim, place
from gpuyard.core.loops.pool import RANDOM, Demand, Flags, Floats, Ints, Site, Tasks, new_pool, salted
from gpuyard.core.loops.sharing import gpus_on, hosts, lots, only, scores, slots_of
from gpuyard.core.model import Cluster, suits
from gpuyard.core.policy import PLACEMENTS, check_placement
from gpuyard.errors import UserError
from gpuyard.sim.trace import Trace

MOST = 10.0  # times the cluster's GPUs that jobs may want: what comes long after it is full changes nothing

Progress = Callable[[int, int], None]
Curve = list[tuple[float, float, float]]
"""GPUs wanted so far, allocated, and fragmented: each in percent of the cluster's."""

DEFINITIONS = {
    "inflate": "jobs arrive until they want so many times the cluster's GPUs",
    "arrived": "jobs that arrived; each starts at once or not at all, and none ends",
    "placed": "jobs that found room",
    "failed": "jobs that did not",
    "demand": "GPUs that the arrived jobs want, in percent of the cluster's",
    "allocation": "GPUs that the placed jobs have, in percent of the cluster's; a share counts as that part of a GPU",
    "fragmentation": "free GPUs that the trace's usual jobs could not use, on average, in percent of the cluster's",
    "cpu_allocation": "CPUs that the placed jobs have, in percent; none where nodes do not say how many they have",
    "memory_allocation": "host memory that the placed jobs have, in percent; none where nodes do not say",
}


def inflate(
    trace: Trace, cluster: Cluster, placement: str, factor: float, seed: int = 0, progress: Progress | None = None
) -> dict[str, Any]:
    """Fill a cluster; returns what `DEFINITIONS` says, and `curve`: a point for every percent of demand."""
    check_placement(placement)
    if not 0 < factor <= MOST:
        raise UserError(f"--inflate takes a number above 0 and at most {MOST:g}, such as 1.3, not {factor:g}")
    rng = np.random.default_rng(seed)
    cluster = _shuffled(cluster, rng.permutation(len(cluster.nodes)))
    filling = _Filling(trace, cluster, placement, seed)
    order = arrivals(filling.wanted, factor * cluster.gpus, rng)
    step = cluster.gpus / 100.0
    demand, curve, placed = 0.0, [(0.0, 0.0, filling.fragmentation())], 0
    for number, row in enumerate(order.tolist()):
        placed += filling.take(row, number)
        demand += filling.wanted[row]
        if demand >= step * len(curve) - 1e-9:
            curve.append((demand / step, filling.allocation(), filling.fragmentation()))
            if progress:
                progress(number + 1, len(order))
    facts = {
        "placement": placement, "inflate": factor, "seed": seed, "gpus": cluster.gpus, "nodes": len(cluster.nodes),
        "jobs": len(trace), "arrived": len(order), "placed": placed, "failed": len(order) - placed,
        "demand": demand / step,
    }  # fmt: skip
    return facts | filling.measures() | {"curve": curve}


def arrivals(wanted: Floats, target: float, rng: np.random.Generator) -> Ints:
    order = rng.permutation(len(wanted))
    total = float(wanted.sum())
    if total <= 0:
        raise UserError("no job of the trace wants a GPU, so there is nothing to fill a cluster with")
    if total > target:  # jobs are left out at random, wherever they stand
        out = rng.permutation(len(order))
        enough = int(np.searchsorted(np.cumsum(wanted[order[out]]), total - target - 1e-9)) + 1
        return np.delete(order, out[:enough])
    more: list[Ints] = []
    while True:
        drawn = rng.integers(len(wanted), size=len(wanted))
        reached = total + np.cumsum(wanted[drawn])
        fit = int(np.searchsorted(reached, target + 1e-9, side="right"))
        more.append(drawn[:fit])
        if fit < len(drawn):
            return np.concatenate((order, *more))
        total = float(reached[-1])


def _shuffled(cluster: Cluster, order: Ints) -> Cluster:
    def pick(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[i] for i in order.tolist()) if values else ()

    return Cluster(
        pick(cluster.nodes), cluster.memory, pick(cluster.cpus), pick(cluster.host_memory), pick(cluster.models)
    )


class _Filling:
    def __init__(self, trace: Trace, cluster: Cluster, placement: str, seed: int) -> None:
        self.demand = _demand(trace, cluster)
        self.tasks = _tasks(self.demand, cluster.memory)
        pool = new_pool(cluster.nodes, cluster.memory, cluster.cpus, cluster.host_memory)
        self.site = Site(self.demand, pool, PLACEMENTS[placement], 0, True, self.tasks)
        self.seed = seed
        self.largest = max(cluster.nodes)
        share = np.maximum(self.demand.compute / 100.0, self.demand.memory / cluster.memory)
        self.wanted: Floats = np.minimum(share, 1.0) * self.demand.gpus
        self.kind = _kinds(self.demand)
        self.scores = np.full((int(self.kind.max(initial=0)) + 1, len(cluster.nodes)), np.inf)
        self.seen = np.full(len(self.scores), -1)
        self.changed: list[int] = []
        self.had = np.zeros(3)  # GPUs, CPUs and host memory that were given away

    def take(self, row: int, number: int) -> bool:
        if self.site.code == RANDOM:
            self.site = self.site._replace(salt=salted(self.seed, number))
        demand, pool = self.demand, self.site.pool
        if demand.gpus[row] > self.largest:
            spot = place(self.site, row)
            if not len(spot):
                return False
        else:
            node = self._best(row)
            if node < 0:
                return False
            if demand.gpus[row] == 0:
                pool.cpus[node] -= demand.cpus[row]
                pool.host[node] -= demand.host[row]
                self.changed.append(node)
                spot = np.empty(0, dtype=np.int64)
            else:
                spot = gpus_on(self.site, row, node)
        if len(spot):
            claim(self.site, row, spot)
            self.changed += np.unique(pool.node[spot]).tolist()
        self.had += (self.wanted[row], demand.cpus[row], demand.host[row])
        return True

    def _best(self, row: int) -> int:
        kind = self.kind[row]
        known = self.scores[kind]
        if self.seen[kind] < 0:
            nodes = np.arange(len(known))
        else:
            nodes = np.array(sorted(set(self.changed[self.seen[kind] :])), dtype=np.int64)
            nodes = nodes[known[nodes] < np.inf]  # no job leaves, so a node without room stays without
        self.seen[kind] = len(self.changed)
        if len(nodes):
            known[nodes] = np.inf
            slots = slots_of(self.site, row, nodes)
            slots = only(slots, hosts(self.site, row, slots))
            if len(slots.nodes):
                known[slots.nodes] = scores(self.site, row, slots)
        if self.site.code == RANDOM:  # every decision draws again, among the nodes with room
            able = np.flatnonzero(known < np.inf)
            return int(able[lots(self.site.salt, able).argmin()]) if len(able) else -1
        best = int(known.argmin())
        return best if known[best] < np.inf else -1

    def allocation(self) -> float:
        return 100.0 * float(self.had[0]) / len(self.site.pool.tenants)

    def fragmentation(self) -> float:
        """Percent of the GPUs that are free, and of no use to the typical jobs."""
        return 100.0 * float(fragments(self.site.pool, self.tasks).sum()) / len(self.site.pool.tenants)

    def measures(self) -> dict[str, float | None]:
        return {
            "allocation": self.allocation(),
            "fragmentation": self.fragmentation(),
            "cpu_allocation": _percent(self.had[1], self.site.pool.all_cpus),
            "memory_allocation": _percent(self.had[2], self.site.pool.all_host),
        }


def _percent(had: float, amounts: Floats) -> float | None:
    total = amounts.sum()
    return 100.0 * float(had / total) if total < np.inf else None


def _demand(trace: Trace, cluster: Cluster) -> Demand:
    scope, scopes = _scopes(trace, cluster)
    nothing = np.zeros(len(trace))
    return Demand(
        gpus=trace.gpus,
        memory=trace.memory,
        compute=trace.compute,
        scope=scope,
        scopes=scopes,
        estimate=nothing,
        cpus=trace.cpus if any(cluster.cpus) else nothing,
        host=trace.host_memory if any(cluster.host_memory) else nothing,
    )


def _scopes(trace: Trace, cluster: Cluster) -> tuple[Ints, Flags]:
    """The row of allowed GPUs for each job, by suitable models, and those rows; the first is all GPUs."""
    rows = {"": 0}
    scope = np.zeros(len(trace), dtype=np.int64)
    if cluster.models:
        scope = np.array([rows.setdefault(text, len(rows)) for text in trace.gpu_types], dtype=np.int64)
    models = [model.casefold() for model in cluster.models] or [""] * len(cluster.nodes)
    return scope, np.array([np.repeat(suits(text, models), cluster.nodes) for text in rows])


def _tasks(demand: Demand, memory: float) -> Tasks:
    """The typical jobs of the whole trace: the published experiment knows them in advance."""
    counts: dict[Kind, int] = {}
    for row in range(len(demand.gpus)):
        kind = kind_of(demand, row, memory)
        counts[kind] = counts.get(kind, 0) + 1
    return typical(counts, demand.scopes)


def _kinds(demand: Demand) -> Ints:
    columns = (demand.gpus, demand.memory, demand.compute, demand.scope, demand.cpus, demand.host)
    found: dict[tuple[float, ...], int] = {}
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.array([found.setdefault(row, len(found)) for row in rows], dtype=np.int64)
