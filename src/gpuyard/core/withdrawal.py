"""GPUs on which nothing may be started for now, whoever runs there."""

from __future__ import annotations

from gpuyard.core.pool import Ints, Pool
from gpuyard.core.state import State

_OUT_OF_REACH = 1e6  # percent: more than any share leaves, and little enough to be added and taken away exactly


def withdraw(pool: Pool, gpu: int) -> None:
    """Put a tenant on a GPU that leaves no room beside it; those who are there stay, and may leave."""
    pool.idle[pool.node[gpu]] -= pool.tenants[gpu] == 0
    pool.tenants[gpu] += 1
    pool.compute[gpu] -= _OUT_OF_REACH


def give_back(pool: Pool, gpu: int) -> None:
    """Take that tenant away."""
    pool.tenants[gpu] -= 1
    pool.compute[gpu] += _OUT_OF_REACH
    if pool.tenants[gpu] == 0:
        pool.idle[pool.node[gpu]] += 1
        pool.compute[gpu] = 100.0
        pool.memory[gpu] = pool.total[gpu]
        pool.kind[gpu] = 0


def vacate(pool: Pool, gpus: Ints) -> None:
    """Where a job that had GPUs for itself has left, only those tenants may be left: let it be as if it never came."""
    kept = gpus[pool.tenants[gpus] > 0]
    pool.memory[kept] = pool.total[kept]
    pool.compute[kept] = 100.0 - _OUT_OF_REACH * pool.tenants[kept]
    pool.kind[kept] = 0


def keep_for(state: State, row: int, gpus: tuple[int, ...]) -> None:
    """Let nobody but this waiting row start on GPUs, once those who run there have left."""
    keep_no_more(state, row)
    state.promises[row] = gpus
    for gpu in gpus:
        withdraw(state.pool, gpu)


def keep_no_more(state: State, row: int) -> None:
    """Let a row have no GPUs kept for it."""
    for gpu in state.promises.pop(row, ()):
        give_back(state.pool, gpu)
