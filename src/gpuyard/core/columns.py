"""The columns of the queue: what a policy may know of a job, and how often each changes.

`Table` stores them by row, one row per job in the order of submission; `apply` keeps it up to date, and nothing
is rebuilt from objects when a plan is made. A policy asks for columns by naming its parameters after them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuyard.core.loops.formulas import attained, behind_all, remaining, waited
from gpuyard.core.loops.fragmentation import Kind, kind_of, typical
from gpuyard.core.loops.pool import NO_TASKS, Demand, Flags, Floats, Ints, Tasks, mix, salted
from gpuyard.core.model import Cluster, Request, suits
from gpuyard.core.queue_features import capacity, measure_queue, opening, shadow, shorter, suitable, usage_share

if TYPE_CHECKING:
    from gpuyard.core.state import State


class Table:
    """Growing arrays, one row per job."""

    _FLOATS = (
        "submit", "estimate", "memory", "compute", "priority", "weight", "tickets", "deadline",
        "virtual_start", "virtual_finish", "turn", "requeued", "progress", "started", "overhead",
        "slice_started", "held_for", "cpus", "host_memory", "begin", "limit", "notice", "footprint",
    )  # fmt: skip
    _INTS = ("gpus", "user", "scope", "array", "kind")

    submit: Floats
    estimate: Floats
    memory: Floats
    compute: Floats
    priority: Floats
    weight: Floats
    tickets: Floats
    deadline: Floats
    virtual_start: Floats
    virtual_finish: Floats
    turn: Floats
    requeued: Floats
    progress: Floats
    """Seconds of work done before the present attempt."""
    started: Floats
    """When the present attempt started; infinite while the job does not run."""
    overhead: Floats
    """Seconds of the present attempt that bring no progress."""
    slice_started: Floats
    held_for: Floats
    """Seconds spent on GPUs before the present attempt, progress or not."""
    cpus: Floats
    """CPU cores wanted; 0 where the cluster does not count them."""
    host_memory: Floats
    """Bytes of host memory wanted; 0 where the cluster does not count them."""
    begin: Floats
    """Not before this time."""
    limit: Floats
    """Seconds after which it is sure to have ended."""
    notice: Floats
    """Seconds that it may take to stop, if it is preemptible."""
    footprint: Floats
    """Bytes that it takes of what can be shared of each GPU; 0 of a job that has its GPUs for itself, since what is
    kept free of a GPU, or taken by others, is no matter to it."""
    gpus: Ints
    user: Ints
    scope: Ints
    array: Ints
    """The array that it is a task of, by number; 0: none."""
    kind: Ints
    """What it has in common with its like, by number; 0: not known."""
    preemptible: Flags

    def __init__(self, cluster: Cluster) -> None:
        self.size = 0
        self.scopes = np.ones((1, cluster.gpus), dtype=bool)
        self.scope_rows: dict[tuple[tuple[int, ...], str, float], int] = {}
        """Where in `scopes` each wish for certain GPUs or models, or for GPUs of a size, is."""
        self._gpu_memory = np.array(cluster.gpu_memory)
        self._models = [
            m.casefold() for m, size in zip(cluster.models, cluster.nodes, strict=False) for _ in range(size)
        ]
        self._counts_cpus, self._counts_host = any(cluster.cpus), any(cluster.host_memory)
        self._memory = cluster.memory
        self._kinds: dict[Kind, int] = {}
        self._tasks = NO_TASKS
        self._counted = 0
        self.preemptible = np.zeros(0, dtype=bool)
        for name in self._FLOATS:
            setattr(self, name, np.zeros(0))
        for name in self._INTS:
            setattr(self, name, np.zeros(0, dtype=np.int64))
        self._resize(64)

    def _resize(self, capacity: int) -> None:
        for name in (*self._FLOATS, *self._INTS, "preemptible"):
            old = getattr(self, name)
            new = np.zeros(capacity, dtype=old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)
        self.demand = Demand(
            self.gpus, self.footprint, self.compute, self.scope, self.scopes, self.estimate, self.cpus,
            self.host_memory,
        )  # fmt: skip

    def add(self, submit: float, request: Request, user: int) -> int:
        row = self.size
        if row == len(self.submit):
            self._resize(2 * row)
        self.size += 1
        self.submit[row] = submit
        self.user[row] = user
        self.started[row] = np.inf
        self.put(row, request)
        return row

    def put(self, row: int, request: Request) -> None:
        self.gpus[row] = request.gpus
        self.estimate[row] = request.estimate
        self.memory[row] = request.memory
        self.compute[row] = request.compute
        self.priority[row] = request.priority
        self.weight[row] = request.weight
        self.tickets[row] = request.tickets
        self.deadline[row] = request.deadline
        self.preemptible[row] = request.preemptible
        self.begin[row] = request.begin
        self.limit[row] = request.limit
        self.notice[row] = request.notice
        self.cpus[row] = request.cpus if self._counts_cpus else 0.0
        self.host_memory[row] = request.host_memory if self._counts_host else 0.0
        self.footprint[row] = 0.0 if request.whole else request.memory
        self.scope[row] = self.scope_row(request.scope, request.gpu_types, request.memory if request.whole else 0.0)

    def load(self, columns: Mapping[str, Floats | Ints | Flags]) -> None:
        """Add rows for many jobs at once to an empty table; columns that are left out are 0."""
        self._resize(max(64, len(next(iter(columns.values())))))
        for name, values in columns.items():
            getattr(self, name)[: len(values)] = values
            self.size = len(values)
        self.started[:] = np.inf
        if "limit" not in columns:
            self.limit[:] = np.inf
        self.footprint[:] = np.where(self.compute < 100, self.memory, 0.0)

    def scope_row(self, scope: tuple[int, ...], gpu_types: str, least: float = 0.0) -> int:
        """The row of `scopes` for certain GPUs, models, or GPUs with at least `least` bytes."""
        if not (self._gpu_memory < least).any():
            least = 0.0
        if not scope and not (gpu_types and self._models) and not least:
            return 0
        key = tuple(sorted(scope)), gpu_types, least
        if key not in self.scope_rows:
            allowed = np.zeros(self.scopes.shape[1], dtype=bool)
            allowed[[g for g in scope if g < len(allowed)] if scope else slice(None)] = True
            if gpu_types and self._models:
                allowed &= suits(gpu_types, self._models)
            if least:
                allowed &= self._gpu_memory >= least
            self.scopes = np.vstack((self.scopes, allowed))
            self.scope_rows[key] = len(self.scopes) - 1
            self.demand = self.demand._replace(scopes=self.scopes)
        return self.scope_rows[key]

    def tasks(self) -> Tasks:
        """The typical jobs, judging by those submitted so far."""
        if self._counted < self.size:
            for row in range(self._counted, self.size):
                kind = kind_of(self.demand, row, self._memory)
                self._kinds[kind] = self._kinds.get(kind, 0) + 1
            self._counted = self.size
            self._tasks = typical(self._kinds, self.scopes)
        return self._tasks

    def attained(self, rows: Ints, now: float) -> Floats:
        done: Floats = attained(self.progress[rows], self.started[rows], self.overhead[rows], now)
        return done


NEVER, RUNNING, ALWAYS = "never", "while running", "at any time"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    changes: str
    """When its values change: tells how often a queue must be ranked again."""
    doc: str
    values: Callable[[State, Ints, float], Floats]


def _stored(name: str, changes: str, doc: str) -> Column:
    return Column(name, changes, doc, lambda state, rows, now: getattr(state.table, name)[rows])


def _wait(state: State, rows: Ints, now: float) -> Floats:
    table = state.table
    so_far: Floats = waited(table.submit[rows], table.held_for[rows], table.started[rows], now)
    return so_far


def _remaining(state: State, rows: Ints, now: float) -> Floats:
    left: Floats = remaining(state.table.estimate[rows], state.table.attained(rows, now))
    return left


def _requeued(state: State, rows: Ints, now: float) -> Floats:
    # Were a running job stopped now, it would queue behind everybody; several of them, in the order they started.
    table = state.table
    behind = behind_all(table.turn[rows], state.numbers)
    return np.where(table.started[rows] == np.inf, table.requeued[rows], behind)


def _user_usage(state: State, rows: Ints, now: float) -> Floats:
    return state.usage(now)[state.table.user[rows]]


def _draw(state: State, rows: Ints, now: float) -> Floats:
    # One number per job and round of the lottery; a round lasts until somebody is started.
    return (mix(salted(state.seed, state.starts), rows).astype(np.float64) + 0.5) / 2.0**64


def _pooled(name: str, doc: str, number: Callable[[State, float], float]) -> Column:
    return Column(name, ALWAYS, doc, lambda state, rows, now: np.full(len(rows), float(number(state, now))))


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        _stored("submit", NEVER, "when the job was submitted, in seconds on the trace's clock"),
        Column(
            "gpus", NEVER, "how many GPUs it wants",
            lambda state, rows, now: state.table.gpus[rows].astype(np.float64),
        ),
        _stored("estimate", NEVER, "how long it is expected to run, in seconds (never its true run time)"),
        _stored("priority", NEVER, "the user's priority; higher is more urgent"),
        _stored("weight", NEVER, "its weight in fair queueing"),
        _stored("tickets", NEVER, "its tickets in the lottery"),
        _stored("memory", NEVER, "bytes of memory wanted on each GPU; 0 if not said"),
        _stored("cpus", NEVER, "CPU cores wanted; 0 if not said, or not counted on this cluster"),
        _stored("host_memory", NEVER, "bytes of host memory wanted; 0 if not said, or not counted on this cluster"),
        _stored("compute", NEVER, "percent wanted of each GPU; 100 is all of it"),
        _stored("deadline", NEVER, "when it should be done; infinite if not said"),
        _stored("virtual_finish", NEVER, "its finish tag in weighted fair queueing"),
        _stored("turn", RUNNING, "a number drawn at submission and at every start or new slice; smaller is earlier"),
        Column(
            "requeued", RUNNING, "a number drawn at submission and at every preemption; a running job's comes last",
            _requeued,
        ),
        Column(
            "attained", RUNNING, "seconds of work done so far",
            lambda state, rows, now: state.table.attained(rows, now),
        ),
        Column(
            "service", RUNNING, "GPU-seconds of work done so far",
            lambda state, rows, now: state.table.attained(rows, now) * state.table.gpus[rows],
        ),
        Column("remaining", RUNNING, "estimate less attained, at least 0", _remaining),
        Column("wait", ALWAYS, "seconds spent waiting so far", _wait),
        Column("user_usage", ALWAYS, "GPU-seconds that the job's user has had so far", _user_usage),
        Column("draw", ALWAYS, "a seeded random number between 0 and 1, new after every start", _draw),
        Column("usage_share", ALWAYS, "the share of all GPU time so far that the job's user has had", usage_share),
        Column("opening", ALWAYS, "seconds until as many GPUs as it wants are expected to be idle; 0: now", opening),
        Column("suitable", ALWAYS, "idle GPUs that it may use: of a model that will do, or that it named", suitable),
        Column("shorter", ALWAYS, "the share of the queue that is expected to be shorter", shorter),
        _pooled("idle", "how many GPUs are idle", lambda state, now: measure_queue(state, now).idle),
        _pooled("hole", "idle GPUs of the node that has most of them", lambda state, now: measure_queue(state,
        now).hole),
        _pooled("queue", "how many jobs wait", lambda state, now: measure_queue(state, now).queue),
        _pooled(
            "queue_work", "GPU-seconds that all waiting jobs ask for, by their estimates",
            lambda state, now: measure_queue(state, now).work,
        ),
        _pooled("shadow", "seconds until the job that was submitted first could start", shadow),
        Column("capacity", NEVER, "how many GPUs the cluster has", capacity),
    )
}  # fmt: skip
