"""What another policy would change now: one plan by it that nobody obeys. Runs in the yard's own thread.

It costs what a plan costs, and the ranking of the queue by both policies. An answer is kept for as long as nothing
happens, and a few seconds at most, so that many who ask do not hold up the yard.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuyard.core.engine import validate
from gpuyard.core.gates import Gates, gated
from gpuyard.core.plan import Snapshot
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.pool import Ints
from gpuyard.core.state import State
from gpuyard.daemon.yard import Yard
from gpuyard.errors import UserError

FIRST = 20
"""Jobs of the queue's head that are told of."""
_KEEP = 5.0  # seconds: ranks may change though nothing happens
_MOST_KEPT = 32


class Moved(NamedTuple):
    """A waiting job, and its place in the queue, from 1 on."""

    id: str
    name: str
    user: str
    place: int
    was: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What would change."""

    policy: str
    """In full."""
    starts: list[str]
    """Who would start now."""
    stops: list[str]
    """Who would be stopped now, to wait again."""
    order: list[Moved]
    """The head of the queue in the new order."""
    moved: int
    """How many waiting jobs would have another place."""
    waiting: int
    note: str | None
    """What this does not tell."""


class Previews:
    """Looks ahead, and remembers what it saw while that is good."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._kept: dict[str, tuple[float, Preview]] = {}
        self._of: tuple[State, int, str] | None = None

    def of(self, planner: OrderedPlanner) -> Preview:
        """What a planner would change now, in place of the one that decides."""
        yard = self._yard
        of = yard.state, yard.state.version, yard.planner.text
        if self._of != of or len(self._kept) >= _MOST_KEPT:
            self._of, self._kept = of, {}
        until, found = self._kept.get(planner.text, (0.0, None))
        if found is None or time.monotonic() >= until:
            found = self._look(planner)
            self._kept[planner.text] = time.monotonic() + _KEEP, found
        return found

    def _look(self, planner: OrderedPlanner) -> Preview:
        state, now = self._yard.state, self._yard.clock.now()
        try:
            plan = planner.plan(Snapshot(state, now, usage=self._yard.admitting.usage(now)))
            validate(state, plan)
            new = _order(planner, state, now)
        except UserError:
            raise
        except Exception as error:  # a policy may be a user's own code: anything may come out of it
            raise UserError(f"policy {planner.text} fails on this queue: {error}; it cannot be used") from error
        places = {row: n for n, row in enumerate(_order(self._yard.planner, state, now).tolist(), 1)}
        was = np.array([places[row] for row in new.tolist()], dtype=np.int64)
        moved = int(np.count_nonzero(was != np.arange(1, len(new) + 1)))
        order = [self._moved(row, n, places[row]) for n, row in enumerate(new[:FIRST].tolist(), 1)]
        starts = [start.job for start in plan.starts]
        return Preview(planner.text, starts, plan.stops, order, moved, len(new), _note(planner, state))

    def _moved(self, row: int, place: int, was: int) -> Moved:
        job = self._yard.state.ids[row]
        view = self._yard.store.open.get(job)
        return Moved(job, view.name if view else "", view.user if view else "", place, was)


def _order(planner: OrderedPlanner, state: State, now: float) -> Ints:
    """The waiting rows in a policy's order; behind them those that may not be chosen yet, whatever it says."""
    rows = state.waiting.array
    may = Gates(state, now).may if gated(state, now) else np.ones(len(rows), dtype=np.bool_)
    if not len(rows):
        return rows
    chosen = rows[may]
    ranked = chosen[np.argsort(planner.policy.rank(state, chosen, now), kind="stable")] if len(chosen) else chosen
    return np.concatenate((ranked, rows[~may]))


def _note(planner: OrderedPlanner, state: State) -> str | None:
    """What cannot be foreseen."""
    told = []
    if "draw" in planner.policy.columns:
        told.append("the order is drawn by lot: this is the present draw, and there is another after every start")
    if state.promises:
        told.append("GPUs are being freed for jobs that were promised them; under another policy they are given anew")
    return "; ".join(told) or None
