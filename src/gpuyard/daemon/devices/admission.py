"""Admission by usage: the measured use of GPUs, as input to plans, and the recovery from plans that went wrong.

There are two inputs. For each GPU, a window: the samples of its memory since the last placement there. For jobs, their
expected peak: from similar runs that have ended, and from similar jobs that run and have stopped growing. Both are
plain numbers in a snapshot; the rules are the core's (`core.usage.charging`, `core.usage.overcommit`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from gpuyard.core.events import Cancelled, Edited, Event, Exited, Placed
from gpuyard.core.model import Phase
from gpuyard.core.usage.admission import USUAL, Peak, Statistics, Usage, Window, statistics_of
from gpuyard.core.usage.charging import settle
from gpuyard.core.usage.overcommit import hopeful
from gpuyard.daemon.context import Context
from gpuyard.daemon.devices.measurements import Measure
from gpuyard.daemon.devices.over_limit import OverLimit
from gpuyard.daemon.jobs.estimates import Estimates
from gpuyard.daemon.jobs.stops import CROWDED, Stops
from gpuyard.units import format_size

USAGE = "usage"
_LONGEST = 600  # samples of a window
_MIB = 2**20
_NOTHING = 50 * _MIB  # bytes: who uses no more has not begun, so that it does not grow says nothing
_BITE = 250  # jobs whose charge changes in one turn
Kind = tuple[str, str, tuple[str, ...]]  # signature, likeness and command: who has the same is expected to use the same


class Admission:
    """What is known of usage. The thread that looks at GPUs fills the windows; all else is for the loop's thread."""

    def __init__(self, context: Context, estimates: Estimates, stops: Stops, over_limit: OverLimit) -> None:
        self._context, self._estimates, self._stops, self._over_limit = context, estimates, stops, over_limit
        self.on = context.settings.admission == USAGE
        self._period = context.settings.record_period
        self._windows = [deque[float](maxlen=_LONGEST) for _ in context.machine.gpus.devices]
        self._sampled = -math.inf
        self._short: set[int] = set()
        self._asked: Future[Any] | None = None
        self._known: Usage | None = None
        self._known_at, self._known_of = -math.inf, -1
        self._planned: Usage | None = None
        self._tried_at = -math.inf
        self._more = False
        self._kinds: dict[str, Kind | None] = {}

    # -- by the thread that looks ------------------------------------------------------------------------

    def heard(self) -> None:
        """Called after a look at the GPUs: keep samples, and ask the loop to act if a GPU gets full."""
        at, short = time.monotonic(), set[int]()
        sample = at - self._sampled >= 0.9 * self._period
        for look in self._context.machine.readings():
            used, gpu = look.reading.memory_used, look.device.index
            if look.reading.lost or used is None:
                continue
            if sample:
                self._windows[gpu].append(float(used))
            if used > look.device.memory - self._context.machine.buffer:
                short.add(gpu)
        self._sampled = at if sample else self._sampled
        self._short = short
        if short and self._context.state.admitted and (self._asked is None or self._asked.done()):
            self._asked = self._context.ask(self.look)

    # -- what is known ------------------------------------------------------------------------------

    def note(self, event: Event, details: Mapping[str, Any]) -> None:
        if not self.on:
            return
        if isinstance(event, Placed):
            for gpu in event.gpus:
                self._windows[gpu].clear()
        elif isinstance(event, Edited | Exited | Cancelled):
            self._kinds.pop(event.job, None)

    def usage(self, now: float) -> Usage | None:
        """What is known now; None without admission by usage."""
        if not self.on:
            return None
        if self._known is None or self._known_at != now or self._known_of != self._context.state.version:
            self._known, self._known_at, self._known_of = self._learnt(), now, self._context.state.version
        return self._known

    @property
    def stamp(self) -> float:
        return self._sampled if self.on else 0.0

    def due(self, now: float) -> float:
        """When to plan again by new samples; infinite while no job needs that."""
        if self._more:
            return now
        return self._tried_at + self._period if self.on and self._matters() else math.inf

    def is_due(self, now: float) -> bool:
        if now < self.due(now):
            return False
        self._tried_at = now
        known, former = self.usage(now), self._planned
        if known is None or former is None:
            return True
        if self._more or former.peaks != known.peaks:
            return True
        ready = any(seen.samples >= USUAL.samples for seen in known.statistics.values())
        return ready and hopeful(self._context.state, known)

    def _matters(self) -> bool:
        state = self._context.state
        if state.charges:
            return True
        rows = state.waiting.array
        return bool(len(rows)) and bool((state.table.compute[rows] < 100).any())

    def charge(self, now: float) -> None:
        state = self._context.state
        if not self.on and not state.charges:
            return
        self._planned, self._tried_at = self.usage(now), now
        events = settle(state, self._planned, now, _BITE)
        self._more = len(events) == _BITE
        for event in events:
            self._context.record(event)

    def _learnt(self) -> Usage:
        state = self._context.state
        running = [row for row in state.running.array.tolist() if state.table.compute[row] < 100]
        waiting = state.waiting.array[state.table.compute[state.waiting.array] < 100].tolist()
        if not running and not waiting:
            return Usage()
        settled = self._settled(running)
        found = dict[Kind, Peak | None]()
        peaks = dict[str, Peak]()
        for row in (*running, *waiting):
            job = state.ids[row]
            kind = self._kinds[job] if job in self._kinds else self._kind_of(job)
            if kind is None:
                continue
            if kind not in found:
                found[kind] = self._expected(kind, settled)
            peak = self._own(job, row, found[kind]) if len(state.spot[row]) else found[kind]
            if peak is not None:
                peaks[job] = peak
        return Usage(dict(self._statistics(running)), peaks)

    def _kind_of(self, job: str) -> Kind | None:
        """What similar jobs have in common with this one; None if they do not predict it."""
        work = self._context.work_json(job)
        kind = (
            (work["signature"], work.get("likeness", ""), tuple(work.get("command", ()))) if _is_known(work) else None
        )
        self._kinds[job] = kind
        return kind

    def _settled(self, running: list[int]) -> dict[str, tuple[str, Measure]]:
        found = dict[str, tuple[str, Measure]]()
        for row in running:
            job = self._context.state.ids[row]
            measure, signature = self._measure(job, row), self._context.work_json(job).get("signature", "")
            if measure is None or not signature or not self._has_settled(measure):
                continue
            if signature not in found or (measure.peak or 0) > (found[signature][1].peak or 0):
                found[signature] = job, measure
        return found

    def _has_settled(self, measure: Measure) -> bool:
        """Whether an attempt has not grown for as long as a window must be."""
        looks = measure.settled / measure.period if measure.period else 0.0
        long = measure.settled >= USUAL.samples * self._period
        return (measure.peak or 0) > _NOTHING and long and looks >= USUAL.samples

    def _measure(self, job: str, row: int) -> Measure | None:
        state, found = self._context.state, self._context.measures.of(job)
        running = state.phase[row] is Phase.RUNNING and row not in state.recalled
        return found if running and found is not None and found.attempt == state.attempt[row] else None

    def _expected(self, kind: Kind, settled: Mapping[str, tuple[str, Measure]]) -> Peak | None:
        """The expected peak of a kind of jobs; None if unknown."""
        found = self._estimates.expected(*kind)
        now = self._by_running(*settled[kind[0]]) if kind[0] in settled else None
        past = Peak(found.memory, found.peak or found.memory, found.evidence) if found.memory > 0 else None
        if now is None or past is None:
            return now or past
        return max(now, past, key=lambda peak: peak.memory)

    def _by_running(self, job: str, measure: Measure) -> Peak:
        """The prediction by a running job: its use and a margin."""
        margin, peak = self._context.settings.memory_margin, float(measure.peak or 0)
        memory = math.ceil(peak * (1 + margin) / _MIB) * float(_MIB)
        steady = f"{measure.settled:.0f} s" if measure.settled >= 1 else f"{measure.settled:.1g} s"
        return Peak(memory, peak, f"job {job} has used {format_size(peak)} for {steady} + {100 * margin:.0f} %")

    def _own(self, job: str, row: int, expected: Peak | None) -> Peak | None:
        """The expected peak of a placed job; its own measurements win where they exceed the prediction."""
        measure = self._measure(job, row)
        if measure is None or not measure.peak:
            return expected
        if expected is not None and measure.peak <= expected.memory:
            return expected
        return self._by_running(job, measure) if self._has_settled(measure) else None

    def _statistics(self, running: list[int]) -> Iterator[tuple[int, Statistics]]:
        state, machine = self._context.state, self._context.machine
        for gpu in sorted({gpu for row in running for gpu in state.spot[row].tolist()}):
            used = np.array(tuple(self._windows[gpu]))  # another thread may add to it
            capacity = float(machine.gpus.devices[gpu].memory - machine.buffer)
            yield gpu, statistics_of(Window(capacity, used, np.maximum(capacity - used, 0.0)))

    # -- where it went wrong ------------------------------------------------------------------------

    def look(self) -> None:
        """Where a GPU gets full, stop the job that was admitted last, before another one runs out of memory."""
        for gpu in sorted(self._short):
            self._relieve(gpu)
        self._short = set()

    def _relieve(self, gpu: int) -> None:
        state, context = self._context.state, self._context
        there = [row for row in state.running.array.tolist() if gpu in state.spot[row].tolist()]
        if len(there) < 2 or any(row in state.recalled for row in there) or self._over_limit.stops(gpu):
            return
        let_in = [row for row in there if row in state.admitted and context.store.open[state.ids[row]].kind == "job"]
        if not let_in:
            return
        last = max(let_in, key=lambda row: float(state.table.turn[row]))
        left = format_size(max(0, self._free(gpu)))
        why = f"others on GPU {gpu} want what they asked for, and {left} were left"
        self._stops.recall(state.ids[last], CROWDED, context.clock.now(), message=why, gpu=gpu)

    def _free(self, gpu: int) -> int:
        look = next(look for look in self._context.machine.readings() if look.device.index == gpu)
        return int(look.device.memory - (look.reading.memory_used or 0))


def _is_known(work: Mapping[str, Any]) -> bool:
    """Whether similar jobs predict this one: it has a signature, and never proved them wrong."""
    never_wrong = not (work.get("ooms") or work.get("crowded"))
    return bool(work.get("signature")) and never_wrong and not work.get("profiles") and work.get("kind", "job") == "job"
