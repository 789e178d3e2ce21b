"""Many simulated clusters, each waiting for the choice of the next job, and what an agent observes of them.

Loops in numba's subset.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import Starts, backfill, fill, forget_limits, shadow_time, wait_for
from gpuyard.core.loops.placement import has_room
from gpuyard.core.loops.pool import Demand, Flags, Floats, Ints, Pool, Site
from gpuyard.sim.kernel.schedule import (
    Clock,
    Ends,
    Expected,
    Schedule,
    Work,
    as_holders,
    expect,
    expect_no_more,
    give_gpus,
    next_end,
    next_instant,
    run_from,
)

COMMIT, EASY_SHADOW, EASY = range(3)
NOW, SHADOW, COST, RATE = range(4)
HEAD, WAITING, OVER = range(3)


class Fleet(NamedTuple):
    submit: Floats
    run: Floats
    estimate: Floats
    gpus: Ints
    pace: Floats  # cost of a second of waiting, of each job
    lump: Floats  # additional cost at its start
    rejected: Flags
    size: Ints  # GPUs of each node; like `first` and `node` the same for all clusters
    first: Ints
    node: Ints
    idle: Ints
    tenants: Ints
    lowest: Ints
    free: Ints
    end_time: Floats
    end_row: Ints
    end_place: Ints
    end_size: Ints
    start: Floats
    end: Floats
    offset: Ints
    spots: Ints
    nodes: Ints
    done: Ints
    finished: Ints
    counts: Ints
    due: Floats
    expected_rows: Ints
    expected_begins: Ints
    expected_ends: Ints
    expected_until: Floats
    expected_late: Floats
    expected_span: Ints
    queue: Ints  # rows that wait, by submission
    numbers: Floats  # time; the reserved job's shadow time; cost since the last decision; cost of a second now
    marks: Ints  # the reserved row, -1 if there is none; how many wait; whether all have started


class Rules(NamedTuple):
    discipline: int
    code: int  # of the placement
    least: float  # least cost of a job
    may_idle: bool  # whether time may be let pass although a job in view would fit


class Scratch(NamedTuple):
    starts: Starts
    found: Ints
    later: Ints


class Copy(NamedTuple):
    work: Work
    site: Site
    yard: Schedule
    clock: Clock
    expected: Expected
    pace: Floats
    lump: Floats
    queue: Ints
    numbers: Floats
    marks: Ints


def copy_at(fleet: Fleet, b: int, code: int) -> Copy:
    demand = Demand(fleet.gpus[b], None, None, None, None, fleet.estimate[b], None, None)  # type: ignore[arg-type]
    pool = Pool(
        fleet.first, fleet.size, fleet.node, fleet.idle[b], fleet.tenants[b],
        None, None, None, None, None, None, None, None,  # type: ignore[arg-type]
    )  # fmt: skip
    ends = Ends(fleet.end_time[b], fleet.end_row[b], fleet.end_place[b], fleet.end_size[b])
    yard = Schedule(
        pool, fleet.lowest[b], fleet.free[b], ends, fleet.start[b], fleet.end[b], fleet.offset[b], fleet.offset[b],
        fleet.spots[b], fleet.nodes[b], fleet.done[b],
    )  # fmt: skip
    expected = Expected(
        fleet.expected_rows[b], fleet.expected_begins[b], fleet.expected_ends[b], fleet.expected_until[b],
        fleet.expected_late[b], fleet.expected_span[b],
    )  # fmt: skip
    return Copy(
        Work(fleet.submit[b], fleet.run[b], fleet.run[b], fleet.rejected[b]),
        Site(demand, pool, code, 0, False, None, None),  # type: ignore[arg-type]
        yard,
        Clock(fleet.finished[b], fleet.counts[b], fleet.due[b]),
        expected,
        fleet.pace[b],
        fleet.lump[b],
        fleet.queue[b],
        fleet.numbers[b],
        fleet.marks[b],
    )


def begin_jobs(copy: Copy, starts: Starts, least: float) -> int:
    """Begin the jobs that a loop has started; returns their number."""
    now, begin = copy.numbers[NOW], 0
    for i in range(starts.size[0]):
        row = starts.rows[i]
        give_gpus(copy.yard, row, starts.bins[begin : starts.ends[i]], copy.site.code, 0)
        begin = starts.ends[i]
        run_from(copy.yard, row, now, now + copy.work.run[row])
        until = now + copy.site.demand.estimate[row]
        expect(copy.expected, until, row, copy.yard.offset[row], copy.yard.offset[row + 1])
        _unqueue(copy, row)
        waited_for = (now - copy.work.submit[row]) * copy.pace[row]
        copy.numbers[COST] += max(least, waited_for + copy.lump[row]) - waited_for
    begun = starts.size[0]
    starts.size[0] = 0
    return int(begun)


def _unqueue(copy: Copy, row: int) -> None:
    queue, marks = copy.queue, copy.marks
    at = 0
    while queue[at] != row:
        at += 1
    for i in range(at + 1, marks[WAITING]):
        queue[i - 1] = queue[i]
    marks[WAITING] -= 1
    copy.numbers[RATE] -= copy.pace[row]
    if marks[WAITING] == 0:
        copy.numbers[RATE] = 0.0


def try_row(copy: Copy, row: int, least: float, scratch: Scratch) -> bool:
    if copy.site.demand.gpus[row] > copy.yard.free[0]:
        return False
    scratch.found[0] = row
    fill(scratch.found[:1], True, copy.site, scratch.starts)
    return begin_jobs(copy, scratch.starts, least) > 0


def overtake(copy: Copy, rules: Rules, scratch: Scratch) -> None:
    """Start the jobs that the discipline lets go ahead of the reserved one, by submission."""
    if rules.discipline == COMMIT or copy.marks[WAITING] < 2 or copy.yard.free[0] == 0:
        return
    now, head, free = copy.numbers[NOW], copy.marks[HEAD], copy.yard.free[0]
    demand, shadow, n = copy.site.demand, copy.numbers[SHADOW], 0
    for i in range(copy.marks[WAITING]):
        row = copy.queue[i]
        early = rules.discipline == EASY or now + demand.estimate[row] < shadow
        if row != head and demand.gpus[row] <= free and early:
            scratch.found[n] = row
            n += 1
    if n == 0:
        return
    if rules.discipline == EASY_SHADOW:
        forget_limits(scratch.starts.limits)
        fill(scratch.found[:n], False, copy.site, scratch.starts)
    else:
        pool = copy.site.pool
        scratch.later[:] = pool.idle
        idle = Pool(
            pool.first, pool.size, pool.node, scratch.later, pool.tenants,
            None, None, None, None, None, None, None, None,  # type: ignore[arg-type]
        )  # fmt: skip
        later = Site(demand, idle, copy.site.code, 0, False, None, None)  # type: ignore[arg-type]
        at = wait_for(head, as_holders(copy.expected, copy.yard.nodes, now), later)
        backfill(scratch.found[:n], head, at, later, now, copy.site, scratch.starts)
    begin_jobs(copy, scratch.starts, rules.least)


def can_wait(copy: Copy, visible: int, may_idle: bool) -> bool:
    """Whether time may pass: whether an event will ever come, and GPUs may stay idle for it."""
    if not may_idle:
        for i in range(min(copy.marks[WAITING], visible)):
            if has_room(copy.site.code, copy.site.pool.size, copy.site.pool.idle, copy.site.demand.gpus[copy.queue[i]]):
                return False
    return bool(copy.clock.counts[2] < len(copy.work.submit) or next_end(copy.yard.ends) < np.inf)


def pass_time(copy: Copy, stepwise: bool) -> None:
    """Process the next events; the cost of waiting meanwhile is added up."""
    now = next_instant(copy.clock, copy.work, copy.yard, copy.site.pool.idle, stepwise)
    numbers, marks, counts = copy.numbers, copy.marks, copy.clock.counts
    numbers[COST] += numbers[RATE] * (now - numbers[NOW])
    numbers[NOW] = now
    for i in range(counts[0]):
        row = copy.clock.finished[i]
        expect_no_more(copy.expected, copy.yard.start[row] + copy.site.demand.estimate[row], row)
    for row in range(counts[1], counts[2]):
        copy.queue[marks[WAITING]] = row
        marks[WAITING] += 1
        numbers[RATE] += copy.pace[row]


def until_asked(copy: Copy, rules: Rules, scratch: Scratch) -> None:
    marks = copy.marks
    while True:
        if marks[HEAD] >= 0:
            if try_row(copy, marks[HEAD], rules.least, scratch):
                marks[HEAD] = -1
            else:
                overtake(copy, rules, scratch)
        if marks[HEAD] < 0 and marks[WAITING] > 0:
            return
        if marks[WAITING] == 0 and copy.clock.counts[2] == len(copy.work.submit):
            marks[OVER] = 1
            return
        pass_time(copy, rules.discipline != EASY)


def choose_job(copy: Copy, action: int, visible: int, rules: Rules, scratch: Scratch) -> None:
    """Do what was chosen: start a job, reserve it, or let time pass; then go on until the next decision.

    An action that stands for nobody lets time pass, too; where that is not possible, the first job is
    meant. An episode that is over stays so.
    """
    if copy.marks[OVER] == 1:
        return
    if action >= min(copy.marks[WAITING], visible):
        if can_wait(copy, visible, rules.may_idle):
            pass_time(copy, rules.discipline != EASY)
            until_asked(copy, rules, scratch)
            return
        action = 0
    row = copy.queue[action]
    if not try_row(copy, row, rules.least, scratch):
        copy.marks[HEAD] = row
        holders = as_holders(copy.expected, copy.yard.nodes, -np.inf)
        copy.numbers[SHADOW] = shadow_time(row, holders, copy.site.demand, copy.yard.free[0])
        overtake(copy, rules, scratch)
        pass_time(copy, rules.discipline != EASY)
    until_asked(copy, rules, scratch)


JOB_FEATURES = ("present", "wait", "estimate", "gpus", "fits", "waited_per_second", "area", "width")
CLUSTER_FEATURES = (
    "free",
    "visible",
    "waiting",
    "running",
    "next_end",
    "free_in_minutes",
    "free_in_an_hour",
    "free_in_hours",
)
_JOB = 8
LEAVE, CHOOSE, BEGIN = range(3)
_LONG = 18.0  # about the logarithm of two years in seconds: what is longer looks no longer
_SOON = (600.0, 3600.0, 21600.0)


def level(value: float, most: float) -> float:
    """A number of any size, 0 or more, scaled to 0 to 1 by its logarithm."""
    return float(min(np.log1p(max(value, 0.0)) / most, 1.0))


def observe_jobs(copy: Copy, visible: int, seen: Floats) -> None:
    """Write the features of the first jobs of the queue; the rest is 0."""
    gpus, estimate, submit = copy.site.demand.gpus, copy.site.demand.estimate, copy.work.submit
    now, free, total = copy.numbers[NOW], copy.yard.free[0], len(copy.yard.pool.tenants)
    seen[: visible * _JOB] = 0.0
    for i in range(min(copy.marks[WAITING], visible)):
        row, at = copy.queue[i], i * _JOB
        wait = now - submit[row]
        seen[at] = 1.0
        seen[at + 1] = level(wait, _LONG)
        seen[at + 2] = level(estimate[row], _LONG)
        seen[at + 3] = gpus[row] / total
        seen[at + 4] = 1.0 if gpus[row] <= free else 0.0
        seen[at + 5] = level(wait / max(estimate[row], 10.0), 12.0)
        seen[at + 6] = level(estimate[row] * gpus[row], 2 * _LONG)
        seen[at + 7] = np.log1p(float(gpus[row])) / np.log1p(float(total))


def observe_cluster(copy: Copy, visible: int, seen: Floats) -> None:
    now, total = copy.numbers[NOW], len(copy.yard.pool.tenants)
    waiting = copy.marks[WAITING]
    first, last = copy.expected.span[0], copy.expected.span[1]
    seen[0] = copy.yard.free[0] / total
    seen[1] = min(waiting, visible) / visible
    seen[2] = level(float(waiting), 12.0)
    seen[3] = (last - first) / total
    seen[4] = level(copy.expected.until[first] - now, _LONG) if first < last else 1.0
    for s in range(3):
        free = copy.yard.free[0]
        for i in range(first, last):
            if copy.expected.until[i] <= now + _SOON[s]:
                free += copy.expected.ends[i] - copy.expected.begins[i]
        seen[5 + s] = free / total


def observe(copy: Copy, visible: int, may_idle: bool, seen: Floats, mask: Flags) -> None:
    observe_jobs(copy, visible, seen)
    observe_cluster(copy, visible, seen[visible * _JOB :])
    for i in range(visible):
        mask[i] = i < copy.marks[WAITING]
    mask[visible] = can_wait(copy, visible, may_idle)


def advance_fleet(
    fleet: Fleet, actions: Ints, what: Ints, rules: Rules, scratch: Scratch, visible: int, seen: Floats, masks: Flags,
    rewards: Floats, over: Flags,
) -> None:  # fmt: skip
    """Advance each cluster to its next decision, by its action or from the beginning, or leave it (`what`)."""
    for b in range(len(actions)):
        if what[b] == LEAVE:
            continue
        copy = copy_at(fleet, b, rules.code)
        copy.numbers[COST] = 0.0
        if what[b] == BEGIN:
            until_asked(copy, rules, scratch)
        else:
            choose_job(copy, actions[b], visible, rules, scratch)
        rewards[b] = -copy.numbers[COST] / len(copy.work.submit)
        over[b] = copy.marks[OVER] == 1
        observe(copy, visible, rules.may_idle, seen[b], masks[b])
