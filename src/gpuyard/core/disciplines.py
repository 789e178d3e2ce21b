"""The disciplines, one function each: they order the queue and choose what the loops in `loops.backfill` see.

Most of a long queue is never sorted and never looked at: one comparison of arrays leaves out jobs that want more GPUs
than are idle, and ranks are computed only as far down as jobs still start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

import numpy as np

from gpuyard.core.draft import Draft, DraftSite, overdue_end_soon, reserve
from gpuyard.core.loops import backfill as d
from gpuyard.core.loops.conservative import conserve, narrow
from gpuyard.core.loops.placement import claim, place
from gpuyard.core.loops.pool import BYTE, SLACK, Flags, Floats, Ints, counts_host, mix, on_copy

_SMALL = 24  # below this, sorting everything is as cheap as looking for the smallest


class Ranking:
    """Hands out rows by ascending key, ties by ascending row, in chunks that grow as they are asked for."""

    def __init__(self, keys: Floats, rows: Ints) -> None:
        self._keys = keys
        self._rows = rows
        self._size = 1
        self._gone: int | None = None

    def next(self, leave_out: Callable[[Ints], Flags] | None = None) -> Ints:
        keep = np.ones(len(self._rows), dtype=np.bool_) if leave_out is None else ~leave_out(self._rows)
        if self._gone is not None:
            keep[self._gone] = False
            self._gone = None
        if not keep.all():
            self._keys, self._rows = self._keys[keep], self._rows[keep]
        size, n = self._size, len(self._rows)
        self._size *= 8
        if n <= max(size, _SMALL):
            everything = self._rows[np.argsort(self._keys, kind="stable")]
            self._keys, self._rows = self._keys[:0], self._rows[:0]
            return everything
        if size == 1:
            self._gone = int(np.argmin(self._keys))
            return self._rows[self._gone : self._gone + 1]
        near = self._keys <= np.partition(self._keys, size)[size]
        chunk: Ints = self._rows[near][np.argsort(self._keys[near], kind="stable")]
        self._keys, self._rows = self._keys[~near], self._rows[~near]
        return chunk


Discipline = Callable[[Draft], None]


def _could_fit(draft: Draft, rows: Ints) -> Ints:
    """The rows that are not ruled out by the number of idle GPUs alone, or by the memory left on the roomiest GPU."""
    demand = draft.demand
    some = demand.gpus[rows] <= draft.idle
    if draft.fine:
        pool = draft.site.pool
        left = np.where(pool.compute >= -SLACK, pool.memory, -np.inf)
        most = np.where(demand.scopes, left, -np.inf).max(axis=1)  # in each scope
        some |= (demand.compute[rows] < 100) & (demand.memory[rows] - BYTE <= most[demand.scope[rows]])
    return rows[some]


class _Outcome(Enum):
    STARTED = 1
    NO_ROOM = 2
    IN_THE_WAY = 3  # there is room, but it would delay the head where it would be placed


def _by_kinds(draft: Draft, order: Ints, late: Flags, attempt: Callable[[int], _Outcome]) -> None:
    """Try rows in order, but none that asks for the same as one that failed: where one found no room, none like it
    does, and one that was in the way may be placed elsewhere once another job has started.

    A long queue of shares is mostly jobs of a few sizes, and a place is searched GPU by GPU.
    """
    could = np.isin(order, _could_fit(draft, order))
    order, late = order[could], late[could]
    kinds = _kinds(draft, order, late)
    hopeless, waits, many = set[int](), set[int](), len(np.unique(kinds))
    for row, kind in zip(order.tolist(), kinds.tolist(), strict=True):
        if draft.is_long or len(hopeless) + len(waits) == many:
            return
        if kind in hopeless or kind in waits:
            continue
        outcome = attempt(row)
        if outcome is _Outcome.STARTED:
            waits.clear()
        else:
            (hopeless if outcome is _Outcome.NO_ROOM else waits).add(kind)


def _kinds(draft: Draft, rows: Ints, late: Flags) -> Ints:
    demand, kinds, parts = draft.demand, late.astype(np.int64), draft.site.parts
    columns = [demand.gpus, demand.memory, demand.compute, demand.scope, demand.cpus, demand.host]
    asked_for = [column[rows] for column in columns]
    if parts:
        numbers: dict[object, int] = {}
        asked_for.append(np.array([numbers.setdefault(parts.get(row), len(numbers)) for row in rows.tolist()]))
    for asked in asked_for:
        if len(asked) and (asked != asked[0]).any():  # 64 bits tell apart what a queue can hold
            kinds = mix(1, kinds ^ mix(2, asked.view(np.int64)).view(np.int64)).view(np.int64)
    return np.unique(kinds, return_inverse=True)[1]


def _ranking(draft: Draft, rows: Ints) -> Ranking:
    return Ranking(draft.rank(rows), rows)


def _in_order(draft: Draft, ranking: Ranking, stop: bool) -> None:
    if draft.fine:
        _one_after_another(draft, ranking, stop)
        return
    while not draft.is_long:
        order, before = ranking.next(draft.too_large), len(draft.found)
        if not len(order) or (stop and draft.demand.gpus[order[0]] > draft.idle):
            return
        _fill(draft, order, stop)
        if stop and len(draft.found) < before + len(order):
            return


def _one_after_another(draft: Draft, ranking: Ranking, stop: bool) -> None:
    while len(order := ranking.next()):
        for row in order.tolist():
            if draft.is_long or (not draft.start(row) and stop):
                return


def _fill(draft: Draft, order: Ints, stop: bool) -> None:
    draft.run(lambda starts: d.fill(order, stop, draft.site, starts), order)


def _one_by_one(draft: Draft, rows: Ints, stop: bool) -> tuple[Ints, Floats]:
    """Start the best, rank the others again, and so on; with `stop`, one that does not fit blocks. Returns the rows
    left."""
    rows = rows[~np.isin(rows, draft.found_rows)]
    keys, passed = draft.rank(rows), np.zeros(len(rows), dtype=np.bool_)
    while not passed.all() and not draft.is_long:
        best = int(np.argmin(np.where(passed, np.inf, keys)))
        if draft.start(int(rows[best])):
            rows, passed = np.delete(rows, best), np.delete(passed, best)
            keys = draft.rank(rows)
        elif stop:
            break
        else:
            passed[best] = True
            if not draft.fine:
                draft.note_too_large(int(rows[best]))
                passed |= draft.too_large(rows)
    return rows, keys


def strict(draft: Draft) -> None:
    if draft.policy.looks_around:
        _one_by_one(draft, draft.snapshot.waiting, True)
        return
    _in_order(draft, _ranking(draft, draft.snapshot.waiting), True)


def skip(draft: Draft) -> None:
    rows = _could_fit(draft, draft.snapshot.waiting)
    if len(rows) and draft.policy.looks_around:
        _one_by_one(draft, rows, False)
    elif len(rows) and draft.fine:
        order = rows[np.argsort(draft.rank(rows), kind="stable")]
        _by_kinds(draft, order, np.zeros(len(order), dtype=np.bool_), lambda row: _placed(draft, row, draft.draft_site))
    elif len(rows):
        _in_order(draft, _ranking(draft, rows), False)


def _heads(draft: Draft, rows: Ints) -> tuple[Ints, Floats]:
    if draft.policy.looks_around:
        return _one_by_one(draft, rows, True)
    keys = draft.rank(rows)
    _in_order(draft, Ranking(keys, rows), True)
    waiting = ~np.isin(rows, draft.found_rows)
    return rows[waiting], keys[waiting]


def easy(draft: Draft) -> None:
    """The head of the queue has a reservation; others start if they do not delay it."""
    now, demand = draft.snapshot.now, draft.demand
    rows = draft.snapshot.waiting
    if draft.fine and not len(_could_fit(draft, rows)):
        return
    rows, keys = _heads(draft, rows)
    if len(rows) < 2 or not (draft.fine or draft.idle) or draft.is_long:
        return
    head = int(rows[np.argmin(keys)])
    if draft.fine and demand.scope[head] != 0:
        _beside(draft, head, rows[np.argsort(keys, kind="stable")])
        waiting = ~np.isin(rows, draft.found_rows)
        rows, keys = rows[waiting], keys[waiting]
    holders = overdue_end_soon(draft.holders_by_end(), now)
    shadow, later = (reserve if draft.fine else d.reserve)(head, holders, draft.site)
    extra = sum(later.pool.idle) - demand.gpus[head]
    may = (demand.gpus[rows] <= draft.idle) & ((now + demand.estimate[rows] <= shadow) | (demand.gpus[rows] <= extra))
    if draft.fine:
        may |= (demand.compute[rows] < 100) | (demand.compute[head] < 100)
    may &= rows != head
    order = rows[may][np.argsort(keys[may], kind="stable")]
    if draft.fine:
        late, then = now + demand.estimate[order] > shadow, DraftSite(later)
        _by_kinds(draft, order, late, lambda row: _backfilled(draft, row, head, shadow, then))
    elif len(order):
        draft.run(lambda starts: d.backfill(order, head, shadow, later, now, draft.site, starts), order)


def _placed(draft: Draft, row: int, draft_site: DraftSite) -> _Outcome:
    spot = draft_site.spot(row)
    if not len(spot):
        return _Outcome.NO_ROOM
    draft.take(row, spot)
    return _Outcome.STARTED


def _backfilled(draft: Draft, row: int, head: int, shadow: float, then: DraftSite) -> _Outcome:
    """Start a job if it fits and leaves the head its reservation: `loops.backfill` where bins are GPUs."""
    spot = draft.draft_site.spot(row)
    if not len(spot):
        return _Outcome.NO_ROOM
    if draft.snapshot.now + draft.demand.estimate[row] > shadow and not _stays_beside(then, head, row, spot):
        spot = _spot_beside(draft, row, head, then)
        if not len(spot) or not _stays_beside(then, head, row, spot):
            return _Outcome.IN_THE_WAY
    draft.take(row, spot)
    return _Outcome.STARTED


def _stays_beside(then: DraftSite, head: int, row: int, spot: Ints) -> bool:
    """Claim a spot at the time of the head's reservation, if the head still fits then."""
    then.claim(row, spot)
    if then.fits(head):
        return True
    then.release(row, spot)
    return False


def _spot_beside(draft: Draft, row: int, head: int, then: DraftSite) -> Ints:
    """The best spot for a job in what is free now and stays free beside the head; empty where there is none."""
    reserved, free = on_copy(then.site), on_copy(draft.site)
    claim(reserved, head, then.spot(head))
    narrow(free, reserved.pool)
    return place(free, row)


def _beside(draft: Draft, head: int, order: Ints) -> None:
    """Start what fits on GPUs that the head cannot use: jobs there can never delay it."""
    demand, node = draft.demand, draft.snapshot.state.pool.node
    its_own = demand.scopes[demand.scope[head]]
    if counts_host(demand, head):
        its_own = np.isin(node, node[its_own])  # jobs that take CPUs of its nodes could delay it as well
    others = demand.scopes & ~its_own
    order = order[others.any(axis=1)[demand.scope[order]] & (order != head)]
    scopes = np.vstack((demand.scopes, others))
    site = draft.site._replace(demand=demand._replace(scope=demand.scope + len(demand.scopes), scopes=scopes))
    draft_site = DraftSite(site, draft.draft_site.changed)
    _by_kinds(draft, order, np.zeros(len(order), dtype=np.bool_), lambda row: _placed(draft, row, draft_site))


def conservative(draft: Draft) -> None:
    rows, now = draft.snapshot.waiting, draft.snapshot.now
    order = rows[np.argsort(draft.rank(rows), kind="stable")]
    holders = overdue_end_soon(draft.holders_by_end(), now)
    draft.run(lambda starts: conserve(order, now, holders, draft.site, starts), order)


def commit(draft: Draft) -> None:
    _chosen_head(draft)


def easy_shadow(draft: Draft) -> None:
    """The head, once chosen, is kept; others that end before its shadow time may start, in FCFS order."""
    head, shadow = _chosen_head(draft)
    if head < 0:
        return
    rows = _could_fit(draft, draft.snapshot.waiting)
    rows = rows[(draft.snapshot.now + draft.demand.estimate[rows] < shadow) & (rows != head)]
    order = rows[~np.isin(rows, draft.found_rows)]
    if len(order):
        _fill(draft, order, False)


def _chosen_head(draft: Draft) -> tuple[int, float]:
    """Start heads while they fit; the one that does not is kept. Returns it and its shadow time, or -1."""
    state, rows = draft.snapshot.state, draft.snapshot.waiting
    if state.head >= 0:
        if not draft.start(state.head):
            return state.head, state.shadow
        rows = rows[rows != state.head]
    head = _first_that_waits(draft, rows)
    if head < 0:
        return -1, np.inf
    shadow = d.shadow_time(head, draft.holders_by_end(), draft.demand, draft.idle)
    draft.plan.chosen = (state.ids[head], shadow)
    return head, shadow


def _first_that_waits(draft: Draft, rows: Ints) -> int:
    if draft.policy.looks_around:
        rows, keys = _one_by_one(draft, rows, True)
        return int(rows[np.argmin(keys)]) if len(rows) else -1
    ranking = _ranking(draft, rows)
    while len(order := ranking.next()):
        for row in order.tolist():
            if not draft.start(row):
                return int(row)
    return -1


DISCIPLINE_FUNCTIONS: Mapping[str, Discipline] = {
    "strict": strict,
    "commit": commit,
    "skip": skip,
    "easy": easy,
    "easy-shadow": easy_shadow,
    "conservative": conservative,
}
