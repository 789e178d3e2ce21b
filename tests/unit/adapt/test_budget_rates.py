"""Learning rates that end with the budget, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gpuyard.adapt.budget import Budget
from gpuyard.adapt.clocks import VirtualClock
from gpuyard.adapt.rates import SHAPES, RatePlan
from gpuyard.adapt.torchrates import BudgetLR
from gpuyard.errors import UserError


def course(
    budget: Budget, plan: RatePlan, cost: Callable[[int], float] = lambda n: 1.0, then: Callable[[int], Any] = bool
) -> list[float]:
    """The part of the full rate in each step; `then` is called after each with how many there were."""
    scales: list[float] = []
    while budget.step(cost(len(scales))):
        scales.append(plan.scale(budget))
        then(len(scales))
    return scales


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_warms_up_and_ends_at_zero(shape: str) -> None:
    scales = course(Budget(1000, VirtualClock()), RatePlan(shape, warmup=0.05))
    assert len(scales) == 1000
    assert scales[:50] == sorted(scales[:50])
    assert max(scales) == pytest.approx(1.0, abs=0.001)
    assert scales[50:] == sorted(scales[50:], reverse=True)
    assert scales[-1] == 0.0


def test_shapes_are_what_they_are_called() -> None:
    assert RatePlan("linear", warmup=0).scale(0.25) == 0.75
    assert RatePlan("cosine", warmup=0).scale(0.5) == pytest.approx(0.5)
    assert RatePlan("constant", warmup=0).scale(0.7) == 1.0
    assert RatePlan("constant", warmup=0).scale(0.9) == pytest.approx(0.5)
    assert RatePlan("linear", warmup=0.1).scale(0.05) == 0.5
    assert [RatePlan().scale(place) for place in (1.0, 1.5, -1.0)] == [0.0, 0.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.lists(st.tuples(st.floats(0.05, 0.95), st.floats(-0.6, 1.5)), max_size=3),
    st.sampled_from([1.0, 1.3, 2.0, 3.3]),
    st.integers(150, 600),
)
def test_a_changed_grant_still_ends_at_zero_and_moves_the_rate_by_no_jump(
    shape: str, changes: list[tuple[float, float]], dearer: float, total: int
) -> None:
    budget, plan = Budget(total, VirtualClock()), RatePlan(shape, warmup=0.0, rewarm="never")
    coming = sorted((int(place * total), change) for place, change in changes)

    def change(done: int) -> None:
        while coming and done >= coming[0][0]:
            wanted = budget.total * (1 + coming.pop(0)[1])
            budget.set_total(max(wanted, budget.used + 60))

    scales = course(budget, plan, lambda n: 1.0 if n < total // 3 else dearer, change)
    assert scales[-1] <= 0.01
    steepest = 5 if shape == "constant" else 2
    assert all(-1e-3 < a - b < steepest * dearer / 40 for a, b in pairwise(scales))  # held, as far as rounding goes


def test_an_extension_when_next_to_nothing_is_left_of_the_rate_rises_gently() -> None:
    budget, plan = Budget(200, VirtualClock()), RatePlan(warmup=0.02)
    scales = course(budget, plan, then=lambda n: budget.extend(200) if n == 199 else None)
    assert scales[198] < 0.02
    rise = scales[199:215]
    assert max(scales[199:]) > 0.4
    assert all(b - a < 0.2 for a, b in pairwise(rise))
    assert scales[-1] == 0.0
    assert len(scales) == 400


def test_an_early_extension_holds_the_rate_unless_told_to_rise() -> None:
    for rewarm, rises in (("late", False), ("never", False), ("always", True)):
        budget, plan = Budget(200, VirtualClock()), RatePlan(warmup=0.02, rewarm=rewarm)
        scales = course(budget, plan, then=lambda n, b=budget: b.extend(200) if n == 120 else None)  # type: ignore[misc]
        assert (max(scales[120:]) > scales[119]) is rises
        assert scales[-1] == 0.0


def test_restarting_goes_back_to_the_full_rate_and_to_zero_again() -> None:
    budget, plan = Budget(300, VirtualClock()), RatePlan(warmup=0.02)
    scales = course(budget, plan, then=lambda n: plan.restart() if n in (100, 200) else None)
    assert scales[99] < 0.7
    assert scales[100] > 0.99
    assert scales[199] < 0.6
    assert scales[200] > 0.98
    assert scales[-1] == 0.0
    warm = RatePlan(warmup=0.1)
    scales = course(Budget(300, VirtualClock()), warm, then=lambda n: warm.restart(warm=True) if n == 100 else None)
    assert scales[100] < 0.1
    assert max(scales[101:]) > 0.9


def test_few_steps_end_at_zero_too() -> None:
    assert course(Budget(5, VirtualClock()), RatePlan(warmup=0)) == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])


def test_a_state_goes_on_to_the_last_bit() -> None:
    def build() -> tuple[Budget, RatePlan]:
        return Budget(100, VirtualClock()), RatePlan("cosine")

    budget, plan = build()
    whole = course(budget, plan, then=lambda n: budget.extend(31.3) if n == 90 else None)
    budget, plan = build()
    saved: list[Any] = []

    def save(done: int) -> None:
        if done == 90:
            budget.extend(31.3)
        if done == 97:
            saved.extend([budget.state(), plan.state()])

    course(budget, plan, then=save)
    budget, plan = build()
    budget.load_state(saved[0])
    plan.load_state(saved[1])
    assert course(budget, plan) == whole[97:]


def test_a_scheduler_of_torch() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    groups = [{"params": first.parameters(), "lr": 1.0}, {"params": second.parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    budget = Budget(50, VirtualClock())
    scheduler = BudgetLR(optimizer, budget, RatePlan(warmup=0))
    rates = []
    while budget.step():
        scheduler.step()
        optimizer.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
        if budget.steps == 20:
            state = scheduler.state_dict()
    assert rates[0] == pytest.approx([0.98, 0.098])
    assert rates[-1] == [0.0, 0.0]
    assert scheduler.get_last_lr() == [0.0, 0.0]
    later = BudgetLR(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), Budget(7, VirtualClock()), RatePlan())
    later.load_state_dict(state)
    assert (later.budget.used, later.budget.total) == (20, 50)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: RatePlan("cosin"), "did you mean 'cosine'"),
        (lambda: RatePlan(warmup=1.0), "warm-up"),
        (lambda: RatePlan(rewarm="often"), "late, always, never"),
    ],
)
def test_mistakes_are_told(make: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make()
