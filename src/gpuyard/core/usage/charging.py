"""What jobs are charged on the GPUs they share: what they asked for, or less where they are expected to use less.

A charge is a job's footprint in the pool. So the sum of all charges never exceeds a GPU, every plan respects that, and
planners know nothing of usage. What a job was promised stays what it asked for: a charge limits no job.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from gpuyard.core.events import Charged
from gpuyard.core.loops.pool import Floats, Ints
from gpuyard.core.model import Phase
from gpuyard.core.state import State
from gpuyard.core.usage.admission import HISTORY, Usage
from gpuyard.errors import Bug

_SHRINKS = 0.95  # a charge that would become but a little smaller stays: thousands may wait, and an event is dear
_STEP = 2.0**20  # bytes: a charge that lacks less than that is not raised
NOTHING = Usage()


def charge(state: State, row: int, event: Charged) -> None:
    table, memory = state.table, event.memory
    asked, whole = float(table.memory[row]), bool(table.compute[row] >= 100)
    if whole and memory == asked:
        return
    if whole or not 0 <= memory <= asked:
        raise Bug(f"job {event.job} asked for {asked:g} bytes of a GPU, so it cannot be charged {memory:g}")
    before = float(table.footprint[row])
    table.footprint[row] = memory
    spot = state.spot[row]
    if len(spot):
        state.pool.memory[spot] += before - memory
    if memory < asked:
        state.charges[row] = memory
    else:
        state.charges.pop(row, None)


def keep_charge(state: State, row: int) -> None:
    """After an edit: a job on GPUs is charged as before, and a waiting one again from what it asks for."""
    if row in state.charges and len(state.spot[row]):
        state.table.footprint[row] = state.charges[row]
    else:
        state.charges.pop(row, None)


def settle(state: State, usage: Usage | None, now: float, most: int = 1000) -> list[Charged]:
    """What jobs should be charged from now on, if it is another amount than now; the most urgent first, if many.

    A job that is expected to need less than it asked for is charged that. A job that outgrows what was expected, or of
    which nothing is known any more, is charged what it asked for again: at once if it waits, and as far as there is
    room if it is on GPUs.
    """
    if usage is None and not state.charges:
        return []
    return list(islice(_settled(state, usage or NOTHING, now), most))


def _settled(state: State, usage: Usage, now: float) -> Iterator[Charged]:
    table, wanted = state.table, targets(state, usage)
    charged = table.footprint[: table.size]
    open_ = np.concatenate((state.running.array, _held(state), state.waiting.array))
    changed = open_[(table.compute[open_] < 100) & (wanted[open_] != charged[open_])].tolist()
    room = state.pool.memory.copy()
    placed = [row for row in changed if len(state.spot[row])]
    lowered = {row: float(wanted[row]) for row in placed if wanted[row] < _SHRINKS * charged[row]}
    for row, lower in lowered.items():
        room[state.spot[row]] += float(charged[row]) - lower
        yield _charge(state, row, lower, usage, now)
    for row in placed:
        higher = _raised(float(charged[row]), float(wanted[row]), float(np.min(room[state.spot[row]])))
        if higher is not None:
            room[state.spot[row]] -= higher - float(charged[row])
            yield _charge(state, row, higher, usage, now)
    for row in changed:
        if not len(state.spot[row]) and not _SHRINKS * charged[row] <= wanted[row] <= charged[row]:
            yield _charge(state, row, float(wanted[row]), usage, now)


def targets(state: State, usage: Usage) -> Floats:
    """What jobs should be charged, by row, if there is room: what they are expected to use, and at most what they asked
    for."""
    table = state.table
    wanted = table.memory[: table.size].copy()
    known = [(row, peak.memory) for job, peak in usage.peaks.items() if (row := state.row_of.get(job)) is not None]
    if known:
        rows, peaks = np.array([row for row, _ in known]), np.array([memory for _, memory in known])
        wanted[rows] = np.minimum(wanted[rows], peaks)
    return wanted


def _held(state: State) -> Ints:
    """Rows that are held and charged less than they asked for; the others are charged when they are released."""
    held = [row for row in state.charges if state.phase[row] is Phase.HELD]
    return np.array(held, dtype=np.int64)


def _raised(now: float, wanted: float, room: float) -> float | None:
    higher = min(wanted, now + max(0.0, room))
    return higher if higher > now and (higher - now >= _STEP or higher == wanted) else None


def _charge(state: State, row: int, memory: float, usage: Usage, now: float) -> Charged:
    job = state.ids[row]
    peak = usage.peaks.get(job)
    return Charged(now, job, memory, HISTORY, peak.evidence) if peak is not None else Charged(now, job, memory)
