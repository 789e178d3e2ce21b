"""Arrays of the compiled driver for preemptive policies, and what it does however running jobs are ranked.

Every set of sorted jobs is one stretch of two arrays, in room of its own. A job that joins or leaves moves the shorter
side; so a set that is joined at the back and left at the front, as most are, moves next to nothing. Loops in numba's
subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import Holders, Starts, forget_limits
from gpuyard.core.loops.pool import Floats, Ints, Site
from gpuyard.core.loops.victims import SortedJobs, before, choose_victims, next_set
from gpuyard.core.model import Cluster
from gpuyard.sim.kernel.job_columns import JobColumns, Rank, gather
from gpuyard.sim.kernel.schedule import Ends, Schedule, new_ends


def new_sorted_jobs(gpus: Ints, most: Ints) -> SortedJobs:
    """Sets of jobs of so many GPUs, with room for so many jobs each."""
    room = np.concatenate((np.zeros(1, np.int64), np.cumsum(2 * most + 4)))
    first = room[:-1] + most + 2
    return SortedJobs(
        np.empty(room[-1]), np.empty(room[-1], np.int64), gpus, first, first.copy(), first.copy(), room
    )  # fmt: skip


def _find(jobs: SortedJobs, s: int, key: float, row: int) -> int:
    low, high = jobs.first[s], jobs.last[s]
    while low < high:
        middle = (low + high) >> 1
        other = jobs.keys[middle]
        if other < key or (other == key and jobs.rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    return int(low)


def _move(jobs: SortedJobs, begin: int, end: int, by: int) -> None:
    if by > 0:
        for i in range(end - 1, begin - 1, -1):
            jobs.keys[i + by] = jobs.keys[i]
            jobs.rows[i + by] = jobs.rows[i]
    else:
        for i in range(begin, end):
            jobs.keys[i + by] = jobs.keys[i]
            jobs.rows[i + by] = jobs.rows[i]


def _to_the_middle(jobs: SortedJobs, s: int) -> None:
    begin, size = jobs.first[s], jobs.last[s] - jobs.first[s]
    middle = (jobs.room[s] + jobs.room[s + 1] - size) // 2
    _move(jobs, begin, begin + size, middle - begin)
    jobs.first[s] = middle
    jobs.last[s] = middle + size


def join(jobs: SortedJobs, s: int, key: float, row: int) -> None:
    if jobs.first[s] == jobs.room[s] or jobs.last[s] == jobs.room[s + 1]:
        _to_the_middle(jobs, s)
    at = _find(jobs, s, key, row)
    if at - jobs.first[s] < jobs.last[s] - at:
        _move(jobs, jobs.first[s], at, -1)
        jobs.first[s] -= 1
        at -= 1
    else:
        _move(jobs, at, jobs.last[s], 1)
        jobs.last[s] += 1
    jobs.keys[at] = key
    jobs.rows[at] = row


def leave(jobs: SortedJobs, s: int, key: float, row: int) -> None:
    """A job leaves a set; it must be there with that key."""
    at = _find(jobs, s, key, row)
    if at - jobs.first[s] < jobs.last[s] - at - 1:
        _move(jobs, jobs.first[s], at, 1)
        jobs.first[s] += 1
    else:
        _move(jobs, at + 1, jobs.last[s], -1)
        jobs.last[s] -= 1


def from_the_first(jobs: SortedJobs) -> int:
    """Look at all jobs again; returns the set of the best."""
    for s in range(len(jobs.at)):
        jobs.at[s] = jobs.first[s]
    return next_set(jobs, len(jobs.at))


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

    queue: SortedJobs
    set_of: Ints  # by number of GPUs: which set of the queue such jobs are in
    running: Ints  # rows that run, nearly by rank, and some that have ended; not used where numbers stand
    loose: Ints  # those of them that may be stopped now, by rank
    runners: SortedJobs  # where numbers stand: the running jobs that may be stopped, by rank
    drops: Ends  # of those: no later than when their numbers change
    keys: Floats
    others: Ints
    holders: Holders  # of the running jobs, those that may have to stop for one that waits
    victim: Ints
    stopped: Ints  # rows that a plan stops, by rank
    held: Ints
    idle: Ints
    values: Floats
    key: Floats  # of every row: its number in the queue, or its last one since
    counts: Ints
    """How many rows are in `running`; how many of those may be stopped; GPUs wanted by all waiting jobs; what
    has happened at this instant; how many rows are in `stopped`; GPUs that the jobs in `runners` have; how many wait;
    before which of the running jobs all waiting jobs go."""
    over: Floats  # of every row: when its present slice is over, or the earliest that its number changes, if computed
    worst: Floats  # the number that no running job's exceeds, and the last row with that number


def new_preemption_state(cluster: Cluster, asked: Ints, nodes: Ints, columns: int) -> PreemptionState:
    """For jobs that ask for so many GPUs; `nodes` is that of the schedule."""
    most, rows = cluster.gpus + 1, len(asked)
    jobs_of = np.bincount(asked)
    sizes = np.flatnonzero(jobs_of)
    return PreemptionState(
        queue=new_sorted_jobs(sizes, jobs_of[sizes]),
        set_of=np.cumsum(jobs_of > 0) - 1,
        running=np.empty(2 * most, np.int64),
        loose=np.empty(most, np.int64),
        runners=new_sorted_jobs(np.ones(1, np.int64), np.array([most])),
        drops=new_ends(most, rows),
        keys=np.empty(most),
        others=np.empty(most, np.int64),
        holders=Holders(
            np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64), nodes, np.empty(0)
        ),
        victim=np.zeros(most, np.int64),
        stopped=np.empty(most, np.int64),
        held=np.zeros(len(cluster.nodes), np.int64),
        idle=np.zeros(len(cluster.nodes), np.int64),
        values=np.empty((max(columns, 1), most)),
        key=np.empty(rows),
        counts=np.zeros(8, np.int64),
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
    queue, holders, n = state.queue, state.holders, len(rows)
    best = queue.at[from_the_first(queue)]
    ahead = before(queue.keys[best], queue.rows[best], keys, rows)  # of all waiting jobs: they are left alone
    for h in range(ahead, n):
        state.victim[h] = 0
        holders.rows[h - ahead] = rows[h]
        holders.begins[h - ahead] = schedule.offset[rows[h]]
        holders.ends[h - ahead] = schedule.offset[rows[h] + 1]
    for b in range(len(state.held)):
        state.held[b] = 0
    forget_limits(starts.limits)
    choose_victims(
        queue, holders, keys[ahead:], strict, site, starts, state.victim[ahead:n], state.held, schedule.nodes
    )
    state.counts[7] = ahead


def any_job_fits(rows: Ints, keys: Floats, behind: int, free: int, state: PreemptionState, facts: JobColumns) -> bool:
    """Whether any waiting job could find room in what is idle and what those behind it have (all: `behind`)."""
    queue = state.queue
    for s in range(len(queue.gpus)):
        if queue.gpus[s] > free + behind:
            return False
        if queue.first[s] < queue.last[s]:  # of jobs of one size, the first has the most behind it
            h, lacks = len(rows) - 1, queue.gpus[s] - free
            while lacks > 0 and h >= 0 and keys[h] >= queue.keys[queue.first[s]]:
                lacks -= facts.gpus[rows[h]]
                h -= 1
            if lacks <= 0:
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
