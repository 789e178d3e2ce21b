"""What jobs are counted with, and starts by usage: the core alone, with usage that a driver would tell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core import checkpoint
from gpuyard.core.engine import BadPlan, Engine, validate
from gpuyard.core.events import Charged, Edited, Event, Exited, Held, MemoryTaken, Placed, Requeued, Started
from gpuyard.core.model import GIB, Cluster, Request
from gpuyard.core.plan import Plan, Start
from gpuyard.core.reasons import Resources
from gpuyard.core.state import State
from gpuyard.core.transitions import apply, fold
from gpuyard.core.usage.admission import Peak, Statistics, Usage, Window, statistics_of
from gpuyard.core.usage.charging import settle
from gpuyard.errors import Bug
from gpuyard.policies.resolver import make_planner

ONE = Cluster((1,), 16 * GIB)


def share(gib: float, **more: object) -> Request:
    return Request(memory=gib * GIB, compute=0.0, **more)  # type: ignore[arg-type]


def engine(*jobs: tuple[str, Request], policy: str = "fcfs@skip@first", cluster: Cluster = ONE) -> Engine:
    found = Engine(cluster, make_planner(policy), log=[])
    for n, (job, request) in enumerate(jobs):
        assert found.submit(float(n), job, request) is None
    return found


def go(engine: Engine, now: float, usage: Usage | None = None) -> dict[str, str]:
    """Plan once, and let all start that may; by what they are let in."""
    engine.settle(now, usage)
    plan = engine.plan(now, usage)
    for start in plan.starts:
        placed = engine.place(now, start)
        engine.record(Started(now, start.job, placed.attempt))
    return {start.job: start.admission.by if start.admission else "" for start in plan.starts}


def steady(used: float, samples: int = 20, capacity: float = 16) -> Statistics:
    values = np.full(samples, used * GIB)
    return statistics_of(Window(capacity * GIB, values, capacity * GIB - values))


def left(state: State, gpu: int = 0) -> float:
    return float(state.pool.memory[gpu]) / GIB


# -- charges -------------------------------------------------------------------------------------------


def test_a_charge_counts_in_the_pool_and_what_was_asked_for_stays() -> None:
    yard = engine(("a", share(6)))
    go(yard, 1.0)
    assert left(yard.state) == 10
    yard.record(Charged(2.0, "a", 2 * GIB, "history", "3 runs"))
    assert left(yard.state) == 14
    assert yard.state.table.memory[0] == 6 * GIB
    yard.record(Charged(3.0, "a", 6 * GIB))
    assert (left(yard.state), yard.state.charges) == (10, {})
    yard.record(Charged(4.0, "a", 3 * GIB))
    yard.record(Exited(5.0, "a", 1))
    assert (left(yard.state), yard.state.charges) == (16, {})


@pytest.mark.parametrize("memory", [-1.0, 6.5 * GIB])
def test_nobody_is_charged_more_than_it_asked_for_or_less_than_nothing(memory: float) -> None:
    yard = engine(("a", share(6)))
    with pytest.raises(Bug, match="cannot be charged"):
        yard.record(Charged(1.0, "a", memory))


def test_whole_gpus_are_not_charged_for() -> None:
    yard = engine(("a", Request(memory=4 * GIB)))
    yard.record(Charged(1.0, "a", 4 * GIB))
    go(yard, 2.0)
    assert yard.state.charges == {}
    with pytest.raises(Bug, match="cannot be charged"):
        yard.record(Charged(3.0, "a", 2 * GIB))


def test_a_running_job_that_is_edited_is_charged_as_before_and_a_waiting_one_anew() -> None:
    yard = engine(("a", share(6)), ("b", share(6)))
    yard.record(Charged(2.0, "a", 2 * GIB))
    yard.record(Charged(2.0, "b", 2 * GIB))
    yard.record(Placed(2.0, "a", 1, (0,)))
    for job in "ab":
        yard.record(Edited(3.0, job, share(6, priority=7.0)))
    assert left(yard.state) == 14
    assert yard.state.charges == {0: 2 * GIB}
    yard.record(Requeued(4.0, "a", 1))
    assert left(yard.state) == 16


def test_charges_outlive_a_checkpoint_and_compacting() -> None:
    yard = engine(("x", share(1)), ("a", share(6)), ("b", share(9)))
    yard.record(Charged(2.0, "a", 2 * GIB))
    yard.record(Charged(2.0, "b", 3 * GIB))
    yard.record(Placed(3.0, "x", 1, (0,)))
    yard.record(Placed(3.0, "a", 1, (0,), "history"))
    yard.record(Exited(4.0, "x", 1))
    loaded = checkpoint.load(ONE, checkpoint.dump(yard.state))
    assert left(loaded) == left(yard.state) == 14
    assert (loaded.charges, loaded.admitted) == ({0: 2 * GIB, 1: 3 * GIB}, {0: "history"})
    checkpoint.compact(yard.state)
    assert yard.state.facts() == loaded.facts()
    assert fold(ONE, yard.log or []).pool.memory.tolist() == loaded.pool.memory.tolist()


def test_a_checkpoint_of_a_version_without_charges_is_read() -> None:
    yard = engine(("a", share(6)))
    go(yard, 1.0)
    old = {key: value for key, value in checkpoint.dump(yard.state).items() if key not in ("charges", "admitted")}
    assert left(checkpoint.load(ONE, old)) == 10


# -- settling ------------------------------------------------------------------------------------------


def test_charges_follow_what_is_expected_both_ways() -> None:
    yard = engine(("a", share(6)), ("b", share(6)))
    go(yard, 1.0)
    low = Usage(peaks={"a": Peak(2 * GIB, evidence="3 runs"), "b": Peak(9 * GIB)})
    assert settle(yard.state, low, 2.0) == [Charged(2.0, "a", 2 * GIB, "history", "3 runs")]
    yard.settle(2.0, low)
    assert settle(yard.state, low, 3.0) == []
    assert settle(yard.state, Usage(peaks={"a": Peak(1.95 * GIB)}), 3.0) == []  # not worth an event
    assert settle(yard.state, Usage(peaks={"a": Peak(3 * GIB)}), 3.0)[0].memory == 3 * GIB
    assert settle(yard.state, Usage(), 3.0) == settle(yard.state, None, 3.0) == [Charged(3.0, "a", 6 * GIB)]


def test_a_charge_is_raised_as_far_as_there_is_room() -> None:
    yard = engine(("a", share(12)), ("b", share(12)))
    usage = Usage(peaks={"a": Peak(4 * GIB), "b": Peak(10 * GIB)})
    assert go(yard, 1.0, usage) == {"a": "fit", "b": "history"}
    assert left(yard.state) == 2
    assert [(one.job, one.memory) for one in settle(yard.state, None, 2.0)] == [("a", 6 * GIB)]
    yard.settle(2.0, None)
    assert (left(yard.state), settle(yard.state, None, 3.0)) == (0, [])
    yard.record(Exited(4.0, "b", 1))
    yard.settle(5.0, None)
    assert (left(yard.state), yard.state.charges) == (4, {})


def test_what_is_asked_for_counts_where_nobody_looks_at_usage() -> None:
    yard = engine(("a", share(6)))
    assert settle(yard.state, None, 1.0) == []
    assert go(yard, 1.0) == {"a": ""}


def test_jobs_that_are_over_or_held_are_not_charged_anew_but_held_ones_are_charged_back() -> None:
    yard = engine(("a", share(6)), ("b", share(6)), ("c", share(6)))
    yard.record(Charged(1.0, "a", GIB))
    for job in "ab":
        yard.record(Held(1.0, job))
    yard.record(Placed(1.0, "c", 1, (0,)))
    yard.record(Exited(1.0, "c", 1))
    known = Usage(peaks={job: Peak(2 * GIB) for job in "abc?"})
    assert [(one.job, one.memory) for one in settle(yard.state, known, 2.0)] == [("a", 2 * GIB)]
    assert [(one.job, one.memory) for one in settle(yard.state, None, 2.0)] == [("a", 6 * GIB)]


# -- who starts ----------------------------------------------------------------------------------------


def test_who_is_known_starts_by_history_as_far_as_the_needs_of_all_fit() -> None:
    yard = engine(*((f"j{n}", share(6)) for n in range(9)))
    usage = Usage(peaks={f"j{n}": Peak(2.1 * GIB, 2 * GIB, "5 runs") for n in range(9)})
    assert list(go(yard, 9.0, usage).values()) == ["fit", "fit", *["history"] * 5]
    assert set(yard.state.admitted.values()) == {"history"}
    assert left(yard.state) >= 0
    plan = yard.plan(10.0, usage)
    reason = plan.held["j7"]
    assert isinstance(reason, Resources)
    assert "needs 2.1G (of the 6G asked for) on 1 GPU; GPU 0 has 1.3G left of 16G" in str(reason)


def test_a_decision_goes_with_every_start_of_a_share() -> None:
    yard = engine(("a", share(10)), ("b", share(10)))
    yard.settle(1.0, usage := Usage(peaks={"a": Peak(4 * GIB), "b": Peak(5 * GIB, evidence="2 runs")}))
    first, second = (start.admission for start in yard.plan(1.0, usage).starts)
    assert first is not None
    assert second is not None
    assert (first.by, first.available, first.why) == ("fit", 16 * GIB, "10G asked for, 16G left")
    assert (second.by, second.available, second.bound, second.need) == ("history", 6 * GIB, 12 * GIB, 5 * GIB)
    assert second.why == "5G needed (2 runs), 12G left beside what others are expected to use"


def test_who_is_not_known_starts_by_a_window_within_the_guard_and_one_at_a_time() -> None:
    """a is charged 9G with its margin, and 7G is what it came to: the window says that it is so."""
    yard = engine(("a", share(14)))
    go(yard, 0.5)
    for job in "bc":
        yard.submit(1.0, job, share(8))
    known = {"a": Peak(9 * GIB, 7 * GIB)}
    assert go(yard, 2.0, Usage(peaks=known)) == {}  # no window
    assert go(yard, 3.0, Usage({0: steady(7, samples=19)}, known)) == {}  # too short a window
    assert go(yard, 4.0, Usage({0: steady(7)}, known)) == {"b": "cbp"}
    assert yard.state.admitted == {1: "cbp"}
    assert left(yard.state) == 0
    assert yard.state.charges[1] == 7 * GIB  # what was left
    assert go(yard, 5.0, Usage({}, known)) == {}


def test_the_guard_keeps_out_whom_a_window_would_let_in() -> None:
    yard = engine(("a", share(14)), ("b", share(8)))
    go(yard, 1.0)
    usage = Usage({0: steady(2)})  # a used next to nothing so far, but nothing says that this is all
    plan = yard.plan(2.0, usage)
    assert plan.starts == []
    reason = plan.held["b"]
    assert isinstance(reason, Resources)
    assert reason.usage is not None
    assert (reason.usage.by, reason.usage.bound, reason.usage.harvested) == ("", 2 * GIB, 14 * GIB)
    assert "by usage: 2G would be left if all here came to what is expected of them, 8G needed" in str(reason)


def test_who_is_refused_is_passed_over_and_the_next_smaller_one_is_tried() -> None:
    yard = engine(("a", share(14)), ("b", share(12)), ("c", share(8)))
    go(yard, 1.0)
    usage = Usage({0: steady(7)}, {"a": Peak(9 * GIB, 7 * GIB)})
    assert go(yard, 2.0, usage) == {"c": "cbp"}


@pytest.mark.parametrize(
    ("policy", "estimate", "starts"),
    [
        ("fcfs@strict@first", 10.0, {}),
        ("fcfs@easy@first", 10.0, {"c": "cbp"}),  # over before b could have started
        ("fcfs@easy@first", 1000.0, {}),
        ("fcfs@conservative@first", 1000.0, {}),
        ("fcfs@skip@first", 1000.0, {"c": "cbp"}),
    ],
)
@pytest.mark.parametrize("head", [share(12, estimate=500.0), Request(estimate=500.0)])
def test_the_discipline_holds_for_starts_by_usage(
    policy: str, estimate: float, starts: dict[str, str], head: Request
) -> None:
    yard = engine(("a", share(14, estimate=100.0)), policy=policy)
    go(yard, 0.0)
    yard.submit(1.0, "b", head)
    yard.submit(1.0, "c", share(8, estimate=estimate))
    assert go(yard, 2.0, Usage({0: steady(7)}, {"a": Peak(9 * GIB, 7 * GIB)})) == starts


def test_a_job_on_two_gpus_needs_two_windows() -> None:
    yard = engine(("a", share(14)), ("b", share(14)), cluster=Cluster((2,), 16 * GIB))
    go(yard, 1.0)
    yard.submit(2.0, "c", share(8, gpus=2))
    known = {job: Peak(9 * GIB, 7 * GIB) for job in "ab"}
    assert go(yard, 3.0, Usage({0: steady(7), 1: steady(15)}, known)) == {}
    assert go(yard, 4.0, Usage({0: steady(7), 1: steady(7)}, known)) == {"c": "cbp"}


def test_nobody_is_let_in_beside_a_job_that_has_its_gpu_for_itself() -> None:
    yard = engine(("a", Request()), ("b", share(2)))
    go(yard, 1.0)
    assert go(yard, 2.0, Usage({0: steady(1)})) == {}


def test_quotas_hold_for_starts_by_usage() -> None:
    yard = engine(("a", share(14)), ("b", share(14)), cluster=Cluster((2,), 16 * GIB))
    go(yard, 1.0)
    for job in "cd":
        yard.submit(2.0, job, share(8, array="x", at_most=1))
    yard.submit(2.0, "e", share(8))
    usage = Usage({0: steady(7), 1: steady(7)}, {job: Peak(9 * GIB, 7 * GIB) for job in "ab"})
    assert go(yard, 3.0, usage) == {"c": "cbp", "e": "cbp"}


def test_a_plan_that_counts_a_job_with_more_than_there_is_room_for_is_refused() -> None:
    yard = engine(("a", share(14)), ("b", share(8)))
    go(yard, 1.0)
    validate(yard.state, Plan([Start("b", (0,), charge=2 * GIB)]))
    for charge in (3 * GIB, 9 * GIB, -1.0):
        with pytest.raises(BadPlan):
            validate(yard.state, Plan([Start("b", (0,), charge=charge)]))


# -- properties ----------------------------------------------------------------------------------------

_SIZES = st.integers(1, 16)


@given(
    asked=st.lists(_SIZES, min_size=1, max_size=12),
    needs=st.lists(st.tuples(_SIZES, _SIZES), min_size=12, max_size=12),
    used=st.lists(st.integers(0, 16), min_size=4, max_size=4),
    policy=st.sampled_from(["fcfs@skip@first", "fcfs@easy@pack", "sjf@strict@spread", "fcfs@conservative@first"]),
)
def test_charges_never_exceed_a_gpu_and_the_log_tells_all(
    asked: list[int], needs: list[tuple[int, int]], used: list[int], policy: str
) -> None:
    cluster = Cluster((2,), 16 * GIB)
    jobs = [(f"j{n}", share(size, estimate=10.0 + n)) for n, size in enumerate(asked)]
    yard = engine(*jobs, policy=policy, cluster=cluster)
    events: list[Event] = [MemoryTaken(20.0, (GIB, GIB), GIB)]
    for event in events:
        yard.record(event)
    for turn, level in enumerate(used):
        peaks = {
            f"j{n}": Peak(high * GIB, min(low, high) * GIB) for n, (high, low) in enumerate(needs) if (n + turn) % 3
        }
        go(yard, 30.0 + turn, Usage({0: steady(level), 1: steady(16 - level)}, peaks))
        assert (yard.state.pool.memory >= -1e-3).all()
        running = yard.state.running.array.tolist()
        if turn == 1 and running:
            yard.record(Exited(31.5, yard.state.ids[running[0]], yard.state.attempt[running[0]]))
    again = fold(cluster, yard.log or [])
    assert again.facts() == yard.state.facts()
    for row in list(yard.state.running.array):
        apply(again, Exited(99.0, again.ids[row], again.attempt[row]))
    assert again.pool.memory.tolist() == again.pool.total.tolist()
