"""How the state changes: the one table of a job's transitions from phase to phase, and what each event does.

    (new)  --Submitted--> queued --Placed--> placed --Started--> running --Exited--> succeeded | failed
                           ^  |                                    |
                           |  |                                    |                | cancelled | timeout
                           |  +--Held/Released, Cancelled,         |                | oom | interrupted
                           |     Rejected, Chosen, Promised        |
                           +--------------Preempted, Requeued------+

`apply` is the only way a state changes, live and when a log is folded, so that a restart, a what-if and a
simulation cannot disagree. An event that the table does not know is a bug of the driver, and says so; a late event of
an earlier attempt is not: processes report when they like, and such a report is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from gpuyard.core.checkpoint import move_to
from gpuyard.core.events import (
    WAIT_AGAIN,
    Adapted,
    Booked,
    Cancelled,
    Charged,
    Chosen,
    ClockSet,
    Edited,
    Event,
    Exited,
    GpusDrained,
    GpusRestored,
    GpusResumed,
    GpusWithdrawn,
    Granted,
    HarmMeasured,
    Held,
    HostTaken,
    JobEvent,
    MemoryTaken,
    Opened,
    Placed,
    PolicySet,
    Preempted,
    Promised,
    Recalled,
    Reclaimed,
    Rejected,
    Released,
    Renewed,
    Requeued,
    Returned,
    RulesSet,
    Spared,
    Started,
    Submitted,
    Unbooked,
    Unpromised,
)
from gpuyard.core.limits.gates import dependency_begun, dependency_over, set_dependencies
from gpuyard.core.limits.loans import ask_back, lend, take_back, take_back_all
from gpuyard.core.limits.withdrawal import give_back, keep_for, keep_no_more, take, take_host, vacate, withdraw
from gpuyard.core.loops.placement import claim, release
from gpuyard.core.loops.pool import EMPTY, takes_any
from gpuyard.core.model import Cluster, Phase, Request
from gpuyard.core.state import State
from gpuyard.core.usage.charging import charge, keep_charge
from gpuyard.errors import Bug

MOST_HARMS = 10_000  # pairs of kinds of jobs whose harm is remembered
TRANSITIONS: dict[tuple[Phase | None, type[JobEvent]], Phase] = {
    (None, Submitted): Phase.QUEUED,
    (Phase.QUEUED, Edited): Phase.QUEUED,
    (Phase.HELD, Edited): Phase.HELD,
    (Phase.PLACED, Edited): Phase.PLACED,
    (Phase.RUNNING, Edited): Phase.RUNNING,
    (Phase.QUEUED, Rejected): Phase.REJECTED,
    (Phase.QUEUED, Held): Phase.HELD,
    (Phase.HELD, Released): Phase.QUEUED,
    (Phase.QUEUED, Cancelled): Phase.CANCELLED,
    (Phase.HELD, Cancelled): Phase.CANCELLED,
    (Phase.QUEUED, Charged): Phase.QUEUED,
    (Phase.HELD, Charged): Phase.HELD,
    (Phase.PLACED, Charged): Phase.PLACED,
    (Phase.RUNNING, Charged): Phase.RUNNING,
    (Phase.QUEUED, Chosen): Phase.QUEUED,
    (Phase.QUEUED, Promised): Phase.QUEUED,
    (Phase.QUEUED, Unpromised): Phase.QUEUED,
    (Phase.QUEUED, Placed): Phase.PLACED,
    (Phase.PLACED, Started): Phase.RUNNING,
    (Phase.PLACED, Preempted): Phase.QUEUED,
    (Phase.PLACED, Requeued): Phase.QUEUED,
    (Phase.PLACED, Recalled): Phase.PLACED,
    (Phase.PLACED, Spared): Phase.PLACED,
    (Phase.PLACED, Exited): Phase.SUCCEEDED,
    (Phase.RUNNING, Renewed): Phase.RUNNING,
    (Phase.RUNNING, Preempted): Phase.QUEUED,
    (Phase.RUNNING, Requeued): Phase.QUEUED,
    (Phase.RUNNING, Recalled): Phase.RUNNING,
    (Phase.RUNNING, Spared): Phase.RUNNING,
    (Phase.RUNNING, Granted): Phase.RUNNING,
    (Phase.RUNNING, Reclaimed): Phase.RUNNING,
    (Phase.RUNNING, Returned): Phase.RUNNING,
    (Phase.RUNNING, Adapted): Phase.RUNNING,
    (Phase.RUNNING, Exited): Phase.SUCCEEDED,
}
"""Exited leads to SUCCEEDED with code 0, to FAILED with any other, and to what its cause says where it has one."""


def apply(state: State, event: Event) -> State:
    kind = type(event)
    if kind in _CLUSTER_EFFECTS:
        _CLUSTER_EFFECTS[kind](state, event)
        state.version += 1
        state.now = max(state.now, event.at)
        return state
    event = cast(JobEvent, event)
    row = state.row_of.get(event.job, -1)
    before = state.phase[row] if row >= 0 else None
    after = TRANSITIONS.get((before, kind))  # type: ignore[arg-type]
    attempt = getattr(event, "attempt", None)
    if before is not None and attempt is not None:
        current = state.attempt[row]
        if kind is Placed:
            after = after if attempt > current else None
        elif attempt < current or (attempt == current and before not in (Phase.PLACED, Phase.RUNNING)):
            return state  # a late report on an attempt that is over
        elif attempt > current:
            after = None
    if after is None:
        raise Bug(f"job {event.job}: {kind.__name__} cannot happen to a job that is {before or 'unknown'}: {event}")
    if before is None:
        row = len(state.ids)
    waited = tuple(state.after.get(row, ()))  # it forgets that when it leaves the queue
    _EFFECTS[kind](state, row, event)
    if isinstance(event, Exited) and (event.cause or event.code != 0):
        after = Phase(event.cause) if event.cause else Phase.FAILED
    state.phase[row] = after
    if after.over:
        state.charges.pop(row, None)
        state.parts.pop(row, None)
        state.patient.discard(row)
        if state.after:
            dependency_over(state, event.job, after, waited)
    state.version += 1
    state.now = max(state.now, event.at)
    return state


def fold(cluster: Cluster, events: Iterable[Event], seed: int = 0) -> State:
    state = State(cluster, seed)
    for event in events:
        apply(state, event)
    return state


def _submitted(state: State, row: int, event: Submitted) -> None:
    request = event.request
    user = _user(state, request)
    state.table.add(event.at, request, user)
    _note_request(state, row, request)
    state.ids.append(event.job)
    state.row_of[event.job] = row
    state.phase.append(Phase.QUEUED)
    state.attempt.append(0)
    state.spot.append(EMPTY)
    state.waiting.add(row)
    table = state.table
    table.turn[row] = table.requeued[row] = state.next_number()
    # Weighted fair queueing: a flow is a user, or the job itself where no user is known.
    last = state.last_finish[user] if request.user else 0.0
    table.virtual_start[row] = max(state.virtual_time, last)
    table.virtual_finish[row] = table.virtual_start[row] + request.estimate / request.weight
    if request.user and request.estimate < np.inf:  # an endless job must not hold its user back for ever
        state.last_finish[user] = float(table.virtual_finish[row])


def _user(state: State, request: Request) -> int:
    user = state.user_of.setdefault(request.user, len(state.user_of))
    if user == len(state.used):
        state.used.append(0.0)
        state.last_finish.append(0.0)
        state.group_of.append("")
        state.ledger.grow(len(state.used))
    if request.group:
        state.group_of[user] = request.group
    return user


def _note_request(state: State, row: int, request: Request) -> None:
    state.shares = state.shares or not takes_any(state.table.demand, row)
    state.latest_begin = max(state.latest_begin, request.begin)
    if request.parts:
        state.parts[row] = request.parts
        state.shares = True  # bins are GPUs, so that parts can be told apart
    else:
        state.parts.pop(row, None)
    (state.patient.add if request.patient else state.patient.discard)(row)
    if request.array:
        number = state.table.array[row] = state.arrays.setdefault(request.array, len(state.arrays))
        if request.at_most:
            state.at_most[number] = request.at_most
        else:
            state.at_most.pop(number, None)
    state.table.kind[row] = state.kinds.setdefault(request.kind, len(state.kinds))
    set_dependencies(state, row, request.after)


def _edited(state: State, row: int, event: Edited) -> None:
    table, request = state.table, event.request
    if len(state.spot[row]) and (table.gpus[row], table.memory[row]) != (request.gpus, request.memory):
        raise Bug(f"job {event.job} holds GPUs, so how many and how much of them cannot change")
    loose = _may_be_stopped(state, row)
    scope = int(table.scope[row])
    table.put(row, request)
    keep_charge(state, row)
    if len(state.spot[row]):
        table.scope[row] = scope
    state.fixed += bool(len(state.spot[row])) * (loose - _may_be_stopped(state, row))
    _note_request(state, row, request)


def _rejected(state: State, row: int, event: Rejected) -> None:
    _left_queue(state, row, event)
    # A job that never runs must not push its user's later jobs back.
    user = state.table.user[row]
    if state.last_finish[user] == state.table.virtual_finish[row]:
        state.last_finish[user] = float(state.table.virtual_start[row])


def _left_queue(state: State, row: int, event: JobEvent) -> None:
    if state.phase[row] is Phase.QUEUED:
        state.waiting.remove(row)
        keep_no_more(state, row)
    if not isinstance(event, Held):
        state.after.pop(row, None)
        state.handed.pop(row, None)
        state.doomed.pop(row, None)
    if state.head == row:
        state.head, state.shadow = -1, np.inf


def _chosen(state: State, row: int, event: Chosen) -> None:
    state.head, state.shadow = row, event.shadow


def _promised(state: State, row: int, event: Promised) -> None:
    keep_for(state, row, event.gpus)
    if state.head == row:  # it has its GPUs: others may look for theirs
        state.head, state.shadow = -1, np.inf


def _may_be_stopped(state: State, row: int) -> bool:
    """Whether a running job may be preempted: preemptible, started, and not told to end."""
    table = state.table
    return bool(table.preemptible[row]) and float(table.started[row]) < np.inf and row not in state.recalled


def _placed(state: State, row: int, event: Placed) -> None:
    _left_queue(state, row, event)
    if state.lent and not state.lent.keys().isdisjoint(event.gpus):
        raise Bug(f"job {event.job} was placed on {event.gpus}, of which some are lent to others: {state.lent}")
    spot = np.array(event.gpus, dtype=np.int64)
    claim(state.site(), row, spot)
    state.spot[row] = spot
    state.occupant[spot] = row
    state.attempt[row] = event.attempt
    if event.rule:
        state.admitted[row] = event.rule
    state.running.add(row)
    state.fixed += 1
    state.starts += 1
    state.table.turn[row] = state.next_number()
    state.virtual_time = max(state.virtual_time, float(state.table.virtual_start[row]))


def _started(state: State, row: int, event: Started) -> None:
    state.table.started[row] = state.table.slice_started[row] = event.at
    state.table.overhead[row] = event.overhead
    state.fixed -= _may_be_stopped(state, row)
    if state.after:
        dependency_begun(state, event.job)


def _renewed(state: State, row: int, event: Renewed) -> None:
    state.table.slice_started[row] = event.at
    state.table.turn[row] = state.next_number()


def _stopped(state: State, row: int, at: float) -> None:
    table = state.table
    release(state.site(), row, state.spot[row])
    if table.compute[row] >= 100:
        vacate(state, state.spot[row])
    state.occupant[state.spot[row]] = -1
    state.spot[row] = EMPTY
    state.running.remove(row)
    started = float(table.started[row])
    state.fixed -= not _may_be_stopped(state, row)
    if started < np.inf:
        table.progress[row] += max(at - started - float(table.overhead[row]), 0.0)
        table.held_for[row] += at - started
        state.used[table.user[row]] += (at - started) * float(table.gpus[row])
        if state.rules is not None:
            state.ledger.book(int(table.user[row]), float(table.gpus[row]), started, at, state.rules.half_life)
    table.started[row] = np.inf
    state.recalled.pop(row, None)
    state.admitted.pop(row, None)
    if state.lent:
        take_back_all(state, state.ids[row])


def _requeued(state: State, row: int, event: Requeued) -> None:
    progress = float(state.table.progress[row])
    _preempted(state, row, event)
    state.table.progress[row] = progress  # what was done is lost
    state.table.begin[row] = max(event.begin, float(state.table.begin[row]))
    state.latest_begin = max(state.latest_begin, event.begin)


def _recalled(state: State, row: int, event: Recalled) -> None:
    state.fixed += _may_be_stopped(state, row)
    if state.recalled.get(row, "preempted") in WAIT_AGAIN:  # a job that is to end for good does not wait again
        state.recalled[row] = event.cause


def _spared(state: State, row: int, event: Spared) -> None:
    if state.recalled.pop(row, None) is not None:
        state.fixed -= _may_be_stopped(state, row)


def _preempted(state: State, row: int, event: Preempted | Requeued) -> None:
    _stopped(state, row, event.at)
    state.table.requeued[row] = state.next_number()
    state.waiting.add(row)


def _exited(state: State, row: int, event: Exited) -> None:
    _stopped(state, row, event.at)
    if state.table.virtual_finish[row] < np.inf:
        state.virtual_time = max(state.virtual_time, float(state.table.virtual_finish[row]))


def _opened(state: State, event: Opened) -> None:
    if event.cluster != state.cluster:
        move_to(state, event.cluster)
    take(state, (), 0.0)  # what is taken is for the new driver to say


def _policy_set(state: State, event: PolicySet) -> None:
    state.head, state.shadow = -1, np.inf  # the head was the former policy's choice


def _gpus_withdrawn(state: State, event: GpusWithdrawn) -> None:
    for gpu in event.gpus:
        if gpu in state.withdrawn:
            give_back(state.pool, gpu, state.withdrawn[gpu])
        withdraw(state.pool, gpu, event.cause)
        state.withdrawn[gpu] = event.cause


def _gpus_drained(state: State, event: GpusDrained) -> None:
    for gpu in set(event.gpus) - state.drained:
        withdraw(state.pool, gpu)
    state.drained = state.drained | set(event.gpus)  # a new one: other threads may be reading the former


def _gpus_resumed(state: State, event: GpusResumed) -> None:
    for gpu in state.drained & set(event.gpus):
        give_back(state.pool, gpu)
    state.drained = state.drained - set(event.gpus)


def _booked(state: State, event: Booked) -> None:
    state.bookings = {name: b for name, b in state.bookings.items() if b.end > event.at}  # the past needs no keeping
    state.bookings[event.booking.name] = event.booking


def _rules_set(state: State, event: RulesSet) -> None:
    if state.rules is None:
        state.ledger.grow(len(state.used))
        state.ledger.at = event.at
        state.ledger.faded = list(state.used)
    else:
        state.ledger.fade(state.rules.half_life, event.at)
    state.rules = event.rules


def _clock_set(state: State, event: ClockSet) -> None:
    for times in (state.table.started, state.table.slice_started):
        times[state.running.array] += event.by
    state.table.submit[: state.table.size] += event.by


def _harm_measured(state: State, event: HarmMeasured) -> None:
    pair = event.sufferer, event.beside
    state.harms.pop(pair, None)
    state.harms[pair] = event.slowdown
    if len(state.harms) > MOST_HARMS:  # what was measured longest ago
        del state.harms[next(iter(state.harms))]


def _gpus_restored(state: State, event: GpusRestored) -> None:
    for gpu in event.gpus:
        if (cause := state.withdrawn.pop(gpu, None)) is not None:
            give_back(state.pool, gpu, cause)


def _memory_taken(state: State, event: MemoryTaken) -> None:
    if len(event.taken) != state.cluster.gpus:
        raise Bug(f"memory is taken of {len(event.taken)} GPUs, and there are {state.cluster.gpus}")
    take(state, event.taken, event.buffer)


_CLUSTER_EFFECTS: dict[type[Event], Callable[[State, Any], object]] = {
    Opened: _opened,
    PolicySet: _policy_set,
    GpusWithdrawn: _gpus_withdrawn,
    GpusRestored: _gpus_restored,
    MemoryTaken: _memory_taken,
    HostTaken: lambda state, event: take_host(state, event.node, event.cpus, event.memory),
    GpusDrained: _gpus_drained,
    GpusResumed: _gpus_resumed,
    Booked: _booked,
    Unbooked: lambda state, event: state.bookings.pop(event.name, None),
    RulesSet: _rules_set,
    HarmMeasured: _harm_measured,
    ClockSet: _clock_set,
}

_EFFECTS: dict[type[Event], Callable[[State, int, Any], None]] = {
    Submitted: _submitted,
    Edited: _edited,
    Rejected: _rejected,
    Held: _left_queue,
    Released: lambda state, row, event: state.waiting.add(row),
    Cancelled: _left_queue,
    Chosen: _chosen,
    Promised: _promised,
    Unpromised: lambda state, row, event: keep_no_more(state, row),
    Charged: charge,
    Placed: _placed,
    Started: _started,
    Renewed: _renewed,
    Preempted: _preempted,
    Requeued: _requeued,
    Recalled: _recalled,
    Spared: _spared,
    Granted: lend,
    Reclaimed: ask_back,
    Returned: take_back,
    Adapted: lambda state, row, event: None,
    Exited: _exited,
}
