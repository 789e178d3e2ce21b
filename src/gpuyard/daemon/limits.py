"""Requests of admins that change how users share the GPUs: drains, reservations, quotas, weights."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuyard.core.events import Booked, GpusDrained, GpusResumed, RulesSet, Unbooked
from gpuyard.core.limits.gates import in_week
from gpuyard.core.limits.quotas import HOUR, quota_of, weight_of
from gpuyard.core.model import Booking, Phase, Quota, Request, Rules
from gpuyard.core.state import State
from gpuyard.daemon.context import Context
from gpuyard.errors import UserError, suggest


class NoSuchReservation(UserError):
    """There is no such reservation."""


@dataclass(frozen=True, slots=True)
class UserShare:
    user: str
    group: str
    weight: float
    quota: Quota
    gpus: int  # GPUs at this moment
    week: float  # GPU-hours in the last seven days
    faded: float  # GPU-hours as fair shares count them: less and less with time, and for the weight


class Limits:
    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def rules(self) -> Rules:
        return self._context.state.rules or Rules()

    # -- GPUs that are left alone -----------------------------------------------------------------

    def drain(self, gpus: Sequence[int] | None, **details: str) -> list[int]:
        """Drain GPUs, or all; returns those that are drained now."""
        context = self._context
        wanted = self._gpus(gpus)
        if new := tuple(gpu for gpu in wanted if gpu not in context.state.drained):
            context.record(GpusDrained(context.clock.now(), new), **details)
        return sorted(context.state.drained)

    def resume(self, gpus: Sequence[int] | None, **details: str) -> list[int]:
        """Resume GPUs, or all; returns those that are still drained."""
        context = self._context
        if old := tuple(gpu for gpu in self._gpus(gpus) if gpu in context.state.drained):
            context.record(GpusResumed(context.clock.now(), old), **details)
        return sorted(context.state.drained)

    def _gpus(self, gpus: Sequence[int] | None) -> list[int]:
        count = self._context.state.cluster.gpus
        for gpu in gpus or ():
            if not 0 <= gpu < count:
                raise UserError(f"there is no GPU {gpu}; this machine has GPUs 0 to {count - 1}")
        return sorted(set(gpus)) if gpus is not None else list(range(count))

    # -- reservations -----------------------------------------------------------------------------

    def reserve(
        self, name: str, gpus: Sequence[int], begin: float, end: float, users: Sequence[str], by: str
    ) -> Booking:
        context = self._context
        now, known = context.clock.now(), {booking.name: booking for booking in self.bookings()}
        name = name or next(f"r{n}" for n in range(1, len(known) + 2) if f"r{n}" not in known)
        if name in known:
            raise UserError(f"there is a reservation {name} already; choose another name, or end it first")
        if end <= now:
            raise UserError("that reservation would be over already; check its times")
        booking = Booking(name, tuple(self._gpus(gpus)), begin, end, tuple(dict.fromkeys(users)))
        for other in known.values():
            if other.begin < end and begin < other.end and (both := set(other.gpus) & set(booking.gpus)):
                raise UserError(f"GPU {min(both)} is reserved then already ({other.name}); choose other GPUs or times")
        context.record(Booked(now, booking), by=by)
        return booking

    def unreserve(self, name: str, by: str) -> None:
        known = [booking.name for booking in self.bookings()]
        if name not in known:
            raise NoSuchReservation(
                f"there is no reservation {name}{suggest(name, known)} (gpuyard reservations lists them)"
            )
        self._context.record(Unbooked(self._context.clock.now(), name), by=by)

    def bookings(self) -> list[Booking]:
        """Reservations that are not over, the next to begin first."""
        state, now = self._context.state, self._context.clock.now()
        return sorted((b for b in state.bookings.values() if b.end > now), key=lambda b: (b.begin, b.name))

    def in_the_way(self, booking: Booking) -> list[str]:
        """Jobs on its GPUs that may still run when it begins, and that will not be stopped."""
        state, now = self._context.state, self._context.clock.now()
        found = []
        for row in state.running.array.tolist():
            started = min(float(state.table.started[row]), now)
            meets = not set(booking.gpus).isdisjoint(state.spot[row].tolist())
            late = started + float(state.table.limit[row]) > booking.begin
            if meets and late and not state.table.preemptible[row]:
                found.append(state.ids[row])
        return found

    # -- shares and quotas ------------------------------------------------------------------------

    def set_quota(self, name: str, quota: Quota, by: str) -> None:
        """Set the quota of a user, a group (@name) or everybody else (*); an empty quota removes it."""
        quotas = dict(self.rules.quotas)
        quotas.pop(_checked(name), None)
        if quota != Quota():
            quotas[name] = quota
        self._set(replace(self.rules, quotas=tuple(quotas.items())), by)

    def set_weight(self, name: str, weight: float, by: str) -> None:
        """Set the weight of a user, a group (@name) or everybody else (*); others have 1."""
        weights = dict(self.rules.weights)
        weights.pop(_checked(name), None)
        if weight != 1.0:
            weights[name] = weight
        self._set(replace(self.rules, weights=tuple(weights.items())), by)

    def _set(self, rules: Rules, by: str) -> None:
        if rules != self._context.state.rules:
            self._context.record(RulesSet(self._context.clock.now(), rules), by=by)

    def standings(self) -> list[UserShare]:
        state, now, rules = self._context.state, self._context.clock.now(), self.rules
        quotas = dict(rules.quotas)
        faded = state.usage(now)
        found = [
            UserShare(
                name, state.group_of[user].partition(",")[0], weight_of(rules, name), quota_of(rules, name),
                _held(state, user), in_week(state, user, now) / HOUR, float(faded[user]) / HOUR,
            )
            for name, user in state.user_of.items()
        ]  # fmt: skip
        named = [name for name in dict.fromkeys([*quotas, *dict(rules.weights)]) if name not in state.user_of]
        users = list(found)
        for name in named:
            of_all = ((s, state.group_of[state.user_of[s.user]].split(",")) for s in users if name.startswith("@"))
            members = [s for s, groups in of_all if name[1:] in groups]
            had = sum(s.gpus for s in members), sum(s.week for s in members)
            found.append(UserShare(name, "", weight_of(rules, name), quota_of(rules, name), *had, 0.0))
        return found


def refusal(state: State, request: Request) -> str | None:
    """Why a job can never start under the quotas; None if it can."""
    groups = [f"@{group}" for group in request.group.split(",") if group]
    for who in (request.user, *groups) if state.rules is not None else ():
        most = quota_of(state.rules or Rules(), who).gpus
        if 0 < most < request.gpus:
            return f"wants {request.gpus} GPUs, and {who} may have {most} at once (gpuyard quota shows that)"
    return None


DEFAULT_QUEUED = 200_000
"""Jobs that a user may have in the queue where no quota says otherwise."""


def waiting_of(state: State, users: Container[str]) -> int:
    """How many jobs of some users wait or are held."""
    of = [n for name, n in state.user_of.items() if name in users]
    waiting = int(np.isin(state.table.user[state.waiting.array], of).sum())
    held = [row for row, phase in enumerate(state.phase) if phase is Phase.HELD]
    return waiting + int(np.isin(state.table.user[held], of).sum() if held else 0)


def _held(state: State, user: int) -> int:
    rows = state.running.array
    return int(state.table.gpus[rows[state.table.user[rows] == user]].sum())


def _checked(name: str) -> str:
    if not name or name == "@" or any(blank in name for blank in " \t\n,"):
        raise UserError(f"'{name}' is neither a user nor a group (@name) nor * for everybody")
    return name
