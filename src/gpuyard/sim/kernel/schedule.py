"""What the compiled drivers share: jobs as arrays, GPUs that are given and taken, the schedule, and the virtual clock.

Ends of running jobs are a heap by (time, row) from which any job can be removed. The clock makes the same events as
`replay`, in the same order: at one instant jobs finish first, then jobs arrive, then one plan is made; stepwise
disciplines get one event at a time, arrivals first. With rounds, what has happened is answered at the next multiple of
the round. Loops in numba's subset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuyard.core.loops.backfill import Holders
from gpuyard.core.loops.placement import add_gpus, pick
from gpuyard.core.loops.pool import RANDOM, Flags, Floats, Ints, Pool, Site, salted


class Ends(NamedTuple):
    time: Floats
    row: Ints
    place: Ints  # where each row stands in the heap, -1 if it does not; empty if only the first one ever leaves
    size: Ints  # one number


def new_ends(most: int, rows: int) -> Ends:
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
    ends.size[0] += 1
    _rise(ends, ends.size[0] - 1, time, row)


def remove_first_end(ends: Ends) -> None:
    last = ends.size[0] - 1
    ends.size[0] = last
    if len(ends.place) > 0:
        ends.place[ends.row[0]] = -1
    if last > 0:
        _sink(ends, 0, ends.time[last], ends.row[last])


def remove_end(ends: Ends, row: int) -> None:
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
    if len(ends.place) > 0:
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


def sort_rows(keys: Any, rows: Ints, n: int, spare_keys: Any, spare_rows: Ints) -> None:
    """Sort the first n rows by key, ties by row: stretches that are sorted already are merged, two by two."""
    stretches = 2
    while stretches > 1:
        stretches = 0
        begin = 0
        while begin < n:
            middle = _sorted_until(keys, rows, begin, n)
            end = _sorted_until(keys, rows, middle, n)
            if end > middle:
                _merge(keys, rows, begin, middle, end, spare_keys, spare_rows)
            begin = end
            stretches += 1


def _sorted_until(keys: Any, rows: Ints, begin: int, n: int) -> int:
    i = begin + 1
    while i < n and _before(keys[i - 1], rows[i - 1], keys[i], rows[i]):
        i += 1
    return min(i, n)


def _merge(keys: Any, rows: Ints, begin: int, middle: int, end: int, spare_keys: Any, spare_rows: Ints) -> None:
    for i in range(begin, middle):
        spare_keys[i] = keys[i]
        spare_rows[i] = rows[i]
    at, left, right = begin, begin, middle
    while left < middle:
        if right < end and _before(keys[right], rows[right], spare_keys[left], spare_rows[left]):
            keys[at], rows[at] = keys[right], rows[right]
            right += 1
        else:
            keys[at], rows[at] = spare_keys[left], spare_rows[left]
            left += 1
        at += 1


class Work(NamedTuple):
    submit: Floats
    run: Floats
    restart: Floats  # seconds that a job loses whenever it is started again
    rejected: Flags  # jobs that can never run here: they arrive, and that is all


class Schedule(NamedTuple):
    pool: Pool  # only `first` and `tenants` count here; what is idle on each node is the site's business
    lowest: Ints  # on each node, no GPU before this one is idle
    free: Ints  # one number: idle GPUs in all
    ends: Ends
    start: Floats  # first start of each row, NaN before
    end: Floats
    preemptions: Ints
    offset: Ints  # where each row's GPUs are in `gpus` and `nodes`; one more at the end
    gpus: Ints
    nodes: Ints
    done: Ints  # one number: jobs that are done, for the progress bar


class Rules(NamedTuple):
    discipline: int
    seed: int
    every: float  # seconds from round to round; 0: a plan whenever something happens


class Expected(NamedTuple):
    """Running jobs by their expected end, ties by row, in parallel arrays.

    They are what is between the first and the second number of `span`: the next to end leaves without moving others.
    """

    rows: Ints
    begins: Ints
    ends: Ints
    until: Floats
    late: Floats  # the same where some have outlived their estimates, which are expected to end next
    span: Ints


def new_expected(most: int) -> Expected:
    size = 2 * most + 4
    return Expected(
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size),
        np.empty(size),
        np.full(2, most, np.int64),
    )


def _place_in(expected: Expected, until: float, row: int) -> int:
    low, high = expected.span[0], expected.span[1]
    while low < high:
        middle = (low + high) >> 1
        other = expected.until[middle]
        if other < until or (other == until and expected.rows[middle] < row):
            low = middle + 1
        else:
            high = middle
    return low


def _copy_to(expected: Expected, i: int, j: int) -> None:
    expected.rows[j] = expected.rows[i]
    expected.begins[j] = expected.begins[i]
    expected.ends[j] = expected.ends[i]
    expected.until[j] = expected.until[i]


def _slide(expected: Expected, begin: int, end: int, by: int) -> None:
    if by > 0:
        for i in range(end - 1, begin - 1, -1):
            _copy_to(expected, i, i + by)
    else:
        for i in range(begin, end):
            _copy_to(expected, i, i + by)


def expect(expected: Expected, until: float, row: int, begin: int, end: int) -> None:
    first, last = expected.span[0], expected.span[1]
    if first == 0 or last == len(expected.rows):
        middle = (len(expected.rows) - (last - first)) // 2
        _slide(expected, first, last, middle - first)
        first, last = middle, middle + (last - first)
        expected.span[0] = first
        expected.span[1] = last
    i = _place_in(expected, until, row)
    if i - first < last - i:
        _slide(expected, first, i, -1)
        expected.span[0] -= 1
        i -= 1
    else:
        _slide(expected, i, last, 1)
        expected.span[1] += 1
    expected.rows[i] = row
    expected.begins[i] = begin
    expected.ends[i] = end
    expected.until[i] = until


def expect_no_more(expected: Expected, until: float, row: int) -> None:
    i = _place_in(expected, until, row)
    if i - expected.span[0] < expected.span[1] - i:
        _slide(expected, expected.span[0], i, 1)
        expected.span[0] += 1
    else:
        _slide(expected, i + 1, expected.span[1], -1)
        expected.span[1] -= 1


def is_any_late(expected: Expected, now: float) -> bool:
    return expected.span[0] < expected.span[1] and expected.until[expected.span[0]] <= now


def put_off(expected: Expected, now: float) -> None:
    """Expect overdue jobs to end next: write `late`."""
    for i in range(expected.span[0], expected.span[1]):
        expected.late[i] = max(expected.until[i], np.nextafter(now, np.inf))


def as_holders(expected: Expected, nodes: Ints, now: float) -> Holders:
    first, last = expected.span[0], expected.span[1]
    until = expected.until[first:last]
    if is_any_late(expected, now):
        put_off(expected, now)
        until = expected.late[first:last]
    return Holders(expected.rows[first:last], expected.begins[first:last], expected.ends[first:last], nodes, until)


def give_gpus(schedule: Schedule, row: int, spot: Ints, code: int, salt: int) -> None:
    """Decide which GPUs of its nodes a job gets: the lowest idle ones, as `pick` would, but faster."""
    begin, end = schedule.offset[row], schedule.offset[row + 1]
    one_node = True  # as nearly all are
    for n in spot:
        one_node = one_node and n == spot[0]
    if code == RANDOM:
        _give_random(schedule, begin, end, spot, salt)
    elif one_node:
        schedule.lowest[spot[0]] = _give_lowest(schedule, begin, end, spot[0])
    else:
        _give_on_many(schedule, begin, spot)
    for i in range(begin, end):
        schedule.pool.tenants[schedule.gpus[i]] = 1
        schedule.nodes[i] = schedule.pool.node[schedule.gpus[i]]
    schedule.free[0] -= end - begin


def _give_lowest(schedule: Schedule, begin: int, end: int, node: int) -> int:
    """The lowest idle GPUs of one node; returns where the next idle one may be."""
    g = schedule.lowest[node]
    for i in range(begin, end):
        while schedule.pool.tenants[g] != 0:
            g += 1
        schedule.gpus[i] = g
        g += 1
    return g


def _give_on_many(schedule: Schedule, begin: int, nodes: Ints) -> None:
    nodes = nodes.copy()
    for i in range(1, len(nodes)):  # sort: they come in few stretches
        n, j = nodes[i], i
        while j > 0 and nodes[j - 1] > n:
            nodes[j] = nodes[j - 1]
            j -= 1
        nodes[j] = n
    i = 0
    while i < len(nodes):
        j = i + 1
        while j < len(nodes) and nodes[j] == nodes[i]:
            j += 1
        schedule.lowest[nodes[i]] = _give_lowest(schedule, begin + i, begin + j, nodes[i])
        i = j


def _give_random(schedule: Schedule, begin: int, end: int, spot: Ints, salt: int) -> None:
    schedule.gpus[begin:end] = pick(RANDOM, schedule.pool, spot, salt)


def take_gpus(schedule: Schedule, row: int) -> None:
    for i in range(schedule.offset[row], schedule.offset[row + 1]):
        gpu, node = schedule.gpus[i], schedule.nodes[i]
        schedule.pool.tenants[gpu] = 0
        schedule.lowest[node] = min(schedule.lowest[node], gpu)
    schedule.free[0] += schedule.offset[row + 1] - schedule.offset[row]


def run_from(schedule: Schedule, row: int, now: float, until: float) -> None:
    if np.isnan(schedule.start[row]):
        schedule.start[row] = now
    add_end(schedule.ends, until, row)


def asks_for_at_most(most: int, waiting_of: Ints) -> bool:
    """Whether a job waits for at most `most` GPUs; `waiting_of` counts jobs that wait for one GPU, two, and so on."""
    k = 1
    while k <= most and k < len(waiting_of) and waiting_of[k] == 0:
        k += 1
    return k <= most and k < len(waiting_of)


def for_plan(site: Site, seed: int, begun: int) -> Site:
    """The site with the salt of random placement in one plan: it draws again after every start."""
    salt = salted(seed, begun) if site.code == RANDOM else 0
    return Site(site.demand, site.pool, site.code, salt, site.fine, site.tasks, site.parts)


class Pieces(NamedTuple):
    row: Ints
    start: Floats
    end: Floats
    gpus: Ints
    sizes: Ints  # how many stretches there are, with how many GPUs in all


def new_pieces(most: int, gpus: int) -> Pieces:
    return Pieces(
        np.empty(most, np.int64), np.empty(most), np.empty(most), np.empty(gpus, np.int64), np.zeros(2, np.int64)
    )


def is_full(pieces: Pieces, gpus: int) -> bool:
    """Whether there may be no room if all of these GPUs are left at once."""
    return pieces.sizes[0] + gpus > len(pieces.row) or pieces.sizes[1] + gpus > len(pieces.gpus)


def add_piece(pieces: Pieces, schedule: Schedule, row: int, start: float, end: float) -> None:
    i, g = pieces.sizes[0], pieces.sizes[1]
    k = schedule.offset[row + 1] - schedule.offset[row]
    pieces.row[i] = row
    pieces.start[i] = start
    pieces.end[i] = end
    for j in range(k):
        pieces.gpus[g + j] = schedule.gpus[schedule.offset[row] + j]
    pieces.sizes[0] = i + 1
    pieces.sizes[1] = g + k


def longer(pieces: Pieces) -> Pieces:
    """The same with twice the room."""
    return Pieces(
        row=np.concatenate((pieces.row, pieces.row)),
        start=np.concatenate((pieces.start, pieces.start)),
        end=np.concatenate((pieces.end, pieces.end)),
        gpus=np.concatenate((pieces.gpus, pieces.gpus)),
        sizes=pieces.sizes,
    )


class Clock(NamedTuple):
    finished: Ints  # rows that finished at this instant
    counts: Ints  # how many those are; the first row that arrived at this instant; the first that did not arrive yet
    due: Floats  # when the next plan is due although nothing may happen then: a round, or a planner's own wish


def new_clock(most: int) -> Clock:
    return Clock(np.empty(most, np.int64), np.zeros(3, np.int64), np.full(1, np.inf))


def next_instant(clock: Clock, work: Work, schedule: Schedule, idle: Ints, stepwise: bool) -> float:
    """Let the next events happen, and return when they do; infinite if nothing will ever happen again."""
    n, row = len(work.submit), clock.counts[2]
    arrives = work.submit[row] if row < n else np.inf
    now = min(arrives, next_end(schedule.ends), clock.due[0])
    clock.counts[0] = 0
    clock.counts[1] = row
    if now == np.inf:
        return now
    if stepwise and arrives == now:
        clock.counts[2] = row + 1
        return now
    while next_end(schedule.ends) == now:
        done = schedule.ends.row[0]
        remove_first_end(schedule.ends)
        take_gpus(schedule, done)
        add_gpus(idle, schedule.nodes[schedule.offset[done] : schedule.offset[done + 1]], 1)
        schedule.end[done] = now
        schedule.done[0] += 1
        clock.finished[clock.counts[0]] = done
        clock.counts[0] += 1
        if stepwise:
            return now
    while row < n and work.submit[row] == now:
        row += 1
    clock.counts[2] = row
    return now


def round_after(time: float, length: float) -> float:
    """The first multiple of `length` at or after a time, as `replay.next_round` has it."""
    count = np.floor(time / length)
    while count * length < time:
        count += 1.0
    return float(count * length)


def is_time_to_plan(clock: Clock, now: float, eventful: bool, every: float) -> bool:
    """Whether a plan is made at this instant; if so, the plan sets the next wake-up."""
    eventful = eventful or clock.due[0] == now
    if every > 0 and eventful:
        clock.due[0] = min(clock.due[0] if clock.due[0] > now else np.inf, round_after(now, every))
        eventful = clock.due[0] <= now
    if eventful:
        clock.due[0] = np.inf
    return eventful
