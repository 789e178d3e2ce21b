"""GPUs that jobs may not use: withdrawn ones, memory that others take, and promised GPUs.

Stopping takes time, so a plan that stops jobs cannot be carried out at once. A job that is to run in their place is
promised exactly the GPUs that the plan gave it: no other job gets them meanwhile, and it is placed when they are free.
The same holds for GPUs on loan (`loans`), which a plan takes for free: the borrower must leave first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.placement import claim, fits_in_place, release
from gpuyard.core.loops.pool import Ints, Pool, Site, on_copy
from gpuyard.core.plan import Plan, Start
from gpuyard.core.state import State

SHARED = "shared"  # cause of a GPU that is withdrawn from jobs that want it whole, and not from those that share it
_OUT_OF_REACH = 1e6  # percent: more than any share leaves, and little enough to be added and taken away exactly
_NOTHING = 1.0  # bytes: less than any job asks for, and not 0, since it is a divisor


def withdraw(pool: Pool, gpu: int, cause: str = "") -> None:
    """Put a tenant on a GPU that leaves no room beside it; jobs that are there stay, and may leave."""
    pool.idle[pool.node[gpu]] -= pool.tenants[gpu] == 0
    pool.tenants[gpu] += 1
    if cause != SHARED:
        pool.compute[gpu] -= _OUT_OF_REACH


def give_back(pool: Pool, gpu: int, cause: str = "") -> None:
    pool.tenants[gpu] -= 1
    if cause != SHARED:
        pool.compute[gpu] += _OUT_OF_REACH
    if pool.tenants[gpu] == 0:
        pool.idle[pool.node[gpu]] += 1
        pool.compute[gpu] = 100.0
        pool.memory[gpu] = pool.total[gpu]
        pool.kind[gpu] = 0


def vacate(state: State, gpus: Ints) -> None:
    """After a job with whole GPUs has left, only tenants of `withdraw` may be left: restore what the job changed."""
    pool = state.pool
    kept = gpus[pool.tenants[gpus] > 0]
    beside = np.array([state.withdrawn.get(gpu) == SHARED for gpu in kept.tolist()], dtype=np.int64)
    pool.memory[kept] = pool.total[kept]
    pool.compute[kept] = 100.0 - _OUT_OF_REACH * (pool.tenants[kept] - beside)
    pool.kind[kept] = 0


def take(state: State, taken: tuple[float, ...], buffer: float) -> None:
    """Reduce what shares may have of each GPU by `taken` bytes, from now on."""
    pool, cluster = state.pool, state.cluster
    sizes = np.array(cluster.gpu_memory or (cluster.memory,) * cluster.gpus)
    total = np.maximum(sizes - np.array(taken or 0.0), np.minimum(sizes, _NOTHING))
    whole = pool.kind > 0  # nothing is left beside those, whatever there is
    pool.memory[:] = np.where(whole, pool.memory, pool.memory + (total - pool.total))
    empty = pool.kind == 0
    pool.memory[empty] = total[empty]
    pool.total[:] = total
    state.taken, state.buffer = taken, buffer


def take_host(state: State, node: int, cpus: float, memory: float) -> None:
    pool, (former_cpus, former_memory) = state.pool, state.hosted.get(node, (0.0, 0.0))
    for left, most, change in (
        (pool.cpus, pool.all_cpus, former_cpus - cpus),
        (pool.host, pool.all_host, former_memory - memory),
    ):
        left[node] += change  # an infinite amount stays so
        most[node] += change
    state.hosted[node] = cpus, memory


def keep_for(state: State, row: int, gpus: tuple[int, ...]) -> None:
    """Promise GPUs to this waiting row alone, once the jobs that run there have left."""
    keep_no_more(state, row)
    state.promises[row] = gpus
    for gpu in gpus:
        withdraw(state.pool, gpu)


def keep_no_more(state: State, row: int) -> None:
    for gpu in state.promises.pop(row, ()):
        give_back(state.pool, gpu)


class StandingPromises(NamedTuple):
    due: list[int]  # rows whose GPUs are free for them now
    broken: list[int]  # rows that cannot have their GPUs even when all jobs that are being stopped have left


def standing_promises(state: State) -> StandingPromises:
    if not state.promises:
        return StandingPromises([], [])
    site = on_copy(state.site())
    for gpus in state.promises.values():
        for gpu in gpus:
            give_back(site.pool, gpu)
    free = [row for row, gpus in state.promises.items() if state.lent.keys().isdisjoint(gpus)]
    due = [row for row in free if _takes(site, row, _spot(state, row))]
    for row in state.recalled:
        release(site, row, state.spot[row])
    left = [row for row in state.promises if row not in due]
    return StandingPromises(due, [row for row in left if not _takes(site, row, _spot(state, row))])


def split_promised(state: State, plan: Plan) -> tuple[list[Start], list[Start]]:
    """The starts of a plan that can be carried out now, and those that must wait until others have left their GPUs.

    A job that is stopped only to continue elsewhere is in neither: it waits again, and the next plan decides about it.
    """
    if not plan.stops and not state.lent:
        return plan.starts, []
    left = {gpu for job in plan.stops for gpu in state.spot[state.row_of[job]].tolist()} | state.lent.keys()
    starts = [start for start in plan.starts if start.job not in plan.stops]
    now = [start for start in starts if left.isdisjoint(start.gpus)]
    return now, [start for start in starts if not left.isdisjoint(start.gpus)]


def in_place_of(state: State, row: int) -> list[int]:
    spot = set(state.spot[row].tolist())
    return [other for other, gpus in state.promises.items() if not spot.isdisjoint(gpus)]


def _spot(state: State, row: int) -> Ints:
    return np.array(state.promises[row], dtype=np.int64)


def _takes(site: Site, row: int, spot: Ints) -> bool:
    """Give a row its GPUs, if they are free for it; it may have been edited to want others."""
    if len(spot) != site.demand.gpus[row] or not fits_in_place(site, row, spot):
        return False
    claim(site, row, spot)
    return True
