"""The columns of the queue: what a policy may know of a job, and how often each changes.

A policy asks for columns by naming its parameters after them. Most are stored by row (`state.Table`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuyard.core.loops.formulas import behind_all, remaining, waited
from gpuyard.core.loops.pool import Floats, Ints, mix, salted
from gpuyard.core.queue_features import capacity, measure_queue, opening, shadow, shorter, suitable, usage_share
from gpuyard.core.state import State

NEVER, RUNNING, ALWAYS = "never", "while running", "at any time"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    changes: str  # when its values change: tells how often a queue must be ranked again
    doc: str
    values: Callable[[State, Ints, float], Floats]


def _stored(name: str, changes: str, doc: str) -> Column:
    return Column(name, changes, doc, lambda state, rows, now: getattr(state.table, name)[rows])


def _wait(state: State, rows: Ints, now: float) -> Floats:
    table = state.table
    so_far: Floats = waited(table.submit[rows], table.held_for[rows], table.started[rows], now)
    return so_far


def _remaining(state: State, rows: Ints, now: float) -> Floats:
    left: Floats = remaining(state.table.estimate[rows], state.table.attained(rows, now))
    return left


def _requeued(state: State, rows: Ints, now: float) -> Floats:
    # Were a running job stopped now, it would queue behind all others; several of them, in the order they started.
    table = state.table
    behind = behind_all(table.turn[rows], state.numbers)
    return np.where(table.started[rows] == np.inf, table.requeued[rows], behind)


def _user_usage(state: State, rows: Ints, now: float) -> Floats:
    return state.usage(now)[state.table.user[rows]]


def _draw(state: State, rows: Ints, now: float) -> Floats:
    # One number per job and round of the lottery; a round lasts until a job starts.
    return (mix(salted(state.seed, state.starts), rows).astype(np.float64) + 0.5) / 2.0**64


def _pooled(name: str, doc: str, number: Callable[[State, float], float]) -> Column:
    return Column(name, ALWAYS, doc, lambda state, rows, now: np.full(len(rows), float(number(state, now))))


COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        _stored("submit", NEVER, "when the job was submitted, in seconds on the trace's clock"),
        Column(
            "gpus", NEVER, "how many GPUs it wants",
            lambda state, rows, now: state.table.gpus[rows].astype(np.float64),
        ),
        _stored("estimate", NEVER, "how long it is expected to run, in seconds (never its true run time)"),
        _stored("priority", NEVER, "the user's priority; higher is more urgent"),
        _stored("weight", NEVER, "its weight in fair queueing"),
        _stored("tickets", NEVER, "its tickets in the lottery"),
        _stored("memory", NEVER, "bytes of memory wanted on each GPU; 0 if not said"),
        _stored("cpus", NEVER, "CPU cores wanted; 0 if not said, or not counted on this cluster"),
        _stored("host_memory", NEVER, "bytes of host memory wanted; 0 if not said, or not counted on this cluster"),
        _stored("compute", NEVER, "percent wanted of each GPU; 100 is all of it"),
        _stored("deadline", NEVER, "when it should be done; infinite if not said"),
        _stored("virtual_finish", NEVER, "its finish tag in weighted fair queueing"),
        _stored("turn", RUNNING, "a number drawn at submission and at every start or new slice; smaller is earlier"),
        Column(
            "requeued", RUNNING, "a number drawn at submission and at every preemption; a running job's comes last",
            _requeued,
        ),
        Column(
            "attained", RUNNING, "seconds of work done so far",
            lambda state, rows, now: state.table.attained(rows, now),
        ),
        Column(
            "service", RUNNING, "GPU-seconds of work done so far",
            lambda state, rows, now: state.table.attained(rows, now) * state.table.gpus[rows],
        ),
        Column("remaining", RUNNING, "estimate less attained, at least 0", _remaining),
        Column("wait", ALWAYS, "seconds spent waiting so far", _wait),
        Column("user_usage", ALWAYS, "GPU-seconds that the job's user has had so far", _user_usage),
        Column("draw", ALWAYS, "a seeded random number between 0 and 1, new after every start", _draw),
        Column("usage_share", ALWAYS, "the share of all GPU time so far that the job's user has had", usage_share),
        Column("opening", ALWAYS, "seconds until as many GPUs as it wants are expected to be idle; 0: now", opening),
        Column("suitable", ALWAYS, "idle GPUs that it may use: of a model that will do, or that it named", suitable),
        Column("shorter", ALWAYS, "the share of the queue that is expected to be shorter", shorter),
        _pooled("idle", "how many GPUs are idle", lambda state, now: measure_queue(state, now).idle),
        _pooled("hole", "idle GPUs of the node that has most of them", lambda state, now: measure_queue(state,
        now).hole),
        _pooled("queue", "how many jobs wait", lambda state, now: measure_queue(state, now).queue),
        _pooled(
            "queue_work", "GPU-seconds that all waiting jobs ask for, by their estimates",
            lambda state, now: measure_queue(state, now).work,
        ),
        _pooled("shadow", "seconds until the job that was submitted first could start", shadow),
        Column("capacity", NEVER, "how many GPUs the cluster has", capacity),
    )
}  # fmt: skip
