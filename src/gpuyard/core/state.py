"""The state of a scheduler: everything that is known at one instant, as arrays and a few numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuyard.core.columns import Table
from gpuyard.core.limits.quotas import Ledger, standing
from gpuyard.core.loops.pool import FIRST, Floats, Ints, Site, new_pool
from gpuyard.core.model import Booking, Cluster, Phase, Rules


class Rows:
    """A sorted set of rows, always available as an array."""

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
        if self._size == len(self._array):
            self._array = np.concatenate((self._array, np.zeros_like(self._array)))
        at = self._size
        if at and self._array[at - 1] > row:
            at = int(self.array.searchsorted(row))
            self._array[at + 1 : self._size + 1] = self._array[at : self._size]
        self._array[at] = row
        self._size += 1

    def remove(self, row: int) -> None:
        """Remove a row that must be there."""
        at = int(self.array.searchsorted(row))
        self._array[at : self._size - 1] = self._array[at + 1 : self._size]
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
        self.withdrawn: dict[int, str] = {}
        """GPUs on which nothing may be started, and why."""
        self.taken: tuple[float, ...] = ()
        """Bytes of each GPU that no share may use; empty: none. The pool's totals are without them."""
        self.buffer = 0.0
        """How many of these are kept free; others use the rest."""
        self.hosted: dict[int, tuple[float, float]] = {}
        """CPU cores and bytes of memory of nodes that are no job's of ours."""
        self.drained: set[int] = set()
        """GPUs that somebody wants to be left alone."""
        self.recalled: dict[int, str] = {}
        """Rows on GPUs that were told to end, and what they will have ended by."""
        self.charges: dict[int, float] = {}
        """Bytes that rows are counted with, where these are fewer than they asked for."""
        self.admitted: dict[int, str] = {}
        """Rows on GPUs that were given memory which others asked for, and by what rule (`admission`)."""
        self.promises: dict[int, tuple[int, ...]] = {}
        """GPUs that are kept for waiting rows while those who run there are being stopped."""
        self.lent: dict[int, str] = {}
        """GPUs on loan, and which running job has each: plans take them for free. Replaced as a whole."""
        self.reclaimed: frozenset[int] = frozenset()
        """Those of them that were asked back."""
        self.after: dict[int, dict[str, None]] = {}
        """Jobs that waiting or held rows still have to wait for (`Request.after`), in order; there may be many."""
        self.followers: dict[str, list[int]] = {}
        """Rows that may wait for a job, by its id; some may not do so any more."""
        self.handed: dict[int, dict[str, list[str]]] = {}
        """What rows wait for in place of a job's start (`begun:12`) that never came."""
        self.doomed: dict[int, str] = {}
        """Rows that can never start, since a job that they wait for ended otherwise: which one, as in `after`."""
        self.arrays: dict[str, int] = {"": 0}
        self.parts: dict[int, tuple[int, ...]] = {}
        """GPUs of each part of the rows that have some (`Request.parts`)."""
        self.patient: set[int] = set()
        """Rows that nobody is stopped for."""
        self.at_most: dict[int, int] = {}
        """How many tasks of an array may run at once, where that is limited."""
        self.latest_begin = 0.0
        """No job waits for a time that is later."""
        self.bookings: dict[str, Booking] = {}
        self.rules: Rules | None = None
        """How people share the GPUs; None where nobody said, as in a simulation."""
        self.kinds: dict[str, int] = {"": 0}
        self.harms: dict[tuple[str, str], float] = {}
        """How many times as long jobs of the first kind take beside those of the second; the latest measured last."""
        self.starts = 0
        self.virtual_time = 0.0
        self.numbers = 0
        """How many numbers jobs have drawn to take turns by."""
        self.user_of: dict[str, int] = {}
        self.group_of: list[str] = []
        """The group of each user; empty: none."""
        self.used: list[float] = []
        self.last_finish: list[float] = []
        self.seen: tuple[int, float, Any] | None = None
        """What was last found by looking around (`surroundings`), of which version and when."""
        self.ledger = Ledger()
        """What users have had lately, where there are rules to share by."""

    def usage(self, now: float) -> Floats:
        """GPU-seconds that each user has had up to now; where there are rules, as these count them."""
        if self.rules is not None:
            return standing(self, self.rules, now)
        totals = np.array(self.used)
        rows = self.running.array
        held = np.maximum(now - self.table.started[rows], 0.0) * self.table.gpus[rows]
        return totals + np.bincount(self.table.user[rows], weights=held, minlength=len(totals))

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
