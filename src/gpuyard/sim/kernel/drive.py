"""From a trace to a schedule with the compiled drivers."""

from __future__ import annotations

import numpy as np

from gpuyard.core import discipline, displacement, placement, reservation
from gpuyard.core.model import Cluster, Request
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.pool import Site
from gpuyard.core.state import State
from gpuyard.sim.kernel import build, clock, ends, order, ranked, yard
from gpuyard.sim.result import Placements, Result, Segments
from gpuyard.sim.trace import Floats, Trace

MODULES = (placement, discipline, displacement, reservation, ends, yard, clock, order, ranked)
ENTRIES = ("run_in_order", "run_backfilling")
CODES = {"strict": 0, "commit": 1, "skip": 2, "easy": 3, "easy-shadow": 4, "conservative": 5}


def run(trace: Trace, cluster: Cluster, planner: OrderedPlanner, estimates: Floats, seed: int = 0) -> Result:
    import time

    t0 = time.thread_time()
    state = State(cluster, seed)
    table = state.table
    trace.check()
    perm = trace.arrival_order()
    if not np.array_equal(perm, np.arange(len(perm))):
        trace = trace.take(perm)
        estimates = estimates[perm]
    t1 = time.thread_time()
    n = len(trace)
    table.load(
        {
            "submit": trace.submit,
            "gpus": trace.gpus,
            "estimate": estimates,
            "memory": trace.memory,
            "compute": trace.compute,
            "priority": trace.priority,
            "weight": trace.weight,
            "tickets": trace.tickets,
            "deadline": trace.deadline,
            "preemptible": trace.preemptible,
        }
    )
    rows = np.arange(n)
    keys = planner.policy.rank(state, rows, 0.0)
    rank = np.empty(n, dtype=np.int64)
    rank[np.argsort(keys, kind="stable")] = rows
    t2 = time.thread_time()
    rejected = np.zeros(n, dtype=bool)
    why: dict[int, str] = {}
    for k in np.unique(trace.gpus):
        reason = planner.refuses(state, Request(gpus=int(k), estimate=1.0))
        if reason:
            for row in np.flatnonzero(trace.gpus == k):
                rejected[row] = True
                why[int(row)] = reason
    queue = order.new_order(rank, trace.gpus)
    pool = state.pool
    offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(trace.gpus)))
    gpus = int(cluster.gpus)
    yd = yard.Yard(
        pool._replace(size=None, idle=pool.idle, memory=None, compute=None, total=None),
        pool.first[:-1].copy(),
        np.array([gpus]),
        ends.new_ends(gpus + 1, n),
        np.full(n, np.nan),
        np.full(n, np.nan),
        offset,
        np.empty(int(offset[-1]), dtype=np.int64),
        np.empty(int(offset[-1]), dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )
    plan_pool = pool._replace(
        first=None, node=None, idle=pool.idle.copy(), tenants=None, memory=None, compute=None, total=None
    )
    demand = table.demand._replace(memory=None, compute=None, scope=None, scopes=None)
    site = Site(demand, plan_pool, planner.code, 0, False)
    work = yard.Work(trace.submit, trace.run, rejected)
    module = build.load("loops", build.merged_source(MODULES, ENTRIES))
    t3 = time.thread_time()
    d = CODES[planner.discipline]
    entry = module.run_in_order if d < 3 else module.run_backfilling
    entry(work, queue, site, yd, clock.new_clock(gpus + 1), d, seed, 0.0)
    t4 = time.thread_time()
    done = ~np.isnan(yd.start)
    job = np.repeat(rows, trace.gpus)
    result = Result(
        trace,
        cluster,
        planner.text,
        yd.start,
        yd.end,
        np.zeros(n, dtype=np.int64),
        Placements(yd.gpus, offset[1:]),
        why,
        Segments(job, yd.gpus, yd.start[job], yd.end[job]),
    )
    t5 = time.thread_time()
    print(f"order {t1 - t0:.4f} rank {t2 - t1:.4f} prep {t3 - t2:.4f} kernel {t4 - t3:.4f} result {t5 - t4:.4f}")
    return result
