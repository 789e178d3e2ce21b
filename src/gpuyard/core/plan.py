"""What goes into a planner and what comes out: `plan(snapshot) -> Plan` is all that a scheduler is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gpuyard.core.columns import COLUMNS
from gpuyard.core.loops.backfill import NO_LIMIT
from gpuyard.core.loops.pool import Flags, Floats, Ints, Pool, copy_pool
from gpuyard.core.model import Request
from gpuyard.core.reasons import Reason
from gpuyard.core.state import State
from gpuyard.core.usage.admission import OVERCOMMITTED, Decision, Usage


@dataclass(frozen=True, slots=True)
class Start:
    job: str
    gpus: tuple[int, ...]
    admission: Decision | None = None  # by what it was let in, where usage is looked at
    charge: float | None = None  # bytes of each GPU that it is counted with from now on; None: as before

    @property
    def by(self) -> str:
        """The admission rule that gives it memory which others asked for; empty: none."""
        found = "" if self.admission is None else self.admission.by
        return found if found in OVERCOMMITTED else ""


@dataclass(slots=True)
class Plan:
    """What should happen now. Stops come before starts; jobs that are not named go on as they are."""

    starts: list[Start] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    renewals: list[str] = field(default_factory=list)  # running jobs that get another time slice
    chosen: tuple[str, float] | None = None  # A head to keep until it fits, and its shadow time
    wake_at: float = np.inf  # plan again at this time, even if nothing happens before
    explain: Callable[[], dict[str, Reason]] = dict

    @property
    def held(self) -> dict[str, Reason]:
        """Why each waiting job waits. Built when asked for, and only valid until the next event."""
        return self.explain()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state at one instant, to be read and not changed."""

    state: State
    now: float
    may: Flags | None = None  # which of the queue may be chosen; None: all of it
    usage: Usage | None = None  # what is used of GPUs, where that counts; None: only what was asked for does
    most: int = NO_LIMIT  # most jobs to start, where bins are GPUs and no job is stopped: the rest can wait a moment

    @property
    def waiting(self) -> Ints:
        """Rows of the jobs that may start, in the order of submission."""
        rows = self.state.waiting.array
        return rows if self.may is None else rows[self.may]

    @property
    def running(self) -> Ints:
        return self.state.running.array

    def column(self, name: str, rows: Ints) -> Floats:
        return COLUMNS[name].values(self.state, rows, self.now)

    def job(self, row: int) -> str:
        return self.state.ids[row]

    def gpus_of(self, row: int) -> Ints:
        return self.state.spot[row]

    @property
    def free(self) -> Pool:
        return copy_pool(self.state.pool)


class Planner(Protocol):
    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide what should happen at the snapshot's instant."""
        ...

    def refuses(self, state: State, request: Request) -> str | None:
        """Why a request can never run on this cluster; None if it can."""
        ...
