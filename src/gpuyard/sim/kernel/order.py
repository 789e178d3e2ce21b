"""Waiting jobs in an order that is known beforehand: one set of ranks for each number of GPUs asked for.

A set is a tree of bits, 32 to a word: a job is put in, taken out or found next in a few steps however long the queue
is, and nothing is ever moved. The front of every set is kept at hand. Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.pool import Ints

_LOWEST = np.array(
    [
        0,
        1,
        28,
        2,
        29,
        14,
        24,
        3,
        30,
        22,
        20,
        15,
        25,
        17,
        4,
        8,
        31,
        27,
        13,
        23,
        21,
        19,
        16,
        7,
        26,
        12,
        18,
        6,
        11,
        5,
        10,
        9,
    ],
    dtype=np.int64,
)
"""The lowest bit of a word, by a product with a de Bruijn number (Leiserson, Prokop & Randall 1998)."""


class Order(NamedTuple):
    """The waiting jobs, by number of GPUs and rank."""

    size: Ints
    """GPUs that the jobs of each set ask for, ascending."""
    set_of: Ints
    """Each row's set."""
    at: Ints
    """Each row's place in its set."""
    rank: Ints
    """Each row's place among all."""
    row_at: Ints
    """The rows of one set after another, by rank."""
    begin: Ints
    """Where each set begins in `row_at`."""
    words: Ints
    level: Ints
    """Where each level of each set's tree begins in `words`, the lowest level first."""
    front: Ints
    """The first waiting row of each set, -1 if there is none."""
    front_rank: Ints
    """Its rank; a very large number if there is none."""
    waiting: Ints
    """One number: how many wait."""


NONE = 2**62


def new_order(rank: Ints, gpus: Ints) -> Order:
    """An empty queue for jobs with these ranks."""
    size, set_of = np.unique(gpus, return_inverse=True)
    row_at = np.lexsort((rank, set_of))
    counts = np.bincount(set_of, minlength=len(size))
    begin = np.cumsum(counts) - counts
    at = np.empty(len(rank), dtype=np.int64)
    at[row_at] = np.arange(len(rank)) - begin[set_of[row_at]]
    depth = 1
    while 32**depth < len(rank):
        depth += 1
    widths = -(-counts[:, None] // 32 ** np.arange(1, depth + 1)[None, :])
    level = np.cumsum(widths.ravel()).reshape(widths.shape) - widths
    return Order(
        size.astype(np.int64), set_of.astype(np.int64), at, rank, row_at.astype(np.int64), begin.astype(np.int64),
        np.zeros(int(widths.sum()), dtype=np.int64), level.astype(np.int64),
        np.full(len(size), -1, dtype=np.int64), np.full(len(size), NONE, dtype=np.int64), np.zeros(1, dtype=np.int64),
    )  # fmt: skip


def _lowest_bit(word: int) -> int:
    return _LOWEST[(((word & -word) * 0x077CB531) & 0xFFFFFFFF) >> 27]


def _down(order: Order, s: int, level: int, i: int) -> int:
    """The first place below the i-th bit of a level."""
    while level > 0:
        level -= 1
        i = i * 32 + _lowest_bit(order.words[order.level[s, level] + i])
    return i


def next_row(order: Order, s: int, row: int) -> int:
    """The waiting row after this one in its set; -1 if there is none."""
    i = order.at[row]
    for level in range(order.level.shape[1]):
        above = order.words[order.level[s, level] + (i >> 5)] & ~((2 << (i & 31)) - 1)
        if above != 0:
            return order.row_at[order.begin[s] + _down(order, s, level, (i & ~31) + _lowest_bit(above))]
        i >>= 5
    return -1


def _set_front(order: Order, s: int, row: int) -> None:
    order.front[s] = row
    order.front_rank[s] = order.rank[row] if row >= 0 else NONE


def put_in(order: Order, row: int) -> None:
    """A job joins the queue."""
    s, i = order.set_of[row], order.at[row]
    for level in range(order.level.shape[1]):
        w = order.level[s, level] + (i >> 5)
        before = order.words[w]
        order.words[w] = before | (1 << (i & 31))
        if before != 0:
            break
        i >>= 5
    if order.rank[row] < order.front_rank[s]:
        _set_front(order, s, row)
    order.waiting[0] += 1


def take_out(order: Order, row: int) -> None:
    """A job leaves the queue."""
    s, i = order.set_of[row], order.at[row]
    if order.front[s] == row:
        _set_front(order, s, next_row(order, s, row))
    for level in range(order.level.shape[1]):
        w = order.level[s, level] + (i >> 5)
        order.words[w] &= ~(1 << (i & 31))
        if order.words[w] != 0:
            break
        i >>= 5
    order.waiting[0] -= 1


def first_row(order: Order, most: int) -> int:
    """The best waiting row that asks for at most so many GPUs; -1 if there is none."""
    best = -1
    rank = NONE
    for s in range(len(order.size)):
        if order.size[s] > most:
            break
        if order.front_rank[s] < rank:
            rank = order.front_rank[s]
            best = order.front[s]
    return best


def smallest(order: Order) -> int:
    """How many GPUs the smallest waiting job asks for; a very large number if nobody waits."""
    for s in range(len(order.size)):
        if order.front[s] >= 0:
            return order.size[s]
    return NONE
