"""What the compiled drivers share: jobs as arrays, GPUs that are given and taken, and the schedule that comes of it.

Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.discipline import Holders
from gpuyard.core.placement import pick
from gpuyard.core.pool import RANDOM, Flags, Floats, Ints, Pool
from gpuyard.sim.kernel.ends import Ends, add_end


class Work(NamedTuple):
    """The jobs, by row, in the order of arrival."""

    submit: Floats
    run: Floats
    rejected: Flags
    """Jobs that can never run here: they arrive, and that is all."""


class Yard(NamedTuple):
    """Who is where, as the simulation goes."""

    pool: Pool
    """Only `first` and `tenants` count here; what is idle on each node is the site's business."""
    lowest: Ints
    """On each node, no GPU before this one is idle."""
    free: Ints
    """One number: idle GPUs in all."""
    ends: Ends
    start: Floats
    """First start of each row, NaN before."""
    end: Floats
    offset: Ints
    """Where each row's GPUs are in `gpus` and `nodes`; one more at the end."""
    gpus: Ints
    nodes: Ints
    done: Ints
    """One number: jobs that are through, for whoever watches."""


class Expected(NamedTuple):
    """Running jobs by their expected end, ties by row, in parallel arrays."""

    rows: Ints
    begins: Ints
    ends: Ints
    until: Floats
    size: Ints
    """One number."""


def new_expected(most: int) -> Expected:
    """Room for so many running jobs."""
    return Expected(
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most),
        np.zeros(1, np.int64),
    )


def _place_in(expected: Expected, until: float, row: int) -> int:
    low, high = 0, expected.size[0]
    while low < high:
        middle = (low + high) >> 1
        other = expected.until[middle]
        if other < until or (other == until and expected.rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    return low


def expect(expected: Expected, until: float, row: int, begin: int, end: int) -> None:
    """A job is expected to run until then; its spot is at begin to end."""
    n = expected.size[0]
    i = _place_in(expected, until, row)
    for j in range(n, i, -1):
        expected.rows[j] = expected.rows[j - 1]
        expected.begins[j] = expected.begins[j - 1]
        expected.ends[j] = expected.ends[j - 1]
        expected.until[j] = expected.until[j - 1]
    expected.rows[i] = row
    expected.begins[i] = begin
    expected.ends[i] = end
    expected.until[i] = until
    expected.size[0] = n + 1


def expect_no_more(expected: Expected, until: float, row: int) -> None:
    """A job has ended."""
    n = expected.size[0] - 1
    for j in range(_place_in(expected, until, row), n):
        expected.rows[j] = expected.rows[j + 1]
        expected.begins[j] = expected.begins[j + 1]
        expected.ends[j] = expected.ends[j + 1]
        expected.until[j] = expected.until[j + 1]
    expected.size[0] = n


def as_holders(expected: Expected, nodes: Ints, now: float) -> Holders:
    """The running jobs for a discipline; those that have outlived their estimate are expected to end next."""
    n = expected.size[0]
    until = expected.until[:n]
    if n > 0 and until[0] <= now:
        until = np.maximum(until, np.nextafter(now, np.inf))
    return Holders(expected.rows[:n], expected.begins[:n], expected.ends[:n], nodes, until)


def pick_lowest(yard: Yard, nodes: Ints, gpus: Ints) -> None:
    """What `pick` does for any placement but random, from where idle GPUs can be: the lowest idle ones of each node."""
    first, tenants = yard.pool.first, yard.pool.tenants
    if nodes[0] == nodes[-1]:  # spots of one node, as nearly all are
        g = yard.lowest[nodes[0]]
        for i in range(len(nodes)):
            while tenants[g] != 0:
                g += 1
            gpus[i] = g
            g += 1
        yard.lowest[nodes[0]] = g
        return
    order = np.sort(nodes)
    g = first[order[0]]
    for i in range(len(order)):
        if i == 0 or order[i] != order[i - 1]:
            g = yard.lowest[order[i]]
        while tenants[g] != 0:
            g += 1
        gpus[i] = g
        g += 1
        yard.lowest[order[i]] = g


def give_gpus(yard: Yard, row: int, spot: Ints, code: int, salt: int) -> None:
    """Settle which GPUs of its nodes a job gets."""
    begin, end = yard.offset[row], yard.offset[row + 1]
    if code == RANDOM:
        yard.gpus[begin:end] = pick(code, yard.pool, spot, salt)
    else:
        pick_lowest(yard, spot, yard.gpus[begin:end])
    for i in range(begin, end):
        yard.pool.tenants[yard.gpus[i]] = 1
        yard.nodes[i] = yard.pool.node[yard.gpus[i]]
    yard.free[0] -= end - begin


def take_gpus(yard: Yard, row: int, idle: Ints) -> None:
    """A job leaves its GPUs; they count as idle on their nodes."""
    for i in range(yard.offset[row], yard.offset[row + 1]):
        gpu, node = yard.gpus[i], yard.nodes[i]
        yard.pool.tenants[gpu] = 0
        yard.lowest[node] = min(yard.lowest[node], gpu)
        idle[node] += 1
    yard.free[0] += yard.offset[row + 1] - yard.offset[row]


def run_from(yard: Yard, row: int, now: float, length: float) -> None:
    """A job runs for so long from now on."""
    if np.isnan(yard.start[row]):
        yard.start[row] = now
    add_end(yard.ends, now + length, row)
