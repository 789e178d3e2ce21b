"""What surrounds waiting jobs, for compiled policies: the columns of `core.surroundings`. Loops in numba's subset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.formulas import ENDLESS, LENGTHS, OVERDUE
from gpuyard.core.pool import Floats, Ints, Site
from gpuyard.sim.kernel.facts import COLUMN_CODES, ESTIMATE, Facts
from gpuyard.sim.kernel.scored import Crowd
from gpuyard.sim.kernel.yard import Expected, Yard

FIRST_CODE = 32
AROUND_CODES = {
    name: code
    for code, name in enumerate(
        (
            "usage_share", "opening", "suitable", "shorter", "idle", "hole", "queue", "queue_work", "shadow",
            "capacity",
        ),
        FIRST_CODE,
    )
}  # fmt: skip
CODES = COLUMN_CODES | AROUND_CODES
"""All columns that a compiled policy may ask for."""
USAGE_SHARE, OPENING, SUITABLE, SHORTER, IDLE, HOLE, QUEUE, QUEUE_WORK, SHADOW, CAPACITY = range(32, 42)


class Around(NamedTuple):
    """The same as `core.surroundings.Surroundings`, in arrays that are written anew at every plan."""

    length: Ints
    """Of every row: which power of two its estimate is below."""
    lengths: Ints
    below: Floats
    """How many who wait are of shorter lengths."""
    room: Ints
    delay: Floats
    numbers: Floats
    """Idle GPUs, those of the node that has most, how many wait, GPU-seconds that they ask for, GPU-seconds that all
    users have had, GPUs of the cluster, the first who waits, how many entries of `room` there are."""


def new_around(length: Ints, gpus: int) -> Around:
    """Room for what is seen of so many GPUs."""
    numbers = np.zeros(8)
    numbers[5] = gpus
    return Around(
        length,
        np.zeros(LENGTHS, np.int64),
        np.zeros(LENGTHS),
        np.zeros(gpus + 2, np.int64),
        np.zeros(gpus + 2),
        numbers,
    )


def look_around(
    around: Around, facts: Facts, crowd: Crowd, site: Site, yard: Yard, expected: Expected, now: float
) -> None:
    """Write down what surrounds those who wait at this instant."""
    numbers = around.numbers
    numbers[0] = yard.free[0]
    most = 0
    for n in range(len(site.pool.idle)):
        most = max(most, site.pool.idle[n])
    numbers[1] = most
    _look_at_jobs(around, facts, crowd)
    around.room[0] = yard.free[0]
    around.delay[0] = 0.0
    count, first = 1, expected.span[0]
    for i in range(first, expected.span[1]):
        row = expected.rows[i]
        around.room[count] = around.room[count - 1] + facts.gpus[row]
        until = yard.start[row] + min(facts.asked[ESTIMATE, row], ENDLESS)
        around.delay[count] = max(until - now, OVERDUE)
        count += 1
    numbers[7] = count


def _look_at_jobs(around: Around, facts: Facts, crowd: Crowd) -> None:
    """How long those are who wait, and what they ask for."""
    n, work, first = crowd.counts[0], 0.0, -1
    for b in range(len(around.lengths)):
        around.lengths[b] = 0
    for i in range(n):
        row = crowd.rows[i]
        work += min(facts.asked[ESTIMATE, row], ENDLESS) * facts.gpus[row]
        around.lengths[around.length[row]] += 1
        if first < 0 or row < first:
            first = row
    below = 0
    for b in range(len(around.lengths)):
        around.below[b] = below
        below += around.lengths[b]
    around.numbers[2] = n
    around.numbers[3] = work
    around.numbers[4] = 0.0
    for user in range(len(crowd.usage)):
        around.numbers[4] += crowd.usage[user]
    around.numbers[6] = first


def _opening(around: Around, gpus: int) -> float:
    """Seconds until so many GPUs are expected to be idle."""
    low, high = 0, int(around.numbers[7])
    end = high
    while low < high:
        middle = (low + high) >> 1
        if around.room[middle] < gpus:
            low = middle + 1
        else:
            high = middle
    return around.delay[low] if low < end else ENDLESS


def _shorter(around: Around, row: int) -> float:
    """The share of the queue that is expected to be shorter."""
    length = around.length[row]
    return (around.below[length] + 0.5 * around.lengths[length]) / max(around.numbers[2], 1.0)


def gather_around(around: Around, facts: Facts, crowd: Crowd, column: int, out: Floats) -> None:
    """Write one of these columns for everybody who waits."""
    n = crowd.counts[0]
    if column == OPENING:
        for i in range(n):
            out[i] = _opening(around, facts.gpus[crowd.rows[i]])
    elif column == SHORTER:
        for i in range(n):
            out[i] = _shorter(around, crowd.rows[i])
    elif column == USAGE_SHARE:
        total = max(around.numbers[4], 1.0)
        for i in range(n):
            out[i] = crowd.usage[facts.user[crowd.rows[i]]] / total
    else:
        number = 0.0
        if column in (IDLE, SUITABLE):
            number = around.numbers[0]
        elif column == HOLE:
            number = around.numbers[1]
        elif column == QUEUE:
            number = around.numbers[2]
        elif column == QUEUE_WORK:
            number = around.numbers[3]
        elif column == SHADOW:
            number = _opening(around, facts.gpus[int(around.numbers[6])])
        elif column == CAPACITY:
            number = around.numbers[5]
        for i in range(n):
            out[i] = number
