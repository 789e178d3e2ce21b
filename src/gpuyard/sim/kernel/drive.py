"""From a trace to a schedule with the compiled drivers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gpuyard.core import discipline, displacement, formulas, nodes, placement, pool, reservation
from gpuyard.core.columns import COLUMNS
from gpuyard.core.model import Cluster, Request
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.pool import Flags, Floats, Ints, Site
from gpuyard.core.state import State
from gpuyard.sim.kernel import build, clock, compiling, ends, facts, line, order, preempting, ranked, yard
from gpuyard.sim.result import Placements, Result, Segments
from gpuyard.sim.trace import Trace

MODULES = (
    pool, nodes, placement, formulas, discipline, displacement, reservation,
    ends, yard, clock, order, line, facts, ranked, preempting,
)  # fmt: skip
ENTRIES = ("run_in_order", "run_backfilling", "run_preempting")
CODES = {"strict": 0, "commit": 1, "skip": 2, "easy": 3, "easy-shadow": 4, "conservative": 5}
LOADED: list[Any] = []


def _only(record: Any, *names: str) -> Any:
    """A named tuple with everything left out but these fields: the compiled loops never look at the others."""
    return type(record)(*(value if name in names else None for name, value in record._asdict().items()))


def run(trace: Trace, cluster: Cluster, planner: OrderedPlanner, estimates: Floats, seed: int = 0, restart=None, every=0.0) -> Result:
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
    users: dict[str, int] = {}
    user = np.array([users.setdefault(u, len(users)) for u in trace.users])
    table.load(
        {
            "submit": trace.submit, "gpus": trace.gpus, "estimate": estimates, "memory": trace.memory,
            "compute": trace.compute, "priority": trace.priority, "weight": trace.weight, "tickets": trace.tickets,
            "deadline": trace.deadline, "preemptible": trace.preemptible, "user": user,
        }
    )  # fmt: skip
    rows = np.arange(n)
    t2 = time.thread_time()
    rejected = np.zeros(n, dtype=bool)
    why: dict[int, str] = {}
    for k in np.unique(trace.gpus):
        reason = planner.refuses(state, Request(gpus=int(k), estimate=1.0))
        if reason:
            for row in np.flatnonzero(trace.gpus == k):
                rejected[row] = True
                why[int(row)] = reason
    full = state.pool
    gpus = cluster.gpus
    offset = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(trace.gpus)))
    yd = yard.Yard(
        pool=_only(full, "first", "node", "tenants"),
        lowest=full.first[:-1].copy(),
        free=np.array([gpus]),
        ends=ends.new_ends(gpus + 1, n),
        start=np.full(n, np.nan),
        end=np.full(n, np.nan),
        preemptions=np.zeros(n, dtype=np.int64),
        offset=offset,
        gpus=np.empty(int(offset[-1]), dtype=np.int64),
        nodes=np.empty(int(offset[-1]), dtype=np.int64),
        done=np.zeros(1, dtype=np.int64),
    )
    site = Site(_only(table.demand, "gpus", "estimate"), _only(full, "size", "idle"), planner.code, 0, False, None)
    work = yard.Work(trace.submit, trace.run, restart if restart is not None else np.zeros(n), rejected)
    if not LOADED:
        LOADED.append(build.load("loops", build.merged_source(MODULES, ENTRIES)))
    lib = LOADED[0]
    d = CODES[planner.discipline]
    ck = clock.new_clock(gpus + 1)
    policy = planner.policy
    if policy.preemptive:
        fx = facts.Facts(
            **{name: getattr(table, name)[:n] for name in facts.Facts._fields if hasattr(table, name)},
            named=np.array([u != "" for u in users]), usage=np.zeros(len(users)), last_finish=np.zeros(len(users)),
            numbers=np.array([0, 0, seed]), virtual_time=np.zeros(1),
        )
        codes = facts.COLUMN_CODES
        cols = np.array([codes[c] for c in policy.columns], dtype=np.int64)
        change = policy.next_change
        ccols = np.array([codes[c] for c in change.columns] if change else [], dtype=np.int64)
        rank = compiling.compiled(policy)
        chg = compiling.compiled(change) if change else rank
        rules = preempting.Rules(cols, ccols, change is not None, policy.quantum, policy.sliced, d == 0,
                                 not bool(trace.preemptible.all()), policy.improves, seed, every)
        desk = preempting.new_desk(gpus, len(cluster.nodes), n, max(len(cols), len(ccols)))
        t3 = time.thread_time()
        pieces = yard.new_pieces(n + gpus + 1, int(offset[-1]) + gpus + 1)
        lib.run_preempting(work, site, yd, ck, fx, line.new_line(n), pieces, desk, rules, rank, chg)
    else:
        keys = policy.rank(state, rows, 0.0)
        rk = np.empty(n, dtype=np.int64)
        rk[np.argsort(keys, kind="stable")] = rows
        queue = order.new_order(rk, trace.gpus)
        t3 = time.thread_time()
        entry = lib.run_in_order if d < 3 else lib.run_backfilling
        entry(work, queue, site, yd, ck, d, seed, every)
    t4 = time.thread_time()
    job = np.repeat(rows, trace.gpus)
    result = Result(
        trace, cluster, planner.text, yd.start, yd.end, yd.preemptions,
        Placements(yd.gpus, offset[1:]), why, Segments(job, yd.gpus, yd.start[job], yd.end[job]),
    )  # fmt: skip
    t5 = time.thread_time()
    print(f"order {t1 - t0:.4f} rank {t2 - t1:.4f} prep {t3 - t2:.4f} kernel {t4 - t3:.4f} result {t5 - t4:.4f} preempt {yd.preemptions.sum()} {desk.counts if policy.preemptive else 0}")
    return result
