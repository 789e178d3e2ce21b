"""Placement `considerate`: jobs that hurt each other are kept apart, and nobody waits for ever because of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.checkpoint import compact, dump, load
from gpuyard.core.colocation import AVOIDED, NEVER
from gpuyard.core.engine import validate
from gpuyard.core.events import (
    Booked,
    Edited,
    Event,
    Exited,
    GpusWithdrawn,
    HarmMeasured,
    Placed,
    RulesSet,
    Started,
    Submitted,
)
from gpuyard.core.model import GIB, Booking, Cluster, Request, Rules
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.policy import PLACEMENT_DOCS, PLACEMENTS
from gpuyard.core.reasons import Harm, Reservation, Resources
from gpuyard.core.state import State
from gpuyard.core.transitions import MOST_HARMS, apply, fold
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

TWO = Cluster((2,))
HATED = HarmMeasured(0.0, "a", "b", 2.5)
"""a suffers beside b."""
DISLIKED = HarmMeasured(0.0, "a", "b", 1.5)


def submit(job: str, kind: str, **wishes: object) -> Submitted:
    asked = replace(
        Request(estimate=100.0, memory=4 * GIB, compute=0.0, kind=kind, preemptible=False),
        **wishes,  # type: ignore[arg-type]
    )
    return Submitted(0.0, job, asked)


def running(job: str, kind: str, gpu: int, **wishes: object) -> list[Event]:
    return [submit(job, kind, **wishes), Placed(0.0, job, 1, (gpu,)), Started(0.0, job, 1)]


def plan(state: State, text: str = "fcfs@easy@considerate", now: float = 1.0) -> Plan:
    found = make_planner(text).plan(Snapshot(state, now))
    validate(state, found)
    return found


def starts(state: State, text: str = "fcfs@easy@considerate", now: float = 1.0) -> dict[str, tuple[int, ...]]:
    return {start.job: start.gpus for start in plan(state, text, now).starts}


def test_it_is_listed_where_placements_are() -> None:
    assert set(PLACEMENTS) == set(PLACEMENT_DOCS)
    assert make_planner("fcfs@easy@considerate").text == "fcfs@easy@considerate"


@pytest.mark.parametrize("sufferer", ["a", "b"])
def test_who_would_take_twice_as_long_goes_elsewhere_whoever_it_is(sufferer: str) -> None:
    harm = HarmMeasured(0.0, sufferer, "ab".replace(sufferer, ""), 2.5)
    state = fold(TWO, [harm, *running("1", "b", 0), submit("2", "a"), submit("3", "c")])
    assert starts(state, "fcfs@easy@pack")["2"] == (0,)
    assert starts(state) == {"2": (1,), "3": (0,)}


@pytest.mark.parametrize("discipline", ["easy", "strict", "skip", "conservative"])
def test_without_another_gpu_it_waits_and_says_for_whom(discipline: str) -> None:
    state = fold(Cluster((1,)), [HATED, *running("1", "b", 0), submit("2", "a")])
    found = plan(state, f"fcfs@{discipline}@considerate")
    assert found.starts == []
    assert found.held == {"2": Harm(0, "1", 2.5)}
    assert str(found.held["2"]) == "would fit on GPU 0, but beside job 1 it would run at 40 % of its speed"
    apply(state, Exited(2.0, "1", 1))
    assert starts(state, f"fcfs@{discipline}@considerate", 2.0) == {"2": (0,)}


def test_it_says_who_would_suffer() -> None:
    state = fold(Cluster((1,)), [HATED, *running("1", "a", 0), submit("2", "b")])
    assert str(plan(state).held["2"]) == "would fit on GPU 0, but job 1 would run at 40 % of its speed beside it"


def test_what_is_only_disliked_is_avoided_while_there_is_room_elsewhere() -> None:
    state = fold(TWO, [DISLIKED, *running("1", "b", 0), submit("2", "a")])
    assert starts(state) == {"2": (1,)}
    state = fold(TWO, [DISLIKED, *running("1", "b", 0), *running("2", "b", 1), submit("3", "a")])
    assert starts(state) == {"3": (0,)}  # nobody waits for that
    assert starts(fold(TWO, [replace(DISLIKED, slowdown=1.24), *running("1", "b", 0), submit("2", "a")])) == {"2": (0,)}


def test_of_two_that_want_the_better_gpu_one_takes_the_other() -> None:
    big = {"memory": 10 * GIB}
    state = fold(TWO, [DISLIKED, *running("1", "b", 0), submit("2", "a", **big), submit("3", "a", **big)])
    assert starts(state) == {"2": (1,), "3": (0,)}


@pytest.mark.parametrize("discipline", ["easy", "strict", "skip", "conservative"])
def test_two_that_hurt_each_other_are_not_started_together(discipline: str) -> None:
    text = f"fcfs@{discipline}@considerate"
    state = fold(TWO, [HATED, submit("1", "a"), submit("2", "b"), submit("3", "c")])
    assert starts(state, text) == {"1": (0,), "2": (1,), "3": (0,)}
    state = fold(TWO, [HarmMeasured(0.0, "a", "a", 3.0), *(submit(str(n), "a") for n in range(5))])
    assert starts(state, text) == {"0": (0,), "1": (1,)}
    many = fold(Cluster((6,)), [HarmMeasured(0.0, "a", "a", 3.0), *(submit(str(n), "a") for n in range(9))])
    assert sorted(starts(many, text).values()) == [(n,) for n in range(6)]


def test_others_do_not_keep_it_waiting_for_ever() -> None:
    """A stream of jobs that it must not meet cannot hold the only GPU for good: it is reserved for it."""
    state = fold(Cluster((1,)), [HATED, *running("0", "b", 0), submit("1", "a")])
    now = 0.0
    for n in range(2, 12):
        now += 50.0
        apply(state, submit(str(n), "b"))
        for start in plan(state, now=now).starts:
            apply(state, Placed(now, start.job, 1, start.gpus))
            apply(state, Started(now, start.job, 1))
        for row in state.running.array.tolist():
            if state.table.started[row] <= now - 90.0:
                apply(state, Exited(now, state.ids[row], 1))
    assert len(state.spot[state.row_of["1"]]) == 0 or state.table.started[state.row_of["1"]] <= 200.0
    assert state.attempt[state.row_of["1"]] == 1


def test_who_is_harmless_starts_meanwhile_if_that_leaves_it_its_memory() -> None:
    waits = [HATED, *running("1", "b", 0), submit("2", "a", memory=6 * GIB)]
    assert starts(fold(Cluster((1,)), [*waits, submit("3", "c"), submit("4", "b"), submit("5", "c")])) == {"3": (0,)}
    assert starts(fold(Cluster((1,)), [*waits, submit("3", "c", memory=7 * GIB)])) == {}
    assert starts(fold(Cluster((1,)), [*waits, submit("3", "c", memory=7 * GIB, estimate=9.0)])) == {"3": (0,)}


def test_policies_that_preempt_clear_a_gpu_for_it() -> None:
    first = running("1", "b", 0, preemptible=True, estimate=500.0)
    state = fold(Cluster((1,)), [HATED, *first, submit("2", "a", estimate=5.0)])
    found = plan(state, "srtf@skip@considerate")
    assert found.stops == ["1"]
    assert [(start.job, start.gpus) for start in found.starts] == [("2", (0,))]


def test_priorities_clear_a_gpu_for_it() -> None:
    rules = RulesSet(0.0, Rules())
    first = running("1", "b", 0, preemptible=True)
    state = fold(Cluster((1,)), [rules, HATED, *first, submit("2", "a", priority=9.0)])
    found = plan(state, "priority@easy@considerate")
    assert (found.stops, [start.job for start in found.starts]) == (["1"], ["2"])


def test_a_gpu_that_is_too_small_is_not_given_to_it_alone() -> None:
    cluster = Cluster((2,), 24 * GIB, gpu_memory=(8 * GIB, 24 * GIB))
    state = fold(cluster, [HATED, *running("1", "b", 1), submit("2", "a", memory=10 * GIB)])
    assert starts(state) == {}
    assert isinstance(plan(state).held["2"], Harm)


def test_beside_others_than_ours_it_waits_for_all_the_memory_there_is() -> None:
    foreign = GpusWithdrawn(0.0, (0,), "shared")
    state = fold(Cluster((1,)), [foreign, HATED, *running("1", "b", 0), submit("2", "a"), submit("3", "c")])
    assert starts(state) == {"3": (0,)}  # it does not delay 2
    assert (
        starts(fold(Cluster((1,)), [foreign, HATED, *running("1", "b", 0), submit("2", "a"), submit("3", "b")])) == {}
    )
    apply(state, Exited(2.0, "1", 1))
    assert starts(state, now=2.0) == {"2": (0,), "3": (0,)}


def test_reservations_count_as_well() -> None:
    booked = Booked(0.0, Booking("demo", (1,), 0.0, 1000.0, ("eve",)))
    state = fold(TWO, [booked, HATED, *running("1", "b", 0), submit("2", "a"), submit("3", "c", estimate=9.0)])
    assert starts(state) == {"3": (0,)}
    assert isinstance(plan(state).held["2"], Harm)
    apply(state, Edited(0.0, "2", replace(submit("2", "a").request, memory=14 * GIB)))
    assert isinstance(plan(state).held["2"], Reservation | Resources)


def test_who_has_a_gpu_alone_hurts_nobody() -> None:
    state = fold(TWO, [HATED, *running("1", "b", 0), submit("2", "a", memory=0.0, compute=100.0)])
    assert starts(state) == {"2": (1,)}


def test_harms_survive_a_checkpoint_and_the_oldest_are_forgotten() -> None:
    state = fold(TWO, [HATED, HarmMeasured(1.0, "b", "a", 1.1), HATED, submit("1", "a"), submit("2", "b")])
    assert list(state.harms) == [("b", "a"), ("a", "b")]
    again = load(TWO, json.loads(json.dumps(dump(state))))
    assert again.facts()["harms"] == state.facts()["harms"]
    assert starts(again) == starts(state) == {"1": (0,), "2": (1,)}
    compact(state)
    assert starts(state) == {"1": (0,), "2": (1,)}
    for n in range(MOST_HARMS):
        apply(state, HarmMeasured(2.0, "x", str(n), 1.0))
    assert len(state.harms) == MOST_HARMS
    assert ("a", "b") not in state.harms


KINDS = st.sampled_from(["", "a", "b", "c"])
JOBS = st.builds(
    Request,
    gpus=st.sampled_from([1, 1, 1, 2]),
    estimate=st.sampled_from([5.0, 60.0, float("inf")]),
    memory=st.sampled_from([1 * GIB, 4 * GIB, 9 * GIB]),
    compute=st.sampled_from([0.0, 0.0, 25.0, 100.0]),
    priority=st.sampled_from([0.0, 5.0]),
    user=st.sampled_from(["ann", "bob"]),
    scope=st.sampled_from([(), (), (0, 2)]),
    preemptible=st.booleans(),
    kind=KINDS,
)
TEXTS = st.sampled_from(
    ["fcfs@easy", "sjf@skip", "fcfs@strict", "fcfs@conservative", "las@skip", "srtf@strict", "multifactor@easy"]
)


def story(wanted: list[Request], text: str, harms: dict[tuple[str, str], float], shared: bool) -> State:
    """Some jobs came and were started by `pack`; then more came."""
    events: list[Event] = [RulesSet(0.0, Rules())] if shared else []
    half = len(wanted) // 2
    state = fold(Cluster((3,)), events)
    for n, request in enumerate(wanted[:half]):
        apply(state, Submitted(float(n), str(n), request))
    for job, gpus in starts(state, "fcfs@skip@pack", 20.0).items():
        apply(state, Placed(20.0, job, 1, gpus))
        apply(state, Started(21.0, job, 1))
    for n, request in enumerate(wanted[half:], half):
        apply(state, Submitted(30.0 + n, str(n), request))
    for pair, slowdown in harms.items():
        apply(state, HarmMeasured(50.0, *pair, slowdown))
    return state


def worst(state: State, one: int, other: int) -> float:
    names = list(state.kinds)
    a, b = names[state.table.kind[one]], names[state.table.kind[other]]
    return max(state.harms.get((a, b), 1.0), state.harms.get((b, a), 1.0))


@given(
    wanted=st.lists(JOBS, min_size=2, max_size=14),
    text=TEXTS,
    harms=st.dictionaries(st.tuples(KINDS, KINDS), st.sampled_from([1.0, 1.3, 1.9, 2.0, 4.0]), max_size=6),
    shared=st.booleans(),
)
def test_no_plan_lets_those_meet_who_hurt_each_other(
    wanted: list[Request], text: str, harms: dict[tuple[str, str], float], shared: bool
) -> None:
    harms = {pair: slowdown for pair, slowdown in harms.items() if all(pair)}
    state = story(wanted, text, harms, shared)
    found = plan(state, f"{text}@considerate", 100.0)
    there: dict[int, list[int]] = {gpu: [] for gpu in range(3)}
    for row in state.running.array.tolist():
        for gpu in state.spot[row].tolist() if state.ids[row] not in found.stops else ():
            there[gpu].append(row)
    for start in found.starts:
        row = state.row_of[start.job]
        for gpu in start.gpus:
            assert all(worst(state, row, other) < NEVER for other in there[gpu])
            there[gpu].append(row)
    assert set(found.held) | {start.job for start in found.starts} >= {state.ids[r] for r in state.waiting.array}


@given(
    wanted=st.lists(JOBS, min_size=2, max_size=14),
    text=TEXTS,
    harms=st.dictionaries(st.tuples(KINDS, KINDS), st.sampled_from([0.9, 1.0, 1.2]), max_size=6),
    shared=st.booleans(),
)
def test_where_nobody_hurts_anybody_it_is_pack(
    wanted: list[Request], text: str, harms: dict[tuple[str, str], float], shared: bool
) -> None:
    state = story(wanted, text, harms, shared)
    ours, theirs = plan(state, f"{text}@considerate", 100.0), plan(state, f"{text}@pack", 100.0)
    assert (ours.starts, ours.stops, ours.wake_at) == (theirs.starts, theirs.stops, theirs.wake_at)
    assert ours.held == theirs.held


@given(
    wanted=st.lists(JOBS, min_size=2, max_size=14),
    harms=st.dictionaries(st.tuples(KINDS, KINDS), st.floats(AVOIDED, NEVER, exclude_max=True), max_size=6),
)
def test_nobody_waits_because_of_a_little_harm(wanted: list[Request], harms: dict[tuple[str, str], float]) -> None:
    """Whoever does not start has no room on what the plan leaves, wherever that is."""
    harms = {pair: slowdown for pair, slowdown in harms.items() if all(pair)}
    state = story(wanted, "", harms, False)
    found = plan(state, "fcfs@skip@considerate", 100.0)
    for start in found.starts:
        apply(state, Placed(100.0, start.job, state.attempt[state.row_of[start.job]] + 1, start.gpus))
    assert starts(state, "fcfs@skip@pack", 100.0) == {}


@pytest.mark.parametrize("policy", ["fcfs@easy", "sjf@conservative", "srtf@skip"])
def test_in_a_simulation_it_is_pack(policy: str) -> None:
    jobs = Trace.of(np.arange(60.0), 5.0 + np.arange(60.0) % 13, 1 + np.arange(60) % 3)
    ours, theirs = (
        simulate(jobs, Cluster((4, 2)), f"{policy}@{name}", Options(engine="replay"))[0]
        for name in ("considerate", "pack")
    )
    assert ours.placements == theirs.placements
    np.testing.assert_array_equal(ours.start, theirs.start)
