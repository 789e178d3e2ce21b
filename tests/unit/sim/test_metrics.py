"""Metrics of schedules that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpuyard.core.model import GIB, Cluster
from gpuyard.sim.metrics import Power, measure
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace


def line(n: int = 3) -> Result:
    """Jobs of 10 s, submitted together at 100, one after another on one of two GPUs (they are never both used)."""
    trace = Trace.of([100.0] * n, [10.0] * n, [2] * n, users=["ann", "bob", "bob"][:n])
    return simulate(trace, Cluster((2,)))[0]


def test_times() -> None:
    found = measure(line())
    assert (found["jobs"], found["completed"], found["rejected"]) == (3, 3, 0)
    assert [found[f"jct_{name}"] for name in ("mean", "median", "max")] == [20, 20, 30]
    assert [found[f"wait_{name}"] for name in ("mean", "median", "max")] == [10, 10, 20]
    assert found["turnaround_mean"] == found["jct_mean"]
    assert [found[f"slowdown_{name}"] for name in ("mean", "median", "max")] == [2, 2, 3]
    assert (found["makespan"], found["throughput"]) == (30, 0.1)


def test_percentiles() -> None:
    trace = Trace.of(np.zeros(101), np.ones(101), np.ones(101))
    found = measure(simulate(trace, Cluster((1,)))[0])
    assert [found[f"jct_{name}"] for name in ("median", "p95", "p99", "max")] == [51, 96, 100, 101]
    assert [found[f"wait_{name}"] for name in ("median", "p95", "p99", "max")] == [50, 95, 99, 100]


def test_slowdown_is_bounded_by_ten_seconds_and_by_one() -> None:
    trace = Trace.of([0.0, 0.0, 0.0], [1.0, 1.0, 40.0], [1, 1, 1])
    found = measure(simulate(trace, Cluster((1,)))[0])
    assert found["slowdown_mean"] == pytest.approx((1 + 1 + 42 / 40) / 3)
    later = Trace.of([0.0, 0.0], [99.0, 1.0], [1, 1])
    assert measure(simulate(later, Cluster((1,)))[0])["slowdown_max"] == 10.0


def test_utilization_and_energy() -> None:
    trace = Trace.of([0.0], [3600.0], [1])
    found = simulate(trace, Cluster((4,)), options=Options(power=Power(idle=100, busy=500)))[1]
    assert found["utilization"] == 0.25
    assert found["gpu_seconds"] == 3600
    assert found["energy_kwh"] == pytest.approx(0.1 * 3 + 0.5)
    assert measure(line())["utilization"] == 1.0


def test_default_power_is_50_and_300_watts() -> None:
    assert measure(simulate(Trace.of([0.0], [3600.0], [1]), Cluster((2,)))[0])["energy_kwh"] == pytest.approx(0.35)


def test_shares_count_by_what_they_hold() -> None:
    shared = Trace.of([0.0, 0.0], [10.0, 10.0], [1, 1], compute=[25, 50])
    assert simulate(shared, Cluster((1,)))[1]["utilization"] == 0.75
    by_memory = Trace.of([0.0], [10.0], [1], memory=[4 * GIB])
    assert simulate(by_memory, Cluster((1,)))[1]["utilization"] == 0.25


def test_utilization_never_exceeds_one() -> None:
    """One job has all the memory, the other all the rest: together they fill the GPU no more than once."""
    trace = Trace.of([0.0, 0.0], [10.0, 10.0], [1, 1], memory=[16 * GIB, 0.0], compute=[0.0, 99.0])
    found = simulate(trace, Cluster((1,)))[1]
    assert found["makespan"] == 10
    assert found["utilization"] == 1.0


def test_restarts_are_utilization_too() -> None:
    trace = Trace.of([0.0, 2.0], [10.0, 3.0], [1, 1])
    found = simulate(trace, Cluster((1,)), "srtf", Options(restart_cost=4.0))[1]
    assert (found["makespan"], found["preemptions"], found["utilization"]) == (17, 1, 1.0)
    assert found["wait_mean"] == pytest.approx((17 - 10) / 2)


def test_makespan_begins_with_the_first_submit() -> None:
    trace = Trace.of([50.0, 20.0], [5.0, 5.0], [1, 1])
    assert simulate(trace, Cluster((1,)))[1]["makespan"] == 35


def test_fairness() -> None:
    found = measure(line())
    ann, bob = 1.0, (10 / 20 + 10 / 30) / 2
    assert found["fairness"] == pytest.approx((ann + bob) ** 2 / (2 * (ann**2 + bob**2)))
    alone = Trace.of([0.0, 20.0], [10.0, 10.0], [1, 1], users=["ann", "bob"])
    assert simulate(alone, Cluster((1,)))[1]["fairness"] == pytest.approx(1.0)


def test_rejected_jobs_count_as_rejected_only() -> None:
    trace = Trace.of([0.0, 0.0], [5.0, 10.0], [9, 1])
    result, found = simulate(trace, Cluster((1,)))
    assert (found["jobs"], found["completed"], found["rejected"]) == (2, 1, 1)
    assert (found["jct_mean"], found["throughput"]) == (10, 0.1)
    assert result.rejected == {0: "wants 9 GPUs, the cluster has 1"}


@pytest.mark.parametrize(
    "trace", [Trace.of([], [], []), Trace.of([0.0], [5.0], [9])], ids=["no jobs", "none that fits"]
)
def test_nothing_to_measure(trace: Trace) -> None:
    found = simulate(trace, Cluster((1,)))[1]
    assert found["completed"] == 0
    for name in ("jct_mean", "wait_p99", "slowdown_mean", "makespan", "throughput", "utilization", "fairness"):
        assert found[name] is None, name
    assert found["preemptions"] == 0


def test_what_the_command_line_promises() -> None:
    promised = {
        "jobs", "completed", "rejected", "jct_mean", "jct_p99", "wait_mean", "wait_p99", "wait_max", "slowdown_mean",
        "makespan", "utilization", "preemptions", "jobs_per_second",
    }  # fmt: skip
    found = simulate(Trace.of([0.0], [5.0], [1]), Cluster((1,)))[1]
    assert promised <= set(found)
    assert found["jobs_per_second"] > 0


def test_waits_are_not_negative() -> None:
    """Slices of 0.1 s do not add up to the run time exactly."""
    trace = Trace.of([0.0, 0.0], [0.7, 5.0], [1, 1])
    found = simulate(trace, Cluster((2,)), "rr:quantum=0.1")[1]
    assert found["wait_mean"] == 0.0


def test_a_gpu_is_never_more_than_fully_used() -> None:
    """A share by memory beside one by compute: 15/16 + 0.99 of a GPU for 10 s, then 0.1 of it for 10 s."""
    gib = 2.0**30
    trace = Trace.of([0, 0, 90], [10, 10, 10], [1, 1, 1], memory=[15 * gib, gib, gib], compute=[np.nan, 99, 10])
    _, found = simulate(trace, Cluster((1,)), "fcfs@skip")
    assert found["gpu_seconds"] == pytest.approx(11.0)
    assert found["utilization"] == pytest.approx(0.11)


def test_rounding_is_not_a_wait() -> None:
    trace = Trace.of([0.1, 0.2, 4.709164021244639], [0.1, 0.7, 265.8], [1, 1, 1])
    _, found = simulate(trace, Cluster((3,)), "fcfs")
    assert found["wait_max"] == 0


def test_fairness_needs_users() -> None:
    assert simulate(Trace.of([0, 0], [1, 2], [1, 1]), Cluster((1,)))[1]["fairness"] is None


def test_missed_deadlines_and_tardiness() -> None:
    """On one GPU one after another: at 10, in time; at 20, 5 late; 30, in time to the second; no deadline; rejected."""
    trace = Trace.of([0.0] * 5, [10.0] * 5, [1, 1, 1, 1, 9], deadline=[100.0, 15.0, 30.0, np.inf, 1000.0])
    found = measure(simulate(trace, Cluster((1,)))[0])
    assert found["deadline_missed"] == 2
    assert (found["tardiness_mean"], found["tardiness_max"]) == (pytest.approx(5 / 3), 5)


def test_what_is_left_of_adding_decimals_is_not_late() -> None:
    trace = Trace.of([0.0] * 3, [0.1] * 3, [1] * 3, deadline=[0.1, 0.2, 0.3])  # 0.1 + 0.1 + 0.1 is above 0.3
    found = measure(simulate(trace, Cluster((1,)))[0])
    assert (found["deadline_missed"], found["tardiness_max"]) == (0, 0)


def test_without_deadlines_none_is_missed_or_kept() -> None:
    keys = ("deadline_missed", "tardiness_mean", "tardiness_max")
    assert [measure(line())[key] for key in keys] == [None] * 3
    rejected = measure(simulate(Trace.of([0.0], [1.0], [9], deadline=[5.0]), Cluster((1,)))[0])
    assert [rejected[key] for key in keys] == [1, None, None]
