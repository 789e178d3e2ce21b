"""GPUs on loan: plans do not see them, nobody is placed on them, and whoever needs one gets it in the end."""

from __future__ import annotations

import json

import pytest

from gpuyard.core.checkpoint import compact, dump, load
from gpuyard.core.engine import validate
from gpuyard.core.events import (
    Booked,
    Edited,
    Event,
    Exited,
    GpusDrained,
    GpusWithdrawn,
    Granted,
    Placed,
    Preempted,
    Promised,
    Reclaimed,
    Requeued,
    Returned,
    RulesSet,
    Started,
    Submitted,
)
from gpuyard.core.limits.loans import avoid, idle, loans, unwelcome, within_quota
from gpuyard.core.limits.withdrawal import split_promised, standing_promises
from gpuyard.core.model import Booking, Cluster, Quota, Request, Rules
from gpuyard.core.plan import Plan, Snapshot, Start
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold
from gpuyard.errors import Bug
from gpuyard.policies.resolver import make_planner

TWO, FOUR = Cluster((2,)), Cluster((4,))
ANY = Request(estimate=60.0, user="ann", preemptible=False)
POLICIES = (
    "fcfs@strict", "fcfs@easy", "sjf@easy", "multifactor@easy@pack", "priority@conservative", "fair@strict@spread",
    "srtf", "rr", "las",
)  # fmt: skip


def lent(cluster: Cluster = TWO, *more: Event, request: Request = ANY) -> State:
    """Job `a` on GPU 0, with the last GPU on loan."""
    last = cluster.gpus - 1
    events: list[Event] = [Submitted(0.0, "a", request), Placed(0.0, "a", 1, (0,)), Started(0.0, "a", 1)]
    return fold(cluster, [*events, Granted(1.0, "a", 1, (last,)), *more])


def planned(state: State, policy: str = "fcfs@strict", now: float = 3.0) -> Plan:
    plan = make_planner(policy).plan(Snapshot(state, now))
    avoid(state, plan, now)
    validate(state, plan)
    return plan


@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_waits_is_promised_a_gpu_on_loan_under_every_policy(policy: str) -> None:
    state = lent(TWO, Submitted(2.0, "b", ANY))
    plan = planned(state, policy)
    assert (plan.starts, plan.stops) == ([Start("b", (1,))], [])
    now, later = split_promised(state, plan)
    assert (now, later) == ([], plan.starts)
    apply(state, Promised(3.0, "b", (1,)))
    assert standing_promises(state) == ([], []), "it is neither free nor lost"
    apply(state, Reclaimed(3.0, "a", 1, (1,)))
    assert standing_promises(state) == ([], [])
    apply(state, Returned(4.0, "a", 1, (1,)))
    assert standing_promises(state).due == [state.row_of["b"]]
    apply(state, Placed(4.0, "b", 1, (1,)))
    assert not state.lent


def test_nobody_is_placed_on_a_gpu_on_loan() -> None:
    state = lent(TWO, Submitted(2.0, "b", ANY))
    with pytest.raises(Bug, match="of which some are lent"):
        apply(state, Placed(3.0, "b", 1, (1,)))


def test_only_what_is_idle_is_lent() -> None:
    state = lent(TWO)
    for gpu in (0, 1):  # its own, and one that it has already
        with pytest.raises(Bug, match="not idle"):
            apply(state, Granted(2.0, "a", 1, (gpu,)))


@pytest.mark.parametrize("end", [Exited(5.0, "a", 1), Preempted(5.0, "a", 1), Requeued(5.0, "a", 1)])
def test_loans_end_with_their_job(end: Event) -> None:
    state = lent(TWO, Reclaimed(2.0, "a", 1, (1,)), end)
    assert (state.lent, state.reclaimed) == ({}, frozenset())
    assert state.pool.tenants.tolist() == [0, 0]


def test_a_restart_knows_of_loans() -> None:
    state = lent(FOUR, Submitted(2.0, "x", ANY), Reclaimed(2.0, "a", 1, (3,)))
    again = load(FOUR, json.loads(json.dumps(dump(state))))
    assert (again.lent, again.reclaimed) == ({3: "a"}, frozenset({3})) == (state.lent, state.reclaimed)
    compact(state)
    assert loans(state, "a") == [3]
    former = dump(state)
    del former["lent"]  # as a version wrote it that knew of no loans
    assert load(FOUR, former).lent == {}


def test_others_gpus_are_taken_before_one_on_loan() -> None:
    begun: list[Event] = [Submitted(0.0, "a", ANY), Placed(0.0, "a", 1, (0,)), Started(0.0, "a", 1)]
    begun.append(Granted(1.0, "a", 1, (1,)))
    state = fold(FOUR, [*begun, Submitted(2.0, "b", ANY), Submitted(2.0, "c", ANY)])
    assert planned(state).starts == [Start("b", (3,)), Start("c", (2,))], "nobody has to leave"
    only = fold(FOUR, [*begun, Submitted(2.0, "b", Request(estimate=9.0, scope=(1,)))])
    assert planned(only).starts == [Start("b", (1,))], "it wants no other"
    reserved = Booked(1.0, Booking("demo", (2, 3), 0.0, 99.0, ("bob",)))
    kept = fold(FOUR, [*begun, reserved, Submitted(2.0, "b", ANY)])
    assert planned(kept).starts == [Start("b", (1,))], "the others are not for it"


def test_what_may_be_lent() -> None:
    alone: list[Event] = [Submitted(0.0, "a", ANY), Placed(0.0, "a", 1, (0,)), Started(0.0, "a", 1)]
    state = fold(FOUR, [*alone, GpusDrained(1.0, (1,)), Booked(1.0, Booking("demo", (2,), 100.0, 200.0, ("bob",)))])
    row = state.row_of["a"]
    assert idle(state, row, 1.0, 20.0) == [2, 3]
    assert idle(state, row, 90.0, 20.0) == [3], "others need GPU 2 soon"
    assert idle(state, row, 250.0, 20.0) == [2, 3]
    scoped = fold(FOUR, [Submitted(0.0, "a", Request(estimate=1.0, scope=(0, 2))), *alone[1:]])
    assert idle(scoped, scoped.row_of["a"], 1.0, 20.0) == [2]


def test_what_has_to_be_given_back_though_nobody_waits() -> None:
    assert unwelcome(lent(TWO), 2.0) == []
    assert unwelcome(lent(TWO, GpusDrained(2.0, (1,))), 2.0) == [1]
    assert unwelcome(lent(TWO, GpusWithdrawn(2.0, (1,), "foreign")), 2.0) == [1]
    booked = lent(TWO, Booked(2.0, Booking("demo", (1,), 5.0, 9.0, ("bob",))))
    assert [unwelcome(booked, at) for at in (4.0, 5.0, 9.0)] == [[], [1], []]
    assert unwelcome(lent(TWO, Booked(2.0, Booking("own", (1,), 1.0, 9.0, ("ann",)))), 5.0) == []


@pytest.mark.parametrize(("most", "may"), [(1, False), (2, False), (3, True), (0, True)])
def test_loans_count_against_quotas(most: int, may: bool) -> None:
    rules = Rules(quotas=(("ann", Quota(most)),)) if most else Rules()
    state = lent(FOUR, RulesSet(2.0, rules))
    assert within_quota(state, state.row_of["a"], 3.0) is may


def test_loans_cost_their_user_nothing() -> None:
    state = lent(TWO, RulesSet(1.0, Rules()), Exited(11.0, "a", 1))
    assert state.used[state.user_of["ann"]] == 11.0, "of its own GPU"


def test_an_edit_leaves_loans_alone() -> None:
    state = lent(TWO, Edited(2.0, "a", Request(estimate=90.0, user="ann", limit=100.0, preemptible=False)))
    assert state.lent == {1: "a"}
