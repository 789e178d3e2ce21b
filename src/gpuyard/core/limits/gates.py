"""Gates that keep waiting jobs from being chosen under any policy.

Other jobs must end or begin first, a time must come, or a quota is used up. Gates hide such rows from a plan
(`Snapshot.may`). A plan's own starts can reach a quota: then it is made again without those that exceed it
(`too_many`). All of it costs nothing where no job or rule asks for it. Below are the bookkeeping functions of
dependencies (`Request.after`), which transitions call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpuyard.core.limits.quotas import HOUR, WEEK, quota_of
from gpuyard.core.loops.pool import Flags, Floats, Ints
from gpuyard.core.model import Phase, Quota
from gpuyard.core.reasons import ArrayLimit, BeginTime, Dependency, Promise, Reason
from gpuyard.core.reasons import Quota as QuotaReason
from gpuyard.core.state import State
from gpuyard.errors import Bug

_KINDS = ("ok", "notok", "any", "begun")
_ABSENT = object()


class Room(NamedTuple):
    account: Ints  # of each row of the table
    left: Floats  # by account
    cost: Ints  # of each row of the table
    why: Callable[[int], Reason]  # why a row finds no room


def gated(state: State, now: float) -> bool:
    return bool(
        state.after or state.promises or state.at_most or state.latest_begin > now
        or (state.rules is not None and state.rules.quotas)
    )  # fmt: skip


class Gates:
    def __init__(self, state: State, now: float) -> None:
        self._state, self._now = state, now
        self._rows = state.waiting.array
        self._rooms = [*_array_rooms(state), *quota_rooms(state, now)]
        self._left = [room.left for room in self._rooms]  # what would be left after the starts of the plan
        begin = state.table.begin[self._rows]
        self.may: Flags = begin <= now  # which waiting rows may be chosen
        self._shut(np.array([*state.after, *state.promises], dtype=np.int64))
        for room in self._rooms:
            self.may &= room.left[room.account[self._rows]] >= room.cost[self._rows]
        self.wake_at = float(begin[begin > now].min(initial=np.inf))  # when others may, although nothing happens
        if state.rules is not None and any(quota.gpu_hours for _, quota in state.rules.quotas):
            self.wake_at = min(self.wake_at, (now // HOUR + 1) * HOUR)

    def _shut(self, rows: Ints) -> None:
        at = self._rows.searchsorted(rows)
        at, rows = at[at < len(self._rows)], rows[at < len(self._rows)]
        self.may[at[self._rows[at] == rows]] = False  # the others are held

    def too_many(self, starts: Sequence[int]) -> bool:
        """Whether some of the starts, in this order, exceed a limit together; these may then not be chosen."""
        accepted: list[int] = []
        left = [room.left.copy() for room in self._rooms]
        starts = self._new(starts)
        for row in starts:
            if all(left[n][room.account[row]] >= room.cost[row] for n, room in enumerate(self._rooms)):
                accepted.append(row)
                for n, room in enumerate(self._rooms):
                    left[n][room.account[row]] -= room.cost[row]
        if len(accepted) == len(starts):
            return False
        fits = np.isin(self._rows, accepted)
        self._left = [np.minimum(former, now) for former, now in zip(self._left, left, strict=True)]
        for n, room in enumerate(self._rooms):
            self.may &= fits | (left[n][room.account[self._rows]] >= room.cost[self._rows])
        return True

    def has_room(self, starts: Sequence[int], row: int) -> bool:
        return all(
            room.left[room.account[row]]
            - sum(room.cost[one] for one in self._new(starts) if room.account[one] == room.account[row])
            >= room.cost[row]
            for room in self._rooms
        )

    def _new(self, starts: Sequence[int]) -> list[int]:
        """Starts of waiting jobs: a running one that only moves has its room already."""
        return [row for row in starts if self._state.phase[row] is Phase.QUEUED]

    def reasons(self) -> dict[str, Reason]:
        return {self._state.ids[row]: self._why(row) for row in self._rows[~self.may].tolist()}

    def _why(self, row: int) -> Reason:
        state = self._state
        if row in state.after:
            return Dependency(tuple(state.after[row]))
        if state.table.begin[row] > self._now:
            return BeginTime(float(state.table.begin[row]))
        if row in state.promises:
            return Promise(state.promises[row])
        for lefts in ([room.left for room in self._rooms], self._left):
            for room, left in zip(self._rooms, lefts, strict=True):
                if left[room.account[row]] < room.cost[row]:
                    return room.why(row)
        raise Bug(f"job {state.ids[row]} was kept from being chosen for no reason")


def _spoken_for(state: State) -> Ints:
    return np.concatenate((state.running.array, np.array(list(state.promises), dtype=np.int64)))


def _array_rooms(state: State) -> list[Room]:
    if not state.at_most:
        return []
    table, rows = state.table, _spoken_for(state)
    names = list(state.arrays)
    left = np.full(len(names), np.inf)
    for number, most in state.at_most.items():
        left[number] = most - np.count_nonzero(table.array[rows] == number)

    def why(row: int) -> Reason:
        number = int(table.array[row])
        return ArrayLimit(names[number], state.at_most[number])

    return [Room(table.array, left, np.ones(len(table.array), dtype=np.int64), why)]


def quota_rooms(state: State, now: float) -> list[Room]:
    if state.rules is None or not state.rules.quotas or not state.user_of:
        return []
    users = list(state.user_of)
    of_user = [quota_of(state.rules, name) for name in users]
    rooms = _rooms_of(state, users, of_user, users, now)
    for name, quota in state.rules.quotas:
        if name.startswith("@"):
            members = [name if name[1:] in groups.split(",") else "" for groups in state.group_of]
            rooms += _rooms_of(state, ["", name], [Quota(), quota], members, now) if any(members) else []
    return rooms


def _rooms_of(state: State, names: list[str], quotas: list[Quota], account_of: list[str], now: float) -> list[Room]:
    table, rows = state.table, _spoken_for(state)
    number = {name: n for n, name in enumerate(names)}
    account = np.array([number[name] for name in account_of], dtype=np.int64)[table.user]
    rooms = []
    if any(quota.gpus for quota in quotas):
        has = np.bincount(account[rows], weights=table.gpus[rows], minlength=len(names))
        limits = np.array([quota.gpus or np.inf for quota in quotas])

        def no_gpus(row: int) -> Reason:
            n = int(account[row])
            return QuotaReason(names[n], "GPUs", float(limits[n]), float(has[n]), int(table.gpus[row]))

        rooms.append(Room(account, limits - has, table.gpus, no_gpus))
    if any(quota.gpu_hours for quota in quotas):
        had = np.zeros(len(names))
        for user, name in enumerate(account_of):
            had[number[name]] += in_week(state, user, now) / HOUR
        hours = np.array([quota.gpu_hours or np.inf for quota in quotas])

        def no_hours(row: int) -> Reason:
            n = int(account[row])
            return QuotaReason(names[n], "GPU-hours", float(hours[n]), float(had[n]), int(table.gpus[row]))

        rooms.append(Room(account, np.where(had < hours, np.inf, 0.0), np.ones_like(table.gpus), no_hours))
    return rooms


def in_week(state: State, user: int, now: float) -> float:
    oldest = int(now // HOUR) - WEEK
    had = sum(seconds for hour, seconds in state.ledger.hours[user].items() if hour > oldest)
    rows = state.running.array
    rows = rows[state.table.user[rows] == user]
    since = np.maximum(state.table.started[rows], (oldest + 1) * HOUR)
    return had + float((np.maximum(now - since, 0.0) * state.table.gpus[rows]).sum())


def set_dependencies(state: State, row: int, after: Iterable[str]) -> None:
    """Make a row wait for jobs, in place of those it waited for so far; what has happened already counts as done."""
    state.doomed.pop(row, None)
    if row in state.handed:
        left = {still: None for dependency in after for still in _left_of(state, row, dependency)}
    else:  # most have none, and a job may follow a whole array
        left = {dependency: None for dependency in after if _is_ahead(state, dependency)}
    if left:
        state.after[row] = left
        _remember(state, row, left)
    else:
        state.after.pop(row, None)


def _left_of(state: State, row: int, dependency: str) -> Iterator[str]:
    """The part of a dependency that is not fulfilled yet, or what replaced it; the chain may be long."""
    handed, dependencies = state.handed.get(row, {}), [dependency]
    while dependencies:
        dependency = dependencies.pop()
        if _is_ahead(state, dependency):
            yield dependency
        dependencies += reversed(handed.get(dependency, ()))


def dependency_begun(state: State, job: str) -> None:
    for row in state.followers.get(job, ()):
        left = state.after.get(row)
        if left is not None and left.pop(f"begun:{job}", _ABSENT) is not _ABSENT and not left:
            del state.after[row]


def dependency_over(state: State, job: str, phase: Phase, waited: Iterable[str] = ()) -> None:
    """A job is over: jobs that wait for it wait no longer, or can never start.

    If it never began, those that wait for its start wait for what it waited for: so an order holds when a job drops
    out.
    """
    for row in sorted(set(state.followers.pop(job, ()))):
        left = state.after.get(row)
        if left is None:
            continue
        for dependency in [dependency for how in _KINDS if (dependency := f"{how}:{job}") in left]:
            how = dependency.partition(":")[0]
            if how == "begun":
                _hand_on(state, row, dependency, waited)
            if how in ("begun", "any") or (how == "ok") == (phase is Phase.SUCCEEDED):
                del left[dependency]
            else:
                state.doomed.setdefault(row, dependency)
        if not left:
            del state.after[row]


def _hand_on(state: State, row: int, dependency: str, waited: Iterable[str]) -> None:
    """Make a row wait for what a job waited for that it was to follow, also after its request is edited."""
    handed = [w for w in waited if _is_ahead(state, w) and w.partition(":")[2] != state.ids[row]]
    if handed:
        state.handed.setdefault(row, {})[dependency] = handed
        state.after[row].update(dict.fromkeys(handed))
        _remember(state, row, handed)


def _remember(state: State, row: int, dependencies: Iterable[str]) -> None:
    for dependency in dependencies:
        state.followers.setdefault(dependency.partition(":")[2], []).append(row)


def _is_ahead(state: State, dependency: str) -> bool:
    how, _, job = dependency.partition(":")
    row = state.row_of.get(job)
    return row is not None and not state.phase[row].over and (how != "begun" or not _has_begun(state, row))


def _has_begun(state: State, row: int) -> bool:
    """Whether a job that is not over runs, or ran before it was queued again."""
    return state.attempt[row] > (state.phase[row] is Phase.PLACED) or state.phase[row] is Phase.RUNNING
