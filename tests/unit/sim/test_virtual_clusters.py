"""Pools: every job stays in its own, and the whole is the sum of the parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace
from gpuyard.sim.virtual_clusters import Pools
from gpuyard.sim.workload import generate_poisson

TWO = Pools.of([("a", 1, 2), ("b", 2, 1)])


def labelled(label: list[str], **columns: list[float]) -> Trace:
    n = len(label)
    gpus = columns.get("gpus", [1.0] * n)
    return Trace.of(columns.get("submit", [0.0] * n), [10.0] * n, np.array(gpus, dtype=int), labels={"vc": label})


def test_jobs_wait_for_their_own_pool_only() -> None:
    trace = labelled(["a", "a", "a", "b"])
    result, metrics = simulate(trace, TWO.cluster, "fcfs", Options(pools=TWO))
    assert result.cluster == Cluster((2, 1, 1))
    assert result.start.tolist() == [0, 0, 10, 0]
    assert result.placements == [(0,), (1,), (0,), (2,)]
    assert metrics["gpus"] == 4
    assert metrics["pools"]["a"]["completed"] == 3
    assert metrics["pools"]["a"]["gpus"] == metrics["pools"]["b"]["gpus"] == 2
    assert metrics["pools"]["a"]["jct_max"] == 20


def test_jobs_of_no_pool_and_jobs_too_large_for_theirs_are_rejected_with_the_reason() -> None:
    trace = labelled(["a", "c", "b", "a"], gpus=[2, 1, 3, 3])
    result, metrics = simulate(trace, TWO.cluster, "fcfs", Options(pools=TWO))
    assert metrics["rejected"] == 3
    assert result.rejected[1] == "belongs to vc 'c', and there is no such pool"
    assert result.rejected[2] == "wants 3 GPUs, the cluster has 2 (pool b)"
    assert set(result.rejected) == {1, 2, 3}


def test_what_fits_one_pool_is_not_remembered_for_another() -> None:
    pools = Pools.of([("small", 1, 2), ("large", 1, 4)])
    trace = labelled(["small", "large"], gpus=[3, 3])
    result, _ = simulate(trace, pools.cluster, "fcfs", Options(pools=pools))
    assert set(result.rejected) == {0}
    assert result.placements[1] == (2, 3, 4)


def test_the_merged_schedule_is_in_arrival_order() -> None:
    trace = labelled(["b", "a", "b"], submit=[5.0, 3.0, 1.0])
    result, _ = simulate(trace, TWO.cluster, "fcfs", Options(pools=TWO))
    assert result.trace.ids == ["2", "1", "0"]
    assert result.start.tolist() == [1, 3, 5]
    assert result.segments.job.tolist() == [1, 0, 2]


@pytest.mark.parametrize("policy", ["sjf@easy", "srtf", "lottery"])
def test_one_pool_of_everybody_is_the_plain_simulation(policy: str) -> None:
    made = generate_poisson(jobs=60, seed=4, load=1.3, gpus=8)
    trace = Trace.of(made.submit, made.run, made.gpus, labels={"vc": ["x"] * len(made)})
    options = Options(estimate="noisy:0.5", restart_cost=3.0, seed=2)
    alone, plain = simulate(trace, Cluster((4, 4)), policy, options)
    pools = Pools.of([("x", 2, 4)])
    pooled, metrics = simulate(trace, pools.cluster, policy, replace(options, pools=pools))
    assert np.array_equal(alone.start, pooled.start, equal_nan=True)
    assert np.array_equal(alone.segments.gpu, pooled.segments.gpu)
    assert alone.placements == pooled.placements
    assert metrics["jct_mean"] == plain["jct_mean"]


def test_a_trace_without_the_label_is_told_so() -> None:
    trace = Trace.of([0], [1], [1], labels={"vcs": ["a"]})
    with pytest.raises(UserError, match="has no label 'vc'; did you mean 'vcs'\\? \\(it has vcs; say which"):
        simulate(trace, TWO.cluster, "fcfs", Options(pools=TWO))
    with pytest.raises(UserError, match="it has none at all"):
        simulate(Trace.of([0], [1], [1]), TWO.cluster, "fcfs", Options(pools=TWO))


def test_pools_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UserError, match="no pools"):
        Pools.of([])
    with pytest.raises(UserError, match="twice"):
        Pools.of([("a", 1, 2), ("a", 1, 2)])
    with pytest.raises(UserError, match="log"):
        simulate(labelled(["a"]), TWO.cluster, "fcfs", Options(pools=TWO), log=[])


def test_progress_counts_over_all_pools() -> None:
    seen: list[tuple[int, int]] = []
    trace = labelled(["a"] * 6 + ["b"] * 6)
    simulate(trace, TWO.cluster, "fcfs", Options(pools=TWO), progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (12, 12)
