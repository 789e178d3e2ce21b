"""Columns that describe the queue around a waiting job: idle GPUs, waiting jobs, and when room is expected.

They are the same for every job of the queue, or follow from a few sums; computed once for an instant, however many
columns ask. Only GPUs are counted, not where they are: what a placement makes of them is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.formulas import ENDLESS, LENGTHS, OVERDUE
from gpuyard.core.loops.pool import BYTE, EMPTY, SLACK, Counts, Flags, Floats, Ints
from gpuyard.core.state import State

QUEUE_FEATURES = frozenset(
    {"usage_share", "opening", "suitable", "shorter", "idle", "hole", "queue", "queue_work", "shadow"}
)
"""The columns that read them: every start changes them for all other jobs."""


class QueueFeatures(NamedTuple):
    idle: int  # GPUs without a tenant, on which jobs may start
    hole: int  # those of the node that has most
    queue: int  # how many jobs wait
    work: float  # GPU-seconds that they ask for, by estimates
    first: int  # the row that was submitted first of them, -1 if none waits
    lengths: Ints  # how many of them are so long, by powers of two (`length_of`)
    room: Ints  # GPUs that are idle now, and after each of the expected ends
    delay: Floats  # seconds until then; the first is 0


def length_of(estimate: Floats) -> Ints:
    """The power of two, of seconds, that an estimate is below."""
    return np.clip(np.frexp(np.minimum(estimate, ENDLESS))[1], 0, LENGTHS - 1).astype(np.int64)


def measure_queue(state: State, now: float) -> QueueFeatures:
    seen = state.seen
    if seen is None or seen[0] != state.version or seen[1] != now:
        seen = state.seen = (state.version, now, _surveyed(state, now, state.pool.idle, EMPTY))
    found: QueueFeatures = seen[2]
    return found


@contextmanager
def foreseen(state: State, now: float, idle: Counts, begun: Ints) -> Iterator[None]:
    """For a while, let the features be as if these rows had started, which leaves `idle` GPUs of each node."""
    before = state.seen
    state.seen = (state.version, now, _surveyed(state, now, idle, begun))
    try:
        yield
    finally:
        state.seen = before


def _surveyed(state: State, now: float, idle: Counts, begun: Ints) -> QueueFeatures:
    table, rows = state.table, state.waiting.array
    if len(begun):
        rows = rows[~np.isin(rows, begun)]
    estimate = np.minimum(table.estimate[rows], ENDLESS)
    free = int(sum(idle))
    room, delay = _expected(state, now, free, begun)
    return QueueFeatures(
        free, int(max(idle)), len(rows), float((estimate * table.gpus[rows]).sum()),
        int(rows[0]) if len(rows) else -1, np.bincount(length_of(estimate), minlength=LENGTHS), room, delay,
    )  # fmt: skip


def _expected(state: State, now: float, idle: int, begun: Ints) -> tuple[Ints, Floats]:
    table, rows = state.table, state.running.array
    if len(begun):
        rows = np.concatenate((rows, begun))
    rows = rows[table.compute[rows] >= 100]
    left = np.minimum(table.estimate[rows], ENDLESS) - table.progress[rows] + table.overhead[rows]
    until = np.where(table.started[rows] == np.inf, now, table.started[rows]) + left
    order = until.argsort(kind="stable")
    room = np.concatenate((np.array([idle]), idle + table.gpus[rows[order]].cumsum()))
    return room, np.concatenate((np.zeros(1), np.maximum(until[order] - now, OVERDUE)))


def opening(state: State, rows: Ints, now: float) -> Floats:
    """Seconds until as many GPUs as a job wants are expected to be idle; 0: now."""
    features = measure_queue(state, now)
    at = features.room.searchsorted(state.table.gpus[rows])
    found: Floats = np.append(features.delay, ENDLESS)[at]
    shares = state.table.compute[rows] < 100
    if shares.any():
        soonest = features.delay[1] if len(features.delay) > 1 else OVERDUE
        found = np.where(shares, np.where(_has_room(state, rows), 0.0, soonest), found)
    return found


def _has_room(state: State, rows: Ints) -> Flags:
    demand, pool = state.table.demand, state.pool
    left = np.where(pool.compute >= -SLACK, pool.memory, -np.inf)
    most = np.where(demand.scopes, left, -np.inf).max(axis=1)
    return np.asarray(demand.memory[rows] - BYTE <= most[demand.scope[rows]])


def suitable(state: State, rows: Ints, now: float) -> Floats:
    scope = state.table.scope[rows]
    if not scope.any():
        return np.full(len(rows), float(measure_queue(state, now).idle))
    found: Floats = (state.table.scopes & (state.pool.tenants == 0)).sum(axis=1).astype(np.float64)[scope]
    return found


def shadow(state: State, now: float) -> float:
    """Seconds until the job that was submitted first could start, if all GPUs that become idle were kept for it."""
    first = measure_queue(state, now).first
    return float(opening(state, np.array([first]), now)[0]) if first >= 0 else 0.0


def shorter(state: State, rows: Ints, now: float) -> Floats:
    """The share of the queue that is expected to be shorter than a job; of equally long ones, half are counted."""
    features = measure_queue(state, now)
    length = length_of(state.table.estimate[rows])
    below = features.lengths.cumsum() - features.lengths
    return (below[length] + 0.5 * features.lengths[length]) / max(features.queue, 1)


def usage_share(state: State, rows: Ints, now: float) -> Floats:
    usage = state.usage(now)
    return usage[state.table.user[rows]] / max(float(usage.sum()), 1.0)


def capacity(state: State, rows: Ints, now: float) -> Floats:
    return np.full(len(rows), float(state.cluster.gpus))
