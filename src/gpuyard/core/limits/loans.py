"""GPUs on loan: idle ones that a running job may use beside its own until a job needs them.

A loan is no tenant of its GPU: plans do not see it, so it keeps no job from starting under any policy. A job that a
plan puts there is promised the GPU (`withdrawal`), its borrower is asked to leave, and the job is placed when it has
left. No job is ever placed on a GPU that is lent; `transitions` checks that. When the borrower ends, so do its loans.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuyard.core.events import Granted, Reclaimed, Returned
from gpuyard.core.limits.gates import quota_rooms
from gpuyard.core.limits.reservations import restricted
from gpuyard.core.plan import Plan
from gpuyard.core.state import State
from gpuyard.errors import Bug


def lend(state: State, row: int, event: Granted) -> None:
    taken = [gpu for gpu in event.gpus if not _is_idle(state, gpu)]
    if taken:
        raise Bug(f"job {event.job} was lent GPUs {taken}, which are not idle")
    state.lent = {**state.lent, **dict.fromkeys(event.gpus, event.job)}


def ask_back(state: State, row: int, event: Reclaimed) -> None:
    state.reclaimed |= {gpu for gpu in event.gpus if state.lent.get(gpu) == event.job}


def take_back(state: State, row: int, event: Returned) -> None:
    gone = {gpu for gpu in event.gpus if state.lent.get(gpu) == event.job}
    state.lent = {gpu: job for gpu, job in state.lent.items() if gpu not in gone}
    state.reclaimed -= gone


def take_back_all(state: State, job: str) -> None:
    state.lent = {gpu: other for gpu, other in state.lent.items() if other != job}
    state.reclaimed &= state.lent.keys()


def loans(state: State, job: str) -> list[int]:
    return sorted(gpu for gpu, other in state.lent.items() if other == job)


def idle(state: State, row: int, now: float, spare: float) -> list[int]:
    """GPUs that could be lent to a running row: those that it may use, on which no job runs or will run soon.

    GPUs that another user has reserved within the next `spare` seconds do not count.
    """
    allowed = state.table.scopes[state.table.scope[row]]
    name = list(state.user_of)[int(state.table.user[row])]
    booked = {
        gpu
        for booking in state.bookings.values()
        if booking.end > now and booking.begin <= now + spare and name not in booking.users
        for gpu in booking.gpus
    }
    free = np.flatnonzero((state.pool.tenants == 0) & allowed).tolist()
    return [gpu for gpu in free if gpu not in booked and gpu not in state.lent]


def avoid(state: State, plan: Plan, now: float) -> None:
    """Move the starts of a plan to GPUs that are not on loan, where such are as good."""
    if not state.lent:
        return
    demand = restricted(state, now) or state.table.demand
    used = {gpu for start in plan.starts for gpu in start.gpus}
    free = [gpu for gpu in np.flatnonzero(state.pool.tenants == 0).tolist() if gpu not in state.lent]
    for n, start in enumerate(plan.starts):
        row = state.row_of[start.job]
        if demand.compute[row] < 100 or row in state.parts:
            continue
        allowed = demand.scopes[demand.scope[row]]
        for gpu in [gpu for gpu in start.gpus if gpu in state.lent]:
            other = next((other for other in free if other not in used and allowed[other]), None)
            if other is not None:
                used.add(other)
                now_on = tuple(other if one == gpu else one for one in plan.starts[n].gpus)
                plan.starts[n] = replace(plan.starts[n], gpus=now_on)


def unwelcome(state: State, now: float) -> list[int]:
    """GPUs on loan that have to be given back at once: withdrawn, drained, or reserved for others by now."""
    found = []
    for gpu, job in state.lent.items():
        name = list(state.user_of)[int(state.table.user[state.row_of[job]])]
        booked = any(
            gpu in booking.gpus and booking.begin <= now < booking.end and name not in booking.users
            for booking in state.bookings.values()
        )
        if booked or gpu in state.withdrawn or gpu in state.drained:
            found.append(gpu)
    return found


def within_quota(state: State, row: int, now: float) -> bool:
    rooms = quota_rooms(state, now)
    users = [int(state.table.user[state.row_of[job]]) for job in state.lent.values()]
    for room in rooms:
        account = {int(state.table.user[other]): int(room.account[other]) for other in state.running.array.tolist()}
        own = int(room.account[row])
        if room.left[own] - sum(account.get(user) == own for user in users) < 1:
            return False
    return True


def _is_idle(state: State, gpu: int) -> bool:
    return bool(state.pool.tenants[gpu] == 0) and gpu not in state.lent
