"""Stopping preemptible jobs under policies that do not preempt by themselves: for priority, and for fair shares.

After the ordinary walk, the first of those who still wait are looked at once more. Who has a higher priority than
running jobs that may be stopped, or whose user has less than their share while the users of those have more, is given
their GPUs. Only where there are rules to share by that allow it (`Rules.preempts`), and so never in a simulation.

Nobody is stopped for a job that would have to give way to them in turn, so no two jobs can stop each other for ever:

- For priority, only jobs of lower priority are stopped; not those that the policy started while this one waited, since
  they had waited so long that they went first.
- For shares, only jobs of users who keep their share without them are stopped, for users who do not exceed theirs;
  and only if the policy lets this one go first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuyard.core.board import fewest_gone, without
from gpuyard.core.draft import Draft, laid_out
from gpuyard.core.ledger import weight_of
from gpuyard.core.placement import claim, fits, place, release
from gpuyard.core.plan import Start
from gpuyard.core.pool import FGD, NO_TASKS, Flags, Floats, Ints, Site, copy_pool, on_copy
from gpuyard.core.preemption import may_stop
from gpuyard.core.scores import wish_of
from gpuyard.core.state import State
from gpuyard.core.withdrawal import withdraw

_FEW = 16
"""Victims that are looked at one by one."""
_MOST = 32
"""Waiting jobs that are looked at; the next plan may look at others."""


def reclaim(draft: Draft, keeps_idle: bool) -> None:
    """Let waiting jobs take GPUs from running ones that must give way to them; the draft must be finished.

    With `keeps_idle`, what is idle is left to whom the discipline keeps it for: the first who waits.
    """
    state = draft.snapshot.state
    if state.rules is None or not state.rules.preempts or not {"priority", "user_usage"} & set(draft.policy.columns):
        return
    running = draft.snapshot.running
    loose = running[may_stop(state, running)]
    waiting = draft.snapshot.waiting
    if not len(loose) or not len(waiting):
        return
    waiting = waiting[~np.isin(waiting, draft.found_rows)] if draft.found else waiting
    if state.patient:
        waiting = waiting[~np.isin(waiting, list(state.patient))]
    claims = _Claims.of(draft, waiting, loose)
    candidates = waiting[claims.might(waiting, loose)]
    if not len(candidates):
        return
    ranks = draft.rank(waiting)
    first = int(waiting[ranks.argmin()])
    order = candidates[ranks[waiting.searchsorted(candidates)].argsort(kind="stable")][:_MOST]
    site, hopeless = _what_is_left(draft), set[tuple[object, ...]]()
    for row in order.tolist():
        others = claims.must_give_way(row, loose)
        idle = keeps_idle and row != first
        case = (*wish_of(site.demand, row), state.parts.get(row), idle, tuple(others))
        chosen = _victims(state, row, others, site, idle) if others and case not in hopeless else None
        if chosen is None:
            hopeless.add(case)
            continue
        victims, spot = chosen
        for victim in victims:
            release(site, victim, state.spot[victim])
        claim(site, row, spot)
        claims.move(row, victims)
        _write(draft, row, victims, spot)
        loose = loose[~np.isin(loose, victims)]
        if not len(loose):
            return


def _what_is_left(draft: Draft) -> Site:
    """What the plan so far leaves, GPU by GPU."""
    state = draft.snapshot.state
    tasks = state.table.tasks() if draft.code == FGD else NO_TASKS
    site = Site(draft.demand, copy_pool(state.pool), draft.code, draft.salt, True, tasks, state.parts)
    for start in draft.plan.starts:
        claim(site, state.row_of[start.job], np.array(start.gpus, dtype=np.int64))
    return site


def _victims(state: State, row: int, others: list[int], site: Site, keeps_idle: bool) -> tuple[list[int], Ints] | None:
    """Whom to stop for a job, and where it goes then; as few as will do, the least urgent and youngest first."""
    most = sum(len(state.spot[other]) for other in others) + (0 if keeps_idle else (site.pool.tenants == 0).sum())
    if site.demand.compute[row] >= 100 and most < site.demand.gpus[row]:
        return None
    site = on_copy(site)
    if keeps_idle:
        for gpu in np.flatnonzero(site.pool.tenants == 0).tolist():
            withdraw(site.pool, gpu)
    stopped = _enough(state, row, others, site)
    for victim in stopped:
        release(site, victim, state.spot[victim])
    if not stopped or not fits(site, row):
        return None
    for victim in stopped[::-1]:
        claim(site, victim, state.spot[victim])
        if fits(site, row):
            stopped.remove(victim)
        else:
            release(site, victim, state.spot[victim])
    return stopped, place(site, row)


def _enough(state: State, row: int, others: list[int], site: Site) -> list[int]:
    """The first of those who may be stopped, as many as make room; of many, those alone who are where it would go."""
    rows = np.array(others, dtype=np.int64)
    holders = laid_out(rows, [state.spot[other] for other in others], np.zeros(len(others)))
    gone = fewest_gone(row, holders, site, np.arange(len(others) + 1))
    if gone <= _FEW:
        return others[: max(gone, 0)]
    there = np.zeros(len(site.pool.idle), dtype=np.bool_)
    there[site.pool.node[place(without(site, holders, gone), row)]] = True
    number = np.repeat(np.arange(len(others)), np.subtract(holders.ends, holders.begins))
    near = np.unique(number[there[site.pool.node[holders.bins]]])
    found: list[int] = rows[near[near < gone]].tolist()
    return found


def _write(draft: Draft, row: int, victims: list[int], spot: Ints) -> None:
    """Add it to the plan."""
    state, plan = draft.snapshot.state, draft.plan
    for victim in victims:  # what is free must agree with who holds what: reasons are told by both
        release(draft.site, victim, draft.bins(state.spot[victim]))
    claim(draft.site, row, draft.bins(spot))
    draft.victims += victims
    draft.found.append((row, draft.bins(spot)))
    plan.stops += [state.ids[victim] for victim in victims]
    plan.starts.append(Start(state.ids[row], tuple(spot.tolist())))
    if plan.chosen is not None and plan.chosen[0] == state.ids[row]:
        plan.chosen = None


@dataclass(slots=True)
class _Claims:
    """Who must give way to whom, as things stand."""

    state: State
    draft: Draft
    by_priority: bool
    share: Floats
    """GPUs that each user deserves, by number; none where shares do not count."""
    holds: Floats
    """GPUs that each user has, those who start in this plan included and those who stop left out."""

    @classmethod
    def of(cls, draft: Draft, waiting: Ints, loose: Ints) -> _Claims:
        """As things stand when the plan has been made so far."""
        state, columns = draft.snapshot.state, draft.policy.columns
        share, holds = np.empty(0), np.empty(0)
        if "user_usage" in columns and state.rules is not None and state.rules.for_shares:
            stays = [row for row in draft.snapshot.running.tolist() if row not in state.recalled]
            has = np.array([*stays, *draft.found_rows.tolist(), *state.promises], dtype=np.int64)
            users = state.table.user
            holds = np.zeros(len(state.used))
            np.add.at(holds, users[has], _sizes(state, has))
            share = _shares(state, np.union1d(users[has], users[waiting]))
        return cls(state, draft, "priority" in columns, share, holds)

    def might(self, waiting: Ints, loose: Ints) -> Flags:
        """Which waiting jobs are worth a closer look."""
        table = self.state.table
        some = np.zeros(len(waiting), dtype=np.bool_)
        if self.by_priority:
            some |= table.priority[waiting] > table.priority[loose].min()
        if len(self.share):
            user = table.user[waiting]
            some |= self.holds[user] + _sizes(self.state, waiting) <= self.share[user]
        return some

    def must_give_way(self, row: int, loose: Ints) -> list[int]:
        """Jobs that may be stopped for a waiting one: the lowest priority first, then the one that began last."""
        table = self.state.table
        ranks = self.draft.rank(np.concatenate(([row], loose)))
        own, goes_first = table.priority[row], ranks[1:] > ranks[0]
        order = np.lexsort((-table.started[loose], table.priority[loose]))
        if not len(self.share):
            since = table.started[loose] >= table.submit[row]
            may = (table.priority[loose] < own) & (goes_first | ~since)
            by_priority: list[int] = loose[order[may[order]]].tolist() if self.by_priority else []
            return by_priority
        holds, user = self.holds.copy(), int(table.user[row])
        has_a_share = len(holds) and holds[user] + _sizes(self.state, np.array([row]))[0] <= self.share[user]
        found = []
        for i in order.tolist():
            other = int(loose[i])
            started_since = table.started[other] >= table.submit[row]
            if self.by_priority and table.priority[other] < own and (goes_first[i] or not started_since):
                found.append(other)
                continue
            size, theirs = _sizes(self.state, loose[i : i + 1])[0], int(table.user[other])
            above = self.by_priority and table.priority[other] > own
            if has_a_share and goes_first[i] and not above and holds[theirs] - size >= self.share[theirs]:
                holds[theirs] -= size
                found.append(other)
        return found

    def move(self, row: int, victims: list[int]) -> None:
        """Let a job have what others had."""
        if len(self.holds):
            users, sizes = self.state.table.user, _sizes(self.state, np.array([row, *victims]))
            self.holds[users[row]] += sizes[0]
            np.subtract.at(self.holds, users[victims], sizes[1:])


def _sizes(state: State, rows: Ints) -> Floats:
    """GPUs that jobs take, or parts of them."""
    table = state.table
    part = np.where(
        table.compute[rows] >= 100,
        1.0,
        np.maximum(table.compute[rows] / 100.0, np.minimum(table.memory[rows] / state.cluster.memory, 1.0)),
    )
    sizes: Floats = part * table.gpus[rows]
    return sizes


def _shares(state: State, active: Ints) -> Floats:
    """GPUs that each user deserves: those that can be used, divided among users who run or want to."""
    assert state.rules is not None
    weights = np.array([weight_of(state.rules, name) for name in state.user_of])
    usable = state.cluster.gpus - len({*state.withdrawn, *state.drained})
    shares: Floats = usable * weights / weights[active].sum()
    return shares
