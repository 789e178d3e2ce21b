"""Reservations: GPUs that only some users may use for a time.

Another job may start there before if it is sure to have ended by then (`Request.limit`), or can be stopped in time. So
no job has to be killed, a reservation is honoured to the second, and the time before it is not lost.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.loops.pool import Demand, Flags, Ints
from gpuyard.core.model import Booking
from gpuyard.core.reasons import Reservation
from gpuyard.core.state import State


def _ahead(state: State, now: float) -> list[Booking]:
    return [booking for booking in state.bookings.values() if booking.end > now]


def restricted(state: State, now: float) -> Demand | None:
    """Demand of waiting jobs, less the GPUs that are reserved for others; None where that changes nothing."""
    bookings = _ahead(state, now)
    rows = state.waiting.array
    if not bookings or not len(rows):
        return None
    demand = state.table.demand
    scope, scopes = demand.scope.copy(), list(demand.scopes)
    wanted = np.stack([_keeps_out(state, booking, rows, now) for booking in bookings])
    known: dict[tuple[int, bytes], int] = {}
    for n in np.flatnonzero(wanted.any(axis=0)).tolist():
        key = int(scope[rows[n]]), wanted[:, n].tobytes()
        if key not in known:
            allowed = scopes[key[0]].copy()
            for b in np.flatnonzero(wanted[:, n]):
                allowed[list(bookings[b].gpus)] = False
            known[key] = len(scopes)
            scopes.append(allowed)
        scope[rows[n]] = known[key]
    return demand._replace(scope=scope, scopes=np.array(scopes)) if known else None


def _keeps_out(state: State, booking: Booking, rows: Ints, now: float) -> Flags:
    table = state.table
    welcome = np.isin(table.user[rows], [state.user_of[user] for user in booking.users if user in state.user_of])
    ends = now + np.where(table.preemptible[rows], np.minimum(table.notice[rows], table.limit[rows]), table.limit[rows])
    return ~(welcome | (ends <= booking.begin))


def in_the_way(state: State, now: float) -> list[int]:
    """Running rows that have to be stopped now, so that a reservation finds its GPUs free."""
    found = []
    for row in state.running.array.tolist() if state.bookings else ():
        table = state.table
        if not table.preemptible[row] or table.started[row] == np.inf or row in state.recalled:
            continue
        ends = float(table.started[row] + table.limit[row])
        for booking in _ahead(state, now):
            meets = ends > booking.begin and not set(booking.gpus).isdisjoint(state.spot[row].tolist())
            if meets and booking.begin - table.notice[row] <= now and _name(state, row) not in booking.users:
                found.append(row)
                break
    return found


def next_change(state: State, now: float) -> float:
    times = [time for booking in _ahead(state, now) for time in (booking.begin, booking.end)]
    rows = state.running.array
    notices = state.table.notice[rows[state.table.preemptible[rows]]].tolist() if times else []
    times += [booking.begin - notice for booking in _ahead(state, now) for notice in notices]
    return min((time for time in times if time > now), default=np.inf)


def until_taken(state: State, row: int, now: float) -> float:
    """Seconds until another user's reservation begins on a GPU of a running row."""
    spot = set(state.spot[row].tolist())
    name = _name(state, row)
    others = [b for b in _ahead(state, now) if name not in b.users and not spot.isdisjoint(b.gpus)]
    return max(0.0, min((booking.begin for booking in others), default=np.inf) - now)


def blocking(state: State, row: int, now: float) -> Reservation | None:
    allowed = state.table.scopes[state.table.scope[row]]
    for booking in sorted(_ahead(state, now), key=lambda booking: booking.begin):
        keeps_out = _keeps_out(state, booking, np.array([row], dtype=np.int64), now)[0]
        if keeps_out and allowed[list(booking.gpus)].any():
            unlimited = bool(state.table.limit[row] == np.inf) and booking.begin > now
            return Reservation(booking.name, booking.begin, booking.end, booking.gpus, unlimited)
    return None


def _name(state: State, row: int) -> str:
    return list(state.user_of)[int(state.table.user[row])]
