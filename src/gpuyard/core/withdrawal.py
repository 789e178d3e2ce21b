"""What jobs may not use of GPUs: some nothing at all may be started on, of others a part of the memory is taken."""

from __future__ import annotations

import numpy as np

from gpuyard.core.pool import Ints, Pool
from gpuyard.core.state import State

SHARED = "shared"
"""Why a GPU is withdrawn from those who want it whole, and not from those who share it."""
_OUT_OF_REACH = 1e6  # percent: more than any share leaves, and little enough to be added and taken away exactly
_NOTHING = 1.0  # bytes: less than anybody asks for, and one can still divide by it


def withdraw(pool: Pool, gpu: int, cause: str = "") -> None:
    """Put a tenant on a GPU that leaves no room beside it; those who are there stay, and may leave."""
    pool.idle[pool.node[gpu]] -= pool.tenants[gpu] == 0
    pool.tenants[gpu] += 1
    if cause != SHARED:
        pool.compute[gpu] -= _OUT_OF_REACH


def give_back(pool: Pool, gpu: int, cause: str = "") -> None:
    """Take that tenant away."""
    pool.tenants[gpu] -= 1
    if cause != SHARED:
        pool.compute[gpu] += _OUT_OF_REACH
    if pool.tenants[gpu] == 0:
        pool.idle[pool.node[gpu]] += 1
        pool.compute[gpu] = 100.0
        pool.memory[gpu] = pool.total[gpu]
        pool.kind[gpu] = 0


def vacate(state: State, gpus: Ints) -> None:
    """Where a job that had GPUs for itself has left, only those tenants may be left: let it be as if it never came."""
    pool = state.pool
    kept = gpus[pool.tenants[gpus] > 0]
    beside = np.array([state.withdrawn.get(gpu) == SHARED for gpu in kept.tolist()], dtype=np.int64)
    pool.memory[kept] = pool.total[kept]
    pool.compute[kept] = 100.0 - _OUT_OF_REACH * (pool.tenants[kept] - beside)
    pool.kind[kept] = 0


def take(state: State, taken: tuple[float, ...], buffer: float) -> None:
    """Let shares have so much less of each GPU than there is of it, from now on."""
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
    """Let so much of a node's CPUs and memory be no job's, from now on."""
    pool, (former_cpus, former_memory) = state.pool, state.hosted.get(node, (0.0, 0.0))
    for left, most, change in (
        (pool.cpus, pool.all_cpus, former_cpus - cpus),
        (pool.host, pool.all_host, former_memory - memory),
    ):
        left[node] += change  # an infinite amount stays so
        most[node] += change
    state.hosted[node] = cpus, memory


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
