"""How good a GPU is for the task at the head, as the learned placer sees it. Loops in numba's subset.

The score of a GPU is best fit's own (how full it is) plus a correction that is learned: a weighted sum, the same for
every GPU, of what the GPU, the task, and the next few tasks after such a choice are like. Delay has a score of its own.
With all weights 0 this is best fit, exactly. A hidden layer of tanh units was tried, and found nothing more.
"""

from __future__ import annotations

from gpuyard.core.pool import Floats, Ints
from gpuyard.learn.place.floor import CAPACITY, has_space, pass_tick, put_on

AHEAD = 10
"""How many tasks are looked at: the head, and those behind it."""
FEATURES = 16
WEIGHTS = FEATURES + 2
"""One for each feature, and the delay's own: a constant, and how soon a task ends."""
_NEVER = -1e9


def describe(held: Ints, gpu: int, tasks: Ints, ahead: int, scratch: Ints, out: Floats) -> None:
    """Write what it would be like to put the first of the tasks on this GPU; about 0 to 1 each."""
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
    """Let best fit place the tasks behind the head: how long each has to wait for its turn, at most a tick each."""
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
    """Best fit: of the GPUs that can take a task, the one of which most is used; -1 if none can."""
    best, most = -1, -1
    for gpu in range(len(held)):
        used = held[gpu, 0, 0] + held[gpu, 1, 0]
        if used > most and has_space(held, gpu, task):
            best, most = gpu, used
    return best


def correction(weights: Floats, features: Floats) -> float:
    """What is added to a GPU's score."""
    total = 0.0
    for f in range(FEATURES):
        total += weights[f] * features[f]
    return total


def first_end(held: Ints) -> int:
    """Ticks until a GPU is used less than now; as many as there are where nothing runs."""
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
    """The best GPU that can take the first task; the number past the last GPU where none can, or delay is better."""
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
