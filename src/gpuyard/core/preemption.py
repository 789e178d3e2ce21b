"""Preemptive policies: decide over running and waiting jobs together, and say when to look again."""

from __future__ import annotations

import numpy as np

from gpuyard.core.columns import ALWAYS
from gpuyard.core.displacement import displace
from gpuyard.core.draft import Draft
from gpuyard.core.formulas import slice_over_at
from gpuyard.core.policy import Policy
from gpuyard.core.pool import Flags, Floats, Ints
from gpuyard.core.state import State


def preempt(draft: Draft, stop: bool) -> None:
    """Re-decide over running and waiting jobs together; jobs within their quantum are left alone."""
    state, policy = draft.snapshot.state, draft.policy
    if not policy.sliced and _everybody_starts(draft):
        return
    loose, soon = _loose(draft)
    ranks = draft.rank(np.concatenate((loose, draft.snapshot.waiting)))
    keys, rank = ranks[: len(loose)], ranks[len(loose) :]
    order = keys.argsort(kind="stable")
    loose, keys = loose[order], keys[order]
    victim = np.zeros(len(loose), dtype=np.int64)
    _displace(draft, rank, loose, keys, victim, stop)
    kept = loose
    if victim.any():
        draft.victims = loose[victim == 1].tolist()
        kept = loose[victim == 0]
    draft.plan.renewals = [state.ids[row] for row in kept] if policy.sliced else []
    if len(draft.snapshot.waiting) + len(draft.victims) > len(draft.found):
        draft.plan.wake_at = _wake_at(draft, kept, soon)


def _everybody_starts(draft: Draft) -> bool:
    """Start all that waits, if there is room without stopping anybody: the usual case on a machine that is not full."""
    rows = draft.snapshot.waiting
    if draft.fine or draft.demand.gpus[rows].sum() > draft.idle:
        return False
    if len(rows) > 1:
        rows = rows[draft.rank(rows).argsort(kind="stable")]
    if all(draft.start(row) for row in rows.tolist()):
        return True
    draft.start_over()
    return False


def _loose(draft: Draft) -> tuple[Ints, Floats]:
    """The running jobs that may be stopped now, and when others may be."""
    state, now, policy = draft.snapshot.state, draft.snapshot.now, draft.policy
    running, table = draft.snapshot.running, state.table
    if policy.quantum == 0 and not (state.fixed or state.withdrawn or state.drained or state.promises):
        return running, np.empty(0)
    free_at = _free_at(policy, table.slice_started[running], now)
    may = may_stop(state, running)
    is_free = free_at <= now
    return running[may & is_free], free_at[may & ~is_free]


def may_stop(state: State, running: Ints) -> Flags:
    """Which running jobs may be stopped: they said so, have begun, are not about to end, and others could follow."""
    table = state.table
    may: Flags = table.preemptible[running] & (table.started[running] < np.inf)
    if state.recalled:
        may &= ~np.isin(running, list(state.recalled))
    if out := _out_of_use(state):
        may &= np.array([out.isdisjoint(state.spot[row].tolist()) for row in running], dtype=np.bool_)
    return may


def _out_of_use(state: State) -> set[int]:
    """GPUs on which nobody else could start if those who run there were stopped."""
    return {*state.withdrawn, *state.drained, *(gpu for gpus in state.promises.values() for gpu in gpus)}


def _displace(draft: Draft, rank: Floats, loose: Ints, keys: Floats, victim: Ints, stop: bool) -> None:
    rows = draft.snapshot.waiting
    if not draft.fine and not _anybody_fits(draft, rows, rank, loose, keys):
        return
    order = rank.argsort(kind="stable")
    rows, rank = rows[order], rank[order]
    if rank[0] > keys.max(initial=-np.inf):
        loose, keys = loose[:0], keys[:0]  # all running jobs go first: nobody has to stop
    holders = draft.holders(loose, np.empty(0))
    marks: list[int] = [0] * len(loose)
    nodes = len(draft.snapshot.state.cluster.nodes)
    held = [0] * nodes
    # Lists, not arrays: the loop looks at single numbers, which the interpreter does several times faster so.
    quick = holders
    if not draft.fine:
        lists = {name: getattr(holders, name).tolist() for name in ("begins", "ends", "bins")}
        quick = holders._replace(**lists)
    ranks = keys.tolist()
    draft.run(
        lambda starts: displace(rows, rank, quick, ranks, stop, draft.site, starts, marks, held, holders.bins),
        rows,
        loose,
    )
    victim[: len(marks)] = marks


def _anybody_fits(draft: Draft, rows: Ints, rank: Floats, loose: Ints, keys: Floats) -> bool:
    """Whether any waiting job could find room in what is idle and what those behind it hold."""
    gpus = draft.demand.gpus
    if gpus[rows].min() <= draft.idle:
        return True
    tail = np.zeros(len(loose) + 1, dtype=np.int64)
    np.cumsum(gpus[loose][::-1], out=tail[1:])
    held_behind = tail[len(loose) - keys.searchsorted(rank)]
    return bool((gpus[rows] <= draft.idle + held_behind).any())


def _free_at(policy: Policy, since: Floats, now: float) -> Floats:
    """When each running job's quantum is over; for slices, when the present one is."""
    if not policy.sliced:
        return since + policy.quantum
    over: Floats = slice_over_at(since, policy.quantum, now)
    return over


def _wake_at(draft: Draft, kept: Ints, soon: Floats) -> float:
    """When the plan could change although nothing happens: a quantum is over, or a rank changes by itself."""
    state, now, policy = draft.snapshot.state, draft.snapshot.now, draft.policy
    times = [float(soon.min())] if len(soon) else []
    if policy.quantum > 0 and (draft.found or (policy.sliced and len(kept))):
        times.append(now + policy.quantum)
    if policy.next_change is not None:
        rows = np.concatenate((kept, draft.found_rows)) if draft.found else kept
        if len(rows):
            # A job that is still restarting makes no progress yet.
            table = state.table
            restarting = np.where(table.started[rows] < np.inf, table.started[rows] + table.overhead[rows] - now, 0.0)
            change = policy.next_change.rank(state, rows, now) + np.maximum(restarting, 0.0)
            times.append(now + float(change.min()))
    elif policy.changes == ALWAYS and policy.quantum > 0:
        times.append(now + policy.quantum)
    return min(times, default=np.inf)
