"""Waiting jobs in the order of their keys, ties by row, in one stretch of two arrays. Loops in numba's subset.

Whoever joins or leaves moves the shorter side; so a queue that is joined at the back and left at the front, as most
are, moves next to nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.pool import Floats, Ints


class Line(NamedTuple):
    """The queue is what stands from the first to the second number of `span`."""

    keys: Floats
    rows: Ints
    span: Ints


def new_line(most: int) -> Line:
    """Room for so many to wait."""
    middle = most // 2 + 1
    return Line(np.empty(2 * most + 4), np.empty(2 * most + 4, np.int64), np.array([middle, middle]))


def line_length(line: Line) -> int:
    """How many wait."""
    return int(line.span[1] - line.span[0])


def _find(line: Line, key: float, row: int) -> int:
    low, high = line.span[0], line.span[1]
    while low < high:
        middle = (low + high) >> 1
        other = line.keys[middle]
        if other < key or (other == key and line.rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    return int(low)


def _move(line: Line, begin: int, end: int, by: int) -> None:
    """Shift what stands from begin to end."""
    if by > 0:
        for i in range(end - 1, begin - 1, -1):
            line.keys[i + by] = line.keys[i]
            line.rows[i + by] = line.rows[i]
    else:
        for i in range(begin, end):
            line.keys[i + by] = line.keys[i]
            line.rows[i + by] = line.rows[i]


def _to_the_middle(line: Line) -> None:
    begin, size = line.span[0], line.span[1] - line.span[0]
    middle = (len(line.rows) - size) // 2
    if middle != begin:
        _move(line, begin, begin + size, middle - begin)
        line.span[0] = middle
        line.span[1] = middle + size


def join(line: Line, key: float, row: int) -> None:
    """A job joins the queue."""
    if line.span[0] == 0 or line.span[1] == len(line.rows):
        _to_the_middle(line)
    at = _find(line, key, row)
    if at - line.span[0] < line.span[1] - at:
        _move(line, line.span[0], at, -1)
        line.span[0] -= 1
        at -= 1
    else:
        _move(line, at, line.span[1], 1)
        line.span[1] += 1
    line.keys[at] = key
    line.rows[at] = row


def leave(line: Line, key: float, row: int) -> None:
    """A job leaves the queue; it must be there with that key."""
    at = _find(line, key, row)
    if at - line.span[0] < line.span[1] - at - 1:
        _move(line, line.span[0], at, 1)
        line.span[0] += 1
    else:
        _move(line, at + 1, line.span[1], -1)
        line.span[1] -= 1
