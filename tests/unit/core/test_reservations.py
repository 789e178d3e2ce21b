"""Reservations: who may use their GPUs, before and while they last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuyard.core.events import Booked, Placed, Recalled, Started, Submitted, Unbooked
from gpuyard.core.model import Booking, Cluster, Request
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.reasons import Reservation, Resources
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold
from gpuyard.errors import UserError

TWO = Cluster((2,))
DEMO = Booked(0.0, Booking("demo", (0,), 1000.0, 2000.0, ("eve",)))


def submit(job: str, **wishes: object) -> Submitted:
    asked = replace(Request(estimate=10.0, user="ann", preemptible=False), **wishes)  # type: ignore[arg-type]
    return Submitted(0.0, job, asked)


def plan(state: State, now: float, discipline: str = "easy") -> Plan:
    return ordered(POLICIES["fcfs"], discipline).plan(Snapshot(state, now))


def starts(state: State, now: float, discipline: str = "easy") -> dict[str, tuple[int, ...]]:
    return {start.job: start.gpus for start in plan(state, now, discipline).starts}


@pytest.mark.parametrize("discipline", ["easy", "strict", "skip", "conservative"])
def test_who_is_sure_to_have_ended_may_start_before(discipline: str) -> None:
    state = fold(TWO, [DEMO, submit("a", limit=200.0), submit("b", limit=200.0)])
    assert starts(state, 800.0, discipline) == {"a": (0,), "b": (1,)}
    assert starts(state, 800.5, discipline) == {"a": (1,)}


def test_an_estimate_is_no_promise() -> None:
    state = fold(TWO, [DEMO, submit("a"), submit("b")])
    found = plan(state, 100.0, "skip")
    assert [(start.job, start.gpus) for start in found.starts] == [("a", (1,))]
    assert found.held == {"b": Reservation("demo", 1000.0, 2000.0, (0,), unlimited=True)}
    assert "reserved (demo)" in str(found.held["b"])


def test_while_it_lasts_only_some_may_start() -> None:
    state = fold(TWO, [DEMO, submit("a", limit=1.0), submit("b", limit=1.0), submit("c", user="eve")])
    assert starts(state, 1000.0, "skip") == {"a": (1,), "c": (0,)}
    assert starts(state, 1999.9, "skip") == {"a": (1,), "c": (0,)}
    assert starts(state, 2000.0, "skip") == {"a": (0,), "b": (1,)}


def test_one_for_nobody_keeps_all_out() -> None:
    state = fold(TWO, [Booked(0.0, Booking("repair", (0, 1), 1000.0, 2000.0)), submit("a", user="eve")])
    assert starts(state, 1500.0) == {}
    assert plan(state, 1500.0).wake_at == 2000.0
    apply(state, Unbooked(1500.0, "repair"))
    assert starts(state, 1500.0) == {"a": (0,)}


def test_plans_are_made_when_it_begins_and_ends() -> None:
    state = fold(TWO, [DEMO, submit("a", gpus=2)])
    assert plan(state, 10.0).wake_at == 1000.0
    assert plan(state, 1000.0).wake_at == 2000.0
    assert plan(fold(TWO, [DEMO]), 10.0).wake_at == 1000.0  # though nobody waits


def test_what_can_be_stopped_runs_until_it_has_to_go() -> None:
    state = fold(TWO, [DEMO, submit("a", preemptible=True, notice=30.0, scope=(0,))])
    assert starts(state, 970.1) == {}
    assert starts(state, 900.0) == {"a": (0,)}
    for event in (Placed(900.0, "a", 1, (0,)), Started(900.0, "a", 1)):
        apply(state, event)
    assert plan(state, 900.0).stops == []
    assert plan(state, 900.0).wake_at == 970.0
    assert plan(state, 970.0).stops == ["a"]
    apply(state, Recalled(970.0, "a", 1, "preempted"))
    assert plan(state, 980.0).stops == []


def test_what_cannot_be_stopped_is_never_stopped() -> None:
    state = fold(TWO, [submit("a"), Placed(1.0, "a", 1, (0,)), Started(1.0, "a", 1), DEMO])
    assert plan(state, 1500.0).stops == []


def test_a_job_that_does_not_fit_for_other_reasons_says_so() -> None:
    state = fold(TWO, [DEMO, submit("a", gpus=2), submit("b", gpus=2), Placed(0.0, "a", 1, (0, 1))])
    assert isinstance(plan(state, 10.0).held["b"], Resources)


def test_scopes_still_count() -> None:
    state = fold(TWO, [DEMO, submit("a", scope=(1,)), submit("b", scope=(0,), limit=5.0)])
    assert starts(state, 10.0) == {"a": (1,), "b": (0,)}


@pytest.mark.parametrize(("gpus", "end", "message"), [((), 2.0, "needs GPUs"), ((0,), 1.0, "must end after it begins")])
def test_a_reservation_must_make_sense(gpus: tuple[int, ...], end: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Booking("demo", gpus, 1.0, end)
