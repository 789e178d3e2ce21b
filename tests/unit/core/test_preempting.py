"""Stopping jobs for others takes time: promises, who must give way to whom, and what a restart makes of both."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.checkpoint import dump, load
from gpuyard.core.engine import BadPlan, validate
from gpuyard.core.events import (
    Cancelled,
    Chosen,
    Edited,
    Event,
    Exited,
    GpusDrained,
    GpusResumed,
    GpusWithdrawn,
    Held,
    Placed,
    Preempted,
    Promised,
    Recalled,
    RulesSet,
    Started,
    Submitted,
    Unpromised,
)
from gpuyard.core.limits.withdrawal import StandingPromises, in_place_of, split_promised, standing_promises
from gpuyard.core.model import GIB, Cluster, Phase, Request, Rules
from gpuyard.core.plan import Plan, Snapshot, Start
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold
from gpuyard.policies.resolver import make_planner

TWO, THREE, FOUR = Cluster((2,)), Cluster((3,)), Cluster((4,))
RULES = Rules()


def soft(**more: object) -> Request:
    """A job that may be stopped."""
    return Request(**{"estimate": 60.0, **more})  # type: ignore[arg-type]


def firm(**more: object) -> Request:
    """A job that may not."""
    return soft(preemptible=False, **more)


def running(job: str, gpus: tuple[int, ...], request: Request, at: float = 0.0) -> list[Event]:
    return [Submitted(at, job, request), Placed(at, job, 1, gpus), Started(at, job, 1)]


def yard(cluster: Cluster, *parts: Iterable[Event], rules: Rules | None = RULES) -> State:
    first: list[Event] = [RulesSet(0.0, rules)] if rules is not None else []
    return fold(cluster, [*first, *(event for part in parts for event in part)])


def plan_of(state: State, policy: str = "priority@easy", now: float = 10.0) -> Plan:
    plan = make_planner(policy).plan(Snapshot(state, now))
    validate(state, plan)
    missing = {state.ids[row] for row in state.waiting.array} - {start.job for start in plan.starts}
    assert plan.held.keys() == missing
    return plan


def decided(state: State, policy: str = "priority@easy", now: float = 10.0) -> tuple[list[str], list[Start]]:
    plan = plan_of(state, policy, now)
    return plan.stops, plan.starts


# -- promises ------------------------------------------------------------------------------------------


def stopping() -> State:
    """Two GPUs: `low` leaves 0 and 1 for `wide`, `next` waits."""
    return yard(
        TWO,
        running("low", (0, 1), soft(gpus=2)),
        [Submitted(1.0, "wide", firm(gpus=2, priority=5)), Submitted(2.0, "next", firm())],
        [Recalled(3.0, "low", 1, "preempted"), Promised(3.0, "wide", (0, 1))],
    )


def test_a_promise_is_kept_when_the_others_have_left() -> None:
    state = stopping()
    wide = state.row_of["wide"]
    assert standing_promises(state) == StandingPromises([], [])
    assert in_place_of(state, state.row_of["low"]) == [wide]
    assert decided(state) == ([], [])
    apply(state, Preempted(4.0, "low", 1))
    assert standing_promises(state) == StandingPromises([wide], [])
    assert decided(state) == ([], [])  # nobody else gets them
    apply(state, Placed(5.0, "wide", 1, (0, 1)))
    assert (state.promises, standing_promises(state)) == ({}, StandingPromises([], []))
    apply(state, Exited(6.0, "wide", 1))
    assert state.pool.tenants.tolist() == [0, 0]
    assert [start.job for start in decided(state, "fcfs@skip")[1]] == ["low"]


@pytest.mark.parametrize(
    "event",
    [
        GpusWithdrawn(4.0, (1,), "foreign"),
        GpusDrained(4.0, (0,)),
        Edited(4.0, "wide", firm(gpus=1, priority=5)),
        Edited(4.0, "wide", firm(gpus=2, priority=5, scope=(0,))),
    ],
)
def test_a_promise_that_cannot_be_kept(event: Event) -> None:
    state = stopping()
    apply(state, event)
    assert standing_promises(state) == StandingPromises([], [state.row_of["wide"]])
    apply(state, Preempted(5.0, "low", 1))
    assert standing_promises(state) == StandingPromises([], [state.row_of["wide"]])
    apply(state, Unpromised(6.0, "wide"))
    assert standing_promises(state) == StandingPromises([], [])


@pytest.mark.parametrize("event", [Held(4.0, "wide"), Cancelled(4.0, "wide"), Unpromised(4.0, "wide")])
def test_a_promise_ends_with_its_job(event: Event) -> None:
    state = stopping()
    apply(state, event)
    apply(state, Preempted(5.0, "low", 1))
    assert state.promises == {}
    assert state.pool.idle.tolist() == [2]
    assert state.pool.memory.tolist() == state.pool.total.tolist()


def test_shares_of_one_gpu_are_promised_together() -> None:
    share = firm(memory=6 * GIB, compute=0.0)
    waiting: list[Event] = [Submitted(1.0, job, share) for job in ("a", "b", "c")]
    state = yard(TWO, running("low", (0,), soft()), running("firm", (1,), firm()), waiting)
    apply(state, Recalled(3.0, "low", 1, "preempted"))
    for job in ("a", "b", "c"):
        apply(state, Promised(3.0, job, (0,)))
    a, b, c = (state.row_of[job] for job in ("a", "b", "c"))
    assert standing_promises(state) == StandingPromises([], [c])  # 18 of 16 G: no planner would do that
    apply(state, Preempted(4.0, "low", 1))
    assert standing_promises(state) == StandingPromises([a, b], [c])
    apply(state, Unpromised(5.0, "c"))
    apply(state, Placed(5.0, "a", 1, (0,)))
    assert standing_promises(state) == StandingPromises([b], [])
    apply(state, Placed(5.0, "b", 1, (0,)))
    assert state.pool.memory[0] == 4 * GIB
    assert state.pool.compute[0] == 100.0


def test_who_is_being_stopped_is_left_alone() -> None:
    state = stopping()
    apply(state, Submitted(4.0, "urgent", firm(priority=9)))
    assert decided(state) == ([], [])
    assert decided(state, "srtf") == ([], [])
    for plan, message in [
        (Plan(stops=["low"]), "about to end"),
        (Plan(starts=[Start("wide", (0, 1))]), "promised other GPUs"),
    ]:
        with pytest.raises(BadPlan, match=message):
            validate(state, plan)


@pytest.mark.parametrize("event", [GpusWithdrawn(4.0, (0,), "foreign"), GpusDrained(4.0, (0,))])
@pytest.mark.parametrize("policy", ["priority@easy", "srtf", "rr:quantum=1"])
def test_nobody_is_stopped_where_nobody_could_start(event: Event, policy: str) -> None:
    state = yard(Cluster((1,)), running("low", (0,), soft()), [event])
    apply(state, Submitted(5.0, "high", firm(priority=5, estimate=1.0)))
    assert decided(state, policy, 6.0) == ([], [])


def test_a_head_that_is_promised_gpus_is_no_head_any_more() -> None:
    state = yard(TWO, running("low", (0, 1), soft(gpus=2)), [Submitted(1.0, "wide", firm(gpus=2, priority=5))])
    apply(state, Chosen(1.0, "wide", 60.0))
    stops, starts = decided(state, "priority@commit")
    assert (stops, starts) == (["low"], [Start("wide", (0, 1))])
    assert plan_of(state, "priority@commit").chosen is None
    apply(state, Recalled(2.0, "low", 1, "preempted"))
    apply(state, Promised(2.0, "wide", (0, 1)))
    assert state.head == -1
    assert decided(state, "priority@commit") == ([], [])


def test_a_plan_is_split_by_who_must_wait_for_others_to_leave() -> None:
    state = yard(FOUR, running("a", (0,), soft()), running("b", (1,), soft()))
    for job in ("x", "y"):
        apply(state, Submitted(1.0, job, firm()))
    plan = Plan(starts=[Start("x", (0,)), Start("y", (3,)), Start("b", (2,))], stops=["a", "b"])
    assert split_promised(state, plan) == ([Start("y", (3,))], [Start("x", (0,))])


# -- for a higher priority -----------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["strict", "skip", "easy", "conservative", "commit", "easy-shadow"])
def test_a_higher_priority_takes_what_it_needs(discipline: str) -> None:
    state = yard(
        TWO,
        running("firm", (0,), firm()),
        running("soft", (1,), soft()),
        [Submitted(1.0, "same", firm()), Submitted(2.0, "high", firm(priority=0.5))],
    )
    assert decided(state, f"priority:ageing=0@{discipline}") == (["soft"], [Start("high", (1,))])


def test_nobody_is_stopped_without_rules_or_against_them() -> None:
    parts = (running("soft", (0, 1), soft(gpus=2)), [Submitted(1.0, "high", firm(priority=5))])
    assert decided(yard(TWO, *parts, rules=None)) == ([], [])
    assert decided(yard(TWO, *parts, rules=Rules(preempts=False))) == ([], [])
    assert decided(yard(TWO, *parts), "fcfs@easy") == ([], [])
    assert decided(yard(TWO, *parts))[0] == ["soft"]


def test_as_few_as_will_do_the_least_urgent_and_youngest_first() -> None:
    state = yard(
        FOUR,
        running("old", (0,), soft(), at=0.0),
        running("young", (1,), soft(), at=5.0),
        running("wide", (2, 3), soft(gpus=2, priority=2), at=6.0),
    )
    apply(state, Submitted(7.0, "one", firm(priority=3)))
    assert decided(state)[0] == ["young"]
    apply(state, Submitted(7.0, "two", firm(priority=3)))
    assert decided(state)[0] == ["young", "old"]
    apply(state, Cancelled(8.0, "one"))
    apply(state, Cancelled(8.0, "two"))
    apply(state, Submitted(8.0, "three", firm(gpus=3, priority=3)))
    assert sorted(decided(state)[0]) == ["wide", "young"]
    apply(state, Submitted(9.0, "urgent", firm(priority=4)))
    stops, starts = decided(state)
    assert sorted(stops) == ["old", "wide", "young"]
    assert {start.job: len(start.gpus) for start in starts} == {"urgent": 1, "three": 3}


def test_equals_and_those_who_need_too_much_stop_nobody() -> None:
    state = yard(FOUR, running("soft", (0,), soft(priority=1)), running("firm", (1, 2, 3), firm(gpus=3)))
    apply(state, Submitted(1.0, "equal", firm(priority=1)))
    apply(state, Submitted(1.0, "wide", firm(gpus=2, priority=9)))
    apply(state, Submitted(1.0, "elsewhere", firm(priority=9, scope=(1, 2))))
    assert decided(state) == ([], [])


def test_shares_by_memory_are_made_room_for() -> None:
    small = {"memory": 6 * GIB, "compute": 0.0}
    state = yard(
        Cluster((1,)),
        running("a", (0,), soft(**small)),
        running("b", (0,), firm(**small)),
        [Submitted(1.0, "c", firm(priority=1, **small))],
    )
    assert decided(state) == (["a"], [Start("c", (0,))])


def test_what_is_idle_is_left_to_whom_it_is_kept_for() -> None:
    """`head` waits for `firm` to end; `behind` has a higher priority than `low`, but not than `head`."""
    state = yard(
        FOUR,
        running("firm", (0, 1), firm(gpus=2)),
        running("low", (2,), soft()),
        [Submitted(1.0, "head", firm(gpus=4, priority=9)), Submitted(2.0, "pair", firm(gpus=2, priority=1))],
    )
    assert decided(state, "priority@easy") == ([], [])
    assert decided(state, "priority@skip") == (["low"], [Start("pair", (2, 3))])


def test_who_was_started_while_another_waited_is_not_stopped_for_it() -> None:
    hours = 3600.0
    state = yard(
        Cluster((1,)),
        [Submitted(0.0, "aged", soft()), Submitted(9 * hours, "high", firm(priority=5))],
        [Placed(10 * hours, "aged", 1, (0,)), Started(10 * hours, "aged", 1)],
    )
    assert decided(state, "priority@easy", 10.1 * hours) == ([], [])
    assert decided(state, "priority:ageing=0@easy", 10.1 * hours)[0] == ["aged"]
    apply(state, Submitted(11 * hours, "later", firm(priority=5)))
    assert decided(state, "priority@easy", 11 * hours)[1] == [Start("later", (0,))]


# -- for fair shares -------------------------------------------------------------------------------------


def flooded(rules: Rules = RULES) -> State:
    """Ann has all four GPUs, and Bob wants three."""
    state = yard(FOUR, *(running(f"a{n}", (n,), soft(user="ann"), at=float(n)) for n in range(4)), rules=rules)
    for n in range(3):
        apply(state, Submitted(5.0, f"b{n}", soft(user="bob")))
    return state


def test_a_user_takes_their_share_and_no_more() -> None:
    stops, starts = decided(flooded(), "fair@skip")
    assert (stops, [start.job for start in starts]) == (["a3", "a2"], ["b0", "b1"])


def test_shares_follow_weights() -> None:
    assert decided(flooded(Rules(weights=(("bob", 3.0),))), "fair@skip")[0] == ["a3", "a2", "a1"]
    assert decided(flooded(Rules(weights=(("ann", 7.0),))), "fair@skip")[0] == []
    assert decided(flooded(Rules(weights=(("*", 1.0), ("ann", 3.0)))), "fair@skip")[0] == ["a3"]


def test_nobody_takes_back_what_was_taken_for_a_share() -> None:
    state = flooded()
    for now in (10.0, 20.0, 30.0):
        plan = plan_of(state, "fair@skip", now)
        if now > 10.0:
            assert (plan.stops, plan.starts) == ([], [])
        for job in plan.stops:
            apply(state, Preempted(now, job, 1))
        for start in plan.starts:
            apply(state, Placed(now, start.job, 1, start.gpus))
            apply(state, Started(now, start.job, 1))


def test_who_had_less_so_far_is_not_stopped_for_a_share() -> None:
    state = yard(
        FOUR,
        running("long ago", (0, 1, 2, 3), soft(gpus=4, user="bob")),
        [Exited(5000.0, "long ago", 1)],
        *(running(f"a{n}", (n,), soft(user="ann"), at=5000.0) for n in range(4)),
        [Submitted(5001.0, "b", soft(user="bob"))],
    )
    assert decided(state, "fair@skip", 5002.0) == ([], [])
    assert decided(state, "fair@skip", 20_000.0)[1] == [Start("b", (0,))]


# -- all of it, in any order -----------------------------------------------------------------------------

requests = st.builds(
    Request,
    gpus=st.sampled_from([1, 1, 2]),
    estimate=st.sampled_from([60.0, 5.0]),
    memory=st.sampled_from([0.0, 0.0, 6 * GIB]),
    compute=st.sampled_from([100.0, 100.0, 30.0]),
    user=st.sampled_from(["ann", "bob"]),
    scope=st.sampled_from([(), (), (), (0, 1)]),
    priority=st.sampled_from([0.0, 1.0, 5.0]),
    preemptible=st.sampled_from([True, True, False]),
)
policies = st.sampled_from(
    ["rr:quantum=1", "srtf", "priority@easy@pack", "las:queues=2/9", "priority@strict", "fair@skip"]
)
steps = st.one_of(
    requests,
    policies,
    st.tuples(st.sampled_from(["end", "end", "end", "cancel", "hold", "drain", "resume"]), st.integers(0, 9)),
)


class Driver:
    """Does what the daemon does, in no time."""

    def __init__(self) -> None:
        self.state = yard(THREE)
        self.now = 0.0

    def happen(self, event: Event) -> None:
        apply(self.state, event)

    def plan(self, policy: str) -> None:
        state, now = self.state, self.now
        due, broken = standing_promises(state)
        assert all(set(state.promises[row]) & state.drained for row in broken)
        for row in broken:
            self.happen(Unpromised(now, state.ids[row]))
        for row in due:
            self.place(state.ids[row], state.promises[row])
        plan = plan_of(state, policy, now)
        starts, later = split_promised(state, plan)
        for job in plan.stops:
            self.happen(Recalled(now, job, state.attempt[state.row_of[job]], "preempted"))
        for start in later:
            self.happen(Promised(now, start.job, start.gpus))
        for start in starts:
            self.place(start.job, start.gpus)

    def place(self, job: str, gpus: tuple[int, ...]) -> None:
        attempt = self.state.attempt[self.state.row_of[job]] + 1
        self.happen(Placed(self.now, job, attempt, gpus))
        self.happen(Started(self.now, job, attempt))

    def do(self, what: str, number: int) -> None:
        state = self.state
        if what in ("drain", "resume"):
            self.happen((GpusDrained if what == "drain" else GpusResumed)(self.now, (number % 3,)))
            return
        rows = state.running.array if what == "end" else state.waiting.array
        if len(rows):
            row = int(rows[number % len(rows)])
            job, attempt = state.ids[row], state.attempt[row]
            if what == "end":
                self.happen((Preempted if row in state.recalled else Exited)(self.now, job, attempt))
            else:
                self.happen((Cancelled if what == "cancel" else Held)(self.now, job))

    def check(self) -> None:
        state = self.state
        for row in state.recalled:
            assert state.table.preemptible[row]
        for row in state.promises:
            assert state.phase[row] is Phase.QUEUED
        again = load(THREE, json.loads(json.dumps(dump(state))))
        assert dump(again) == dump(state)
        assert again.fixed == state.fixed
        for name in ("idle", "tenants", "memory", "compute"):
            np.testing.assert_allclose(getattr(again.pool, name), getattr(state.pool, name), atol=1e-6, err_msg=name)


@given(st.lists(requests, min_size=3, max_size=5), policies, st.lists(steps, min_size=5, max_size=25))
def test_whatever_happens_a_restart_changes_nothing(first: list[object], policy: str, then: list[object]) -> None:
    driver = Driver()
    for n, step in enumerate([*first, policy, *then]):
        driver.now = float(n)
        if isinstance(step, Request):
            driver.happen(Submitted(driver.now, f"j{n}", step))
        elif isinstance(step, str):
            driver.plan(step)
        elif isinstance(step, tuple):
            driver.do(*step)
        driver.check()
