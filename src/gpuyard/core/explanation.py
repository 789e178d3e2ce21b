"""Why a job waits, from the plan that left it waiting: builds the `Reason` with its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from gpuyard.core.draft import Draft, overdue_end_soon
from gpuyard.core.limits.reservations import blocking
from gpuyard.core.loops.backfill import held_spot, reserve
from gpuyard.core.loops.conservative import book, earliest, new_profile
from gpuyard.core.loops.placement import claim, fits, release
from gpuyard.core.loops.pool import Ints, on_copy
from gpuyard.core.reasons import Priority, Reason, Reserved, Resources, Room
from gpuyard.core.usage.admission import Decision
from gpuyard.errors import Bug

_TIMES = 200  # jobs whose expected start is computed under `conservative`: each takes longer than the one before


def explain(
    draft: Draft, discipline: str, version: int, refused: Mapping[str, Decision] = MappingProxyType({})
) -> dict[str, Reason]:
    """The reason of every waiting job that a finished draft does not start, in the policy's order.

    `refused` are jobs that admission by usage refused as well.
    """
    state = draft.snapshot.state
    if state.version != version:
        raise Bug("a plan's reasons were asked for after the state had moved on")
    rows = draft.snapshot.waiting
    rows = rows[~np.isin(rows, draft.found_rows)]
    order = rows[np.argsort(draft.rank(rows), kind="stable")]
    if not len(order):
        return {}
    if discipline in ("commit", "easy-shadow") and (head := _kept_head(draft)) >= 0:
        order = np.concatenate(([head], order[order != head]))
    reasons = _REASONS.get(discipline, _by_resources)(draft, order)
    found = {state.ids[row]: reason for row, reason in zip(order.tolist(), reasons, strict=True)}
    for row in order[state.table.footprint[order] < state.table.memory[order]].tolist() if state.charges else ():
        if isinstance(why := found[state.ids[row]], Resources) and why.memory:
            found[state.ids[row]] = replace(why, asked=float(state.table.memory[row]))
    for job, decision in refused.items():
        if isinstance(former := found.get(job), Resources):
            found[job] = replace(former, usage=decision)
    return found


def expected_fit(draft: Draft, row: int, ends: Mapping[str, float]) -> float | None:
    """When enough should be free for a job that goes first; None: nobody knows. `ends`: those of running jobs."""
    at, _ = reserve(row, draft.holders_expecting(ends), draft.site)
    return at if np.isfinite(at) else None


def rivals(draft: Draft, row: int, ahead: Ints) -> Ints:
    """Those of the jobs ahead that could take a GPU which this one could use."""
    scopes, scope = draft.demand.scopes, draft.demand.scope
    found: Ints = ahead[(scopes[scope[ahead]] & scopes[scope[row]]).any(axis=1)]
    return found


def blockers(draft: Draft, row: int, ends: Mapping[str, float]) -> list[int]:
    """Running jobs that would have to end before a waiting one fits.

    As few as are enough, by expected end; all of them, if even that is not enough; none, if it could not start then
    since GPUs are withdrawn or drained.
    """
    holders = draft.holders_expecting(ends)
    site = on_copy(draft.site)
    left: list[int] = []
    for i in range(len(holders.rows)):
        if fits(site, row):
            break
        release(site, int(holders.rows[i]), held_spot(holders, i))
        left.append(i)
    state = draft.snapshot.state
    if not fits(site, row) and (state.withdrawn or state.drained):
        return []
    for i in left[::-1] if fits(site, row) else []:
        claim(site, int(holders.rows[i]), held_spot(holders, i))
        if fits(site, row):
            left.remove(i)
        else:
            release(site, int(holders.rows[i]), held_spot(holders, i))
    return [int(holders.rows[i]) for i in left]


def _kept_head(draft: Draft) -> int:
    state = draft.snapshot.state
    if draft.plan.chosen is not None:
        return state.row_of[draft.plan.chosen[0]]
    return state.head if state.head not in draft.found_rows else -1


def _by_kind(draft: Draft, rows: Ints, reason: Callable[[int], Reason]) -> list[Reason]:
    """Reasons of many jobs: jobs with the same demand wait for the same reason, which is found once."""
    if not len(rows):
        return []
    demand = draft.demand
    kinds = np.zeros(len(rows), np.int64)
    for column in (demand.gpus, demand.memory, demand.compute, demand.scope, demand.cpus, demand.host):
        asked = column[rows]
        if (asked != asked[0]).any():
            values, which = np.unique(asked, return_inverse=True)
            kinds = np.unique(kinds * len(values) + which, return_inverse=True)[1]
    _, firsts = np.unique(kinds[::-1], return_index=True)
    found = [reason(int(row)) for row in rows[::-1][firsts]]
    return [found[kind] for kind in kinds.tolist()]


def _lacks(draft: Draft, row: int, expected_at: float | None = None) -> Reason:
    if draft.harm is not None and (harm := draft.harm(draft.site, row)) is not None:
        return harm
    if draft.restricted is not None and fits(draft.site._replace(demand=draft.snapshot.state.table.demand), row):
        found = blocking(draft.snapshot.state, row, draft.snapshot.now)
        if found is not None:
            return found
    known = expected_at if expected_at is not None and np.isfinite(expected_at) else None
    state = draft.snapshot.state
    withdrawn = Counter([*state.withdrawn.values(), *("drained" for gpu in state.drained - set(state.withdrawn))])
    memory = float(draft.demand.memory[row])
    room = _most_room(draft, row) if memory else None
    return Resources(int(draft.demand.gpus[row]), draft.idle, known, withdrawn, memory, room)


def _most_room(draft: Draft, row: int) -> Room | None:
    pool, demand, state = draft.site.pool, draft.demand, draft.snapshot.state
    left = np.where((pool.compute >= 0) & (pool.kind <= 0) & demand.scopes[demand.scope[row]], pool.memory, -np.inf)
    gpu = int(left.argmax())
    if left[gpu] == -np.inf or left[gpu] >= demand.memory[row]:
        return None
    taken = state.taken[gpu] if state.taken else 0.0
    total = state.cluster.gpu_memory[gpu] if state.cluster.gpu_memory else state.cluster.memory
    return Room(gpu, max(0.0, float(left[gpu])), total, min(state.buffer, total), max(0.0, taken - state.buffer))


def _by_resources(draft: Draft, order: Ints) -> list[Reason]:
    return _by_kind(draft, order, lambda row: _lacks(draft, row))


def _behind_head(draft: Draft, order: Ints) -> list[Reason]:
    head = draft.snapshot.job(int(order[0]))
    return [_lacks(draft, int(order[0])), *(Priority(head, ahead) for ahead in range(1, len(order)))]


def _around_head(draft: Draft, order: Ints) -> list[Reason]:
    head = int(order[0])
    holders = overdue_end_soon(draft.holders_by_end(), draft.snapshot.now)
    shadow, _ = reserve(head, holders, draft.site)
    reserved = Reserved(draft.snapshot.job(head), shadow)
    others = _by_kind(draft, order[1:], lambda row: reserved if fits(draft.site, row) else _lacks(draft, row))
    return [_lacks(draft, head, shadow), *others]


def _by_reservation(draft: Draft, order: Ints) -> list[Reason]:
    profile = new_profile(draft.snapshot.now, overdue_end_soon(draft.holders_by_end(), draft.snapshot.now), draft.site)
    head, due = draft.snapshot.job(int(order[0])), np.inf
    reasons: list[Reason] = []
    for n, row in enumerate(order[:_TIMES].tolist()):
        i, spot = earliest(row, profile, draft.site)
        at = float(profile.times[i]) if i >= 0 else np.inf
        due = at if n == 0 else due
        reasons.append(Reserved(head, due) if fits(draft.site, row) else _lacks(draft, row, at))
        if i >= 0:
            profile = book(profile, i, row, spot, draft.site)
    reserved = Reserved(head, due)
    return reasons + _by_kind(
        draft, order[_TIMES:], lambda row: reserved if fits(draft.site, row) else _lacks(draft, row)
    )


_REASONS = {
    "strict": _behind_head,
    "commit": _behind_head,
    "easy": _around_head,
    "easy-shadow": _around_head,
    "conservative": _by_reservation,
}
