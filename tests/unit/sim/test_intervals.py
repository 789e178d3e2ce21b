"""Confidence intervals against the tables in textbooks."""

from __future__ import annotations

import pytest

from gpuyard.sim.compare import interval, t_95


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
