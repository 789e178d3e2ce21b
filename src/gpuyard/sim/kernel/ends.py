"""When running jobs end: a heap by (time, row) from which any job can be taken. Loops in numba's subset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.pool import Floats, Ints


class Ends(NamedTuple):
    """Running jobs, the next to end first."""

    time: Floats
    row: Ints
    place: Ints
    """Where each row stands in the heap, -1 if it does not."""
    size: Ints
    """One number."""


def new_ends(most: int, rows: int) -> Ends:
    """Room for so many running jobs out of so many rows."""
    return Ends(np.empty(most), np.empty(most, np.int64), np.full(rows, -1, np.int64), np.zeros(1, np.int64))


def next_end(ends: Ends) -> float:
    """When the next job ends; infinite if none runs."""
    return ends.time[0] if ends.size[0] > 0 else np.inf


def ends_by(ends: Ends, time: float, rows: Ints) -> int:
    """Write the rows that end by then, in no particular order; returns how many."""
    n = 0
    if next_end(ends) <= time and ends.size[0] > 0:
        rows[0] = 0
        n = 1
    i = 0
    while i < n:  # places first: those below one that is later are later, too
        for child in range(2 * rows[i] + 1, min(2 * rows[i] + 3, ends.size[0])):
            if ends.time[child] <= time:
                rows[n] = child
                n += 1
        i += 1
    for i in range(n):
        rows[i] = ends.row[rows[i]]
    return n


def add_end(ends: Ends, time: float, row: int) -> None:
    """A job runs until then."""
    ends.size[0] += 1
    _rise(ends, ends.size[0] - 1, time, row)


def remove_end(ends: Ends, row: int) -> None:
    """A job runs no longer."""
    i = ends.place[row]
    ends.place[row] = -1
    last = ends.size[0] - 1
    ends.size[0] = last
    if i == last:
        return
    time, other = ends.time[last], ends.row[last]
    parent = (i - 1) >> 1
    if i > 0 and _before(time, other, ends.time[parent], ends.row[parent]):
        _rise(ends, i, time, other)
    else:
        _sink(ends, i, time, other)


def _before(time: float, row: int, other_time: float, other: int) -> bool:
    return time < other_time or (time == other_time and row < other)


def _stand(ends: Ends, i: int, time: float, row: int) -> None:
    ends.time[i] = time
    ends.row[i] = row
    ends.place[row] = i


def _rise(ends: Ends, i: int, time: float, row: int) -> None:
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(time, row, ends.time[parent], ends.row[parent]):
            break
        _stand(ends, i, ends.time[parent], ends.row[parent])
        i = parent
    _stand(ends, i, time, row)


def _sink(ends: Ends, i: int, time: float, row: int) -> None:
    n = ends.size[0]
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and _before(ends.time[child + 1], ends.row[child + 1], ends.time[child], ends.row[child]):
            child += 1
        if not _before(ends.time[child], ends.row[child], time, row):
            break
        _stand(ends, i, ends.time[child], ends.row[child])
        i = child
    _stand(ends, i, time, row)
