"""Which running jobs a plan stops: for preemptive policies, for priority and for fair shares.

`preempt` decides for policies that preempt by themselves. Under the others, `reclaim` looks once more at the first jobs
that a plan leaves waiting. A job that has a higher priority than running jobs that may be stopped, or whose user has
less than their share while the users of those have more, gets their GPUs. It does so only where rules allow it
(`Rules.preempts`), and so never in a simulation.

No job is stopped for one that would have to give way to it in turn, so no two jobs can stop each other for ever:

- For priority, only jobs of lower priority are stopped; not those that the policy started while this one waited, since
  they had waited so long that they went first.
- For shares, only jobs of users who keep their share without them are stopped, for users who do not exceed theirs; and
  only if the policy lets this one go first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuyard.core.columns import ALWAYS
from gpuyard.core.draft import Draft, fewest_gone, laid_out, without
from gpuyard.core.limits.quotas import weight_of
from gpuyard.core.limits.withdrawal import withdraw
from gpuyard.core.loops.formulas import slice_over_at
from gpuyard.core.loops.placement import claim, fits, goes_by_size, place, release
from gpuyard.core.loops.pool import FGD, NO_TASKS, Flags, Floats, Ints, Site, copy_pool, on_copy
from gpuyard.core.loops.sharing import demand_key
from gpuyard.core.loops.victims import SortedJobs, choose_victims
from gpuyard.core.plan import Start
from gpuyard.core.policy import Policy
from gpuyard.core.state import State


def preempt(draft: Draft, stop: bool) -> None:
    """Decide again over running and waiting jobs together; jobs within their quantum are left alone."""
    state, policy = draft.snapshot.state, draft.policy
    if not policy.sliced and _start_all(draft):
        return
    loose, soon = _loose(draft)
    ranks = draft.rank(np.concatenate((loose, draft.snapshot.waiting)))
    keys, rank = ranks[: len(loose)], ranks[len(loose) :]
    order = keys.argsort(kind="stable")
    loose, keys = loose[order], keys[order]
    victim = np.zeros(len(loose), dtype=np.int64)
    _choose_victims(draft, rank, loose, keys, victim, stop)
    kept = loose
    if victim.any():
        draft.victims = loose[victim == 1].tolist()
        kept = loose[victim == 0]
    draft.plan.renewals = [state.ids[row] for row in kept] if policy.sliced else []
    if len(draft.snapshot.waiting) + len(draft.victims) > len(draft.found):
        draft.plan.wake_at = _wake_at(draft, kept, soon)


def _start_all(draft: Draft) -> bool:
    """Start all waiting jobs, if there is room without a stop: the usual case on a machine that is not full."""
    rows = draft.snapshot.waiting
    if draft.fine or draft.demand.gpus[rows].sum() > draft.idle:
        return False
    if len(rows) > 1:
        rows = rows[draft.rank(rows).argsort(kind="stable")]
    if all(draft.start(row) for row in rows.tolist()):
        return True
    draft.start_over()
    return False


def _loose(draft: Draft) -> tuple[Ints, Floats]:
    state, now, policy = draft.snapshot.state, draft.snapshot.now, draft.policy
    running, table = draft.snapshot.running, state.table
    if policy.quantum == 0 and not (state.fixed or state.withdrawn or state.drained or state.promises):
        return running, np.empty(0)
    free_at = _free_at(policy, table.slice_started[running], now)
    may = may_stop(state, running)
    is_free = free_at <= now
    return running[may & is_free], free_at[may & ~is_free]


def may_stop(state: State, running: Ints) -> Flags:
    """Which running jobs may be stopped: preemptible, started, not about to end, on GPUs where others could follow."""
    table = state.table
    may: Flags = table.preemptible[running] & (table.started[running] < np.inf)
    if state.recalled:
        may &= ~np.isin(running, list(state.recalled))
    if out := _out_of_use(state):
        may &= np.array([out.isdisjoint(state.spot[row].tolist()) for row in running], dtype=np.bool_)
    return may


def _out_of_use(state: State) -> set[int]:
    """GPUs on which no other job could start if those that run there were stopped."""
    return {*state.withdrawn, *state.drained, *(gpu for gpus in state.promises.values() for gpu in gpus)}


def _choose_victims(draft: Draft, rank: Floats, loose: Ints, keys: Floats, victim: Ints, stop: bool) -> None:
    rows = draft.snapshot.waiting
    if not draft.fine and not _any_job_fits(draft, rows, rank, loose, keys):
        return
    if rank.min() > keys.max(initial=-np.inf):
        loose, keys = loose[:0], keys[:0]  # all running jobs go first: none has to stop
    holders = draft.holders(loose, np.empty(0))
    marks: list[int] = [0] * len(loose)
    nodes = len(draft.snapshot.state.cluster.nodes)
    held = [0] * nodes
    # Lists, not arrays: the loop looks at single numbers, which the interpreter does several times faster so.
    quick = holders
    if not draft.fine:
        lists = {name: getattr(holders, name).tolist() for name in ("begins", "ends", "bins")}
        quick = holders._replace(**lists)
    ranks, waiting = keys.tolist(), _by_size(draft, rows, rank)
    draft.run(
        lambda starts: choose_victims(waiting, quick, ranks, stop, draft.site, starts, marks, held, holders.bins),
        rows,
        loose,
    )
    victim[: len(marks)] = marks


def _by_size(draft: Draft, rows: Ints, rank: Floats) -> SortedJobs:
    gpus = draft.demand.gpus[rows]
    if draft.fine:
        gpus = np.where([goes_by_size(draft.site, row) for row in rows.tolist()], gpus, 0)
    order = np.lexsort((rank, gpus))
    gpus = gpus[order]
    first = [0, *(np.flatnonzero(gpus[1:] != gpus[:-1]) + 1).tolist()]
    last = [*first[1:], len(rows)]
    return SortedJobs(rank[order].tolist(), rows[order].tolist(), gpus[first].tolist(), first, last, list(first))


def _any_job_fits(draft: Draft, rows: Ints, rank: Floats, loose: Ints, keys: Floats) -> bool:
    gpus = draft.demand.gpus
    if gpus[rows].min() <= draft.idle:
        return True
    tail = np.zeros(len(loose) + 1, dtype=np.int64)
    np.cumsum(gpus[loose][::-1], out=tail[1:])
    held_behind = tail[len(loose) - keys.searchsorted(rank)]
    return bool((gpus[rows] <= draft.idle + held_behind).any())


def _free_at(policy: Policy, since: Floats, now: float) -> Floats:
    """When each running job's quantum is over; for slices, when the present one is."""
    if not policy.sliced:
        return since + policy.quantum
    over: Floats = slice_over_at(since, policy.quantum, now)
    return over


def _wake_at(draft: Draft, kept: Ints, soon: Floats) -> float:
    """When the plan could change although nothing happens: a quantum is over, or a rank changes by itself."""
    state, now, policy = draft.snapshot.state, draft.snapshot.now, draft.policy
    times = [float(soon.min())] if len(soon) else []
    if policy.quantum > 0 and (draft.found or (policy.sliced and len(kept))):
        times.append(now + policy.quantum)
    if policy.next_change is not None:
        rows = np.concatenate((kept, draft.found_rows)) if draft.found else kept
        if len(rows):
            # A job that is still restarting makes no progress yet.
            table = state.table
            restarting = np.where(table.started[rows] < np.inf, table.started[rows] + table.overhead[rows] - now, 0.0)
            change = policy.next_change.rank(state, rows, now) + np.maximum(restarting, 0.0)
            times.append(now + float(change.min()))
    elif policy.changes == ALWAYS and policy.quantum > 0:
        times.append(now + policy.quantum)
    return min(times, default=np.inf)


_FEW = 16  # victims that are looked at one by one
_MOST = 32  # waiting jobs that are looked at; the next plan may look at others


def reclaim(draft: Draft, keeps_idle: bool) -> None:
    """Let waiting jobs take GPUs from running ones that must give way to them; the draft must be finished.

    With `keeps_idle`, idle GPUs are left to the first waiting job, for which the discipline keeps them.
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
        case = (*demand_key(site.demand, row), state.parts.get(row), idle, tuple(others))
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
    state = draft.snapshot.state
    tasks = state.table.tasks() if draft.code == FGD else NO_TASKS
    site = Site(draft.demand, copy_pool(state.pool), draft.code, draft.salt, True, tasks, state.parts)
    for start in draft.plan.starts:
        claim(site, state.row_of[start.job], np.array(start.gpus, dtype=np.int64))
    return site


def _victims(state: State, row: int, others: list[int], site: Site, keeps_idle: bool) -> tuple[list[int], Ints] | None:
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
    """The first of those that may be stopped, as many as make room; of many, only those on GPUs where it would go."""
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
    state, plan = draft.snapshot.state, draft.plan
    for victim in victims:  # what is free must agree with who holds what: reasons use both
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
    """Which jobs must give way to which."""

    state: State
    draft: Draft
    by_priority: bool
    share: Floats  # GPUs that each user deserves, by number; none where shares do not count
    holds: Floats  # GPUs that each user has, after the starts and stops of this plan

    @classmethod
    def of(cls, draft: Draft, waiting: Ints, loose: Ints) -> _Claims:
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
        if len(self.holds):
            users, sizes = self.state.table.user, _sizes(self.state, np.array([row, *victims]))
            self.holds[users[row]] += sizes[0]
            np.subtract.at(self.holds, users[victims], sizes[1:])


def _sizes(state: State, rows: Ints) -> Floats:
    table = state.table
    part = np.where(
        table.compute[rows] >= 100,
        1.0,
        np.maximum(table.compute[rows] / 100.0, np.minimum(table.memory[rows] / state.cluster.memory, 1.0)),
    )
    sizes: Floats = part * table.gpus[rows]
    return sizes


def _shares(state: State, active: Ints) -> Floats:
    assert state.rules is not None
    weights = np.array([weight_of(state.rules, name) for name in state.user_of])
    usable = state.cluster.gpus - len({*state.withdrawn, *state.drained})
    shares: Floats = usable * weights / weights[active].sum()
    return shares
