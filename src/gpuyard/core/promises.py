"""Promises: GPUs that others are being stopped on, kept for the waiting jobs that they are stopped for.

Stopping takes time, so a plan that stops jobs cannot be carried out at once. Whoever is to run in their place is
promised exactly the GPUs that the plan gave it: nobody else gets them meanwhile, and it is placed when they are free.
So it is with GPUs that are lent (`lending`), which a plan takes for free: whoever has them must leave first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.placement import claim, fits_in_place, release
from gpuyard.core.plan import Plan, Start
from gpuyard.core.pool import Ints, Site, on_copy
from gpuyard.core.state import State
from gpuyard.core.withdrawal import give_back


class Standing(NamedTuple):
    """How it stands with the promises."""

    due: list[int]
    """Rows whose GPUs are free for them now."""
    broken: list[int]
    """Rows that cannot have their GPUs even when all who are being stopped have left."""


def standing(state: State) -> Standing:
    """Which promises can be kept now, and which never."""
    if not state.promises:
        return Standing([], [])
    site = on_copy(state.site())
    for gpus in state.promises.values():
        for gpu in gpus:
            give_back(site.pool, gpu)
    free = [row for row, gpus in state.promises.items() if state.lent.keys().isdisjoint(gpus)]
    due = [row for row in free if _takes(site, row, _spot(state, row))]
    for row in state.recalled:
        release(site, row, state.spot[row])
    left = [row for row in state.promises if row not in due]
    return Standing(due, [row for row in left if not _takes(site, row, _spot(state, row))])


def split(state: State, plan: Plan) -> tuple[list[Start], list[Start]]:
    """The starts of a plan that can be carried out now, and those that must wait until others have left their GPUs.

    Who is stopped only to go on elsewhere is in neither: it waits again, and is planned anew then.
    """
    if not plan.stops and not state.lent:
        return plan.starts, []
    left = {gpu for job in plan.stops for gpu in state.spot[state.row_of[job]].tolist()} | state.lent.keys()
    starts = [start for start in plan.starts if start.job not in plan.stops]
    now = [start for start in starts if left.isdisjoint(start.gpus)]
    return now, [start for start in starts if not left.isdisjoint(start.gpus)]


def in_place_of(state: State, row: int) -> list[int]:
    """The rows that were promised GPUs of a running one."""
    spot = set(state.spot[row].tolist())
    return [other for other, gpus in state.promises.items() if not spot.isdisjoint(gpus)]


def _spot(state: State, row: int) -> Ints:
    return np.array(state.promises[row], dtype=np.int64)


def _takes(site: Site, row: int, spot: Ints) -> bool:
    """Let a row have its GPUs, if they are free for it; it may have been edited to want others."""
    if len(spot) != site.demand.gpus[row] or not fits_in_place(site, row, spot):
        return False
    claim(site, row, spot)
    return True
