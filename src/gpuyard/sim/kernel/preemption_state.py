"""Arrays of the compiled driver for preemptive policies, and what it does however running jobs are ranked.

The queue is sorted by key, ties by row, in one stretch of two arrays. A job that joins or leaves moves the shorter
side; so a queue that is joined at the back and left at the front, as most are, moves next to nothing. Loops in numba's
subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import Holders, Starts
from gpuyard.core.loops.pool import Floats, Ints, Site
from gpuyard.core.loops.victims import before, choose_victims
from gpuyard.sim.kernel.job_columns import JobColumns, Rank, gather
from gpuyard.sim.kernel.schedule import Ends, Schedule, asks_for_at_most, new_ends


class SortedQueue(NamedTuple):
    """The queue is what is between the first and the second number of `span`."""

    keys: Floats
    rows: Ints
    span: Ints


def new_sorted_queue(most: int) -> SortedQueue:
    middle = most // 2 + 1
    return SortedQueue(np.empty(2 * most + 4), np.empty(2 * most + 4, np.int64), np.array([middle, middle]))


def queue_length(queue: SortedQueue) -> int:
    return int(queue.span[1] - queue.span[0])


def _find(queue: SortedQueue, key: float, row: int) -> int:
    low, high = queue.span[0], queue.span[1]
    while low < high:
        middle = (low + high) >> 1
        other = queue.keys[middle]
        if other < key or (other == key and queue.rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    return int(low)


def _move(queue: SortedQueue, begin: int, end: int, by: int) -> None:
    if by > 0:
        for i in range(end - 1, begin - 1, -1):
            queue.keys[i + by] = queue.keys[i]
            queue.rows[i + by] = queue.rows[i]
    else:
        for i in range(begin, end):
            queue.keys[i + by] = queue.keys[i]
            queue.rows[i + by] = queue.rows[i]


def _to_the_middle(queue: SortedQueue) -> None:
    begin, size = queue.span[0], queue.span[1] - queue.span[0]
    middle = (len(queue.rows) - size) // 2
    if middle != begin:
        _move(queue, begin, begin + size, middle - begin)
        queue.span[0] = middle
        queue.span[1] = middle + size


def join(queue: SortedQueue, key: float, row: int) -> None:
    if queue.span[0] == 0 or queue.span[1] == len(queue.rows):
        _to_the_middle(queue)
    at = _find(queue, key, row)
    if at - queue.span[0] < queue.span[1] - at:
        _move(queue, queue.span[0], at, -1)
        queue.span[0] -= 1
        at -= 1
    else:
        _move(queue, at, queue.span[1], 1)
        queue.span[1] += 1
    queue.keys[at] = key
    queue.rows[at] = row


def leave(queue: SortedQueue, key: float, row: int) -> None:
    """A job leaves the queue; it must be there with that key."""
    at = _find(queue, key, row)
    if at - queue.span[0] < queue.span[1] - at - 1:
        _move(queue, queue.span[0], at, 1)
        queue.span[0] += 1
    else:
        _move(queue, at + 1, queue.span[1], -1)
        queue.span[1] -= 1


class PreemptionRules(NamedTuple):
    columns: Ints  # codes of the columns that ranks depend on
    change_columns: Ints  # the same for the seconds until a rank changes by itself
    changes: bool  # whether there are such
    ranks_hold: bool  # whether a running job's number stands until then, so that it need not be computed at every plan
    quantum: float
    sliced: bool
    strict: bool
    any_fixed: bool  # whether some jobs may not be stopped
    improves: bool  # whether the number of a running job never grows and nothing else counts, so that an old one may do
    seed: int
    every: float


class PreemptionState(NamedTuple):
    """The queue, and work arrays, so that plans allocate nothing."""

    queue: SortedQueue
    running: Ints  # rows that run, nearly by rank, and some that have ended; not used where numbers stand
    loose: Ints  # those of them that may be stopped now, by rank
    runners: SortedQueue  # where numbers stand: the running jobs that may be stopped, by rank
    drops: Ends  # of those: no later than when their numbers change
    keys: Floats
    others: Ints
    begins: Ints
    ends: Ints
    bins: Ints
    victim: Ints
    stopped: Ints  # rows that a plan stops, by rank
    held: Ints
    idle: Ints
    values: Floats
    key: Floats  # of every row: its number in the queue, or its last one since
    counts: Ints
    """How many rows are in `running`; how many of those may be stopped; GPUs wanted by all waiting jobs; what
    has happened at this instant; how many rows are in `stopped`; GPUs that the jobs in `runners` have."""
    waiting_of: Ints  # how many wait for one GPU, two, and so on
    over: Floats  # of every row: when its present slice is over, if that was computed
    worst: Floats  # the number that no running job's exceeds, and the last row with that number


def new_preemption_state(gpus: int, nodes: int, rows: int, columns: int) -> PreemptionState:
    most = gpus + 1
    return PreemptionState(
        queue=new_sorted_queue(rows),
        running=np.empty(2 * most, np.int64),
        loose=np.empty(most, np.int64),
        runners=new_sorted_queue(most),
        drops=new_ends(most, rows),
        keys=np.empty(most),
        others=np.empty(most, np.int64),
        begins=np.empty(most, np.int64),
        ends=np.empty(most, np.int64),
        bins=np.empty(most, np.int64),
        victim=np.zeros(most, np.int64),
        stopped=np.empty(most, np.int64),
        held=np.zeros(nodes, np.int64),
        idle=np.zeros(nodes, np.int64),
        values=np.empty((max(columns, 1), most)),
        key=np.empty(rows),
        counts=np.zeros(6, np.int64),
        waiting_of=np.zeros(most, np.int64),
        over=np.full(rows, -np.inf),
        worst=np.array([-np.inf, -1.0]),
    )


def take_from(
    rows: Ints,
    keys: Floats,
    site: Site,
    schedule: Schedule,
    starts: Starts,
    state: PreemptionState,
    strict: bool,
) -> None:
    """Let the queue take what it needs from what is idle and from these running jobs, which are in rank order."""
    queue, n = state.queue, len(rows)
    first, last = queue.span[0], queue.span[1]
    ahead = before(queue.keys[first], queue.rows[first], keys, rows)  # of all waiting jobs: they are left alone
    for h in range(ahead):
        state.victim[h] = 0
    end = 0
    for h in range(ahead, n):
        state.victim[h] = 0
        state.begins[h] = end
        for i in range(schedule.offset[rows[h]], schedule.offset[rows[h] + 1]):
            state.bins[end] = schedule.nodes[i]
            end += 1
        state.ends[h] = end
    for b in range(len(state.held)):
        state.held[b] = 0
    holders = Holders(rows[ahead:], state.begins[ahead:n], state.ends[ahead:n], state.bins, state.over[:0])
    choose_victims(
        queue.rows[first:last], queue.keys[first:last], holders, keys[ahead:], strict, site, starts,
        state.victim[ahead:n], state.held, state.bins[:end],
    )  # fmt: skip


def any_job_fits(rows: Ints, keys: Floats, behind: int, free: int, state: PreemptionState, facts: JobColumns) -> bool:
    """Whether any waiting job could find room in what is idle and what those behind it have (all: `behind`)."""
    queue, waiting_of = state.queue, state.waiting_of
    if asks_for_at_most(free, waiting_of):
        return True
    if not asks_for_at_most(free + behind, waiting_of):
        return False
    h, n = 0, len(rows)
    for i in range(queue.span[0], queue.span[1]):
        while h < n and keys[h] < queue.keys[i]:
            behind -= facts.gpus[rows[h]]
            h += 1
        if h == n:
            return False
        if facts.gpus[queue.rows[i]] <= free + behind:
            return True
    return False


def change_times(
    n: int, facts: JobColumns, state: PreemptionState, rules: PreemptionRules, change: Rank, now: float
) -> None:
    """Write into `keys` when the numbers of the first n rows in `others` change by themselves."""
    gather(facts, rules.change_columns, state.others[:n], now, facts.usage, state.values)
    change(state.values, n, state.keys)
    for i in range(n):
        row = state.others[i]
        # A job that is still restarting makes no progress yet.
        restarting = facts.started[row] + facts.overhead[row] - now if facts.started[row] < np.inf else 0.0
        state.keys[i] = now + (state.keys[i] + max(restarting, 0.0))
