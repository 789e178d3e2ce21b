"""The state of a yard, and the one table that says how a job moves from phase to phase.

    (new)  --Submitted--> queued --Placed--> placed --Started--> running --Exited--> succeeded | failed
                           ^  |                                    |
                           |  +--Held/Released, Cancelled, Rejected, Chosen
                           +-------------------Preempted-----------+

`apply` is the only way a state changes, live and when a log is folded, so that a restart, a what-if and a
simulation cannot disagree. An event that the table does not know is a bug of the driver, and says so; a late event of
an earlier attempt is not: processes report when they like, and such a report is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpuyard.core.columns import Table
from gpuyard.core.events import (
    Cancelled,
    Chosen,
    Event,
    Exited,
    Held,
    Placed,
    Preempted,
    Rejected,
    Released,
    Renewed,
    Started,
    Submitted,
)
from gpuyard.core.model import Cluster, Phase
from gpuyard.core.placement import claim, release
from gpuyard.core.pool import FIRST, NOBODY, Floats, Ints, Site, new_pool, takes_any
from gpuyard.errors import Bug

TRANSITIONS: dict[tuple[Phase | None, type[Event]], Phase] = {
    (None, Submitted): Phase.QUEUED,
    (Phase.QUEUED, Rejected): Phase.REJECTED,
    (Phase.QUEUED, Held): Phase.HELD,
    (Phase.HELD, Released): Phase.QUEUED,
    (Phase.QUEUED, Cancelled): Phase.CANCELLED,
    (Phase.HELD, Cancelled): Phase.CANCELLED,
    (Phase.QUEUED, Chosen): Phase.QUEUED,
    (Phase.QUEUED, Placed): Phase.PLACED,
    (Phase.PLACED, Started): Phase.RUNNING,
    (Phase.PLACED, Preempted): Phase.QUEUED,
    (Phase.PLACED, Exited): Phase.SUCCEEDED,
    (Phase.RUNNING, Renewed): Phase.RUNNING,
    (Phase.RUNNING, Preempted): Phase.QUEUED,
    (Phase.RUNNING, Exited): Phase.SUCCEEDED,
}
"""Exited leads to SUCCEEDED with code 0, and to FAILED with any other."""


class Rows:
    """A sorted set of rows that is always at hand as an array."""

    __slots__ = ("_array", "_size")

    def __init__(self) -> None:
        self._array = np.zeros(16, dtype=np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def array(self) -> Ints:
        """The rows, ascending. A view: it changes with the set."""
        return self._array[: self._size]

    def add(self, row: int) -> None:
        """Put a row in its place."""
        if self._size == len(self._array):
            self._array = np.concatenate((self._array, np.zeros_like(self._array)))
        at = self._size
        if at and self._array[at - 1] > row:
            at = int(self.array.searchsorted(row))
            self._array[at + 1 : self._size + 1] = self._array[at : self._size]
        self._array[at] = row
        self._size += 1

    def remove(self, row: int) -> None:
        """Take a row out; it must be there."""
        at = int(self.array.searchsorted(row))
        self._array[at : self._size - 1] = self._array[at + 1 : self._size]
        self._size -= 1


class State:
    """Everything that is known of a yard at one instant."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.cluster = cluster
        self.seed = seed
        self.now = -np.inf
        self.version = 0
        self.table: Table = Table(cluster)
        self.pool = new_pool(cluster.nodes, cluster.memory, cluster.cpus, cluster.host_memory)
        self.ids: list[str] = []
        self.row_of: dict[str, int] = {}
        self.phase: list[Phase] = []
        self.attempt: list[int] = []
        self.spot: list[Ints] = []
        """GPUs of each running job, by row; empty for the others."""
        self.occupant = np.full(cluster.gpus, -1, dtype=np.int64)
        """The row on each GPU, -1 for none; not kept up where GPUs are shared."""
        self.waiting = Rows()
        self.running = Rows()
        self.fixed = 0
        """How many running jobs nobody may stop: not preemptible, or not known to have started."""
        self.shares = False
        """Whether any job so far shares GPUs, names them or their model, or takes CPUs or host memory that are
        counted, so that GPUs of a node are not all alike."""
        self.head = -1
        """The row that was chosen and is kept until it fits (`commit`, `easy-shadow`)."""
        self.shadow = np.inf
        self.starts = 0
        self.virtual_time = 0.0
        self.numbers = 0
        """How many numbers jobs have drawn to take turns by."""
        self._user_of: dict[str, int] = {}
        self._usage: list[float] = []
        self._last_finish: list[float] = []

    def usage(self, now: float) -> Floats:
        """GPU-seconds that each user has had up to now."""
        totals = np.array(self._usage)
        rows = self.running.array
        held = np.maximum(now - self.table.started[rows], 0.0) * self.table.gpus[rows]
        return totals + np.bincount(self.table.user[rows], weights=held, minlength=len(totals))

    def site(self) -> Site:
        """The cluster as it is, GPU by GPU."""
        return Site(self.table.demand, self.pool, FIRST, 0, True)

    def next_number(self) -> int:
        """Draw a number to take turns by."""
        self.numbers += 1
        return self.numbers

    def facts(self) -> dict[str, Any]:
        """All that is known, as plain values: two states are the same if their facts are."""
        table, size = self.table, self.table.size
        columns = {n: getattr(table, n)[:size].tolist() for n in (*Table._FLOATS, *Table._INTS, "preemptible")}
        return {
            **{name: [None if v != v else v for v in values] for name, values in columns.items()},
            **{name: getattr(self, name) for name in ("head", "shadow", "starts", "virtual_time", "fixed", "shares")},
            **{f"free_{name}": getattr(self.pool, name).tolist() for name in self.pool._fields},
            "ids": list(self.ids),
            "attempt": list(self.attempt),
            "phase": [str(p) for p in self.phase],
            "spot": [s.tolist() for s in self.spot],
            "waiting": self.waiting.array.tolist(),
            "running": self.running.array.tolist(),
            "usage": list(self._usage),
            "last_finish": list(self._last_finish),
            "numbers": self.numbers,
            "users": list(self._user_of),
            "scopes": self.table.scopes.tolist(),
        }


def apply(state: State, event: Event) -> State:
    """Let one event happen. The state is changed in place and returned."""
    kind = type(event)
    row = state.row_of.get(event.job, -1)
    before = state.phase[row] if row >= 0 else None
    after = TRANSITIONS.get((before, kind))
    attempt = getattr(event, "attempt", None)
    if before is not None and attempt is not None:
        current = state.attempt[row]
        if kind is Placed:
            after = after if attempt > current else None
        elif attempt < current or (attempt == current and before not in (Phase.PLACED, Phase.RUNNING)):
            return state  # a late report on an attempt that is over
        elif attempt > current:
            after = None
    if after is None:
        raise Bug(f"job {event.job}: {kind.__name__} cannot happen to a job that is {before or 'unknown'}: {event}")
    if before is None:
        row = len(state.ids)
    _EFFECTS[kind](state, row, event)
    if kind is Exited and event.code != 0:  # type: ignore[union-attr]
        after = Phase.FAILED
    state.phase[row] = after
    state.version += 1
    state.now = max(state.now, event.at)
    return state


def fold(cluster: Cluster, events: Iterable[Event], seed: int = 0) -> State:
    """The state that a log of events leads to."""
    state = State(cluster, seed)
    for event in events:
        apply(state, event)
    return state


def _submitted(state: State, row: int, event: Submitted) -> None:
    request = event.request
    user = state._user_of.setdefault(request.user, len(state._user_of))
    if user == len(state._usage):
        state._usage.append(0.0)
        state._last_finish.append(0.0)
    state.table.add(event.at, request, user)
    state.shares = state.shares or not takes_any(state.table.demand, row)
    state.ids.append(event.job)
    state.row_of[event.job] = row
    state.phase.append(Phase.QUEUED)
    state.attempt.append(0)
    state.spot.append(NOBODY)
    state.waiting.add(row)
    table = state.table
    table.turn[row] = table.requeued[row] = state.next_number()
    # Weighted fair queueing: a flow is a user, or the job itself where no user is known.
    last = state._last_finish[user] if request.user else 0.0
    table.virtual_start[row] = max(state.virtual_time, last)
    table.virtual_finish[row] = table.virtual_start[row] + request.estimate / request.weight
    if request.user and request.estimate < np.inf:  # an endless job must not hold its user back for ever
        state._last_finish[user] = float(table.virtual_finish[row])


def _rejected(state: State, row: int, event: Rejected) -> None:
    _left_queue(state, row, event)
    # A job that never runs must not push its user's later jobs back.
    user = state.table.user[row]
    if state._last_finish[user] == state.table.virtual_finish[row]:
        state._last_finish[user] = float(state.table.virtual_start[row])


def _left_queue(state: State, row: int, event: Event) -> None:
    if state.phase[row] is Phase.QUEUED:
        state.waiting.remove(row)
    if state.head == row:
        state.head, state.shadow = -1, np.inf


def _released(state: State, row: int, event: Released) -> None:
    state.waiting.add(row)


def _chosen(state: State, row: int, event: Chosen) -> None:
    state.head, state.shadow = row, event.shadow


def _placed(state: State, row: int, event: Placed) -> None:
    _left_queue(state, row, event)
    spot = np.array(event.gpus, dtype=np.int64)
    claim(state.site(), row, spot)
    state.spot[row] = spot
    state.occupant[spot] = row
    state.attempt[row] = event.attempt
    state.running.add(row)
    state.fixed += 1
    state.starts += 1
    state.table.turn[row] = state.next_number()
    state.virtual_time = max(state.virtual_time, float(state.table.virtual_start[row]))


def _started(state: State, row: int, event: Started) -> None:
    state.table.started[row] = state.table.slice_started[row] = event.at
    state.table.overhead[row] = event.overhead
    state.fixed -= bool(state.table.preemptible[row])


def _renewed(state: State, row: int, event: Renewed) -> None:
    state.table.slice_started[row] = event.at
    state.table.turn[row] = state.next_number()


def _stopped(state: State, row: int, at: float) -> None:
    """Take a job off its GPUs and book what it had."""
    table = state.table
    release(state.site(), row, state.spot[row])
    state.occupant[state.spot[row]] = -1
    state.spot[row] = NOBODY
    state.running.remove(row)
    started = float(table.started[row])
    state.fixed -= not (table.preemptible[row] and started < np.inf)
    if started < np.inf:
        table.progress[row] += max(at - started - float(table.overhead[row]), 0.0)
        table.held_for[row] += at - started
        state._usage[table.user[row]] += (at - started) * float(table.gpus[row])
    table.started[row] = np.inf


def _preempted(state: State, row: int, event: Preempted) -> None:
    _stopped(state, row, event.at)
    state.table.requeued[row] = state.next_number()
    state.waiting.add(row)


def _exited(state: State, row: int, event: Exited) -> None:
    _stopped(state, row, event.at)
    if state.table.virtual_finish[row] < np.inf:
        state.virtual_time = max(state.virtual_time, float(state.table.virtual_finish[row]))


_EFFECTS: dict[type[Event], Callable[[State, int, Any], None]] = {
    Submitted: _submitted,
    Rejected: _rejected,
    Held: _left_queue,
    Released: _released,
    Cancelled: _left_queue,
    Chosen: _chosen,
    Placed: _placed,
    Started: _started,
    Renewed: _renewed,
    Preempted: _preempted,
    Exited: _exited,
}
