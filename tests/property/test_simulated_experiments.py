"""Sharing by usage gives memory away that was asked for; whoever uses no more than it asked for never dies of it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.experiments.design import Arrivals, Behaviour, Experiment, RunResult, Scheduler, Workload
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.experiments.simulated_backend import SimulatedBackend
from gpuyard.recordings.series import Recording

MIB = 2.0**20
POLICIES = ("fcfs", "fcfs@skip", "fcfs@easy", "sjf@skip@pack", "priority@conservative@spread", "fcfs@skip@first")


def run(experiment: Experiment, scheduler: Scheduler, percent: float, turn: int) -> tuple[RunResult, Recording]:
    return SimulatedBackend().run(experiment, Run(scheduler, percent, turn), Results(Path()), lambda done, total: None)


@st.composite
def workloads(draw: st.DrawFn, number: int) -> Workload:
    """Jobs that ask for at least as much as they use."""
    used = draw(st.integers(200, 12_000))
    asked = min(16_000, used * draw(st.sampled_from([100, 110, 150, 300])) // 100)
    seconds = draw(st.sampled_from([15.0, 60.0, 140.0]))
    behaviour = Behaviour(
        seconds,
        draw(st.sampled_from([{}, {4: 1.3 * seconds}])),
        overhead=draw(st.sampled_from([0.0, 3.0, 45.0])),
        memory=used * MIB,
        ramp=draw(st.sampled_from([0.0, 5.0, 40.0, 120.0])),
    )
    return Workload(
        f"kind{number}",
        draw(st.integers(1, 6)),
        gpus=draw(st.sampled_from([1, 1, 2])),
        gpu_memory=asked * MIB,
        priority=float(draw(st.integers(0, 2))),
        estimate=draw(st.sampled_from([None, seconds])),
        behaviour=behaviour,
    )


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """A few kinds of jobs on a few GPUs."""
    kinds = draw(st.integers(1, 4))
    return Experiment(
        "any",
        tuple(draw(workloads(number)) for number in range(kinds)),
        (),
        Arrivals("uniform", 0.0, draw(st.sampled_from([0.0, 5.0, 60.0])), seed=draw(st.integers(0, 99)), shuffle=True),
        gpus=draw(st.sampled_from(["2x16000M", "3x16000M", "1x16000M,1x24000M,1x40000M"])),
    )


@given(experiments(), st.sampled_from(POLICIES), st.sampled_from([0.0, 60.0, 250.0]))
@settings(max_examples=25)
def test_honest_jobs_never_run_out_of_memory_by_usage(experiment: Experiment, policy: str, percent: float) -> None:
    result, recording = run(experiment, Scheduler("usage", "usage", policy), percent, 1)
    assert [(job.name, job.state, job.ooms) for job in result.jobs if job.ooms or job.state != "succeeded"] == []
    assert min(series.mean.min() for series in recording.of("memory_used")) >= 0
    assert result.duration >= max(job.arrived for job in result.jobs)


@given(experiments(), st.sampled_from(POLICIES))
@settings(max_examples=10)
def test_nor_by_what_they_ask_for(experiment: Experiment, policy: str) -> None:
    result, _ = run(experiment, Scheduler("requests", "requests", policy), 0.0, 1)
    assert sum(job.ooms for job in result.jobs) == 0
