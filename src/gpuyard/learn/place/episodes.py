"""Whole episodes of the placing of tasks, one after another: what is compiled to compare and to train."""

from __future__ import annotations

import numpy as np

from gpuyard.core.pool import Floats, Ints
from gpuyard.learn.place.floor import Floor, is_over, new_floor, outcome, step_floor
from gpuyard.learn.place.scorer import AHEAD, FEATURES, choose_gpu, fullest

RANDOM, ROUND_ROBIN, LEAST_LOADED, BEST_FIT, LEARNED = range(5)


def least_used(held: Ints) -> int:
    """The GPU of which least is used, whether the task fits or not."""
    best = 0
    for gpu in range(len(held)):
        if held[gpu, 0, 0] < held[best, 0, 0]:
            best = gpu
    return best


def decide(method: int, floor: Floor, weights: Floats, dice: Ints, scratch: Ints, features: Floats) -> int:
    """What a method does next: a GPU for the head, or the number past the last one for none."""
    now, head, gpus = floor.counts[0], floor.counts[1], len(floor.held)
    if head == len(floor.tasks):
        return gpus
    if method == RANDOM:
        return int(dice[now % len(dice)])
    if method == ROUND_ROBIN:
        return int(now % gpus)
    if method == LEAST_LOADED:
        return least_used(floor.held)
    if method == BEST_FIT:
        best = fullest(floor.held, floor.tasks[head])
        return best if best >= 0 else gpus
    ahead = min(AHEAD, len(floor.tasks) - head)
    return choose_gpu(weights, floor.held, floor.tasks[head:], ahead, scratch, features)


def play(tasks: Ints, gpus: int, longest: int, method: int, weights: Floats, dice: Ints) -> Floats:
    """One episode: makespan, wait, utilization and reward."""
    floor = new_floor(tasks, gpus, longest)
    scratch = np.empty_like(floor.held)
    features = np.zeros(FEATURES)
    total = 0.0
    while not is_over(floor):
        total += step_floor(floor, decide(method, floor, weights, dice, scratch, features))
    found = np.empty(4)
    found[:3] = outcome(floor)
    found[3] = total
    return found


def play_all(tasks: Ints, counts: Ints, gpus: int, longest: int, method: int, weights: Floats, dice: Ints) -> Floats:
    """Every episode, a row of numbers each; a line of `dice` for each."""
    found = np.empty((len(counts), 4))
    for i in range(len(counts)):
        found[i] = play(tasks[i, : counts[i]], gpus, longest, method, weights, dice[i])
    return found
