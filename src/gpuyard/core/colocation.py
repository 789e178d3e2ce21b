"""Placement `considerate`: `pack`, but jobs that are known to slow each other down (`State.harms`) are kept apart.

There are two degrees; the worse of the two slowdowns of a pair counts:

- Jobs that would take twice as long, or longer, do better by taking turns: such jobs never meet. The one that waits
  does so as it would for memory: until a GPU with another neighbour has room, or until one is empty. For the latter it
  is taken to ask for GPUs of its own, so that disciplines reserve one for it and policies that preempt can clear one.
- Jobs that would take a quarter longer, or more, go elsewhere if there is room elsewhere now; else they share.

As reservations do, this takes GPUs out of the reach of waiting jobs, and the loops know nothing of it. A plan is
drafted, checked, and drafted again while jobs that start together would slow each other down, or wait for no good
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gpuyard.core.draft import Draft
from gpuyard.core.limits.withdrawal import SHARED
from gpuyard.core.loops.placement import claim, fits, place
from gpuyard.core.loops.pool import EMPTY, PACK, Demand, Flags, Floats, Ints, Site
from gpuyard.core.loops.sharing import usable_gpus
from gpuyard.core.plan import Start
from gpuyard.core.reasons import Harm
from gpuyard.core.state import State

NEVER = 2.0  # from this slowdown on, jobs do not share a GPU
AVOIDED = 1.25  # from this slowdown on, they share one only if there is no room elsewhere
_PATIENCE = 3
"""So often jobs that would start together are kept apart by a GPU; after that, one of them gets a GPU of its own."""
_LET_IN = 100  # waiting jobs that are tried once more behind one that waits for a better neighbour
_APART, _TOGETHER, _ALONE = range(3)
"""How a waiting job is placed: apart from all that it slows down, or only from those it slows down much, or alone."""


def considerate(
    state: State, base: Demand | None, draft_of: Callable[[Demand | None], Draft], discipline: str
) -> Draft:
    """The draft in which no job starts beside one that it slows down too much; `base`: demand restricted by
    reservations."""
    reserves = discipline in ("easy", "conservative")
    colocation = CoLocation(state, base)
    rounds = 0
    while True:
        draft = draft_of(colocation.demand())
        draft.harm = colocation.why
        rounds += 1
        if not (
            colocation.separate(draft, rounds) or colocation.relax(draft) or (reserves and colocation.set_apart(draft))
        ):
            colocation.drop_the_moved(draft)
            if discipline == "easy" and not draft.victims:
                colocation.let_in(draft)
            return draft


class CoLocation:
    """Which jobs would slow down which, on which GPUs, and what that leaves to waiting jobs."""

    def __init__(self, state: State, base: Demand | None) -> None:
        self._state = state
        self._base = state.table.demand if base is None else base
        self._limited = base is not None
        self._harms = _by_number(state)
        self._there = _tenants(state)
        self._levels: dict[int, Floats] = {}
        self._mode: dict[int, int] = {}  # of waiting rows whose reach is limited
        self._beside: dict[int, dict[int, int]] = {}
        """GPUs on which a row would meet one that starts in this very plan, and which."""
        self._set_out()

    def demand(self) -> Demand | None:
        """Demand less the GPUs where jobs would slow down each other; None where that restricts nothing."""
        if not self._mode:
            return self._base if self._limited else None
        return self._demand(self._mode)

    def why(self, site: Site, row: int) -> Harm | None:
        """The neighbour that keeps a waiting row out although it would fit now; None if it waits for another reason."""
        site = site._replace(demand=self._base)
        if self._mode.get(row) is None or not fits(site, row):
            return None
        level = np.where(usable_gpus(site, row), self._level(row), 0.0)
        gpu = int(level.argmax())
        if level[gpu] < NEVER:
            return None
        mine = int(self._state.table.kind[row])
        there = [*self._there[gpu], *([self._beside[row][gpu]] if gpu in self._beside.get(row, ()) else [])]
        other = max(there, key=lambda tenant: self._worst(mine, tenant))
        theirs = int(self._state.table.kind[other])
        own, others = self._harms.get((mine, theirs), 1.0), self._harms.get((theirs, mine), 1.0)
        return Harm(gpu, self._state.ids[other], max(own, others), suffers=own >= others)

    def separate(self, draft: Draft, rounds: int) -> bool:
        """Whether two jobs would start together that should not; from now on, the later one starts elsewhere."""
        found = False
        for row, gpu, other, level in self._meetings(draft):
            mode = self._mode.get(row, _APART)
            if mode == _ALONE or (level < NEVER and mode == _TOGETHER) or len(self._state.spot[row]):
                continue
            self._beside.setdefault(row, {})[gpu] = other
            if rounds > _PATIENCE:
                mode = _ALONE if level >= NEVER else _TOGETHER
            self._mode[row] = mode
            found = True
        return found

    def relax(self, draft: Draft) -> bool:
        """Whether jobs wait although they would only be a little slower; from now on, they may start."""
        rows = draft.snapshot.waiting
        rows = rows[~np.isin(rows, draft.found_rows)]
        waits = [row for row in rows.tolist() if self._mode.get(row) == _APART]
        if not waits:
            return False
        site = draft.site._replace(demand=self._demand(dict.fromkeys(waits, _TOGETHER)))
        late = [row for row, fit in zip(waits, _have_room(site, waits), strict=True) if fit]
        self._mode |= dict.fromkeys(late, _TOGETHER)
        return bool(late)

    def set_apart(self, draft: Draft) -> bool:
        """Whether the first waiting job could wait for ever, because jobs keep coming that it must not meet."""
        rows = draft.snapshot.waiting
        rows = rows[~np.isin(rows, draft.found_rows)]
        if not len(rows):
            return False
        head = int(rows[draft.rank(rows).argmin()])
        if self._mode.get(head, _ALONE) == _ALONE or not self._off(head, _TOGETHER).any():
            return False
        self._mode[head] = _ALONE
        return True

    def let_in(self, draft: Draft) -> None:
        """Start jobs that cannot delay the first one that waits for a better neighbour: harmless to it, and leaving it
        its memory.

        The first one is taken to ask for a GPU of its own, so that backfilling lets in no job that outlives those it
        must not meet.
        """
        rows = draft.snapshot.waiting
        rows = rows[~np.isin(rows, draft.found_rows)]
        if len(rows) < 2:
            return
        rows = rows[draft.rank(rows).argsort(kind="stable")]
        head, demand = int(rows[0]), draft.demand
        rows = rows[1:][demand.compute[rows[1:]] < 100][:_LET_IN]
        if self._mode.get(head) != _ALONE or not len(rows):
            return
        roomy = draft.site._replace(demand=demand._replace(memory=demand.memory + self._base.memory[head]))
        for row in rows.tolist():
            kind = int(self._state.table.kind[row])
            spot = place(roomy, row) if self._worst(kind, head) < AVOIDED else EMPTY
            there = [other for gpu in spot.tolist() for other in self._there[gpu]]
            there += [other for other, taken in draft.found if np.isin(taken, spot).any()]
            if len(spot) and all(self._worst(kind, other) < AVOIDED for other in there):
                claim(draft.site, row, spot)
                draft.found.append((row, spot))
                draft.plan.starts.append(Start(self._state.ids[row], tuple(spot.tolist())))

    def drop_the_moved(self, draft: Draft) -> None:
        """A job that would be stopped only to continue beside one it slows down waits instead: the next plan decides
        about it."""
        bad = {row for row, _, _, level in self._meetings(draft) if level >= NEVER}
        if bad:
            names = {self._state.ids[row] for row in bad}
            draft.plan.starts = [start for start in draft.plan.starts if start.job not in names]
            draft.found = [(row, spot) for row, spot in draft.found if row not in bad]

    def _set_out(self) -> None:
        table, rows = self._state.table, self._state.waiting.array
        touchy = {kind for pair in self._harms for kind in pair}
        touchy = {kind for kind in touchy if self._level_of(kind).max() >= AVOIDED}
        rows = rows[np.isin(table.kind[rows], list(touchy)) & (self._base.compute[rows] < 100)]
        if not len(rows):
            return
        every: list[int] = rows.tolist()
        sites = [
            Site(self._demand(dict.fromkeys(every, mode)), self._state.pool, PACK, 0, True)
            for mode in (_APART, _TOGETHER)
        ]
        apart, together = (_have_room(site, every) for site in sites)
        free = np.array([kind not in touchy or self._level_of(kind).max() < NEVER for kind in range(max(touchy) + 1)])
        modes = np.where(apart, _APART, np.where(together | free[table.kind[rows]], _TOGETHER, _ALONE))
        self._mode = dict(zip(every, modes.tolist(), strict=True))

    def _demand(self, modes: dict[int, int]) -> Demand:
        base, table = self._base, self._state.table
        scope, scopes = base.scope.copy(), list(base.scopes)
        compute, memory = base.compute.copy(), base.memory.copy()
        rows, mode = np.array(list(modes), dtype=np.int64), np.array(list(modes.values()), dtype=np.int64)
        firsts, which = _alike(base.scope[rows], table.kind[rows], mode)
        news = []
        for row, how in zip(rows[firsts].tolist(), mode[firsts].tolist(), strict=True):
            off = _beyond(self._level_of(int(table.kind[row])), how)
            news.append(self._scope(scopes, int(base.scope[row]), off, how == _ALONE))
        scope[rows] = np.array(news, dtype=np.int64)[which]
        for row in self._beside.keys() & modes.keys():
            scope[row] = self._scope(scopes, int(base.scope[row]), self._off(row, modes[row]), modes[row] == _ALONE)
        for row in rows[mode == _ALONE].tolist():
            compute[row], memory[row] = self._all_of_one(row)
        return base._replace(scope=scope, scopes=np.array(scopes), compute=compute, memory=memory)

    @staticmethod
    def _scope(scopes: list[Flags], was: int, off: Flags, always_new: bool) -> int:
        """The row of `scopes` that is scope `was` without the GPUs `off`; a new row in any case if `always_new`.

        A job that must be alone has a scope of its own, so that too small GPUs are looked at, and reasons are its own.
        """
        if not always_new and not off.any():
            return was
        scopes.append(scopes[was] & ~off)
        return len(scopes) - 1

    def _all_of_one(self, row: int) -> tuple[float, float]:
        """What to ask for so as to be alone: whole GPUs, or their memory where foreign processes are on all."""
        state, base = self._state, self._base
        reach = np.flatnonzero(base.scopes[base.scope[row]])
        if any(state.withdrawn.get(gpu) != SHARED for gpu in reach.tolist()):
            return 100.0, float(base.memory[row])
        return float(base.compute[row]), float(state.pool.total[reach].max(initial=base.memory[row]))

    def _off(self, row: int, mode: int) -> Flags:
        return _beyond(self._level(row), mode)

    def _level(self, row: int) -> Floats:
        kind = int(self._state.table.kind[row])
        if row not in self._beside:
            return self._level_of(kind)
        level = self._level_of(kind).copy()
        for gpu, other in self._beside[row].items():
            level[gpu] = max(level[gpu], self._worst(kind, other))
        return level

    def _level_of(self, kind: int) -> Floats:
        if kind not in self._levels:
            worst = [max((self._worst(kind, tenant) for tenant in there), default=1.0) for there in self._there]
            self._levels[kind] = np.array(worst)
        return self._levels[kind]

    def _worst(self, kind: int, other: int) -> float:
        theirs = int(self._state.table.kind[other])
        return max(self._harms.get((kind, theirs), 1.0), self._harms.get((theirs, kind), 1.0))

    def _meetings(self, draft: Draft) -> Iterator[tuple[int, int, int, float]]:
        state = self._state
        there = [[row for row in tenants if row not in draft.victims] for tenants in self._there]
        for start in draft.plan.starts:
            row = state.row_of[start.job]
            for gpu in start.gpus:
                for other in there[gpu]:
                    level = self._worst(int(state.table.kind[row]), other)
                    if level >= AVOIDED:
                        yield row, gpu, other, level
                there[gpu].append(row)


def _beyond(level: Floats, mode: int) -> Flags:
    limit = {_APART: AVOIDED, _TOGETHER: NEVER, _ALONE: np.inf}[mode]
    off: Flags = level >= limit
    return off


def _have_room(site: Site, rows: list[int]) -> Flags:
    demand = site.demand
    firsts, which = _alike(
        *(w[rows] for w in (demand.gpus, demand.memory, demand.compute, demand.scope, demand.cpus, demand.host))
    )
    found = np.array([fits(site, rows[first]) for first in firsts.tolist()], dtype=np.bool_)
    room: Flags = found[which]
    return room


def _alike(*columns: Ints | Floats) -> tuple[Ints, Ints]:
    """Position of the first row of each kind, and the kind of each row; rows with equal columns are of one kind."""
    kinds = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        if len(column) and (column != column[0]).any():
            values, which = np.unique(column, return_inverse=True)
            kinds = kinds * len(values) + which
    _, firsts, which = np.unique(kinds, return_index=True, return_inverse=True)
    return firsts, which


def _by_number(state: State) -> dict[tuple[int, int], float]:
    numbers = state.kinds
    return {
        (numbers[mine], numbers[theirs]): slowdown
        for (mine, theirs), slowdown in state.harms.items()
        if slowdown >= AVOIDED and mine in numbers and theirs in numbers
    }


def _tenants(state: State) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(state.cluster.gpus)]
    for row in state.running.array.tolist():
        for gpu in state.spot[row].tolist():
            found[gpu].append(row)
    return found
