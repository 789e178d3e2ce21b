"""Jobs that use more of a GPU than they were promised, and the action on them.

The driver does not ration memory: a job that takes more takes it from others, and the others' next allocation fails.
So a job above its share is logged, and may be stopped before that happens; never one that keeps to its share, and
never one that is alone on its GPUs.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from gpuyard.core.events import Edited
from gpuyard.core.model import Phase
from gpuyard.daemon.context import Context
from gpuyard.daemon.jobs.stops import OOM, OOM_GRACE, Stops
from gpuyard.predict.oom import FULL, TOLERANCE
from gpuyard.units import format_size

log = logging.getLogger("gpuyard")
_LATELY = 3.0  # seconds for which a full GPU explains the death of a job on it


class Excess(NamedTuple):
    job: str
    attempt: int
    gpu: int
    used: float
    promised: float


class OverLimit:
    def __init__(self, context: Context, stops: Stops) -> None:
        self._context, self._stops = context, stops
        self._warned: set[tuple[str, int]] = set()
        self._stopped: set[tuple[str, int]] = set()
        self._full_at: dict[int, float] = {}
        self._asked: Future[Any] | None = None

    # -- from any thread ------------------------------------------------------------------------------

    def heard(self) -> None:
        """Called after a look at jobs: remember full GPUs, and ask the loop to act if a job takes too much."""
        if not self._context.machine.gpus.simulated:  # these say themselves who does not get what it wants
            self._note_full()
        if (self._asked is None or self._asked.done()) and self._is_anybody_over():
            self._asked = self._context.ask(self.look)

    def _note_full(self) -> None:
        ticks = time.monotonic()
        for look in self._context.machine.readings():
            used, total = look.reading.memory_used, look.device.memory
            if used is not None and total and used >= FULL * total:
                self._full_at[look.device.index] = ticks

    def _is_anybody_over(self) -> bool:
        for job, used in self._context.measures.latest().items():
            view = self._context.store.open.get(job)
            if view is None or view.state != "running" or view.recalled or view.work.get("alone"):
                continue
            promised = view.work.get("gpu_memory")
            if promised and used > promised + TOLERANCE:
                return True
        return False

    # -- by the loop's thread -------------------------------------------------------------------------

    def were_full(self, gpus: Iterable[int]) -> bool:
        """Whether one of these GPUs had no memory left a moment ago."""
        ticks = time.monotonic()
        return any(ticks - self._full_at.get(gpu, -_LATELY) < _LATELY for gpu in gpus)

    def stopped(self, attempt: tuple[str, int]) -> bool:
        self._warned.discard(attempt)
        found = attempt in self._stopped
        self._stopped.discard(attempt)
        return found

    def stops(self, gpu: int) -> bool:
        over = [one for one in self._excesses() if one.gpu == gpu]
        return self._context.settings.over_memory != "warn" and bool(over)

    def look(self) -> None:
        """Warn of jobs that use more than their share, and stop those that the setting says."""
        now, over = self._context.clock.now(), list(self._excesses())
        for excess in over:
            if (excess.job, excess.attempt) not in self._warned:
                self._warn(excess, now)
        for excess in self._to_stop(over):
            if (excess.job, excess.attempt) in self._stopped:
                continue  # on another of its GPUs
            self._stopped.add((excess.job, excess.attempt))
            why = f"uses {format_size(excess.used)} of GPU {excess.gpu}, {format_size(excess.promised)} were promised"
            self._stops.recall(excess.job, OOM, now, OOM_GRACE, message=why, used=excess.used, gpu=excess.gpu)

    def _excesses(self) -> Iterator[Excess]:
        """Every excess on every GPU; of each job the largest first."""
        state = self._context.state
        for row in self._staying():
            job, attempt, promised = state.ids[row], state.attempt[row], float(state.table.memory[row])
            measure = self._context.measures.of(job)
            if measure is None or measure.attempt != attempt or float(state.table.compute[row]) >= 100:
                continue
            for used, gpu in sorted(((size, gpu) for gpu, size in measure.current.items()), reverse=True):
                if used > promised + TOLERANCE and state.phase[row] is Phase.RUNNING:
                    yield Excess(job, attempt, gpu, float(used), promised)

    def _staying(self) -> list[int]:
        """Rows on GPUs that were not told to end."""
        state = self._context.state
        return [row for row in state.running.array.tolist() if row not in state.recalled]

    def _warn(self, excess: Excess, now: float) -> None:
        self._warned.add((excess.job, excess.attempt))
        used, promised = format_size(excess.used), format_size(excess.promised)
        message = f"uses {used} of GPU {excess.gpu}, but {promised} were promised"
        log.warning("job %s %s", excess.job, message)
        work, request = self._context.description(excess.job)
        self._context.record(Edited(now, excess.job, request), work=work.to_json(), message=message)

    def _to_stop(self, over: list[Excess]) -> Iterator[Excess]:
        """The jobs to stop: never leases, whose processes are not ours, nor a job alone on its GPUs."""
        how = self._context.settings.over_memory
        if how == "warn" or not over:
            return
        state, store = self._context.state, self._context.store
        tenants = Counter(gpu for row in self._staying() for gpu in state.spot[row].tolist())
        ours = [one for one in over if tenants[one.gpu] > 1 and store.open[one.job].kind == "job"]
        if how == "stop":
            yield from ours
            return
        leaving: set[str] = set()
        for gpu in sorted({one.gpu for one in ours}):
            there = [one for one in ours if one.gpu == gpu]
            if leaving.isdisjoint(one.job for one in there) and self._is_short(gpu, over):
                largest = max(there, key=lambda one: one.used - one.promised)
                leaving.add(largest.job)
                yield largest

    def _is_short(self, gpu: int, over: list[Excess]) -> bool:
        state, machine = self._context.state, self._context.machine
        excess = sum(one.used - one.promised for one in over if one.gpu == gpu)
        there = [row for row in self._staying() if gpu in state.spot[row].tolist()]
        promised = sum(float(state.table.footprint[row]) for row in there)
        taken = state.taken[gpu] if state.taken else 0.0  # what is kept free and what others use; often the excess, too
        return promised + max(taken, machine.buffer + excess) > machine.gpus.devices[gpu].memory
