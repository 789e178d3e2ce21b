"""Confidence intervals against the tables in textbooks."""

from __future__ import annotations

import pytest

from gpuyard.sim.compare import interval, means, t_95
from gpuyard.units import format_duration, format_interval


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (20, 2.0860), (21, 2.0796), (30, 2.0423), (60, 2.0003),
     (120, 1.9799), (10**9, 1.95996)],
)  # fmt: skip
def test_quantiles_are_those_of_the_table(freedom: int, t: float) -> None:
    assert t_95(freedom) == pytest.approx(t, abs=6e-5)


def test_the_interval_of_a_mean() -> None:
    found = interval([4.0, 6.0, 8.0])
    assert found.mean == 6.0
    assert found.half == pytest.approx(4.302653 * 2.0 / 3**0.5)
    assert [found.low, found.high] == pytest.approx([6.0 - found.half, 6.0 + found.half])


def test_equal_values_leave_no_doubt() -> None:
    assert interval([5.0, 5.0]) == (5.0, 5.0, 5.0)
    assert interval([0.1, 0.1, 0.1]) == (0.1, 0.1, 0.1)


def test_one_value_tells_nothing() -> None:
    with pytest.raises(ValueError, match="at least two"):
        t_95(0)


def test_two_runs_give_no_interval() -> None:
    """Utilizations of 21.6 % and 29.6 % would have a mean of 25.6 % ± 51 points."""
    assert interval([0.216, 0.296]).half == pytest.approx(0.508, abs=1e-3)
    assert means([{"utilization": 0.216}, {"utilization": 0.296}], 1) == {
        "runs": 2, "utilization": pytest.approx(0.256),
    }  # fmt: skip


def test_an_interval_ends_where_the_metric_does() -> None:
    values = {
        "utilization": [0.1, 0.5, 0.9], "fairness": [0.9, 0.99, 1.0], "slowdown_mean": [1.0, 1.0, 4.0],
        "wait_mean": [0.0, 0.0, 60.0], "jct_mean": [50.0, 60.0, 70.0],
    }  # fmt: skip
    rows = [{key: column[run] for key, column in values.items()} for run in range(3)]
    found = means(rows, 1)
    assert found["utilization_ci"] == [0.0, 1.0]
    assert found["fairness_ci"][1] == found["slowdown_mean_ci"][0] == 1.0
    assert found["wait_mean_ci"][0] == 0.0
    assert found["jct_mean_ci"] == list(interval(values["jct_mean"])[1:])


def test_intervals_in_words() -> None:
    assert format_interval(60.0, [50.0, 70.0], format_duration) == "± 10s"
    assert format_interval(20.0, [0.0, 94.0], format_duration) == "(0s to 1m 34s)"
    assert format_interval(0.25, [0.2, 0.3], "{:.0%}".format, share=True) == "(20% to 30%)"
