"""Tasks on shared GPUs, tick by tick: rules, scores of GPUs, whole episodes. Loops in numba's subset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.pool import Floats, Ints

CAPACITY = 100  # percent of a GPU, and of its memory
MISFIT, DELAY, PER_TICK = -2.0, -0.05, -0.1  # rewards: no fit, no choice, and for each tick at the end


class Episode(NamedTuple):
    tasks: Ints  # utilization, memory, duration and priority of each task, in order
    held: Ints  # GPU, utilization or memory, tick: use by running tasks at the next placement and the ticks after it
    gpu: Ints  # where each task was put, -1 before
    start: Ints  # the tick at which it was; waits count from 0
    counts: Ints  # ticks so far; the row at the head; percent of GPUs used, added up over ticks; tasks that have ended


def new_episode(tasks: Ints, gpus: int, longest: int) -> Episode:
    """Before the first tick, all GPUs empty; `longest`: ticks that no task exceeds."""
    n = len(tasks)
    return Episode(
        tasks,
        np.zeros((gpus, 2, longest), np.int64),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.zeros(4, np.int64),
    )


def is_over(episode: Episode) -> bool:
    return bool(episode.counts[3] == len(episode.tasks))


def has_space(held: Ints, gpu: int, task: Ints) -> bool:
    return bool(held[gpu, 0, 0] + task[0] <= CAPACITY and held[gpu, 1, 0] + task[1] <= CAPACITY)


def put_on(held: Ints, gpu: int, task: Ints) -> None:
    """Reserve a task's part of a GPU for as long as it runs."""
    for tick in range(task[2]):
        held[gpu, 0, tick] += task[0]
        held[gpu, 1, tick] += task[1]


def pass_tick(held: Ints) -> None:
    last = held.shape[2] - 1
    for gpu in range(held.shape[0]):
        for kind in range(2):
            for tick in range(last):
                held[gpu, kind, tick] = held[gpu, kind, tick + 1]
            held[gpu, kind, last] = 0


def step_episode(episode: Episode, action: int) -> float:
    """One tick: try the head on a GPU (beyond the last: none), and let time pass. Returns the reward."""
    counts, tasks, held = episode.counts, episode.tasks, episode.held
    now, head, gpus = counts[0], counts[1], len(held)
    reward = 0.0
    if head < len(tasks):
        if action >= gpus:
            reward = DELAY
        elif has_space(held, action, tasks[head]):
            put_on(held, action, tasks[head])
            episode.gpu[head] = action
            episode.start[head] = now
            counts[1] = head + 1
            reward = (20 - now) * 0.1
        else:
            reward = MISFIT
    for gpu in range(gpus):
        counts[2] += held[gpu, 0, 0]
    counts[0] = now + 1
    reward += _ended(episode, now)
    if counts[3] == len(tasks):
        reward += PER_TICK * counts[0]
    else:
        pass_tick(held)
    return reward


def _ended(episode: Episode, now: int) -> float:
    """Count tasks that ended at this tick; returns their reward."""
    reward = 0.0
    for row in range(episode.counts[1]):
        if episode.start[row] + episode.tasks[row, 2] == now:
            episode.counts[3] += 1
            reward += 10 + 2 * episode.tasks[row, 3]
    return reward


def outcome(episode: Episode) -> Floats:
    """Makespan in ticks, mean wait in ticks, and utilization in percent."""
    ticks = episode.counts[0]
    wait = episode.start.sum() / len(episode.start)
    return np.array([float(ticks), wait, episode.counts[2] / (ticks * len(episode.held))])


AHEAD = 10  # how many tasks are looked at: the head, and those behind it
FEATURES = 16
WEIGHTS = FEATURES + 2  # one for each feature, and the delay's own: a constant, and how soon a task ends
_NEVER = -1e9


def describe(held: Ints, gpu: int, tasks: Ints, ahead: int, scratch: Ints, out: Floats) -> None:
    """Write features of the first task on this GPU; about 0 to 1 each."""
    task = tasks[0]
    longest = held.shape[2]
    scratch[:] = held
    put_on(scratch, gpu, task)
    room, space = CAPACITY - scratch[gpu, 0, 0], CAPACITY - scratch[gpu, 1, 0]
    out[0] = room / CAPACITY
    out[1] = space / CAPACITY
    out[2] = abs(room - space) / CAPACITY
    out[3] = min(room, space) / CAPACITY
    busy = 0
    while busy < longest and held[gpu, 0, busy] > 0:
        busy += 1
    out[4] = busy / longest
    out[5] = (busy - task[2]) / longest
    out[6] = abs(busy - task[2]) / longest
    out[7] = 1.0 if busy == 0 else 0.0
    out[8] = task[0] / CAPACITY
    out[9] = task[1] / CAPACITY
    out[10] = task[2] / longest
    used = 0
    for other in range(len(held)):
        used += held[other, 0, 0]
    out[11] = used / (CAPACITY * len(held))
    _look_ahead(scratch, tasks, ahead, out)


def _look_ahead(held: Ints, tasks: Ints, ahead: int, out: Floats) -> None:
    """Place the tasks behind the head by best fit: the wait of each for its turn, at most a tick each."""
    longest = held.shape[2]
    passed = 0
    out[12] = out[13] = out[14] = 0.0
    for i in range(1, ahead):
        pass_tick(held)
        passed += 1
        gpu = fullest(held, tasks[i])
        while gpu < 0:
            pass_tick(held)
            passed += 1
            gpu = fullest(held, tasks[i])
        put_on(held, gpu, tasks[i])
        if i == 1:
            out[12] = passed / longest
        if i == 3:
            out[13] = passed / longest
    out[14] = passed / longest
    left = 0
    for gpu in range(len(held)):
        for tick in range(longest):
            left += held[gpu, 0, tick]
    out[15] = left / (CAPACITY * len(held) * longest)


def fullest(held: Ints, task: Ints) -> int:
    """Best fit: of the GPUs that can take a task, the fullest; -1 if none can."""
    best, most = -1, -1
    for gpu in range(len(held)):
        used = held[gpu, 0, 0] + held[gpu, 1, 0]
        if used > most and has_space(held, gpu, task):
            best, most = gpu, used
    return best


def correction(weights: Floats, features: Floats) -> float:
    total = 0.0
    for f in range(FEATURES):
        total += weights[f] * features[f]
    return total


def first_end(held: Ints) -> int:
    """Ticks until a GPU is used less than now; all of them where nothing runs."""
    longest = held.shape[2]
    soonest = longest
    for gpu in range(len(held)):
        tick = 0
        while tick < longest and held[gpu, 0, tick] == held[gpu, 0, 0] and held[gpu, 0, 0] > 0:
            tick += 1
        if 0 < tick < soonest:
            soonest = tick
    return int(soonest)


def choose_gpu(weights: Floats, held: Ints, tasks: Ints, ahead: int, scratch: Ints, features: Floats) -> int:
    """The best GPU that can take the first task; the number of GPUs where none can, or delay is better."""
    gpus, longest = len(held), held.shape[2]
    best, score = gpus, _NEVER
    for gpu in range(gpus):
        if not has_space(held, gpu, tasks[0]):
            continue
        describe(held, gpu, tasks, ahead, scratch, features)
        used = (held[gpu, 0, 0] + held[gpu, 1, 0]) / (2.0 * CAPACITY)
        value = used + correction(weights, features)
        if value > score:
            best, score = gpu, value
    soonest = first_end(held)
    delay = weights[FEATURES] + weights[FEATURES + 1] * soonest / longest - 1.0
    if best < gpus and soonest < longest and delay > score:  # while nothing runs, waiting changes nothing
        best = gpus
    return best


RANDOM, ROUND_ROBIN, LEAST_LOADED, BEST_FIT, LEARNED = range(5)


def least_used(held: Ints) -> int:
    best = 0
    for gpu in range(len(held)):
        if held[gpu, 0, 0] < held[best, 0, 0]:
            best = gpu
    return best


def decide(method: int, episode: Episode, weights: Floats, dice: Ints, scratch: Ints, features: Floats) -> int:
    """The action of a method: a GPU for the head, or the number of GPUs for none."""
    now, head, gpus = episode.counts[0], episode.counts[1], len(episode.held)
    if head == len(episode.tasks):
        return gpus
    if method == RANDOM:
        return int(dice[now % len(dice)])
    if method == ROUND_ROBIN:
        return int(now % gpus)
    if method == LEAST_LOADED:
        return least_used(episode.held)
    if method == BEST_FIT:
        best = fullest(episode.held, episode.tasks[head])
        return best if best >= 0 else gpus
    ahead = min(AHEAD, len(episode.tasks) - head)
    return choose_gpu(weights, episode.held, episode.tasks[head:], ahead, scratch, features)


def play(tasks: Ints, gpus: int, longest: int, method: int, weights: Floats, dice: Ints) -> Floats:
    """One episode: makespan, wait, utilization and reward."""
    episode = new_episode(tasks, gpus, longest)
    scratch = np.empty_like(episode.held)
    features = np.zeros(FEATURES)
    total = 0.0
    while not is_over(episode):
        total += step_episode(episode, decide(method, episode, weights, dice, scratch, features))
    found = np.empty(4)
    found[:3] = outcome(episode)
    found[3] = total
    return found


def play_all(tasks: Ints, counts: Ints, gpus: int, longest: int, method: int, weights: Floats, dice: Ints) -> Floats:
    """Every episode, a row of numbers each; a row of `dice` for each."""
    found = np.empty((len(counts), 4))
    for i in range(len(counts)):
        found[i] = play(tasks[i, : counts[i]], gpus, longest, method, weights, dice[i])
    return found
