"""Budgets: how much is left, when the last step begins, and what is kept for the end."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.adapt.budget import Budget, Change
from gpuyard.adapt.clocks import CpuClock, VirtualClock, WallClock, make_clock
from gpuyard.errors import UserError


class SlowClock:
    """Moves by itself, as a wall clock does, but only as a test says."""

    exact = False
    jitter = 0.0

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def charge(self, cost: float) -> None:
        pass


def steps(budget: Budget, clock: SlowClock, seconds: Any) -> list[float]:
    """When steps began, and at last when all was over."""
    began = []
    while budget.step():
        began.append(budget.used)
        clock.time += seconds(len(began))
        assert len(began) < 10_000
    return [*began, budget.used]


def test_a_virtual_budget_pays_for_as_many_steps_as_it_has() -> None:
    budget = Budget(10, VirtualClock())
    assert [budget.step() for _ in range(12)] == [True] * 10 + [False] * 2
    assert (budget.used, budget.left, budget.fraction) == (10, 0, 1)


@given(st.floats(0.01, 3), st.floats(1, 50), st.floats(0, 0.5))
def test_no_step_begins_that_cannot_end_in_time(cost: float, total: float, kept: float) -> None:
    budget = Budget(total, VirtualClock(), reserve=kept * total)
    while budget.step(cost):
        pass
    assert budget.used <= (total - kept * total) * (1 + 1e-6) or budget.steps == 1
    assert budget.end - budget.used < cost * (1 + 1e-6)  # and none is left out that could


def test_one_step_is_tried_however_short_the_time_is() -> None:
    budget = Budget(0.5, VirtualClock())
    assert budget.step(1.0)
    assert not budget.step(1.0)


@pytest.mark.parametrize("total", [1.1, 7.0, 60.0])
def test_steps_of_uneven_length_end_in_time(total: float) -> None:
    clock = SlowClock()
    budget = Budget(total, clock)
    began = steps(budget, clock, lambda n: 0.5 if n == 1 else 0.02 + 0.004 * (n % 5))
    assert 0.995 * total - 0.05 < began[-1] <= total


def test_hiccups_of_the_machine_do_not_end_a_training_early() -> None:
    clock = SlowClock()
    budget = Budget(10, clock)
    began = steps(budget, clock, lambda n: 0.2 if n % 40 == 0 else 0.01)
    assert 9.5 < began[-1] <= 10.2


def test_the_clock_starts_with_the_first_step() -> None:
    clock = SlowClock()
    budget = Budget(5, clock)
    clock.time += 1000
    assert (budget.used, budget.left) == (0, 5)
    assert budget.step()
    clock.time += 2
    assert budget.used == 2


def test_what_is_done_aside_is_no_step_and_is_kept_for_the_end() -> None:
    clock = SlowClock()
    budget = Budget(10, clock)
    for n in range(20):
        assert budget.step()
        clock.time += 0.01
        if n == 10:
            with budget.aside("evaluation"):
                clock.time += 1.0
    budget.end_step()
    assert budget.times.high == pytest.approx(0.01)
    assert 1.0 <= budget.reserve <= 1.5
    while budget.step():
        clock.time += 0.01
    assert budget.left >= 1.0


def test_a_grown_network_keeps_more_for_its_evaluation_and_its_steps() -> None:
    clock = SlowClock()
    budget = Budget(10, clock)
    for _ in range(5):
        budget.step()
        clock.time += 0.1
    budget.end_step()
    budget.keep("evaluation", 1.0)
    budget.keep("checkpoint", 0.5)
    before = budget.reserve
    budget.dearer(3.0)
    assert budget.times.typical == pytest.approx(0.3)
    assert budget.reserve == pytest.approx(before + 2 * 1.15)


def test_extending_and_shrinking_tell_who_listens() -> None:
    budget, told = Budget(10, VirtualClock()), list[Change]()
    budget.listeners.append(told.append)
    budget.extend(5, "there is time")
    budget.shrink(12)
    budget.set_total(3)
    assert told == [Change(10, 15, "there is time"), Change(15, 3, "")]
    assert [budget.step() for _ in range(4)] == [True, True, True, False]


def test_a_training_goes_on_once_it_is_granted_more() -> None:
    budget = Budget(2, VirtualClock())
    assert [budget.step() for _ in range(3)] == [True, True, False]
    budget.extend(1)
    assert [budget.step() for _ in range(2)] == [True, False]


def test_a_state_goes_on_with_what_was_used() -> None:
    clock = SlowClock()
    budget = Budget(10, clock)
    for _ in range(8):
        budget.step()
        clock.time += 0.5
    budget.end_step()
    budget.keep("checkpoint", 0.25)
    later = Budget(99, other := SlowClock())
    later.load_state(budget.state())
    other.time += 50  # the clock stands until it is taken up
    assert (later.used, later.total, later.reserve) == (4.0, 10.0, budget.reserve)
    assert later.step()
    other.time += 5.6
    assert not later.step()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Budget(-1), "more than 0 seconds, not -1"),
        (lambda: Budget(math.nan), "more than 0"),
        (lambda: Budget(0), "more than 0"),
        (lambda: Budget(10, reserve=10), "leaves nothing of a budget of 10"),
        (lambda: Budget(10, reserve=-1), "0 seconds or more"),
        (lambda: Budget(10, "wal"), "did you mean 'wall'"),
        (lambda: Budget(10).extend(-1), "shrink makes it less"),
        (lambda: Budget(10).shrink(-1), "extend makes it more"),
        (lambda: Budget(10).set_total(0), "more than 0"),
        (lambda: VirtualClock().charge(-1), "costs 0 or more"),
        (lambda: Budget.from_environment(environment={}), "--time"),
        (lambda: Budget.from_environment(environment={"GPUYARD_BUDGET": "soon"}), "no number"),
    ],
)
def test_mistakes_are_told(make: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make()


def test_clocks_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_clock("wall"), WallClock)
    assert isinstance(make_clock("cpu"), CpuClock)
    assert isinstance(make_clock("virtual"), VirtualClock)
    for clock, name in ((CpuClock(), "process_time"), (WallClock(), "monotonic")):
        monkeypatch.setattr(f"time.{name}", lambda: 12.5)
        clock.charge(1000)
        assert clock.now() == 12.5


def test_a_job_has_what_the_environment_says() -> None:
    environment = {"GPUYARD_BUDGET": "100", "GPUYARD_DEADLINE": str(time.time() + 60)}
    budget = Budget.from_environment(environment=environment)
    assert budget.total == 100
    assert 59 < budget.left <= 60  # forty seconds were gone before this began
    assert Budget.from_environment(environment={"GPUYARD_BUDGET": "7"}).left == 7
    assert Budget.from_environment(5.0, environment={}).total == 5
    assert Budget.from_environment(environment={"GPUYARD_BUDGET": "9"}, clock="cpu").left == 9


def test_a_later_attempt_has_no_more_than_its_own_time() -> None:
    before = Budget(100, clock := SlowClock())
    before.step()
    clock.time += 30
    environment = {"GPUYARD_BUDGET": "100", "GPUYARD_DEADLINE": str(time.time() + 20)}
    budget = Budget.from_environment(environment=environment)
    budget.load_state(before.state())
    assert 30 <= budget.used < 31
    assert 19 < budget.left <= 20


def test_budgets_and_rates_need_nothing_but_the_standard_library() -> None:
    heavy = "{'torch', 'numpy'} & set(sys.modules)"
    code = f"import sys, gpuyard.adapt.budget, gpuyard.adapt.clocks, gpuyard.adapt.rates; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True)


class FakeGrants:
    """The scheduler's side, as a test has it."""

    budget = 100.0

    def __init__(self, *events: Any) -> None:
        self.coming, self.reports = list(events), list[dict[str, Any]]()

    def events(self) -> list[Any]:
        now, self.coming = self.coming, []
        return now

    def report(self, **values: Any) -> None:
        self.reports.append(values)


def event(kind: str, deadline: float | None = None, budget: float | None = None, why: str = "") -> SimpleNamespace:
    return SimpleNamespace(kind=kind, deadline=deadline, budget=budget, why=why, gpus=("0",), grace=5.0)


def test_the_scheduler_moves_the_deadline() -> None:
    grants = FakeGrants(event("extend", time.time() + 500, 600, "idle"), event("up", budget=600))
    budget = Budget(100, grants=grants)
    assert budget.step()
    assert 499 < budget.left <= 500
    assert [one.kind for one in budget.news] == ["up"]


def test_other_clocks_change_in_proportion() -> None:
    grants = FakeGrants(event("extend", time.time() + 500, 150.0), event("shrink", time.time() + 1, 75.0))
    budget = Budget(10, VirtualClock(), grants=grants)
    assert budget.step()
    assert budget.total == 7.5


def test_preemption_ends_the_loop() -> None:
    budget = Budget(100, grants=FakeGrants(event("preempt", why="somebody more urgent")))
    assert not budget.step()
    assert budget.stopped == "somebody more urgent"
