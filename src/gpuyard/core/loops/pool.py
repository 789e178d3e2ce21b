"""What is free and what jobs ask for: the arrays that all placements work on, and the codes of the placements.

Capacity is counted in *bins*. As long as every job takes whole GPUs from anywhere, a bin is a node: the GPUs of a node
are interchangeable, so which job gets which one is decided last (`pick`), when it is known which jobs keep theirs. Once
any job shares a GPU, names the GPUs or models it wants, or takes CPUs that are counted, bins are the GPUs themselves
(`fine`). A job's spot is the array of its bins, one entry per GPU.

Named tuples of arrays, since compiled code takes those, too; new fields go to the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Counts = Any  # A number for each node: an array, or a list, over which the interpreter loops several times faster

INTERPRETED = True  # whether loops are run by Python; where they are compiled, this is false

FIRST, PACK, SPREAD, CONSOLIDATE, RANDOM, PACKING, CLUSTERING, FGD = range(8)

EMPTY: Ints = np.empty(0, dtype=np.int64)
SLACK = 1e-9  # shares are sums of decimals: 100 - 33.3 - 33.3 must still hold 33.4 ...
BYTE = 1e-3  # ... and 16G - 5.3G - 5.3G must still hold 5.4G


class Pool(NamedTuple):
    first: Ints  # GPU number at which each node begins, and the number of GPUs at the end
    size: Counts  # GPUs of each node
    node: Ints  # node of each GPU
    idle: Counts  # GPUs without a tenant, per node
    tenants: Ints  # jobs on each GPU
    memory: Floats  # bytes left on each GPU
    compute: Floats  # percent left of each GPU
    total: Floats  # bytes of each GPU when empty
    kind: Ints  # what each GPU is used for: k for a job of k whole GPUs, -1 for shares, 0 for none
    cpus: Floats  # CPU cores left on each node; infinite where they are not counted
    host: Floats  # bytes of a machine's own memory left on each node; infinite where they are not counted
    all_cpus: Floats  # CPU cores of each node when empty
    all_host: Floats  # bytes of each node's own memory when empty


class Demand(NamedTuple):
    gpus: Ints
    memory: Floats
    compute: Floats
    scope: Ints  # row of `scopes`; 0 is every GPU
    scopes: Flags
    estimate: Floats
    cpus: Floats  # CPU cores in all; 0 where they are not counted
    host: Floats  # bytes of host memory in all; 0 where they are not counted


class Tasks(NamedTuple):
    """The typical jobs of a workload, by which fragmentation is measured (`fragmentation`)."""

    gpus: Ints
    share: Floats  # of each GPU, 0 to 1
    cpus: Floats
    allowed: Flags  # which GPUs (rows) are of a model that suits which task (columns)
    popularity: Floats  # how much of the workload each task stands for; they add up to 1


NO_TASKS = Tasks(EMPTY, np.empty(0), np.empty(0), np.empty((0, 0), dtype=np.bool_), np.empty(0))


class Site(NamedTuple):
    """What it takes to place a job: demand, free capacity, and the placement."""

    demand: Demand
    pool: Pool
    code: int  # the placement, as a number
    salt: int  # what random placement depends on
    fine: bool  # whether bins are GPUs, not nodes
    tasks: Tasks = NO_TASKS  # the usual jobs; only `fgd` looks at them
    parts: Any = None  # GPUs of each part of the jobs that have some, by row; compiled loops know of none


def on_copy(site: Site) -> Site:
    pool = site.pool
    if site.fine:
        pool = copy_pool(pool)
    else:  # whole GPUs: the numbers per node are all that changes
        pool = Pool(
            pool.first, pool.size, pool.node, pool.idle.copy(), pool.tenants, pool.memory, pool.compute, pool.total,
            pool.kind, pool.cpus, pool.host, pool.all_cpus, pool.all_host,
        )  # fmt: skip
    return Site(site.demand, pool, site.code, site.salt, site.fine, site.tasks, site.parts)


def new_pool(nodes: tuple[int, ...], memory: float, cpus: tuple[float, ...] = (), host: tuple[float, ...] = ()) -> Pool:
    """An empty cluster; CPUs and host memory count on nodes that have a number above 0."""
    sizes = np.array(nodes, dtype=np.int64)
    gpus = int(sizes.sum())
    all_cpus, all_host = _counted(cpus, len(nodes)), _counted(host, len(nodes))
    return Pool(
        first=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
        node=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        size=sizes,
        idle=sizes.copy(),
        tenants=np.zeros(gpus, dtype=np.int64),
        memory=np.full(gpus, memory),
        compute=np.full(gpus, 100.0),
        total=np.full(gpus, memory),
        kind=np.zeros(gpus, dtype=np.int64),
        cpus=all_cpus.copy(),
        host=all_host.copy(),
        all_cpus=all_cpus,
        all_host=all_host,
    )


def _counted(amounts: tuple[float, ...], nodes: int) -> Floats:
    values = np.array(amounts, dtype=np.float64) if amounts else np.zeros(nodes)
    return np.where(values > 0, values, np.inf)


def copy_pool(pool: Pool) -> Pool:
    return Pool(
        pool.first, pool.size, pool.node,
        pool.idle.copy(), pool.tenants.copy(), pool.memory.copy(), pool.compute.copy(),
        pool.total,
        pool.kind.copy(), pool.cpus.copy(), pool.host.copy(), pool.all_cpus, pool.all_host,
    )  # fmt: skip


def restore(pool: Pool, other: Pool) -> None:
    pool.idle[:] = other.idle
    pool.tenants[:] = other.tenants
    pool.memory[:] = other.memory
    pool.compute[:] = other.compute
    pool.kind[:] = other.kind
    pool.cpus[:] = other.cpus
    pool.host[:] = other.host


def copy_counts(source: Counts, target: Counts) -> None:
    """`target[:] = source`; compiling that takes longer than compiling a loop."""
    if INTERPRETED:
        target[:] = source
    else:
        for n in range(len(source)):
            target[n] = source[n]


def mix(salt: int, index: Ints) -> npt.NDArray[np.uint64]:
    """Pseudo-random numbers that depend on nothing but their arguments (splitmix64)."""
    z = index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def shuffled(salt: int, n: int) -> Ints:
    return np.argsort(mix(salt, np.arange(n)), kind="mergesort")


def salted(seed: int, number: int) -> int:
    return int(np.int64(mix(seed & (2**62 - 1), np.array([number]))[0] >> np.uint64(2)))


def takes_any(demand: Demand, row: int) -> bool:
    """Whether a job takes whole GPUs from anywhere, and nothing else that is counted."""
    return bool(
        demand.compute[row] >= 100 and demand.scope[row] == 0 and demand.cpus[row] == 0 and demand.host[row] == 0
    )


def counts_host(demand: Demand, row: int) -> bool:
    return bool(demand.cpus[row] > 0 or demand.host[row] > 0)
