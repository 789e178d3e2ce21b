"""Fragmentation of GPUs, measured by the jobs that usually come, and the placement that keeps it low.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC'23.
Seen by one task, the free GPUs of a node are a fragment altogether if the task cannot run there: too few GPUs with
enough room, too few CPUs, the wrong model, or no need of a GPU at all. If it can, the fragment is what is free on GPUs
with less room than it wants of each. A node's fragmentation is the mean over the usual tasks, by their popularity,
in GPUs. `fgd` puts a job where that rises least.

The paper's artifact grades a rise in steps of about 0.04 GPUs and takes the first of the best nodes, and its numbers
depend on it: exact rises spread jobs over nodes that differ by next to nothing. So it is done here.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.loops.pool import NO_TASKS, Demand, Flags, Floats, Ints, Pool, Tasks

TYPICAL = 0.95  # the most popular kinds of job count, until they make up this part of the workload
_CELLS = 40_000  # nodes x GPUs x tasks to look at in one go: what fits the cache is done twice as fast
_NOISE = 1e-9

Kind = tuple[int, float, float, int]
"""GPUs, share of each (0 to 1), CPUs, and row of the scopes: jobs alike in these are one task."""


def room(compute: Floats, memory: Floats, total: Floats) -> Floats:
    return np.maximum(np.minimum(compute / 100.0, memory / total), 0.0)


def kind_of(demand: Demand, row: int, memory: float) -> Kind:
    share = max(float(demand.compute[row]) / 100.0, float(demand.memory[row]) / memory)
    return int(demand.gpus[row]), min(share, 1.0), float(demand.cpus[row]), int(demand.scope[row])


def typical(kinds: dict[Kind, int], scopes: Flags) -> Tasks:
    if not kinds:
        return NO_TASKS
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    so_far = np.cumsum([count for _, count in ranked])
    ranked = ranked[: int(np.searchsorted(so_far, TYPICAL * so_far[-1])) + 1]
    counts = np.array([count for _, count in ranked], dtype=np.float64)
    return Tasks(
        gpus=np.array([kind[0] for kind, _ in ranked], dtype=np.int64),
        share=np.array([kind[1] for kind, _ in ranked], dtype=np.float64),
        cpus=np.array([kind[2] for kind, _ in ranked], dtype=np.float64),
        allowed=np.ascontiguousarray(scopes[[kind[3] for kind, _ in ranked]].T),
        popularity=counts / counts.sum(),
    )


def fragments(pool: Pool, tasks: Tasks) -> Floats:
    sizes = np.diff(pool.first)
    free = room(pool.compute, pool.memory, pool.total)
    found = np.zeros(len(sizes))
    for task in range(len(tasks.gpus)):
        fit = (free >= tasks.share[task] - _NOISE) & tasks.allowed[:, task]
        count = np.bincount(pool.node, weights=fit, minlength=len(sizes))
        able = (count >= tasks.gpus[task]) & (pool.cpus >= tasks.cpus[task] - _NOISE) & (tasks.gpus[task] > 0)
        stuck = np.bincount(pool.node, weights=np.where(fit, 0.0, free), minlength=len(sizes))
        whole = np.bincount(pool.node, weights=free, minlength=len(sizes))
        found += tasks.popularity[task] * np.where(able, stuck, whole)
    return found


def grades(
    demand: Demand, pool: Pool, tasks: Tasks, row: int, nodes: Ints, gpus: Ints, usable: Flags
) -> tuple[Floats, Ints]:
    """How much placing a job makes worse on each node, in grades, lower is better; and which GPU (of one) to take.

    `gpus` and `usable` have a row for each node (see `sharing.Slots`).
    """
    best = np.zeros(len(nodes))
    column = np.zeros(len(nodes), dtype=np.int64)
    if len(tasks.gpus) == 0:
        for i in range(len(nodes)):
            column[i] = usable[i].argmax()
        return best, column
    step = max(1, _CELLS // (gpus.shape[1] * len(tasks.gpus)))
    for begin in range(0, len(nodes), step):
        part = slice(begin, begin + step)
        graded = _graded(demand, pool, tasks, row, nodes[part], gpus[part], usable[part])
        for i in range(len(graded)):
            column[begin + i] = graded[i].argmin()
            best[begin + i] = graded[i, column[begin + i]]
    return best, column


def _graded(demand: Demand, pool: Pool, tasks: Tasks, row: int, nodes: Ints, gpus: Ints, usable: Flags) -> Floats:
    """The grade of each GPU of each node; of the first alone where the job takes several, or none."""
    flat = gpus.ravel()
    columns = np.arange(gpus.shape[1])
    real = gpus == pool.first[nodes][:, None] + columns[None, :]
    compute, memory, total = pool.compute[flat], pool.memory[flat], pool.total[flat]
    free = np.where(real, room(compute, memory, total).reshape(gpus.shape), 0.0)
    allowed = tasks.allowed[flat].reshape((gpus.shape[0], gpus.shape[1], len(tasks.gpus)))
    fit = allowed & (free[:, :, None] >= tasks.share - _NOISE)
    stuck = np.where(fit, 0.0, free[:, :, None])
    count, whole = fit.sum(1), free.sum(1)
    before = _mean(tasks, count, stuck.sum(1), whole, pool.cpus[nodes])
    cpus = pool.cpus[nodes] - demand.cpus[row]
    if demand.compute[row] >= 100:
        left = np.zeros(free.shape)
    else:
        then = room(compute - demand.compute[row], memory - demand.memory[row], total)
        left = np.minimum(then.reshape(gpus.shape), free)
    if demand.gpus[row] != 1:
        left = np.where(fullest(free, usable, demand.gpus[row]), left, free)
        fit = allowed & (left[:, :, None] >= tasks.share - _NOISE)
        stuck = np.where(fit, 0.0, left[:, :, None])
        rise = _mean(tasks, fit.sum(1), stuck.sum(1), left.sum(1), cpus) - before
        return _grade(rise).reshape((len(nodes), 1))
    # One GPU: what each of them would come to, all at once, from what changes on that GPU alone.
    fit_then = allowed & (left[:, :, None] >= tasks.share - _NOISE)
    count_then = count.reshape((len(nodes), 1, -1)) + fit_then - fit.astype(np.int64)
    stuck_then = stuck.sum(1).reshape((len(nodes), 1, -1)) + np.where(fit_then, 0.0, left[:, :, None]) - stuck
    able = (count_then >= tasks.gpus) & ((cpus.reshape((-1, 1, 1)) >= tasks.cpus - _NOISE) & (tasks.gpus > 0))
    whole_then = (whole.reshape((-1, 1)) + left - free).reshape((len(nodes), gpus.shape[1], 1))
    after = (np.where(able, stuck_then, whole_then) * tasks.popularity).sum(2)
    return np.where(usable, _grade(after - before.reshape((-1, 1))), np.inf)


def _mean(tasks: Tasks, count: Ints, stuck: Floats, whole: Floats, cpus: Floats) -> Floats:
    able = (count >= tasks.gpus) & (cpus.reshape((-1, 1)) >= tasks.cpus - _NOISE) & (tasks.gpus > 0)
    mean: Floats = (np.where(able, stuck, whole.reshape((-1, 1))) * tasks.popularity).sum(1)
    return mean


def _grade(rise: Floats) -> Floats:
    return -np.floor(100.0 / (1.0 + np.exp(rise)) + _NOISE)


def fullest(free: Floats, usable: Flags, k: int) -> Flags:
    """The k usable GPUs of each node with the least room; ties go to the lower number."""
    columns = np.arange(free.shape[1])
    left = np.where(usable, free, np.inf)
    taken = np.zeros(left.shape, dtype=np.bool_)
    for _ in range(k):
        tightest = columns[None, :] == left.argmin(axis=1)[:, None]
        taken = taken | (tightest & usable)
        left = np.where(tightest, np.inf, left)
    return taken
