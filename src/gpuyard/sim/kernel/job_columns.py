"""What policies may know of the jobs during a simulation: the columns of `core.columns`, for compiled policies.

Loops in numba's subset; the arithmetic is that of `core.loops.formulas`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuyard.core.loops.formulas import attained, behind_all, remaining, waited
from gpuyard.core.loops.pool import Flags, Floats, Ints, mix, salted

Rank = Callable[[Floats, int, Floats], None]
"""A compiled policy: columns, how many rows, and where to write their numbers."""

ASKED = (
    "submit", "estimate", "weight", "gpus", "priority", "tickets", "memory", "compute", "deadline", "cpus",
    "host_memory",
)  # fmt: skip
COLUMN_CODES = {
    name: code
    for code, name in enumerate(
        (
            *ASKED, "virtual_finish", "turn", "requeued", "attained", "service", "remaining", "wait", "user_usage",
            "draw",
        )
    )
}  # fmt: skip
"""The columns that a compiled policy may ask for: all of them."""
SUBMIT, ESTIMATE, WEIGHT = range(3)
VIRTUAL_FINISH, TURN, REQUEUED, ATTAINED, SERVICE, REMAINING, WAIT, USER_USAGE, DRAW = range(11, 20)


class JobColumns(NamedTuple):
    """By row, what `core.columns.Table` stores; by user, what `core.state.State` keeps; and some single numbers."""

    asked: Floats  # what jobs ask for, which never changes: a line for each column of ASKED
    virtual_start: Floats
    virtual_finish: Floats
    turn: Floats
    requeued: Floats
    progress: Floats
    started: Floats
    overhead: Floats
    slice_started: Floats
    held_for: Floats
    gpus: Ints
    user: Ints
    preemptible: Flags
    named: Flags  # of users: whether the trace names this one
    usage: Floats
    last_finish: Floats
    numbers: Ints  # how many numbers jobs have drawn to take turns by; how often a job was started; the seed
    virtual_time: Floats


def note_submitted(facts: JobColumns, row: int) -> None:
    facts.numbers[0] += 1
    facts.turn[row] = facts.requeued[row] = facts.numbers[0]
    user = facts.user[row]
    last = facts.last_finish[user] if facts.named[user] else 0.0
    facts.virtual_start[row] = max(facts.virtual_time[0], last)
    estimate = facts.asked[ESTIMATE, row]
    facts.virtual_finish[row] = facts.virtual_start[row] + estimate / facts.asked[WEIGHT, row]
    if facts.named[user] and estimate < np.inf:
        facts.last_finish[user] = facts.virtual_finish[row]


def note_started(facts: JobColumns, row: int, now: float, overhead: float) -> None:
    facts.numbers[1] += 1
    facts.numbers[0] += 1
    facts.turn[row] = facts.numbers[0]
    facts.virtual_time[0] = max(facts.virtual_time[0], facts.virtual_start[row])
    facts.started[row] = facts.slice_started[row] = now
    facts.overhead[row] = overhead


def note_stopped(facts: JobColumns, row: int, now: float) -> None:
    started = facts.started[row]
    facts.progress[row] += max(now - started - facts.overhead[row], 0.0)
    facts.held_for[row] += now - started
    facts.usage[facts.user[row]] += (now - started) * facts.gpus[row]
    facts.started[row] = np.inf


def note_preempted(facts: JobColumns, row: int, now: float) -> None:
    note_stopped(facts, row, now)
    facts.numbers[0] += 1
    facts.requeued[row] = facts.numbers[0]


def note_finished(facts: JobColumns, row: int, now: float) -> None:
    note_stopped(facts, row, now)
    if facts.virtual_finish[row] < np.inf:
        facts.virtual_time[0] = max(facts.virtual_time[0], facts.virtual_finish[row])


def note_renewed(facts: JobColumns, row: int, now: float) -> None:
    facts.slice_started[row] = now
    facts.numbers[0] += 1
    facts.turn[row] = facts.numbers[0]


def usage_now(facts: JobColumns, running: Ints, now: float, usage: Floats) -> None:
    """GPU-seconds that each user has had up to now; running rows ascend."""
    usage_into(facts, running, now, np.zeros(len(usage)), usage)


def usage_into(facts: JobColumns, running: Ints, now: float, held: Floats, usage: Floats) -> None:
    """`usage_now`, with an array for what running jobs have had."""
    for user in range(len(usage)):
        held[user] = 0.0
    for row in running:
        held[facts.user[row]] += max(now - facts.started[row], 0.0) * facts.gpus[row]
    for user in range(len(usage)):
        usage[user] = facts.usage[user] + held[user]


def gather(facts: JobColumns, columns: Ints, rows: Ints, now: float, usage: Floats, values: Floats) -> None:
    for c in range(len(columns)):
        _gather_one(facts, columns[c], rows, now, usage, values[c])


def _gather_one(facts: JobColumns, column: int, rows: Ints, now: float, usage: Floats, out: Floats) -> None:
    if column < VIRTUAL_FINISH:
        _take(facts.asked[column], rows, out)
    elif column == VIRTUAL_FINISH:
        _take(facts.virtual_finish, rows, out)
    elif column == TURN:
        _take(facts.turn, rows, out)
    elif column == DRAW:
        _draw(facts, rows, out)
    elif column >= ATTAINED and column <= REMAINING:
        _gather_work(facts, column, rows, now, out)
    else:
        for i in range(len(rows)):
            out[i] = _changing(facts, column, rows[i], now, usage)


def _take(source: Floats, rows: Ints, out: Floats) -> None:
    for i in range(len(rows)):
        out[i] = source[rows[i]]


def _changing(facts: JobColumns, column: int, row: int, now: float, usage: Floats) -> float:
    if column == WAIT:
        return float(waited(facts.asked[SUBMIT, row], facts.held_for[row], facts.started[row], now))
    if column == USER_USAGE:
        return float(usage[facts.user[row]])
    if column == REQUEUED:
        if facts.started[row] == np.inf:
            return float(facts.requeued[row])
        return float(behind_all(facts.turn[row], float(facts.numbers[0])))
    return np.nan


def _gather_work(facts: JobColumns, column: int, rows: Ints, now: float, out: Floats) -> None:
    for i in range(len(rows)):
        row = rows[i]
        out[i] = attained(facts.progress[row], facts.started[row], facts.overhead[row], now)
    if column == SERVICE:
        for i in range(len(rows)):
            out[i] *= facts.gpus[rows[i]]
    elif column == REMAINING:
        for i in range(len(rows)):
            out[i] = remaining(facts.asked[ESTIMATE, rows[i]], out[i])


def _draw(facts: JobColumns, rows: Ints, out: Floats) -> None:
    out[: len(rows)] = (mix(salted(facts.numbers[2], facts.numbers[1]), rows).astype(np.float64) + 0.5) / 2.0**64
