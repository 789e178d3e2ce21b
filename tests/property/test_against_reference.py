"""The simulator against the naive one of `tests/reference.py`: the same starts, ends and preemptions, job by job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.reference import Job, Schedule

from gpuyard.core.model import Cluster
from gpuyard.sim.result import Result
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.trace import Trace

NON_PREEMPTIVE = sorted(reference.SCORES)


@st.composite
def workloads(draw: st.DrawFn, max_width: int = 8, ties: bool = True) -> tuple[list[Job], int]:
    """Up to 14 jobs and a number of GPUs that all of them fit on.

    Times are whole numbers, so that much happens at once; without `ties` no two jobs ever end at the same time.
    """
    gpus = draw(st.integers(1, max_width))
    n = draw(st.integers(1, 14))
    last = draw(st.sampled_from([1, 10, 60]))
    jobs = []
    for i in range(n):
        run = draw(st.integers(1, 20))
        requested = draw(st.one_of(st.just(run), st.integers(1, 40)))
        # Powers of two: an end is a sum of run times in which no two jobs can agree.
        exact = run if ties else run + 2.0 ** -(i + 1)
        submit = draw(st.integers(0, last))
        jobs.append(Job(i, float(submit), float(exact), draw(st.integers(1, gpus)), float(requested)))
    return draw(st.permutations(jobs)), gpus


def as_trace(jobs: list[Job]) -> Trace:
    return Trace.of(
        [job.submit for job in jobs],
        [job.run for job in jobs],
        [job.gpus for job in jobs],
        ids=[str(job.id) for job in jobs],
        requested=[job.requested for job in jobs],
    )


def schedule(result: Result) -> Schedule:
    ids = [int(i) for i in result.trace.ids]
    return {job: (float(result.start[n]), float(result.end[n])) for n, job in enumerate(ids)}


def check(jobs: list[Job], gpus: int, policy: str, discipline: str) -> None:
    result, _ = simulate(as_trace(jobs), Cluster((gpus,)), policy, Options(discipline=discipline))
    assert schedule(result) == reference.simulate(jobs, gpus, reference.SCORES[policy], discipline)


@pytest.mark.parametrize("discipline", ["strict", "skip", "easy", "conservative", "commit"])
@given(workload=workloads(), policy=st.sampled_from(NON_PREEMPTIVE))
def test_every_discipline_and_score(discipline: str, workload: tuple[list[Job], int], policy: str) -> None:
    check(*workload, policy, discipline)


@given(workload=workloads(ties=False), policy=st.sampled_from(NON_PREEMPTIVE))
def test_easy_shadow(workload: tuple[list[Job], int], policy: str) -> None:
    check(*workload, policy, "easy-shadow")


@pytest.mark.parametrize("discipline", ["strict", "skip"])
@given(workload=workloads(), nodes=st.integers(1, 4))
def test_nodes_do_not_matter_to_a_placement_that_takes_any_gpu(
    discipline: str, workload: tuple[list[Job], int], nodes: int
) -> None:
    jobs, gpus = workload
    cluster = Cluster((1,) * (nodes - 1) + (max(gpus - nodes + 1, 1),))
    jobs = [job for job in jobs if job.gpus <= cluster.gpus] or [Job(0, 0.0, 1.0, 1, 1.0)]
    want = reference.simulate(jobs, cluster.gpus, reference.SCORES["sjf"], discipline)
    for placement in ("first", "pack", "spread", "random"):
        options = Options(discipline=discipline, placement=placement)
        assert schedule(simulate(as_trace(jobs), cluster, "sjf", options)[0]) == want, placement


@pytest.mark.parametrize("policy", sorted(reference.KEYS))
@given(workload=workloads())
def test_preemptive_policies(policy: str, workload: tuple[list[Job], int]) -> None:
    jobs, gpus = workload
    result, _ = simulate(as_trace(jobs), Cluster((gpus,)), policy, Options(estimate="actual"))
    want, preemptions = reference.simulate_preemptive(jobs, gpus, reference.KEYS[policy])
    assert schedule(result) == want
    assert result.preemptions.sum() == preemptions


@pytest.mark.parametrize("arrivals", ["last", "first"])
@given(workload=workloads(max_width=1), quantum=st.integers(1, 12))
def test_round_robin_on_one_gpu(arrivals: str, workload: tuple[list[Job], int], quantum: int) -> None:
    jobs, _ = workload
    result, _ = simulate(as_trace(jobs), Cluster((1,)), f"rr:quantum={quantum},arrivals={arrivals}")
    want = reference.round_robin(jobs, 1, float(quantum), arrivals_first=arrivals == "first")
    assert schedule(result) == want


@given(workload=workloads(max_width=1), quantum=st.integers(1, 12), shift=st.sampled_from([1e5, 1.5e9]))
def test_round_robin_does_not_depend_on_when_the_clock_began(
    workload: tuple[list[Job], int], quantum: int, shift: float
) -> None:
    jobs, _ = workload
    later = [Job(job.id, job.submit + shift, job.run, job.gpus, job.requested) for job in jobs]
    now, _ = simulate(as_trace(jobs), Cluster((1,)), f"rr:quantum={quantum}")
    then, _ = simulate(as_trace(later), Cluster((1,)), f"rr:quantum={quantum}")
    assert (then.end - shift).tolist() == now.end.tolist()
    assert then.preemptions.tolist() == now.preemptions.tolist()


@given(workload=workloads())
def test_metrics_are_those_of_the_reference(workload: tuple[list[Job], int]) -> None:
    jobs, gpus = workload
    _, found = simulate(as_trace(jobs), Cluster((gpus,)), "sjf@easy")
    want = reference.metrics(jobs, reference.simulate(jobs, gpus, reference.SCORES["sjf"], "easy"))
    names = ("jct_mean", "wait_mean", "makespan", "slowdown_mean")
    assert np.allclose([found[name] for name in names], [want.jct, want.wait, want.makespan, want.slowdown])
