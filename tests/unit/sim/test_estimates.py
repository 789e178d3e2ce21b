"""What policies are told of run times."""

from __future__ import annotations

import numpy as np
import pytest

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim.simulate import Options, default_estimate, estimates, simulate
from gpuyard.sim.trace import Trace

BOTH = Trace.of([0, 0, 0], [10, 20, 30], [1, 1, 1], requested=[100, np.nan, 5])
NONE = Trace.of([0, 0], [10, 20], [1, 1], source="x.csv")


def test_actual() -> None:
    assert estimates(BOTH, "actual").tolist() == [10, 20, 30]


def test_requested_falls_back_to_the_run_time_where_nothing_was_requested() -> None:
    assert estimates(BOTH, "requested").tolist() == [100, 20, 5]


def test_requested_without_any_request() -> None:
    with pytest.raises(UserError, match=r"x\.csv has no requested times; use --estimate actual or noisy:S"):
        estimates(NONE, "requested")


def test_default_is_requested_where_there_is_any() -> None:
    assert (default_estimate(BOTH), default_estimate(NONE)) == ("requested", "actual")
    assert estimates(BOTH).tolist() == [100, 20, 5]
    assert estimates(NONE).tolist() == [10, 20]
    assert simulate(BOTH, Cluster((1,)))[1]["estimate"] == "requested"
    assert simulate(NONE, Cluster((1,)))[1]["estimate"] == "actual"


def test_noise_is_seeded() -> None:
    one, again, other = (estimates(BOTH, "noisy:0.5", seed).tolist() for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert estimates(BOTH, "noisy:0").tolist() == [10, 20, 30]


def test_noise_has_median_one_and_the_sigma_it_says() -> None:
    n = 20_000
    trace = Trace.of(np.zeros(n), np.full(n, 50.0), np.ones(n))
    factors = np.log(estimates(trace, "noisy:0.5") / 50.0)
    assert np.median(factors) == pytest.approx(0.0, abs=0.02)
    assert factors.std() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    "kind", ["exact", "noisy", "noisy:", "noisy:x", "noisy:-1", "noisy:nan", "noisy:inf", "noise:1"]
)
def test_bad_kinds(kind: str) -> None:
    with pytest.raises(UserError, match="--estimate takes actual, requested or noisy:S"):
        estimates(BOTH, kind)


def test_estimates_follow_their_jobs_whatever_the_order_of_the_file() -> None:
    trace = Trace.of([5, 0, 5], [100, 10, 1], [1, 1, 1], ids=["late", "early", "later"], requested=[1, 10, 100])
    result, _ = simulate(trace, Cluster((1,)), "sjf")
    assert dict(zip(result.trace.ids, result.start.tolist(), strict=True)) == {"early": 0, "late": 10, "later": 110}
    by_truth, _ = simulate(trace, Cluster((1,)), "sjf", Options(estimate="actual"))
    assert dict(zip(by_truth.trace.ids, by_truth.start.tolist(), strict=True)) == {"early": 0, "later": 10, "late": 11}


def test_the_true_run_time_decides_when_a_job_ends() -> None:
    result, _ = simulate(BOTH, Cluster((3,)), "fcfs", Options(estimate="requested"))
    assert result.end.tolist() == [10, 20, 30]
