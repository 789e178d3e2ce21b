"""GPUs that tasks share, tick by tick: the rules of `gpuyard/Place-v0`. Loops in numba's subset.

Each tick the task at the head may be put on one GPU. What does not fit there stays at the head, and is tried again at
the next tick: nothing is ever dropped. These are the rules of seed 000's notebook but for that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.pool import Floats, Ints

CAPACITY = 100
"""Percent of a GPU, and of its memory."""
MISFIT, DELAY, PER_TICK = -2.0, -0.05, -0.1
"""Rewards: for a choice that does not fit, for none, and, at the end, for every tick that it took."""


class Floor(NamedTuple):
    """One episode under way."""

    tasks: Ints
    """Utilization, memory, duration and priority of each task, in order."""
    held: Ints
    """GPU, utilization or memory, tick: what running tasks hold at the next placement, a tick later, and so on."""
    gpu: Ints
    """Where each task was put, -1 before."""
    start: Ints
    """The tick at which it was; waits count from 0."""
    counts: Ints
    """Ticks so far; the row at the head; percent of GPUs used, added up over ticks; tasks that have ended."""


def new_floor(tasks: Ints, gpus: int, longest: int) -> Floor:
    """Before the first tick, all GPUs empty; no task runs longer than so many ticks."""
    n = len(tasks)
    return Floor(
        tasks,
        np.zeros((gpus, 2, longest), np.int64),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.zeros(4, np.int64),
    )


def is_over(floor: Floor) -> bool:
    """Whether every task has been placed and has ended."""
    return bool(floor.counts[3] == len(floor.tasks))


def has_space(held: Ints, gpu: int, task: Ints) -> bool:
    """Whether a GPU can take a task at the next placement."""
    return bool(held[gpu, 0, 0] + task[0] <= CAPACITY and held[gpu, 1, 0] + task[1] <= CAPACITY)


def put_on(held: Ints, gpu: int, task: Ints) -> None:
    """A task holds its part of a GPU for as long as it runs."""
    for tick in range(task[2]):
        held[gpu, 0, tick] += task[0]
        held[gpu, 1, tick] += task[1]


def pass_tick(held: Ints) -> None:
    """What was to be held a tick later is held now."""
    last = held.shape[2] - 1
    for gpu in range(held.shape[0]):
        for kind in range(2):
            for tick in range(last):
                held[gpu, kind, tick] = held[gpu, kind, tick + 1]
            held[gpu, kind, last] = 0


def step_floor(floor: Floor, action: int) -> float:
    """One tick: try the head where it is wanted (beyond the last GPU: nowhere), and let time pass. The reward."""
    counts, tasks, held = floor.counts, floor.tasks, floor.held
    now, head, gpus = counts[0], counts[1], len(held)
    reward = 0.0
    if head < len(tasks):
        if action >= gpus:
            reward = DELAY
        elif has_space(held, action, tasks[head]):
            put_on(held, action, tasks[head])
            floor.gpu[head] = action
            floor.start[head] = now
            counts[1] = head + 1
            reward = (20 - now) * 0.1
        else:
            reward = MISFIT
    for gpu in range(gpus):
        counts[2] += held[gpu, 0, 0]
    counts[0] = now + 1
    reward += _ended(floor, now)
    if counts[3] == len(tasks):
        reward += PER_TICK * counts[0]
    else:
        pass_tick(held)
    return reward


def _ended(floor: Floor, now: int) -> float:
    """Count those who ended at this tick; their reward."""
    reward = 0.0
    for row in range(floor.counts[1]):
        if floor.start[row] + floor.tasks[row, 2] == now:
            floor.counts[3] += 1
            reward += 10 + 2 * floor.tasks[row, 3]
    return reward


def outcome(floor: Floor) -> Floats:
    """Makespan in ticks, mean wait in ticks, and percent of all GPUs used: what an episode is judged by."""
    ticks = floor.counts[0]
    wait = floor.start.sum() / len(floor.start)
    return np.array([float(ticks), wait, floor.counts[2] / (ticks * len(floor.held))])
