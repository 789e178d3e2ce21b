"""On which nodes: five ways to find room for whole GPUs, where the GPUs of a node are all alike.

Loops in numba's subset, like the placements that use them. The nodes are written where the caller says, one entry per
GPU, so that nothing is allocated for the jobs that most traces are full of.
"""

from __future__ import annotations

import numpy as np

from gpuyard.core.loops.pool import CONSOLIDATE, NOBODY, PACK, RANDOM, SPREAD, Counts, Ints, shuffled


def choose_nodes(code: int, size: Counts, idle: Counts, k: int, salt: int, nodes: Ints) -> bool:
    """Write the nodes for k whole GPUs; false where they do not fit."""
    if code == CONSOLIDATE:
        if k > size[0] and k > size[most_idle(size)]:
            return _whole_nodes(size, idle, k, nodes)
        best = best_fit(idle, k)
        if best >= 0:
            nodes[:] = best
        return best >= 0
    if sum(idle) < k:
        return False
    if len(idle) == 1:
        nodes[:] = 0
        return True
    if code == SPREAD:
        _emptiest_first(idle, k, nodes)
        return True
    if code == PACK:
        best = best_fit(idle, k)
        if best >= 0:
            nodes[:] = best
            return True
    if code in (PACK, RANDOM):
        _in_order(code, idle, k, salt, nodes)
        return True
    done = 0
    for n in range(len(idle)):
        took = min(idle[n], k - done)
        nodes[done : done + took] = n
        done += took
        if done == k:
            break
    return True


def nodes_for(code: int, size: Counts, idle: Counts, k: int, salt: int) -> Ints:
    nodes = np.empty(k, dtype=np.int64)
    return nodes if choose_nodes(code, size, idle, k, salt, nodes) else NOBODY


def has_room(code: int, size: Counts, idle: Counts, k: int) -> bool:
    if code != CONSOLIDATE:
        return bool(sum(idle) >= k)
    if needs_one_node(code, size, k):
        return best_fit(idle, k) >= 0
    return whole_nodes_fit(size, idle, k)


def best_fit(idle: Counts, k: int) -> int:
    """The node with the fewest idle GPUs that has k of them; -1 if none has."""
    best = -1
    for n in range(len(idle)):
        if idle[n] >= k and (best < 0 or idle[n] < idle[best]):
            best = n
            if idle[n] == k:
                break
    return best


def most_idle(idle: Counts) -> int:
    best = 0
    for n in range(len(idle)):
        if idle[n] > idle[best]:
            best = n
    return best


def _in_order(code: int, idle: Counts, k: int, salt: int, nodes: Ints) -> None:
    """One node after another: the emptiest first, or in random order."""
    order = np.argsort(-np.asarray(idle), kind="mergesort") if code == PACK else shuffled(salt, len(idle))
    done = 0
    for n in order:
        took = min(idle[n], k - done)
        nodes[done : done + took] = n
        done += took
        if done == k:
            break


def _emptiest_first(idle: Counts, k: int, nodes: Ints) -> None:
    if k == 1:
        nodes[0] = most_idle(idle)
        return
    left = idle.copy()
    for i in range(k):
        n = most_idle(left)
        nodes[i] = n
        left[n] -= 1


def whole_nodes_fit(size: Counts, idle: Counts, k: int) -> bool:
    """Whether `_whole_nodes` would find room, at less cost: most plans ask only that of a wide job."""
    left = k
    largest = size[most_idle(size)]
    while largest > 0:
        smaller = 0
        for n in range(len(size)):
            if size[n] == largest and idle[n] == largest:
                if left <= largest:  # this one takes all that is left
                    return True
                left -= largest
            elif smaller < size[n] < largest:
                smaller = size[n]
        largest = smaller
    most = 0  # on nodes that are not whole
    for n in range(len(size)):
        if idle[n] < size[n]:
            most = max(most, idle[n])
    return bool(left <= most)


def _whole_nodes(size: Counts, idle: Counts, k: int, nodes: Ints) -> bool:
    """Whole free nodes, the largest first; what is left goes to the node with the most idle GPUs."""
    if not whole_nodes_fit(size, idle, k):
        return False
    left = k
    spare = idle.copy()
    largest = size[most_idle(size)]
    while largest > 0:
        smaller = 0
        for n in range(len(size)):
            if size[n] == largest and spare[n] == largest and left >= largest:
                nodes[k - left : k - left + largest] = n
                left -= largest
                spare[n] = 0
            elif smaller < size[n] < largest:
                smaller = size[n]
        largest = smaller
    if left > 0:
        nodes[k - left :] = most_idle(spare)
    return True


def needs_one_node(code: int, size: Counts, k: int) -> bool:
    """Whether k whole GPUs fit exactly where a single node has as many idle."""
    return bool(code == CONSOLIDATE and (k <= size[0] or k <= size[most_idle(size)]))


def some_node_has(idle: Counts, nodes: Ints, k: int) -> bool:
    most = 0
    for n in nodes:
        most = max(most, idle[n])
    return bool(most >= k)


def add_gpus(idle: Counts, nodes: Ints, sign: int) -> None:
    """Count GPUs of these nodes as idle (sign 1), or no longer (-1)."""
    if len(idle) == 1:
        idle[0] += sign * len(nodes)
    else:
        for n in nodes:
            idle[n] += sign
