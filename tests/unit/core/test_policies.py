"""What the built-in policies compute, and what `check_policy` finds."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from tests.one_gpu import jobs, order

from gpuyard.core.check import check_policy
from gpuyard.core.columns import COLUMNS
from gpuyard.core.model import Cluster
from gpuyard.core.plan import Plan, Snapshot
from gpuyard.core.planner import OrderedPlanner
from gpuyard.core.policies import POLICIES
from gpuyard.core.policy import PolicyError
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

A = Any
BUILT_IN = [
    "fcfs", "sjf", "ljf", "srtf", "srsf", "rr", "priority", "multifactor", "lottery", "wfq", "fair", "las", "edf",
    "saf", "f1", "f2", "f3", "f4", "wfp3", "unicep", "largest-memory", "random",
]  # fmt: skip


# -- check_policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies_pass_their_own_check(name: str) -> None:
    assert check_policy(POLICIES[name]) == []


def test_built_in_policies_are_all_there() -> None:
    assert list(POLICIES) == BUILT_IN
    assert all(p.doc for p in POLICIES.values())
    assert [name for name in BUILT_IN if POLICIES[name].preemptive] == ["srtf", "srsf", "rr", "las"]


def _same_every_time(estimate: A) -> A:
    return estimate * 0


def _scalar(estimate: A) -> A:
    return 1.0


def _nan_at_zero_wait(wait: A, estimate: A) -> A:
    return wait / wait


def _too_short(estimate: A) -> A:
    return estimate[:-1]


def _in_place(estimate: A) -> A:
    estimate *= 2
    return estimate


def _in_place_once(estimate: A) -> A:
    np.minimum(estimate, 100.0, out=estimate)
    return estimate


def _random(estimate: A) -> A:
    return estimate * np.random.random(np.shape(estimate))


def _by_place(estimate: A) -> A:
    return np.arange(len(estimate))


def _fails(estimate: A) -> A:
    raise KeyError("oops")


def _fails_when_empty(estimate: A) -> A:
    return estimate / estimate.max()


def _words(estimate: A) -> A:
    return np.full(np.shape(estimate), "soon")


def _no_columns(*, power: float = 1.0) -> A:
    return power


@pytest.mark.parametrize(
    ("function", "finding"),
    [
        (_same_every_time, "gives every job the same number"),
        (_scalar, "gives every job the same number"),
        (_nan_at_zero_wait, "'not a number' where wait is 0"),
        (_too_short, r"shape \(49,\) for 50 jobs"),
        (_in_place, "changes the column 'estimate' in place"),
        (_in_place_once, "changes the column 'estimate' in place"),
        (_random, "different numbers for the same queue"),
        (_by_place, "depends on its place in the array"),
        (_fails, "fails on an ordinary queue: KeyError"),
        (_fails_when_empty, "fails on an empty queue"),
        (_words, "must return one number per job"),
        (_no_columns, "names no columns"),
    ],
)
def test_findings(function: Any, finding: str) -> None:
    found = check_policy(function)
    assert any(re.search(finding, problem) for problem in found), found


def test_findings_are_sentences_told_once() -> None:
    found = check_policy(_nan_at_zero_wait)
    assert len(found) == len(set(found))


def test_unusable_signature_is_told() -> None:
    def bad(estimat: A) -> A:
        return estimat

    with pytest.raises(PolicyError, match="no column 'estimat'"):
        check_policy(bad)


# -- known values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_policies_work_on_numbers_as_on_arrays(name: str) -> None:
    made = POLICIES[name]
    values = [0.25 if column == "draw" else 7.0 for column in made.columns]
    one = float(made(*values))
    many = made(*(np.full(3, value) for value in values))
    assert np.asarray(many).tolist() == pytest.approx([one] * 3)
    assert math.isfinite(one)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("f1", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 2 * 4 + 870 * 3),
        ("f1", {"estimate": 100.0, "gpus": 4.0, "submit": 0.0}, 2 * 4 - 870),
        ("f2", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 10 * 4 + 25600 * 3),
        ("f3", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 400 + 6860000 * 3),
        ("f4", {"estimate": 100.0, "gpus": 4.0, "submit": 1000.0}, 200 + 530000 * 3),
        ("wfp3", {"wait": 20.0, "estimate": 10.0, "gpus": 4.0}, -32.0),
        ("unicep", {"wait": 20.0, "estimate": 10.0, "gpus": 4.0}, -1.0),
        ("saf", {"estimate": 10.0, "gpus": 4.0}, 40.0),
        ("srsf", {"remaining": 10.0, "gpus": 4.0}, 40.0),
        ("ljf", {"estimate": 10.0}, -10.0),
        ("priority", {"priority": 2.0, "submit": 7200.0}, 0.0),
        ("fair", {"user_usage": 30.0, "weight": 2.0}, 15.0),
        ("largest-memory", {"memory": 5.0}, -5.0),
        ("lottery", {"draw": math.exp(-6.0), "tickets": 3.0}, 2.0),
        ("las", {"service": 0.0}, 0.0),
        ("las", {"service": 3249.0}, 0.0),
        ("las", {"service": 3250.0}, 1.0),
        ("las", {"service": 7200.0}, 2.0),
        ("las", {"service": 1e9}, 3.0),
    ],
)
def test_known_values(name: str, values: dict[str, float], expected: float) -> None:
    made = POLICIES[name]
    assert set(made.columns) == set(values)
    assert float(made(*(values[column] for column in made.columns))) == pytest.approx(expected)


def test_settings_change_the_values() -> None:
    assert float(POLICIES["wfp3"].with_settings({"power": "2"})(20.0, 10.0, 4.0)) == -16.0
    assert float(POLICIES["priority"].with_settings({"ageing": "0"})(2.0, 7200.0)) == -2.0
    assert float(POLICIES["las"].with_settings({"queues": "1/2"})(1.5)) == 1.0


def test_unicep_lets_one_gpu_jobs_go_first() -> None:
    wait, estimate = np.array([1.0, 1e6]), np.array([1e5, 1.0])
    assert np.argmin(POLICIES["unicep"](wait, estimate, np.array([1.0, 2.0]))) == 0


def test_each_column_has_a_sentence() -> None:
    assert all(column.doc for column in COLUMNS.values())


@pytest.mark.parametrize(
    ("policy", "columns", "expected"),
    [
        ("fcfs", {}, "abc"),
        ("sjf", {}, "bca"),
        ("ljf", {}, "acb"),
        ("saf", {}, "bca"),
        ("edf", {"deadline": [math.inf, 900.0, 800.0]}, "cba"),
        ("priority", {"priority": [0.0, 2.0, 1.0]}, "bca"),
        ("priority:ageing=0", {"priority": [0.0, 2.0, 1.0]}, "bca"),
        ("largest-memory", {"memory": [1.0, 3.0, 2.0], "compute": [100.0] * 3}, "bca"),
        ("wfq", {"weight": [10.0, 1.0, 1.0]}, "abc"),
    ],
)
def test_orders(policy: str, columns: dict[str, list[float]], expected: str) -> None:
    # a: 9 s, b: 1 s, c: 5 s, all waiting when the GPU becomes free
    assert "".join(order(f"{policy}@strict", jobs([9, 1, 5], **columns))[1:]) == expected


def test_ageing_lets_an_old_job_overtake() -> None:
    """Ten hours of waiting count as ten: priority 0 at 0 h goes before priority 9 at 10 h."""
    trace = Trace.of([0, 1, 36_000], [36_010, 5, 5], [1] * 3, ids=["first", "old", "new"], priority=[0, 0, 9])
    assert order("priority", trace) == ["first", "old", "new"]
    assert order("priority:ageing=0.5", trace) == ["first", "new", "old"]
    assert order("priority:ageing=0", trace) == ["first", "new", "old"]


def test_fair_serves_the_user_who_had_least() -> None:
    trace = jobs([50, 10, 10, 10], users=["ann", "ann", "bob", "bob"])
    assert order("fair", trace) == ["first", "a", "c", "d", "b"]


def test_fair_counts_weights() -> None:
    trace = jobs([10, 20, 10, 10], users=["ann", "bob", "ann", "bob"], weight=[1.0, 4.0, 1.0, 4.0])
    assert order("fair", trace) == ["first", "a", "b", "d", "c"]


def test_las_drops_a_job_when_it_has_had_its_share() -> None:
    trace = Trace.of([0, 1], [100, 5], [1, 1])
    result, _ = simulate(trace, Cluster((1,)), "las:queues=10/50")
    assert (result.start.tolist(), result.end.tolist(), result.preemptions.tolist()) == ([0, 10], [105, 15], [1, 0])


def test_las_drops_jobs_by_its_default_queues_too() -> None:
    """3,250 GPU-seconds on two GPUs are 1,625 seconds."""
    result, _ = simulate(Trace.of([0, 1], [2000, 5], [2, 1]), Cluster((2,)), "las")
    assert (result.start.tolist(), result.end.tolist()) == ([0, 1625], [2005, 1630])


def test_las_waits_for_a_restart_to_be_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that restarts just before its drop must not be looked at again and again while it restores.

    `0` is stopped by `2` when it has had 20 - 0.001 s of its second queue, and `1` waits for it to drop.
    """
    plans: list[float] = []

    def count(self: OrderedPlanner, snapshot: Snapshot) -> Plan:
        plans.append(snapshot.now)
        return plan(self, snapshot)

    plan = OrderedPlanner.plan
    monkeypatch.setattr(OrderedPlanner, "plan", count)
    trace = Trace.of([0, 0, 31 - 0.001], [100, 100, 1], [1] * 3)
    result, _ = simulate(trace, Cluster((1,)), "las:queues=10/20/1000", Options(restart_cost=1.0))
    assert result.start.tolist() == [0, 10, 31 - 0.001]
    assert result.preemptions.tolist() == [3, 2, 0]
    assert len(plans) < 20


def test_random_is_seeded() -> None:
    trace = jobs([1.0] * 8)
    orders = [tuple(order("random", trace, Options(seed=seed))) for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


def test_rank_does_not_see_the_true_run_time() -> None:
    """Two traces that differ in run times only start their jobs in the same order."""
    first = Trace.of([0, 1, 2], [100, 5, 9], [1] * 3, requested=[100, 20, 10])
    second = Trace.of([0, 1, 2], [100, 9, 5], [1] * 3, requested=[100, 20, 10])
    for name in BUILT_IN:
        if not POLICIES[name].preemptive:
            assert order(name, first) == order(name, second), name
