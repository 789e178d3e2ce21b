"""The numbers of seed 000 (inventory 0.3), to the digit that it printed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from gpuyard.core.events import Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.core.plan import Snapshot
from gpuyard.core.transitions import fold
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

ONE = Cluster((1,))
FOUR_JOBS = {"XGB": 2.77, "DL": 80.83, "MM": 7.24, "LSTM": 34.18}


def ends(result: Result) -> dict[str, float]:
    return {job: round(float(end), 2) for job, end in zip(result.trace.ids, result.end, strict=True)}


def rounded(metrics: dict[str, Any], *names: str) -> tuple[float, ...]:
    return tuple(round(metrics[name], 2) for name in names)


def four_processes() -> Trace:
    return Trace.of(submit=[2, 0, 1, 3], run=[6, 8, 7, 3], gpus=[1] * 4, ids=["1", "2", "3", "4"])


def seed_42(latest: int) -> Trace:
    random = np.random.RandomState(42)
    drawn = np.array([(random.randint(0, latest), random.randint(1, 10)) for _ in range(10)])
    return Trace.of(drawn[:, 0], drawn[:, 1], np.ones(10))


def four_jobs() -> Trace:
    return Trace.of([0.0] * 4, list(FOUR_JOBS.values()), [1] * 4, ids=list(FOUR_JOBS))


def test_seed_42_draws_as_the_global_generator_does() -> None:
    np.random.seed(42)
    drawn = [(np.random.randint(0, 10), np.random.randint(1, 10)) for _ in range(10)]
    trace = seed_42(10)
    assert list(zip(trace.submit.tolist(), trace.run.tolist(), strict=True)) == drawn


def test_sjf_on_four_processes() -> None:
    result, metrics = simulate(four_processes(), ONE, "sjf")
    assert ends(result) == {"2": 8, "4": 11, "1": 17, "3": 24}
    assert rounded(metrics, "turnaround_mean", "wait_mean") == (13.5, 7.5)


def test_fcfs_on_four_processes() -> None:
    result, metrics = simulate(four_processes(), ONE, "fcfs")
    assert ends(result) == {"2": 8, "3": 15, "1": 21, "4": 24}
    assert rounded(metrics, "turnaround_mean", "wait_mean") == (15.5, 9.5)


@pytest.mark.parametrize(
    ("latest", "policy", "wait", "turnaround", "throughput"),
    [
        (10, "sjf", 14.40, 19.50, 0.19),
        (10, "fcfs", 16.70, 21.80, 0.19),
        (20, "sjf", 18.40, 24.60, 0.16),
        (20, "fcfs", 22.20, 28.40, 0.16),
        (20, "rr:quantum=3", 30.60, 36.80, 0.16),
        (20, "rr:quantum=3,arrivals=first", 31.80, 38.00, 0.16),
    ],
)
def test_seed_42(latest: int, policy: str, wait: float, turnaround: float, throughput: float) -> None:
    result, metrics = simulate(seed_42(latest), ONE, policy)
    assert rounded(metrics, "wait_mean", "turnaround_mean") == (wait, turnaround)
    # The seed divides by the last completion, gpuyard by the makespan, which begins with the first arrival.
    assert round(10 / float(result.end.max()), 2) == throughput
    assert metrics["throughput"] == pytest.approx(10 / (result.end.max() - result.trace.submit.min()))


def test_seed_42_ends_at_62() -> None:
    assert {float(simulate(seed_42(20), ONE, p)[0].end.max()) for p in ("sjf", "fcfs", "rr:quantum=3")} == {62.0}


@pytest.mark.parametrize("arrivals", ["last", "first"])
@pytest.mark.parametrize(
    ("quantum", "completions"),
    [
        (2, {"P2": 15, "P3": 21, "P1": 24}),
        (3, {"P2": 14, "P3": 22, "P1": 24}),
        (4, {"P2": 17, "P3": 21, "P1": 24}),
        (5, {"P2": 10, "P3": 23, "P1": 24}),
    ],
)
def test_interactive_round_robin(quantum: int, completions: dict[str, int], arrivals: str) -> None:
    trace = Trace.of([0, 0, 0], [11, 5, 8], [1, 1, 1], ids=["P1", "P2", "P3"])
    result, _ = simulate(trace, ONE, f"rr:arrivals={arrivals}", Options(quantum=quantum))
    assert ends(result) == completions


def test_round_robin_on_one_clock_as_the_seed_has_it() -> None:
    result, metrics = simulate(four_jobs(), ONE, "rr", Options(quantum=10))
    assert ends(result) == {"XGB": 2.77, "MM": 20.01, "LSTM": 84.19, "DL": 125.02}
    assert round(metrics["makespan"], 2) == 125.02


def test_round_robin_on_three_gpus_overlaps() -> None:
    result, metrics = simulate(four_jobs(), Cluster((3,)), "rr", Options(quantum=10))
    assert round(metrics["makespan"], 2) == 80.83
    assert metrics["completed"] == 4
    segments = result.segments
    at_work = [set(segments.gpu[(segments.start <= t) & (t < segments.end)].tolist()) for t in (1.0, 5.0, 20.0)]
    assert at_work[0] == {0, 1, 2}
    assert all(len(gpus) > 1 for gpus in at_work)


def test_default_quantum_of_round_robin_is_ten() -> None:
    with_default, _ = simulate(four_jobs(), ONE, "rr")
    assert ends(with_default) == ends(simulate(four_jobs(), ONE, "rr:quantum=10")[0])


@pytest.mark.parametrize(("policy", "wait"), [("fcfs", 44.30), ("sjf", 14.24)])
def test_four_jobs_one_after_another(policy: str, wait: float) -> None:
    # FCFS in the order of the seed's list: MatrixMult comes third.
    _, metrics = simulate(four_jobs(), ONE, policy)
    assert metrics["wait_mean"] == pytest.approx(wait, abs=0.0051)


def test_weighted_fair_queueing_order() -> None:
    trace = Trace.of([0] * 4, [3, 50, 2, 30], [1] * 4, ids=["MM", "DL", "XGB", "LSTM"], weight=[3, 5, 7, 2])
    result, _ = simulate(trace, ONE, "wfq")
    assert sorted(result.trace.ids, key=ends(result).__getitem__) == ["XGB", "MM", "DL", "LSTM"]


@pytest.mark.parametrize("policy", ["wfq", "lottery", "sjf", "edf", "fair", "rr", "las"])
def test_ties_do_not_crash(policy: str) -> None:
    trace = Trace.of([0] * 3, [5] * 3, [1] * 3, ids=["a", "b", "c"], weight=[2] * 3)
    result, _ = simulate(trace, ONE, policy)
    assert sorted(ends(result).values())[-1] == 15


def test_weighted_fair_queueing_ties_go_by_arrival() -> None:
    trace = Trace.of([0] * 4, [5, 10, 5, 10], [1] * 4, weight=[1, 2, 1, 2])
    result, _ = simulate(trace, ONE, "wfq")
    assert result.start.tolist() == [0, 5, 15, 20]


def test_lottery_shares() -> None:
    """Who is drawn first, over 10,000 seeds."""
    tickets = {"MM": 5, "DL": 10, "XGB": 7, "LSTM": 15}
    submits = [Submitted(0.0, job, Request(tickets=n, estimate=1.0)) for job, n in tickets.items()]
    planner = make_planner("lottery")
    winners = Counter(planner.plan(Snapshot(fold(ONE, submits, seed), 0.0)).starts[0].job for seed in range(10_000))
    shares = {job: winners[job] / 100 for job in tickets}
    assert shares == pytest.approx({"MM": 13.5, "DL": 27.0, "XGB": 18.9, "LSTM": 40.5}, abs=1.0)


def test_lottery_draws_anew_within_a_run() -> None:
    """Groups of four jobs, far apart in time, under one seed: who of each group is drawn first?"""
    groups = 1500
    trace = Trace.of(
        np.repeat(np.arange(groups) * 100.0, 4),
        np.ones(4 * groups),
        np.ones(4 * groups),
        tickets=[5, 10, 7, 15] * groups,
    )
    result, _ = simulate(trace, ONE, "lottery", Options(seed=1))
    first = np.argmin(result.start.reshape(groups, 4), axis=1)
    shares = np.bincount(first, minlength=4) / groups * 100
    assert shares == pytest.approx([13.5, 27.0, 18.9, 40.5], abs=4.0)  # three standard deviations
    again, _ = simulate(trace, ONE, "lottery", Options(seed=1))
    other, _ = simulate(trace, ONE, "lottery", Options(seed=2))
    assert again.start.tolist() == result.start.tolist() != other.start.tolist()
