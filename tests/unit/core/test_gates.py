"""What keeps jobs from being chosen: dependencies, times, arrays, quotas; and what people have had lately."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core import checkpoint
from gpuyard.core.events import (
    Cancelled,
    Edited,
    Event,
    Exited,
    GpusDrained,
    GpusResumed,
    Held,
    Placed,
    Promised,
    Rejected,
    Released,
    Requeued,
    RulesSet,
    Started,
    Submitted,
)
from gpuyard.core.limits.gates import in_week
from gpuyard.core.limits.quotas import HOUR, quota_of
from gpuyard.core.model import Cluster, Quota, Request, Rules
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import ordered
from gpuyard.core.policies import POLICIES
from gpuyard.core.reasons import ArrayLimit, BeginTime, Dependency, Promise, Resources
from gpuyard.core.reasons import Quota as QuotaReason
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold
from gpuyard.errors import Bug, UserError

FOUR = Cluster((4,))


def submit(job: str, at: float = 0.0, **wishes: object) -> Submitted:
    return Submitted(at, job, replace(Request(estimate=10.0, user="ann"), **wishes))  # type: ignore[arg-type]


def ran(job: str, gpu: int, began: float, ended: float, code: int = 0) -> list[Event]:
    return [Placed(began, job, 1, (gpu,)), Started(began, job, 1), Exited(ended, job, 1, code)]


def plan(state: State, now: float = 100.0, discipline: str = "easy", policy: str = "fcfs") -> Plan:
    return ordered(POLICIES[policy], discipline).plan(Snapshot(state, now))


def started(state: State, now: float = 100.0, **how: str) -> list[str]:
    return [start.job for start in plan(state, now, **how).starts]


# -- dependencies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code", "starts"),
    [("ok", 0, True), ("ok", 3, False), ("notok", 3, True), ("notok", 0, False), ("any", 0, True), ("any", 3, True)],
)
def test_a_job_waits_for_another_to_end(how: str, code: int, starts: bool) -> None:
    state = fold(FOUR, [submit("a"), submit("b", after=(f"{how}:a",))])
    found = plan(state)
    assert [start.job for start in found.starts] == ["a"]
    assert found.held == {"b": Dependency((f"{how}:a",))}
    for event in ran("a", 0, 100.0, 110.0, code):
        apply(state, event)
    assert started(state, 110.0) == (["b"] if starts else [])
    assert state.doomed == ({} if starts else {1: f"{how}:a"})


def test_all_that_it_waits_for_must_end() -> None:
    state = fold(FOUR, [submit("a"), submit("b"), submit("c", after=("ok:a", "any:b", "any:a"))])
    for event in ran("a", 0, 1.0, 2.0):
        apply(state, event)
    assert plan(state).held == {"c": Dependency(("any:b",))}
    apply(state, Cancelled(3.0, "b"))
    assert started(state) == ["c"]


def test_a_job_that_was_cancelled_did_not_succeed() -> None:
    state = fold(FOUR, [submit("a"), submit("b", after=("ok:a",)), submit("c", after=("notok:a",))])
    apply(state, Cancelled(1.0, "a"))
    assert state.doomed == {1: "ok:a"}
    assert started(state) == ["c"]
    apply(state, Cancelled(2.0, "b"))
    assert not state.doomed
    assert not state.after


def test_who_is_held_learns_of_what_it_waits_for() -> None:
    state = fold(FOUR, [submit("a"), submit("b", after=("ok:a",)), Held(0.0, "b"), *ran("a", 0, 1.0, 2.0)])
    assert started(state) == []
    apply(state, Released(3.0, "b"))
    assert started(state) == ["b"]


def test_what_is_not_open_counts_as_done() -> None:
    state = fold(FOUR, [submit("a"), *ran("a", 0, 1.0, 2.0), submit("b", after=("ok:a", "ok:gone"))])
    assert started(state) == ["b"]


def test_an_edited_job_waits_for_others() -> None:
    state = fold(FOUR, [submit("a"), submit("b"), submit("c", after=("ok:a",))])
    apply(state, Edited(1.0, "c", Request(after=("ok:b",))))
    assert plan(state).held == {"c": Dependency(("ok:b",))}
    apply(state, Edited(1.0, "c", Request()))
    assert started(state) == ["a", "b", "c"]


def test_a_job_waits_for_another_to_begin() -> None:
    state = fold(FOUR, [submit("a"), submit("b", after=("begun:a",)), submit("c", after=("begun:b",))])
    assert plan(state).held["b"] == Dependency(("begun:a",))
    assert str(plan(state).held["b"]) == "waits for job a to begin"
    apply(state, Placed(1.0, "a", 1, (0,)))
    assert started(state) == []
    apply(state, Started(1.0, "a", 1))
    assert started(state) == ["b"]
    apply(state, submit("d", after=("begun:a",)))
    assert started(state) == ["b", "d"]


@pytest.mark.parametrize("drops_out", [Cancelled(1.0, "b"), Rejected(1.0, "b", "too large")])
def test_who_follows_the_start_of_one_that_never_began_waits_for_what_that_waited_for(drops_out: Event) -> None:
    state = fold(FOUR, [submit("a"), submit("b", after=("any:a",)), submit("c", after=("begun:b",))])
    apply(state, drops_out)
    assert plan(state).held == {"c": Dependency(("any:a",))}
    apply(state, Edited(1.5, "c", Request(after=("begun:b",), estimate=5.0)))  # not what it follows
    assert plan(state).held == {"c": Dependency(("any:a",))}
    copy = checkpoint.load(FOUR, json.loads(json.dumps(checkpoint.dump(state))))
    for after in (state, copy):
        for event in ran("a", 0, 2.0, 3.0):
            apply(after, event)
        assert started(after) == ["c"]


@pytest.mark.parametrize("wish", ["ok", "ok:", "then:a", "a"])
def test_a_wish_that_cannot_be_read(wish: str) -> None:
    with pytest.raises(UserError, match="is not ok:, notok:, any: or begun:JOB"):
        Request(after=(wish,))


# -- times and arrays ----------------------------------------------------------------------------------


def test_a_job_does_not_start_before_its_time() -> None:
    state = fold(FOUR, [submit("a", begin=150.0), submit("b", begin=120.0), submit("c")])
    found = plan(state)
    assert [start.job for start in found.starts] == ["c"]
    assert found.held == {"a": BeginTime(150.0), "b": BeginTime(120.0)}
    assert found.wake_at == 120.0
    assert started(state, 120.0) == ["b", "c"]
    assert started(state, 150.0) == ["a", "b", "c"]


def test_a_retry_waits_for_its_time() -> None:
    state = fold(FOUR, [submit("a"), Placed(1.0, "a", 1, (0,)), Started(1.0, "a", 1), Requeued(2.0, "a", 1, 130.0)])
    assert plan(state).held == {"a": BeginTime(130.0)}
    assert started(state, 130.0) == ["a"]


def test_an_array_runs_so_many_at_once() -> None:
    tasks = [submit(f"7_{n}", array="7", at_most=2) for n in range(5)]
    state = fold(FOUR, [*tasks, submit("b")])
    found = plan(state)
    assert [start.job for start in found.starts] == ["7_0", "7_1", "b"]
    assert found.held == {f"7_{n}": ArrayLimit("7", 2) for n in (2, 3, 4)}
    for event in (Placed(100.0, "7_0", 1, (0,)), Placed(100.0, "7_1", 1, (1,))):
        apply(state, event)
    assert started(state) == ["b"]
    apply(state, Exited(110.0, "7_0", 1))
    assert started(state, 110.0) == ["7_2", "b"]
    apply(state, Edited(110.0, "7_2", Request(array="7")))
    assert started(state, 110.0) == ["7_2", "7_3", "7_4"]


@pytest.mark.parametrize("wishes", [{"array": "1", "at_most": 1}, {"user": "bob"}])
def test_a_running_job_that_moves_for_another_needs_no_room_of_its_limit(wishes: dict[str, Any]) -> None:
    """Job 2 wants the GPU of 1_0, whose time slice is over, and another is idle."""
    rules = RulesSet(0.0, Rules(quotas=(("bob", Quota(1)),)))
    state = fold(Cluster((2,)), [rules, submit("1_0", **wishes), submit("2", scope=(0,))])
    for event in (Placed(0.0, "1_0", 1, (0,)), Started(0.0, "1_0", 1)):
        apply(state, event)
    found = plan(state, discipline="skip", policy="rr")
    assert [(start.job, start.gpus) for start in found.starts] == [("2", (0,)), ("1_0", (1,))]
    assert (found.stops, found.held) == (["1_0"], {})


# -- quotas --------------------------------------------------------------------------------------------


def with_quota(**quotas: Quota) -> RulesSet:
    names = {"everybody": "*", "lab": "@lab"}
    return RulesSet(0.0, Rules(quotas=tuple((names.get(name, name), quota) for name, quota in quotas.items())))


def test_a_user_has_so_many_gpus_at_once() -> None:
    state = fold(FOUR, [with_quota(ann=Quota(2)), *(submit(job) for job in "abc"), submit("d", user="bob", gpus=2)])
    found = plan(state)
    assert [start.job for start in found.starts] == ["a", "b", "d"]
    assert found.held == {"c": QuotaReason("ann", "GPUs", 2.0, 0.0, 1)}
    apply(state, Placed(100.0, "a", 1, (0,)))
    apply(state, Placed(100.0, "b", 1, (1,)))
    assert plan(state).held == {"c": QuotaReason("ann", "GPUs", 2.0, 2.0, 1)}


def test_who_is_not_named_has_everybodys_quota() -> None:
    rules = with_quota(everybody=Quota(1), ann=Quota(3))
    state = fold(FOUR, [rules, *(submit(job) for job in "abcd"), *(submit(f"x{n}", user="bob") for n in range(2))])
    assert started(state) == ["a", "b", "c", "x0"]


def test_a_group_has_so_many_gpus_at_once() -> None:
    jobs = [submit("a", group="lab"), submit("b", user="bob", group="lab"), submit("c", group="lab")]
    state = fold(FOUR, [with_quota(lab=Quota(2)), *jobs, submit("d", user="eve")])
    found = plan(state)
    assert [start.job for start in found.starts] == ["a", "b", "d"]
    assert found.held == {"c": QuotaReason("@lab", "GPUs", 2.0, 0.0, 1)}


def test_quotas_count_every_group_of_a_user() -> None:
    """Also one that is not for shares, and one of the user's own; a job needs room in all of them."""
    jobs = [
        submit("a", group="staff,lab,ann"),
        submit("b", user="bob", group=",bob,lab"),
        submit("c", group="staff,lab,ann"),
    ]
    found = plan(fold(FOUR, [with_quota(lab=Quota(2)), *jobs, submit("d", user="eve", group="staff")]))
    assert [start.job for start in found.starts] == ["a", "b", "d"]
    assert found.held == {"c": QuotaReason("@lab", "GPUs", 2.0, 0.0, 1)}
    one = RulesSet(0.0, Rules(quotas=(("@lab", Quota(4)), ("@bob", Quota(1)))))
    held = plan(
        fold(FOUR, [one, submit("a", user="bob", group=",bob,lab"), submit("b", user="bob", group=",bob,lab")])
    ).held
    assert held == {"b": QuotaReason("@bob", "GPUs", 1.0, 0.0, 1)}


def test_a_job_that_is_too_wide_lets_a_narrow_one_pass() -> None:
    state = fold(FOUR, [with_quota(ann=Quota(2)), submit("a"), submit("b", gpus=2), submit("c")])
    assert started(state) == ["a", "c"]


def test_gpu_hours_of_a_week() -> None:
    week, began = 7 * 24 * HOUR, 1000 * HOUR
    began_at_two: list[Event] = [Placed(began, "a", 1, (0, 1)), Started(began, "a", 1)]
    state = fold(FOUR, [with_quota(ann=Quota(0, 3.0)), submit("a", gpus=2), *began_at_two, submit("b")])
    assert started(state, began + HOUR) == ["b"]
    late = began + 1.5 * HOUR
    assert in_week(state, 0, late) == 3 * HOUR
    assert plan(state, late).held == {"b": QuotaReason("ann", "GPU-hours", 3.0, 3.0, 1)}
    assert plan(state, late).wake_at == began + 2 * HOUR
    apply(state, Exited(late, "a", 1))
    assert "b" in plan(state, began + week - HOUR).held
    assert started(state, began + week) == ["b"]


def test_a_quota_needs_a_number() -> None:
    with pytest.raises(UserError, match="0 or more"):
        Quota(-1)


# -- shares --------------------------------------------------------------------------------------------


def test_what_was_had_fades() -> None:
    state = fold(FOUR, [RulesSet(0.0, Rules(half_life=100.0)), submit("a", gpus=2)])
    for event in (Placed(0.0, "a", 1, (0, 1)), Started(0.0, "a", 1)):
        apply(state, event)
    worth = 2 * 100.0 / math.log(2) * 0.5
    assert state.usage(100.0) == pytest.approx([worth])
    apply(state, Exited(100.0, "a", 1))
    assert state.usage(100.0) == pytest.approx([worth])
    assert state.usage(300.0) == pytest.approx([worth / 4])


def test_nothing_fades_without_rules() -> None:
    state = fold(FOUR, [submit("a"), *ran("a", 0, 0.0, 50.0)])
    assert state.usage(1e9).tolist() == [50.0]
    apply(state, RulesSet(60.0, Rules(half_life=10.0)))
    assert state.usage(60.0) == pytest.approx([50.0])
    assert state.usage(70.0) == pytest.approx([25.0])


def test_weights_and_groups_count() -> None:
    rules = RulesSet(0.0, Rules(weights=(("ann", 2.0), ("@lab", 5.0))))
    jobs = [submit("a", group="lab"), submit("b", user="bob", group="lab"), submit("c", user="eve")]
    lives = [*ran("a", 0, 0.0, 40.0), *ran("b", 1, 0.0, 60.0), *ran("c", 2, 0.0, 30.0)]
    state = fold(FOUR, [rules, *jobs, *lives])
    assert state.usage(60.0) == pytest.approx([(40 / 2 + 100 / 5) / 2, (60 + 100 / 5) / 2, 30.0])


def test_multifactor_weighs_priority_wait_and_use() -> None:
    key = POLICIES["multifactor"]
    assert key(0.0, 3600.0, 0.0, 1.0) == key(1.0, 7200.0, 0.0, 1.0)  # an hour of waiting is worth a priority of 1
    assert key(0.0, 0.0, 3600.0, 1.0) == key(0.0, 3600.0, 0.0, 1.0)  # and a GPU-hour that was had
    assert key(0.0, 0.0, 3600.0, 1.0, fairness=0.0) == 0.0


def test_who_has_had_less_goes_first_under_multifactor() -> None:
    flood = [submit(f"a{n}") for n in range(8)]
    state = fold(Cluster((1,)), [RulesSet(0.0, Rules(half_life=1e6)), *flood, *ran("a0", 0, 0.0, 30.0)])
    apply(state, submit("b", 20.0, user="bob"))
    assert started(state, 30.0, policy="multifactor") == ["b"]


# -- drains and promises -------------------------------------------------------------------------------


def test_nothing_starts_on_a_drained_gpu() -> None:
    state = fold(Cluster((2,)), [submit("a"), submit("b"), GpusDrained(0.0, (0, 0)), GpusDrained(0.0, (0,))])
    found = plan(state)
    assert [(start.job, start.gpus) for start in found.starts] == [("a", (1,))]
    reason = found.held["b"]
    assert isinstance(reason, Resources)
    assert reason.withdrawn == {"drained": 1}
    assert "1 drained" in str(reason)
    apply(state, GpusResumed(1.0, (0, 1)))
    assert started(state) == ["a", "b"]


@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_who_leaves_a_drained_gpu_makes_no_room_there(discipline: str) -> None:
    """So nobody is expected to start by that, and backfilling has until the end of the other one."""
    jobs: list[Event] = [submit("soon", estimate=10.0), submit("later", estimate=100.0)]
    placed: list[Event] = [Placed(0.0, "soon", 1, (0,)), Placed(0.0, "later", 1, (1,))]
    events = [*jobs, *placed, Started(0.0, "soon", 1), Started(0.0, "later", 1), submit("waits", estimate=5.0)]
    state = fold(Cluster((2,)), [*events, GpusDrained(1.0, (0,))])
    reason = plan(state, 2.0, discipline=discipline).held["waits"]
    assert isinstance(reason, Resources)
    assert reason.expected_at == 100.0
    apply(state, GpusResumed(3.0, (0,)))
    reason = plan(state, 4.0, discipline=discipline).held["waits"]
    assert isinstance(reason, Resources)
    assert reason.expected_at == 10.0


def test_gpus_are_kept_for_whom_they_were_promised_to() -> None:
    state = fold(Cluster((2,)), [submit("a"), submit("b"), submit("c"), Placed(0.0, "a", 1, (0,))])
    apply(state, Promised(1.0, "b", (0,)))
    found = plan(state)
    assert [(start.job, start.gpus) for start in found.starts] == [("c", (1,))]
    assert found.held == {"b": Promise((0,))}
    apply(state, Exited(2.0, "a", 1))
    assert [start.gpus for start in plan(state).starts] == [(1,)]
    apply(state, Placed(3.0, "b", 1, (0,)))
    assert not state.promises
    assert state.pool.tenants.tolist() == [1, 0]


@pytest.mark.parametrize("event", [Cancelled(2.0, "b"), Held(2.0, "b")])
def test_a_promise_ends_with_its_job(event: Event) -> None:
    state = fold(Cluster((1,)), [submit("b"), Promised(1.0, "b", (0,)), submit("c"), event])
    assert not state.promises
    assert started(state) == ["c"]


# -- editing -------------------------------------------------------------------------------------------


def test_what_holds_gpus_keeps_them() -> None:
    state = fold(FOUR, [submit("a"), Placed(0.0, "a", 1, (0,)), Started(0.0, "a", 1)])
    assert state.fixed == 0
    apply(state, Edited(1.0, "a", Request(estimate=99.0, preemptible=False, scope=(2,))))
    assert state.fixed == 1
    assert state.table.estimate[0] == 99.0
    with pytest.raises(Bug, match="how many and how much"):
        apply(state, Edited(1.0, "a", Request(gpus=2)))
    apply(state, Exited(2.0, "a", 1))
    assert state.fixed == 0
    assert state.pool.idle.tolist() == [4]


# -- all of it, over a restart -------------------------------------------------------------------------

JOBS = "abcdef"
WISHES = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 2),
        "user": st.sampled_from(("ann", "bob")),
        "group": st.sampled_from(("", "lab")),
        "begin": st.sampled_from((0.0, 50.0, 150.0)),
        "at_most": st.integers(0, 2),
        "array": st.sampled_from(("", "1", "2")),
        "after": st.lists(
            st.sampled_from([f"{how}:{job}" for how in ("ok", "any", "begun") for job in JOBS]), max_size=2
        ),
    }
)


@given(st.lists(WISHES, min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=6), st.booleans())
def test_a_restart_changes_no_plan(wishes: list[dict[str, object]], ends: list[int], rules: bool) -> None:
    state = State(FOUR)
    if rules:
        apply(state, RulesSet(0.0, Rules(100.0, (("ann", 2.0),), (("*", Quota(2)), ("@lab", Quota(3, 1.0))))))
    for job, wish in zip(JOBS, wishes, strict=False):
        after = tuple(a for a in wish["after"] if a.partition(":")[2] < job)  # type: ignore[attr-defined]
        apply(state, submit(job, 0.0, **{**wish, "after": after}))
    for now, end in enumerate([-1, *ends], 10):
        for start in plan(state, float(now)).starts:
            apply(state, Placed(now, start.job, 1, start.gpus))
            apply(state, Started(now, start.job, 1))
        running = [state.ids[row] for row in state.running.array]
        if 0 <= end < len(running):
            apply(state, Exited(now + 0.5, running[end], 1, end % 2))
        other = checkpoint.load(FOUR, json.loads(json.dumps(checkpoint.dump(state))))
        for when in (100.0, 1000.0):
            ours, theirs = plan(state, when), plan(other, when)
            assert (ours.starts, ours.wake_at, ours.held) == (theirs.starts, theirs.wake_at, theirs.held)
            assert np.array_equal(state.usage(when), other.usage(when))
        assert state.fixed == other.fixed


# -- backfilling beside a head that names its GPUs -----------------------------------------------------


def test_gpus_that_the_head_cannot_use_are_not_kept_for_it() -> None:
    jobs = [
        submit("a", scope=(0,)),
        submit("b", gpus=2, scope=(0, 1)),
        *(submit(f"c{n}", estimate=1e9) for n in range(3)),
    ]
    state = fold(FOUR, [*jobs, Placed(0.0, "a", 1, (0,)), Started(0.0, "a", 1)])
    found = plan(state, 5.0)
    assert {start.job: start.gpus for start in found.starts} == {"c0": (2,), "c1": (3,)}
    apply(state, Edited(5.0, "c2", Request(estimate=2.0)))
    assert [start.job for start in plan(state, 5.0).starts] == ["c0", "c1", "c2"]  # done before GPU 0 is free


def test_what_a_users_own_quota_leaves_open_everybodys_says() -> None:
    rules = with_quota(everybody=Quota(1, 5.0), ann=Quota(3))
    state = fold(FOUR, [rules, *(submit(job) for job in "abcd")])
    assert started(state) == ["a", "b", "c"]
    assert state.rules is not None
    assert quota_of(state.rules, "ann") == Quota(3, 5.0)
    assert quota_of(state.rules, "bob") == Quota(1, 5.0)
    assert quota_of(state.rules, "@lab") == Quota()
