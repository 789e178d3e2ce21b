"""A state dumped and loaded goes on like the one that was dumped; GPUs that are withdrawn get nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.checkpoint import compact, dump, load
from gpuyard.core.events import (
    Event,
    Exited,
    GpusRestored,
    GpusWithdrawn,
    Held,
    Opened,
    Placed,
    PolicySet,
    Preempted,
    Recalled,
    Requeued,
    Started,
    Submitted,
)
from gpuyard.core.model import GIB, Cluster, Phase, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold
from gpuyard.errors import Bug
from gpuyard.policies.resolver import make_planner

FOUR = Cluster((4,))
requests = st.builds(
    Request,
    gpus=st.integers(1, 3),
    estimate=st.sampled_from([5.0, 60.0, float("inf")]),
    memory=st.sampled_from([0.0, 4 * GIB]),
    compute=st.sampled_from([100.0, 25.0]),
    user=st.sampled_from(["ann", "bob"]),
    scope=st.sampled_from([(), (), (0, 1, 3)]),
    priority=st.sampled_from([0.0, 5.0]),
)


def starts(state: State, policy: str, now: float) -> list[tuple[str, tuple[int, ...]]]:
    plan = make_planner(policy).plan(Snapshot(state, now))
    return [(start.job, start.gpus) for start in plan.starts]


def history(wanted: list[Request], withdrawn: set[int], ends: list[int]) -> list[Event]:
    """Jobs come, some start, some of those end."""
    state, events = State(FOUR), []

    def happen(event: Event) -> None:
        apply(state, event)
        events.append(event)

    for n, request in enumerate(wanted):
        happen(Submitted(float(n), f"j{n}", request))
    if withdrawn:
        happen(GpusWithdrawn(20.0, tuple(withdrawn), "foreign"))
    begun = starts(state, "fcfs@skip", 21.0)
    for job, gpus in begun:
        happen(Placed(21.0, job, 1, gpus))
        happen(Started(22.0, job, 1))
    for n in ends:
        if n < len(begun):
            happen((Exited, Preempted, Requeued)[n % 3](30.0, begun[n][0], 1))
    return events


@given(
    wanted=st.lists(requests, min_size=1, max_size=9),
    withdrawn=st.sets(st.integers(0, 3), max_size=2),
    ends=st.lists(st.integers(0, 3), unique=True),
    policy=st.sampled_from(["fcfs@skip", "sjf@easy@pack", "wfq@skip", "las", "fcfs@conservative", "lottery@skip"]),
)
def test_a_loaded_state_goes_on_like_the_dumped_one(
    wanted: list[Request], withdrawn: set[int], ends: list[int], policy: str
) -> None:
    state = fold(FOUR, history(wanted, withdrawn, ends))
    again = load(FOUR, json.loads(json.dumps(dump(state))))
    assert dump(again) == dump(state)
    if policy != "lottery@skip":  # draws by row number, which changes
        assert starts(again, policy, 40.0) == starts(state, policy, 40.0)
    assert again.pool.tenants.tolist() == state.pool.tenants.tolist()
    assert again.pool.idle.tolist() == state.pool.idle.tolist()
    assert not any(phase.over for phase in again.phase)


@given(wanted=st.lists(requests, min_size=1, max_size=9), withdrawn=st.sets(st.integers(0, 3)))
def test_nothing_is_placed_on_a_withdrawn_gpu(wanted: list[Request], withdrawn: set[int]) -> None:
    state = State(FOUR)
    for n, request in enumerate(wanted):
        apply(state, Submitted(0.0, f"j{n}", request))
    apply(state, GpusWithdrawn(1.0, tuple(withdrawn), "unknown"))
    for policy in ("fcfs@skip", "fcfs@skip@fgd", "sjf@easy@spread"):
        for _, gpus in starts(state, policy, 2.0):
            assert not withdrawn & set(gpus)
    apply(state, GpusRestored(3.0, (0, 1, 2, 3)))
    fresh = State(FOUR)
    for n, request in enumerate(wanted):
        apply(fresh, Submitted(0.0, f"j{n}", request))
    assert state.facts() == {**fresh.facts(), "withdrawn": {}}


def test_a_job_on_a_gpu_that_is_withdrawn_goes_on_and_leaves_it_withdrawn() -> None:
    state = fold(FOUR, [Submitted(0.0, "a", Request()), Placed(0.0, "a", 1, (2,)), Started(0.0, "a", 1)])
    apply(state, GpusWithdrawn(1.0, (2,), "foreign"))
    apply(state, GpusWithdrawn(2.0, (2,), "unknown"))
    assert state.withdrawn == {2: "unknown"}
    apply(state, Exited(3.0, "a", 1))
    assert state.pool.idle.tolist() == [3]
    apply(state, GpusRestored(4.0, (2,)))
    apply(state, GpusRestored(5.0, (2,)))
    assert state.pool.idle.tolist() == [4]
    assert state.pool.compute.tolist() == [100.0] * 4
    assert state.pool.memory.tolist() == state.pool.total.tolist()


def test_compacting_forgets_who_is_over() -> None:
    events: list[Event] = [Submitted(0.0, "a", Request(user="ann")), Placed(0.0, "a", 1, (0,)), Started(0.0, "a", 1)]
    state = fold(FOUR, [*events, Submitted(1.0, "b", Request(user="bob")), Exited(9.0, "a", 1)])
    used = state.usage(10.0).tolist()
    compact(state)
    assert state.ids == ["b"]
    assert state.usage(10.0).tolist() == used
    apply(state, Held(11.0, "b"))
    compact(state)
    assert state.phase == [Phase.HELD]
    assert len(state.waiting) == 0


def test_it_has_the_limits_of_arrays_that_are_open_and_of_no_others() -> None:
    tasks = [Submitted(0.0, f"{array}_0", Request(array=array, at_most=2)) for array in "12"]
    state = fold(FOUR, [*tasks, Placed(0.0, "1_0", 1, (0,)), Started(0.0, "1_0", 1), Exited(9.0, "1_0", 1)])
    assert dump(state)["at_most"] == {"2": 2}
    assert dump(load(FOUR, dump(state))) == dump(state)


def test_other_gpus() -> None:
    state = fold(FOUR, [Submitted(0.0, "a", Request(gpus=3)), GpusWithdrawn(1.0, (3,), "unknown")])
    apply(state, Opened(2.0, Cluster((2,), gpu_memory=(8 * GIB, 24 * GIB)), ("x", "y")))
    assert (state.cluster.gpus, state.withdrawn, state.ids) == (2, {}, ["a"])
    assert starts(state, "fcfs@skip", 3.0) == []
    for event in (Submitted(4.0, "b", Request(memory=20 * GIB, compute=0)), Opened(5.0, state.cluster)):
        apply(state, event)
    assert starts(state, "fcfs@skip", 6.0) == [("b", (1,))]
    apply(state, Placed(6.0, "b", 1, (1,)))
    with pytest.raises(Bug, match="GPUs changed while job b holds some"):
        apply(state, Opened(7.0, FOUR))


@pytest.mark.parametrize(("cause", "after"), [("cancelled", Phase.CANCELLED), ("timeout", Phase.TIMEOUT)])
def test_a_recalled_job_ends_by_that_cause(cause: str, after: Phase) -> None:
    events: list[Any] = [Submitted(0.0, "a", Request()), Placed(0.0, "a", 1, (0,)), Recalled(0.5, "a", 1, cause)]
    state = fold(FOUR, events)
    assert state.recalled == {0: cause}
    state = fold(FOUR, [*events, Started(1.0, "a", 1), Recalled(2.0, "a", 1, "other")])
    assert state.recalled == {0: cause}  # the first counts
    apply(state, Exited(3.0, "a", 1, 143, cause))
    assert (state.phase[0], state.recalled) == (after, {})


def test_another_policy_chooses_another_head() -> None:
    state = fold(FOUR, [Submitted(0.0, "a", Request())])
    state.head = 0
    apply(state, PolicySet(1.0, "sjf"))
    assert state.head == -1
