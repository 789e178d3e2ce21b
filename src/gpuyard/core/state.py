"""The state of a scheduler: everything that is known at one instant, as arrays and a few numbers.

Only `transitions.apply` changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuyard.core.limits.quotas import Ledger, fair_usage
from gpuyard.core.loops.formulas import attained
from gpuyard.core.loops.fragmentation import Kind, kind_of, typical
from gpuyard.core.loops.pool import FIRST, NO_TASKS, Demand, Flags, Floats, Ints, Site, Tasks, new_pool
from gpuyard.core.model import Booking, Cluster, Phase, Request, Rules, suits


class Table:
    """Columns of all jobs as growing arrays, one row per job in the order of submission.

    `apply` keeps them up to date: nothing is rebuilt from objects when a plan is made.
    """

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
    progress: Floats  # seconds of work done before the present attempt
    started: Floats  # when the present attempt started; infinite while the job does not run
    overhead: Floats  # seconds of the present attempt that bring no progress
    slice_started: Floats
    held_for: Floats  # seconds spent on GPUs before the present attempt, progress or not
    cpus: Floats  # CPU cores wanted; 0 where the cluster does not count them
    host_memory: Floats  # bytes of host memory wanted; 0 where the cluster does not count them
    begin: Floats  # not before this time
    limit: Floats  # seconds after which it is sure to have ended
    notice: Floats  # seconds that it may take to stop, if it is preemptible
    footprint: Floats
    """Bytes that it takes of what can be shared of each GPU; 0 of a job that has its GPUs for itself, since what is
    kept free of a GPU, or taken by others, is no matter to it."""
    gpus: Ints
    user: Ints
    scope: Ints
    array: Ints  # the array that it is a task of, by number; 0: none
    kind: Ints  # number of its kind (`Request.kind`); 0: not known
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


class Rows:
    __slots__ = ("_array", "_first", "_size")

    def __init__(self) -> None:
        self._array = np.zeros(16, dtype=np.int64)
        self._first = self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def array(self) -> Ints:
        """The rows, ascending. A view: it changes with the set."""
        return self._array[self._first : self._first + self._size]

    def add(self, row: int) -> None:
        if self._first + self._size == len(self._array):
            self._array, self._first = np.concatenate((self.array, np.zeros(self._size + 16, dtype=np.int64))), 0
        self._size += 1
        rows = self.array
        at = self._size - 1
        if at and rows[at - 1] > row:
            at = int(rows[:-1].searchsorted(row))
            rows[at + 1 :] = rows[at:-1]
        rows[at] = row

    def fill(self, rows: list[int]) -> None:
        """Be these rows, which ascend."""
        self._array, self._first, self._size = np.array([*rows, 0], dtype=np.int64), 0, len(rows)

    def remove(self, row: int) -> None:
        """Remove a row that must be there; quick at both ends, where a queue is mostly emptied."""
        rows = self.array
        at = int(rows.searchsorted(row))
        if at < self._size // 2:
            rows[1 : at + 1] = rows[:at]
            self._first += 1
        else:
            rows[at:-1] = rows[at + 1 :]
        self._size -= 1


class State:
    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.cluster = cluster
        self.seed = seed
        self.now = -np.inf
        self.version = 0
        self.table: Table = Table(cluster)
        self.pool = new_pool(cluster.nodes, cluster.memory, cluster.cpus, cluster.host_memory)
        if cluster.gpu_memory:
            self.pool.memory[:] = self.pool.total[:] = cluster.gpu_memory
        self.ids: list[str] = []
        self.row_of: dict[str, int] = {}
        self.phase: list[Phase] = []
        self.attempt: list[int] = []
        self.spot: list[Ints] = []  # GPUs of each running job, by row; empty for the others
        self.occupant = np.full(cluster.gpus, -1, dtype=np.int64)
        """The row on each GPU, -1 for none; not kept up where GPUs are shared."""
        self.waiting = Rows()
        self.running = Rows()
        self.fixed = 0  # how many running jobs may not be stopped: not preemptible, or not known to have started
        self.shares = False
        """Whether any job so far shares GPUs, names them or their model, or takes CPUs or host memory that are
        counted, so that GPUs of a node are not all alike."""
        self.head = -1  # the row that was chosen and is kept until it fits (`commit`, `easy-shadow`)
        self.shadow = np.inf
        self.withdrawn: dict[int, str] = {}  # GPUs on which nothing may be started, and why
        self.taken: tuple[float, ...] = ()
        """Bytes of each GPU that no share may use; empty: none. The pool's totals are without them."""
        self.buffer = 0.0  # how many of these are kept free; others use the rest
        self.hosted: dict[int, tuple[float, float]] = {}
        """CPU cores and bytes of memory of nodes that are no job's of ours."""
        self.drained: set[int] = set()  # GPUs that an operator drained
        self.recalled: dict[int, str] = {}  # rows on GPUs that were told to end, and what they will have ended by
        self.charges: dict[int, float] = {}
        """Bytes that rows are counted with, where these are fewer than they asked for."""
        self.admitted: dict[int, str] = {}
        """Rows on GPUs that were given memory which others asked for, and by what rule (`admission`)."""
        self.promises: dict[int, tuple[int, ...]] = {}
        """GPUs that are kept for waiting rows while the jobs there are being stopped."""
        self.lent: dict[int, str] = {}
        """GPUs on loan, and which running job has each: plans take them for free. Replaced as a whole."""
        self.reclaimed: frozenset[int] = frozenset()  # those of them that were asked back
        self.after: dict[int, dict[str, None]] = {}
        """Jobs that waiting or held rows still have to wait for (`Request.after`), in order; there may be many."""
        self.followers: dict[str, list[int]] = {}
        """Rows that may wait for a job, by its id; some may not do so any more."""
        self.handed: dict[int, dict[str, list[str]]] = {}
        """What rows wait for in place of a job's start (`begun:12`) that never came."""
        self.doomed: dict[int, str] = {}
        """Rows that can never start, since a job that they wait for ended otherwise: which one, as in `after`."""
        self.arrays: dict[str, int] = {"": 0}
        self.parts: dict[int, tuple[int, ...]] = {}  # GPUs of each part of the rows that have some (`Request.parts`)
        self.patient: set[int] = set()  # rows for which no job is stopped
        self.at_most: dict[int, int] = {}  # how many tasks of an array may run at once, where that is limited
        self.latest_begin = 0.0  # no job waits for a time that is later
        self.bookings: dict[str, Booking] = {}
        self.rules: Rules | None = None  # how people share the GPUs; None where there are no rules, as in a simulation
        self.kinds: dict[str, int] = {"": 0}
        self.harms: dict[tuple[str, str], float] = {}
        """How many times as long jobs of the first kind take beside those of the second; the latest measured last."""
        self.starts = 0
        self.virtual_time = 0.0
        self.numbers = 0  # how many numbers jobs have drawn to take turns by
        self.user_of: dict[str, int] = {}
        self.group_of: list[str] = []  # the groups of each user, as of `Request`
        self.used: list[float] = []
        self.last_finish: list[float] = []
        self.seen: tuple[int, float, Any] | None = None
        """The latest queue features (`queue_features`), of which version and when."""
        self.ledger = Ledger()  # recent use by users, if there are sharing rules

    def usage(self, now: float) -> Floats:
        """GPU-seconds that each user has had up to now; where there are rules, as these count them."""
        rows = self.running.array
        users, gpus = self.table.user[rows], self.table.gpus[rows]
        held = np.maximum(now - self.table.started[rows], 0.0)
        if self.rules is not None:
            names, groups = list(self.user_of), [groups.partition(",")[0] for groups in self.group_of]
            return fair_usage(self.ledger, self.rules, names, groups, users, gpus, held, now)
        totals = np.array(self.used)
        return totals + np.bincount(users, weights=held * gpus, minlength=len(totals))

    def site(self) -> Site:
        return Site(self.table.demand, self.pool, FIRST, 0, True, parts=self.parts)

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def facts(self) -> dict[str, Any]:
        """The state as plain values: two states are the same if their facts are."""
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
            "usage": list(self.used),
            "last_finish": list(self.last_finish),
            "numbers": self.numbers,
            "users": list(self.user_of),
            "groups": list(self.group_of),
            "withdrawn": dict(self.withdrawn),
            "taken": list(self.taken),
            "buffer": self.buffer,
            "hosted": dict(self.hosted),
            "parts": dict(self.parts),
            "patient": sorted(self.patient),
            "drained": sorted(self.drained),
            "recalled": dict(self.recalled),
            "charges": dict(self.charges),
            "admitted": dict(self.admitted),
            "promises": dict(self.promises),
            "lent": dict(self.lent),
            "reclaimed": sorted(self.reclaimed),
            "after": {row: list(left) for row, left in self.after.items()},
            "handed": dict(self.handed),
            "doomed": dict(self.doomed),
            "arrays": dict(self.arrays),
            "at_most": dict(self.at_most),
            "kinds": dict(self.kinds),
            "harms": dict(self.harms),
            "bookings": dict(self.bookings),
            "rules": self.rules,
            "ledger": self.ledger.facts(),
            "scopes": self.table.scopes.tolist(),
        }
