"""What the compiled driver for preemptive policies works with, and what it does however running jobs are ranked.

Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.discipline import Holders, Starts
from gpuyard.core.displacement import before, displace
from gpuyard.core.pool import Floats, Ints, Site
from gpuyard.sim.kernel.ends import Ends, new_ends
from gpuyard.sim.kernel.facts import Facts, Rank, gather
from gpuyard.sim.kernel.line import Line, new_line
from gpuyard.sim.kernel.yard import Yard, asks_for_at_most


class Rules(NamedTuple):
    """How a preemptive policy is to be obeyed."""

    columns: Ints
    """Codes of the columns that ranks depend on."""
    change_columns: Ints
    """The same for the seconds until a rank changes by itself."""
    changes: bool
    """Whether there are such."""
    standing: bool
    """Whether a running job's number stands until then, so that it need not be worked out at every plan."""
    quantum: float
    sliced: bool
    strict: bool
    any_fixed: bool
    """Whether some jobs may not be stopped."""
    improves: bool
    """Whether the number of a running job never grows and nothing else counts, so that an old one may do."""
    seed: int
    every: float


class Desk(NamedTuple):
    """Arrays to work with, so that plans allocate nothing."""

    running: Ints
    """Rows that run, nearly by rank, and some that have ended; not used where numbers stand."""
    loose: Ints
    """Those of them that may be stopped now, by rank."""
    runners: Line
    """Where numbers stand: the running jobs that may be stopped, by rank."""
    drops: Ends
    """Of those: no later than when their numbers change."""
    keys: Floats
    others: Ints
    begins: Ints
    ends: Ints
    bins: Ints
    victim: Ints
    stopped: Ints
    """Rows that a plan stops, by rank."""
    held: Ints
    idle: Ints
    values: Floats
    key: Floats
    """Of every row: its number in the queue, or its last one since."""
    counts: Ints
    """How many rows are in `running`; how many of those may be stopped; GPUs wanted by all who wait; what
    has happened at this instant; how many rows are in `stopped`; GPUs that the jobs in `runners` have."""
    waiting_of: Ints
    """How many wait for one GPU, two, and so on."""
    over: Floats
    """Of every row: when its present slice is over, as far as that was worked out."""
    worst: Floats
    """The number that no running job's exceeds, and the row behind whom none with that number is."""


def new_desk(gpus: int, nodes: int, rows: int, columns: int) -> Desk:
    """Arrays for so many GPUs, nodes and jobs, and policies of so many columns."""
    most = gpus + 1
    return Desk(
        running=np.empty(2 * most, np.int64),
        loose=np.empty(most, np.int64),
        runners=new_line(most),
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
    rows: Ints, keys: Floats, site: Site, yard: Yard, line: Line, starts: Starts, desk: Desk, strict: bool
) -> None:
    """Let the queue take what it needs from what is idle and from these running jobs, which are in rank order."""
    first, last, n = line.span[0], line.span[1], len(rows)
    ahead = before(line.keys[first], line.rows[first], keys, rows)  # of everybody who waits: they are left alone
    for h in range(ahead):
        desk.victim[h] = 0
    end = 0
    for h in range(ahead, n):
        desk.victim[h] = 0
        desk.begins[h] = end
        for i in range(yard.offset[rows[h]], yard.offset[rows[h] + 1]):
            desk.bins[end] = yard.nodes[i]
            end += 1
        desk.ends[h] = end
    for b in range(len(desk.held)):
        desk.held[b] = 0
    holders = Holders(rows[ahead:], desk.begins[ahead:n], desk.ends[ahead:n], desk.bins, desk.over[:0])
    displace(
        line.rows[first:last], line.keys[first:last], holders, keys[ahead:], strict, site, starts, desk.victim[ahead:n],
        desk.held, desk.bins[:end],
    )  # fmt: skip


def anybody_fits(rows: Ints, keys: Floats, behind: int, free: int, line: Line, waiting_of: Ints, facts: Facts) -> bool:
    """Whether any waiting job could find room in what is idle and what those behind it have (all: `behind`)."""
    if asks_for_at_most(free, waiting_of):
        return True
    if not asks_for_at_most(free + behind, waiting_of):
        return False
    h, n = 0, len(rows)
    for i in range(line.span[0], line.span[1]):
        while h < n and keys[h] < line.keys[i]:
            behind -= facts.gpus[rows[h]]
            h += 1
        if h == n:
            return False
        if facts.gpus[line.rows[i]] <= free + behind:
            return True
    return False


def change_times(n: int, facts: Facts, desk: Desk, rules: Rules, change: Rank, now: float) -> None:
    """Write into `keys` when the numbers of the first n rows in `others` change by themselves."""
    gather(facts, rules.change_columns, desk.others[:n], now, facts.usage, desk.values)
    change(desk.values, n, desk.keys)
    for i in range(n):
        row = desk.others[i]
        # A job that is still restarting makes no progress yet.
        restarting = facts.started[row] + facts.overhead[row] - now if facts.started[row] < np.inf else 0.0
        desk.keys[i] = now + (desk.keys[i] + max(restarting, 0.0))
