"""When plans are made (rounds), and what a restart costs."""

from __future__ import annotations

import numpy as np
import pytest

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim.replay import next_round
from gpuyard.sim.simulate import Options, RestartCost, format_restart_cost, parse_restart_cost, restart_costs, simulate
from gpuyard.sim.trace import Trace

ONE = Cluster((1,))


@pytest.mark.parametrize(
    ("time", "length", "due"),
    [(0, 60, 0), (1, 60, 60), (60, 60, 60), (61, 60, 120), (-5, 60, 0), (7, 0, 7), (np.inf, 60, np.inf)],
)
def test_the_next_round_is_at_or_after_a_time(time: float, length: float, due: float) -> None:
    assert next_round(time, length) == due


@pytest.mark.parametrize("length", [0.1, 0.7, 1 / 3, 1e-3])
def test_a_multiple_is_its_own_round_whatever_the_rounding(length: float) -> None:
    for count in range(2000):
        assert next_round(count * length, length) == count * length
        assert next_round(float(np.nextafter(count * length, np.inf)), length) == (count + 1) * length


def test_jobs_start_at_rounds_and_end_when_they_end() -> None:
    trace = Trace.of([0, 5, 31], [12, 10, 4], [1, 1, 1])
    result, metrics = simulate(trace, ONE, "fcfs", Options(round_length=10))
    assert result.start.tolist() == [0, 20, 40]
    assert result.end.tolist() == [12, 30, 44]
    assert metrics["round"] == 10


def test_what_happens_at_a_round_counts_in_it() -> None:
    trace = Trace.of([0, 10], [10, 5], [1, 1])
    assert simulate(trace, ONE, "fcfs", Options(round_length=10))[0].start.tolist() == [0, 10]


def test_a_slice_ends_at_the_round_after_its_quantum() -> None:
    trace = Trace.of([0, 0], [20, 20], [1, 1])
    result, _ = simulate(trace, ONE, "rr", Options(quantum=6, round_length=4))
    assert result.segments.start.tolist() == [0, 8, 16, 24, 32, 36]
    assert result.end.tolist() == [36, 40]


def test_without_rounds_nothing_is_said_of_them() -> None:
    assert "round" not in simulate(Trace.of([0], [1], [1]), ONE, "fcfs")[1]


@pytest.mark.parametrize("discipline", ["commit", "easy-shadow"])
def test_stepwise_disciplines_refuse_rounds(discipline: str) -> None:
    with pytest.raises(UserError, match="leave out --round"):
        simulate(Trace.of([0], [1], [1]), ONE, "fcfs", Options(discipline=discipline, round_length=5))


@pytest.mark.parametrize("length", [-1.0, np.inf, np.nan])
def test_a_round_is_a_number_of_seconds(length: float) -> None:
    with pytest.raises(UserError, match="a round is a number of seconds"):
        simulate(Trace.of([0], [1], [1]), ONE, "fcfs", Options(round_length=length))


@pytest.mark.parametrize(
    ("text", "cost"),
    [("7", 7.0), ("1m", 60.0), ("7/30/60", (7.0, 30.0, 60.0)), ("0/1m/1h", (0.0, 60.0, 3600.0))],
)
def test_restart_costs_are_read(text: str, cost: RestartCost) -> None:
    assert parse_restart_cost(text) == cost
    assert parse_restart_cost(format_restart_cost(cost)) == cost


@pytest.mark.parametrize(
    ("text", "told"), [("7/30", "7/30/60"), ("-1", "0 or more"), ("1/2/3/4", "three"), ("x", "not a duration")]
)
def test_restart_costs_that_make_no_sense(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_restart_cost(text)


def test_larger_jobs_pay_more() -> None:
    sizes = np.array([1, 2, 8, 9, 64])
    assert restart_costs(sizes, (7.0, 30.0, 60.0)).tolist() == [7, 30, 30, 60, 60]
    assert restart_costs(sizes, 5.0).tolist() == [5] * 5


def test_each_job_pays_its_own_cost_at_a_restart() -> None:
    trace = Trace.of([0, 1], [20, 2], [2, 2])
    result, metrics = simulate(trace, Cluster((2,)), "srtf", Options(restart_cost=(1.0, 4.0, 9.0)))
    assert result.end.tolist() == [26, 3]
    assert metrics["restart_cost"] == "1/4/9"
    assert simulate(trace, Cluster((2,)), "srtf", Options(restart_cost=1.5))[1]["restart_cost"] == 1.5


def test_a_slice_must_outlast_the_dearest_restart() -> None:
    trace = Trace.of([0, 0], [20, 20], [1, 9])
    with pytest.raises(UserError, match="make the quantum longer"):
        simulate(trace, Cluster((9,)), "rr", Options(quantum=6, restart_cost=(1.0, 2.0, 6.0)))
    simulate(trace, Cluster((9,)), "rr", Options(quantum=6, restart_cost=(1.0, 2.0, 6.0), round_length=7))
