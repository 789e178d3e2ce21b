"""The state: one table of transitions, one way to change, and the columns that `apply` keeps."""

from __future__ import annotations

from itertools import product
from typing import get_args

import numpy as np
import pytest

from gpuyard.core.events import (
    Adapted,
    Cancelled,
    Charged,
    Chosen,
    Edited,
    Event,
    Exited,
    Granted,
    Held,
    JobEvent,
    Placed,
    Preempted,
    Promised,
    Recalled,
    Reclaimed,
    Rejected,
    Released,
    Renewed,
    Requeued,
    Returned,
    Spared,
    Started,
    Submitted,
    Unpromised,
)
from gpuyard.core.model import Cluster, Phase, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.state import State
from gpuyard.core.transitions import TRANSITIONS, apply, fold
from gpuyard.errors import Bug

TWO = Cluster((2,))
LIVES: dict[Phase | None, list[Event]] = {
    None: [],
    Phase.QUEUED: [Submitted(0.0, "a", Request(estimate=10.0))],
    Phase.HELD: [Submitted(0.0, "a", Request(estimate=10.0)), Held(1.0, "a")],
    Phase.PLACED: [Submitted(0.0, "a", Request(estimate=10.0)), Placed(1.0, "a", 1, (0,))],
    Phase.RUNNING: [Submitted(0.0, "a", Request(estimate=10.0)), Placed(1.0, "a", 1, (0,)), Started(1.0, "a", 1)],
    Phase.CANCELLED: [Submitted(0.0, "a", Request(estimate=10.0)), Cancelled(1.0, "a")],
    Phase.REJECTED: [Submitted(0.0, "a", Request(estimate=10.0)), Rejected(0.0, "a", "too large")],
}
LIVES[Phase.SUCCEEDED] = [*LIVES[Phase.RUNNING], Exited(2.0, "a", 1, 0)]
LIVES[Phase.FAILED] = [*LIVES[Phase.RUNNING], Exited(2.0, "a", 1, 3)]
for _phase in (Phase.TIMEOUT, Phase.OOM, Phase.INTERRUPTED):
    LIVES[_phase] = [*LIVES[Phase.RUNNING], Exited(2.0, "a", 1, None, cause=str(_phase))]
EVENTS: dict[type[JobEvent], JobEvent] = {
    type(event): event
    for event in (
        Submitted(3.0, "a", Request(estimate=10.0)), Rejected(3.0, "a", "too large"), Held(3.0, "a"),
        Released(3.0, "a"), Cancelled(3.0, "a"), Chosen(3.0, "a", 9.0), Placed(3.0, "a", 2, (1,)),
        Started(3.0, "a", 1), Renewed(3.0, "a", 1), Preempted(3.0, "a", 1), Exited(3.0, "a", 1),
        Requeued(3.0, "a", 1), Recalled(3.0, "a", 1, "cancelled"), Spared(3.0, "a", 1),
        Edited(3.0, "a", Request(estimate=20.0)),
        Promised(3.0, "a", (1,)), Unpromised(3.0, "a"), Charged(3.0, "a", 0.0), Granted(3.0, "a", 1, (1,)),
        Reclaimed(3.0, "a", 1, (1,)), Returned(3.0, "a", 1, (1,)), Adapted(3.0, "a", 1),
    )
}  # fmt: skip


def phase(state: State, job: str) -> Phase:
    return state.phase[state.row_of[job]]


def column(state: State, name: str, now: float, *jobs: str) -> list[float]:
    rows = np.array([state.row_of[job] for job in jobs], dtype=np.int64)
    return [float(value) for value in Snapshot(state, now).column(name, rows)]


def run(job: str, start: float, gpus: tuple[int, ...], attempt: int = 1, overhead: float = 0.0) -> list[Event]:
    return [Placed(start, job, attempt, gpus), Started(start, job, attempt, overhead)]


# -- the table -----------------------------------------------------------------------------------------


def test_every_phase_and_event_is_tried() -> None:
    assert set(LIVES) == {None, *Phase}
    assert set(EVENTS) == set(get_args(JobEvent))
    assert {kind for _, kind in TRANSITIONS} == set(EVENTS)


@pytest.mark.parametrize(("before", "kind"), sorted(TRANSITIONS, key=str))
def test_transitions(before: Phase | None, kind: type[JobEvent]) -> None:
    state = fold(TWO, LIVES[before])
    assert apply(state, EVENTS[kind]) is state
    assert phase(state, "a") is TRANSITIONS[before, kind]


LATE = set(
    product(
        (Phase.SUCCEEDED, Phase.FAILED, Phase.TIMEOUT, Phase.OOM, Phase.INTERRUPTED),
        (
            Started,
            Renewed,
            Preempted,
            Requeued,
            Recalled,
            Spared,
            Exited,
            Granted,
            Reclaimed,
            Returned,
            Adapted,
        ),
    )
)
"""Reports on the last attempt of a job that is done: its process may tell things twice."""


@pytest.mark.parametrize(("before", "kind"), sorted(LATE, key=str))
def test_reports_on_an_attempt_that_is_over_are_ignored(before: Phase, kind: type[JobEvent]) -> None:
    state = fold(TWO, LIVES[before])
    was = state.facts()
    assert apply(state, EVENTS[kind]).facts() == was


@pytest.mark.parametrize(
    ("before", "kind"), [pair for pair in product(LIVES, EVENTS) if pair not in TRANSITIONS and pair not in LATE]
)
def test_everything_else_is_a_bug(before: Phase | None, kind: type[JobEvent]) -> None:
    state = fold(TWO, LIVES[before])
    was = fold(TWO, LIVES[before]).facts()
    with pytest.raises(Bug, match=rf"job a: {kind.__name__} cannot happen to a job that is {before or 'unknown'}"):
        apply(state, EVENTS[kind])
    assert state.facts() == was


@pytest.mark.parametrize(("code", "after"), [(0, Phase.SUCCEEDED), (1, Phase.FAILED), (-9, Phase.FAILED)])
def test_exit_codes(code: int, after: Phase) -> None:
    assert phase(fold(TWO, [*LIVES[Phase.RUNNING], Exited(2.0, "a", 1, code)]), "a") is after


# -- attempts ------------------------------------------------------------------------------------------

SECOND: list[Event] = [*LIVES[Phase.RUNNING], Preempted(2.0, "a", 1), *run("a", 3.0, (1,), attempt=2)]


@pytest.mark.parametrize(
    "late",
    [Exited(4.0, "a", 1), Exited(4.0, "a", 1, 9), Preempted(4.0, "a", 1), Started(4.0, "a", 1), Renewed(4.0, "a", 1)],
)
def test_late_events_of_an_old_attempt_are_ignored(late: Event) -> None:
    state = fold(TWO, [*SECOND, late])
    assert state.facts() == fold(TWO, SECOND).facts()
    assert phase(state, "a") is Phase.RUNNING


# -- capacity --------------------------------------------------------------------------------------------


def test_gpus_are_taken_and_given_back() -> None:
    state = fold(TWO, LIVES[Phase.PLACED])
    assert (np.asarray(state.pool.idle).tolist(), np.asarray(state.pool.tenants).tolist()) == ([1], [1, 0])
    assert state.spot[0].tolist() == [0]
    apply(state, Preempted(2.0, "a", 1))
    assert (np.asarray(state.pool.idle).tolist(), np.asarray(state.pool.tenants).tolist()) == ([2], [0, 0])
    assert state.spot[0].tolist() == []


def test_who_waits_and_who_runs() -> None:
    state = fold(TWO, [Submitted(0.0, job, Request()) for job in "abcd"])
    assert state.waiting.array.tolist() == [0, 1, 2, 3]
    for event in run("b", 1.0, (0,)):
        apply(state, event)
    apply(state, Held(1.0, "c"))
    apply(state, Cancelled(1.0, "a"))
    assert (state.waiting.array.tolist(), state.running.array.tolist()) == ([3], [1])
    apply(state, Preempted(2.0, "b", 1))
    apply(state, Released(2.0, "c"))
    assert (state.waiting.array.tolist(), state.running.array.tolist()) == ([1, 2, 3], [])


@pytest.mark.parametrize(
    "leaves", [Placed(2.0, "a", 1, (0,)), Held(2.0, "a"), Cancelled(2.0, "a"), Rejected(2.0, "a", "no")]
)
def test_a_chosen_head_is_kept_until_it_leaves_the_queue(leaves: Event) -> None:
    state = fold(TWO, [*LIVES[Phase.QUEUED], Submitted(0.0, "b", Request()), Chosen(1.0, "a", 7.0)])
    assert (state.head, state.shadow) == (0, 7.0)
    apply(state, Cancelled(1.5, "b"))
    assert (state.head, state.shadow) == (0, 7.0)
    apply(state, leaves)
    assert (state.head, state.shadow) == (-1, np.inf)


def test_growth_beyond_the_initial_capacity() -> None:
    n = 1000
    events: list[Event] = [
        Submitted(float(i), str(i), Request(estimate=i + 1.0, scope=(i % 2,), user=f"u{i % 300}")) for i in range(n)
    ]
    state = fold(TWO, events)
    rows = np.arange(n)
    assert Snapshot(state, 0.0).column("estimate", rows).tolist() == [i + 1.0 for i in range(n)]
    assert state.waiting.array.tolist() == rows.tolist()
    assert state.table.demand.estimate[n - 1] == n  # what placements see has grown, too
    for event in run(str(n - 1), 1e4, (1,)):
        apply(state, event)
    assert state.running.array.tolist() == [n - 1]


# -- folding ---------------------------------------------------------------------------------------------


def test_folding_in_two_parts_is_folding_at_once() -> None:
    for cut in range(len(SECOND) + 1):
        state = fold(TWO, SECOND[:cut])
        for event in SECOND[cut:]:
            apply(state, event)
        assert state.facts() == fold(TWO, SECOND).facts()


def test_facts_tell_states_apart() -> None:
    seen = [str(fold(TWO, SECOND[:cut]).facts()) for cut in range(len(SECOND) + 1)]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("other", [Request(memory=5.0), Request(compute=50), Request(gpus=2), Request(user="ann")])
def test_facts_tell_requests_apart(other: Request) -> None:
    assert fold(TWO, [Submitted(0.0, "a", other)]).facts() != fold(TWO, [Submitted(0.0, "a", Request())]).facts()


def test_facts_do_not_change_afterwards() -> None:
    state = fold(TWO, LIVES[Phase.RUNNING])
    facts, text = state.facts(), str(state.facts())
    apply(state, Exited(2.0, "a", 1))
    apply(state, Submitted(3.0, "b", Request(user="ann")))
    assert str(facts) == text


def test_the_clock_does_not_go_back() -> None:
    state = fold(TWO, [Submitted(5.0, "a", Request()), Submitted(4.0, "b", Request())])
    assert state.now == 5.0


# -- weighted fair queueing --------------------------------------------------------------------------------


def submit(job: str, at: float, estimate: float, user: str = "", weight: float = 1.0) -> Submitted:
    return Submitted(at, job, Request(estimate=estimate, user=user, weight=weight))


def test_tags_of_the_seed() -> None:
    events = [submit("MM", 0, 3, weight=3), submit("DL", 0, 50, weight=5), submit("XGB", 0, 2, weight=7),
              submit("LSTM", 0, 30, weight=2)]  # fmt: skip
    tags = column(fold(TWO, events), "virtual_finish", 0.0, "MM", "DL", "XGB", "LSTM")
    assert tags == pytest.approx([1.0, 10.0, 2 / 7, 15.0])


def test_a_users_jobs_queue_behind_each_other() -> None:
    state = fold(TWO, [submit("a", 0, 10, "ann", 2), submit("b", 0, 10, "ann", 2), submit("c", 0, 8, "bob")])
    assert column(state, "virtual_finish", 0.0, "a", "b", "c") == [5.0, 10.0, 8.0]


def test_virtual_time_moves_with_what_runs() -> None:
    state = fold(TWO, [submit("a", 0, 10, "ann"), *run("a", 0.0, (0,)), Exited(10.0, "a", 1)])
    assert state.virtual_time == 10.0
    apply(state, submit("b", 11, 4, "bob"))  # bob was away: he gets no credit for that
    apply(state, submit("c", 11, 4, "ann"))
    assert column(state, "virtual_finish", 11.0, "b", "c") == [14.0, 14.0]


def test_a_rejected_job_does_not_count_against_its_user() -> None:
    state = fold(TWO, [submit("a", 0, 1e6, "ann"), Rejected(0.0, "a", "too large"), submit("b", 0, 5, "ann")])
    assert column(state, "virtual_finish", 0.0, "b") == [5.0]


def test_jobs_without_a_user_are_flows_of_their_own() -> None:
    state = fold(TWO, [submit("a", 0, 10), submit("b", 0, 10)])
    assert column(state, "virtual_finish", 0.0, "a", "b") == [10.0, 10.0]


# -- columns that change -------------------------------------------------------------------------------------


def test_usage_of_users() -> None:
    wide = Request(gpus=2, user="ann")
    events: list[Event] = [Submitted(0.0, "a", wide), Submitted(0.0, "b", Request(user="bob")), *run("a", 1.0, (0, 1))]
    state = fold(TWO, events)
    assert column(state, "user_usage", 4.0, "a", "b") == [6.0, 0.0]
    apply(state, Preempted(5.0, "a", 1))
    assert column(state, "user_usage", 9.0, "a", "b") == [8.0, 0.0]
    for event in [*run("b", 9.0, (0,)), Exited(12.0, "b", 1)]:
        apply(state, event)
    assert column(state, "user_usage", 20.0, "a", "b") == [8.0, 3.0]


def test_a_placed_job_uses_nothing_yet() -> None:
    state = fold(TWO, [Submitted(0.0, "a", Request(user="ann")), Placed(1.0, "a", 1, (0,))])
    assert column(state, "user_usage", 9.0, "a") == [0.0]
    assert column(state, "attained", 9.0, "a") == [0.0]


def test_waiting_time_leaves_out_time_on_gpus() -> None:
    state = fold(TWO, [Submitted(0.0, "a", Request(estimate=10.0))])
    assert column(state, "wait", 2.0, "a") == [2.0]
    for event in run("a", 3.0, (0,)):
        apply(state, event)
    assert column(state, "wait", 7.0, "a") == [3.0]
    apply(state, Preempted(8.0, "a", 1))
    assert column(state, "wait", 10.0, "a") == [5.0]
    for event in run("a", 11.0, (1,), attempt=2, overhead=2.0):
        apply(state, event)
    assert column(state, "wait", 12.0, "a") == [6.0]


def test_progress_leaves_out_the_cost_of_restarts() -> None:
    state = fold(
        TWO, [Submitted(0.0, "a", Request(gpus=2, estimate=10.0)), *run("a", 0.0, (0, 1)), Preempted(4.0, "a", 1)]
    )
    names = ("attained", "service", "remaining")
    assert [column(state, name, 5.0, "a")[0] for name in names] == [4.0, 8.0, 6.0]
    for event in run("a", 6.0, (0, 1), attempt=2, overhead=3.0):
        apply(state, event)
    assert [column(state, name, 8.0, "a")[0] for name in names] == [4.0, 8.0, 6.0]
    assert [column(state, name, 11.0, "a")[0] for name in names] == [6.0, 12.0, 4.0]
    apply(state, Preempted(11.0, "a", 2))
    for event in [*run("a", 12.0, (0, 1), attempt=3, overhead=3.0), Preempted(13.0, "a", 3)]:
        apply(state, event)  # stopped before it had even restored
    assert [column(state, name, 14.0, "a")[0] for name in names] == [6.0, 12.0, 4.0]


def test_remaining_is_never_negative() -> None:
    state = fold(TWO, [Submitted(0.0, "a", Request(estimate=5.0)), *run("a", 0.0, (0,))])
    assert column(state, "remaining", 9.0, "a") == [0.0]


def test_turns() -> None:
    """A turn is drawn at submission and at every start; a job goes to the end when it is requeued."""
    state = fold(TWO, [Submitted(0.0, job, Request()) for job in "ab"])
    assert column(state, "turn", 0.0, "a", "b") == sorted(column(state, "turn", 0.0, "a", "b"))
    for event in run("a", 0.0, (0,)):
        apply(state, event)
    a, b = column(state, "turn", 0.0, "a", "b")
    assert a > b
    apply(state, Submitted(1.0, "c", Request()))
    apply(state, Preempted(2.0, "a", 1))
    assert column(state, "turn", 2.0, "b", "a", "c") == sorted(column(state, "turn", 2.0, "b", "a", "c"))
    assert column(state, "requeued", 2.0, "b", "c", "a") == sorted(column(state, "requeued", 2.0, "b", "c", "a"))


def test_draws_change_with_every_start_only() -> None:
    state = fold(Cluster((2,)), [Submitted(0.0, job, Request()) for job in "abc"], seed=7)
    first = column(state, "draw", 0.0, "a", "b", "c")
    assert first == column(state, "draw", 99.0, "a", "b", "c")
    assert all(0 < value < 1 for value in first)
    assert len(set(first)) == 3
    for event in run("a", 1.0, (0,)):
        apply(state, event)
    assert column(state, "draw", 1.0, "a", "b", "c") != first
