"""Starts by usage: jobs that a plan by charges leaves waiting may have memory that is promised and not used.

The plan itself is made by charges (`charging`), so it contains every job that fits by expected use. Here each start is
labelled with the rule that admitted it; and jobs that found no room are tried against the windows of the GPUs, in the
order of the policy, with the guard: at most one on each GPU, since a window says nothing of jobs that came after it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuyard.core.draft import Draft, overdue_end_soon
from gpuyard.core.limits.gates import Gates
from gpuyard.core.loops.backfill import reserve
from gpuyard.core.loops.pool import BYTE, EMPTY, SLACK, Floats, Ints
from gpuyard.core.plan import Start
from gpuyard.core.state import State
from gpuyard.core.usage.admission import HISTORY, Decision, Usage, decide, need
from gpuyard.units import format_size

_TRIED = 100  # waiting jobs that are tried in one plan
_STOPS = ("strict", "commit")  # disciplines under which no job overtakes one that has to wait
_RESERVES = ("easy", "easy-shadow", "conservative")


class _MemoryBooks:
    """What all jobs on each GPU asked for, and are expected to use; those that start in this plan included."""

    def __init__(self, state: State, usage: Usage) -> None:
        self._state, self._usage = state, usage
        self.asked: Floats = np.zeros(state.cluster.gpus)
        self.least: Floats = np.zeros(state.cluster.gpus)
        for row in state.running.array.tolist():
            self.add(row, state.spot[row])

    def add(self, row: int, spot: Ints) -> None:
        state = self._state
        if state.table.compute[row] < 100:
            asked, peak = float(state.table.memory[row]), self._usage.peaks.get(state.ids[row])
            self.asked[spot] += asked
            self.least[spot] += asked if peak is None else min(asked, peak.least)

    def available(self, spot: Ints) -> float:
        return float((self._state.pool.total[spot] - self.asked[spot]).min())

    def bound(self, gpu: int) -> float:
        return float(self._state.pool.total[gpu] - self.least[gpu])


def admit(draft: Draft, usage: Usage, discipline: str, gates: Gates | None) -> dict[str, Decision]:
    """Note by which rule the starts of a draft are admitted, and add those that windows allow; returns the refused
    ones."""
    books = _MemoryBooks(draft.snapshot.state, usage)
    _label(draft, usage, books)
    if not usage.statistics or draft.victims or draft.plan.stops:
        return {}
    return _admit_by_windows(draft, usage, discipline, gates, books)


def hopeful(state: State, usage: Usage) -> bool:
    """Whether windows could admit any waiting job: only then is it worth reading more samples."""
    if not usage.guarded:
        return bool(len(state.waiting))
    books, table = _MemoryBooks(state, usage), state.table
    most = max(books.bound(gpu) for gpu in range(state.cluster.gpus))
    for row in state.waiting.array.tolist():
        peak = usage.peaks.get(state.ids[row])
        wanted = need(float(table.memory[row]), None if peak is None else peak.memory)
        if table.compute[row] < 100 and wanted <= most + BYTE:
            return True
    return False


def _label(draft: Draft, usage: Usage, books: _MemoryBooks) -> None:
    state, starts = draft.snapshot.state, list[Start]()
    left = state.pool.memory.copy()
    for start in draft.plan.starts:
        row, spot = state.row_of[start.job], np.array(start.gpus, dtype=np.int64)
        if state.table.compute[row] < 100:
            start = replace(start, admission=_fitted(state, row, spot, usage, books, float(left[spot].min())))
            left[spot] -= state.table.footprint[row]
            books.add(row, spot)
        starts.append(start)
    draft.plan.starts = starts


def _fitted(state: State, row: int, spot: Ints, usage: Usage, books: _MemoryBooks, left: float) -> Decision:
    asked, available = float(state.table.memory[row]), books.available(spot)
    if asked <= available + BYTE:
        why = f"{format_size(asked)} asked for, {format_size(available)} left"
        return replace(decide(asked, asked, None), available=available, why=why)
    peak = usage.peaks.get(state.ids[row])
    wanted = float(state.table.footprint[row])
    by = f" ({peak.evidence})" if peak is not None and peak.evidence else ""
    why = f"{format_size(wanted)} needed{by}, {format_size(left)} left beside what others are expected to use"
    return Decision(True, HISTORY, asked, available, bound=left, why=why, need=wanted if wanted < asked else None)


def _admit_by_windows(
    draft: Draft, usage: Usage, discipline: str, gates: Gates | None, books: _MemoryBooks
) -> dict[str, Decision]:
    state, refused = draft.snapshot.state, dict[str, Decision]()
    used = {gpu for start in draft.plan.starts for gpu in start.gpus}
    until, known = np.inf, dict[tuple[float, ...], Decision]()
    for row in _candidates(draft):
        if (decision := known.get(_demand_key(draft, usage, row))) is not None:
            refused[state.ids[row]] = decision
            continue
        late = draft.snapshot.now + float(state.table.estimate[row]) > until
        if late or (gates is not None and not gates.has_room([one for one, _ in draft.found], row)):
            continue
        spot, decision = _spot(draft, usage, books, row, used)
        if decision is not None and decision.admitted:
            used |= set(spot.tolist())
            _start(draft, row, spot, decision)
            books.add(row, spot)
            known.clear()
            continue
        if decision is not None:
            refused[state.ids[row]] = known[_demand_key(draft, usage, row)] = decision
        if discipline in _STOPS:
            break
        if discipline in _RESERVES and until == np.inf:
            until = _shadow(draft, row)
    return refused


def _demand_key(draft: Draft, usage: Usage, row: int) -> tuple[float, ...]:
    """A job's demand as a key: jobs with the same key are refused alike."""
    demand, peak = draft.demand, usage.peaks.get(draft.snapshot.state.ids[row])
    asked = draft.snapshot.state.table.memory[row]
    return demand.gpus[row], asked, demand.compute[row], demand.scope[row], -1.0 if peak is None else peak.memory


def _candidates(draft: Draft) -> list[int]:
    rows = draft.snapshot.waiting
    rows = rows[~np.isin(rows, draft.found_rows)]
    found: list[int] = rows[np.argsort(draft.rank(rows), kind="stable")][:_TRIED].tolist()
    return found


def _spot(draft: Draft, usage: Usage, books: _MemoryBooks, row: int, used: set[int]) -> tuple[Ints, Decision | None]:
    """GPUs whose windows admit a job, and a decision on one of them; none where windows do not apply."""
    state, demand, pool = draft.snapshot.state, draft.demand, draft.site.pool
    if demand.compute[row] >= 100 or state.ids[row] in usage.exempt:
        return EMPTY, None
    asked, peak = float(state.table.memory[row]), usage.peaks.get(state.ids[row])
    wanted = need(asked, peak.memory if peak is not None else None)
    usable = (pool.compute >= demand.compute[row] - SLACK) & (pool.kind <= 0) & (pool.memory >= 0)
    usable &= demand.scopes[demand.scope[row]]
    found, decisions = list[int](), list[Decision]()
    for gpu in np.flatnonzero(usable).tolist():
        seen = usage.statistics.get(gpu)
        if gpu in used or seen is None:
            continue
        bound, left = books.bound(gpu) if usage.guarded else None, float(pool.memory[gpu])
        if wanted <= left + BYTE:  # there is room; something else keeps it waiting
            return EMPTY, None
        decision = decide(wanted, left, seen, bound, thresholds=usage.thresholds)
        known = None if peak is None else wanted
        decisions.append(replace(decision, request=asked, available=books.available(np.array([gpu])), need=known))
        found += [gpu] if decision.admitted else []
    wide = int(demand.gpus[row])
    spot = np.array(found[:wide] if len(found) >= wide else [], dtype=np.int64)
    decisions = [one for one in decisions if one.admitted == bool(len(spot))] or [
        replace(one, admitted=False) for one in decisions
    ]
    return spot, max(decisions, key=lambda one: one.harvested, default=None)


def _start(draft: Draft, row: int, spot: Ints, decision: Decision) -> None:
    pool, state = draft.site.pool, draft.snapshot.state
    charge = max(0.0, min(float(state.table.footprint[row]), float(pool.memory[spot].min())))
    pool.memory[spot] -= charge
    pool.compute[spot] -= draft.demand.compute[row]
    pool.tenants[spot] += 1
    draft.found.append((row, spot))
    draft.plan.starts.append(Start(state.ids[row], tuple(spot.tolist()), decision, charge))


def _shadow(draft: Draft, head: int) -> float:
    holders = overdue_end_soon(draft.holders_by_end(), draft.snapshot.now)
    return float(reserve(head, holders, draft.site)[0])
