"""What a simulated experiment refuses, tells and marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.errors import UserError
from gpuyard.experiments.design import Arrivals, Behaviour, Experiment, RunResult, Scheduler, Workload
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.experiments.runner import Progress
from gpuyard.experiments.simulated_backend import SimulatedBackend
from gpuyard.recordings.series import Recording

GIB = 2.0**30
REQUESTS = Scheduler("r", "requests")


def run(
    experiment: Experiment,
    scheduler: Scheduler,
    percent: float,
    turn: int,
    on_progress: Progress = lambda done, total: None,
) -> tuple[RunResult, Recording]:
    return SimulatedBackend().run(experiment, Run(scheduler, percent, turn), Results(Path()), on_progress)


def experiment(**changes: object) -> Experiment:
    two = Workload("w", 2, gpu_memory=4 * GIB, behaviour=Behaviour(10.0, overhead=1.0, utilization=40.0))
    given = {"name": "small", "workloads": (two,), "schedulers": (REQUESTS,), "gpus": "1x16G"} | changes
    return Experiment(**given)  # type: ignore[arg-type]


def test_jobs_that_do_not_say_how_they_behave_cannot_be_simulated() -> None:
    with pytest.raises(UserError, match=r"workload w does not say how it behaves.*behaviour:"):
        run(experiment(workloads=(Workload("w", command=("true",)),)), REQUESTS, 0, 1)


def test_gpus_must_be_named() -> None:
    with pytest.raises(UserError, match="which GPUs to simulate; write for example gpus"):
        run(experiment(gpus=""), REQUESTS, 0, 1)


def test_the_guard_is_on_or_off() -> None:
    with pytest.raises(UserError, match="scheduler r: guard is true or false, not 'no'"):
        run(experiment(), Scheduler("r", "usage", options={"guard": "no"}), 0, 1)


def test_results_tell_arrival_start_and_end() -> None:
    apart = experiment(arrivals=Arrivals("fixed", mean=30.0))
    result, _ = run(apart, REQUESTS, 0, 1)
    assert [(job.arrived, job.started, job.ended, job.ran) for job in result.jobs] == [
        (0.0, 0.0, 11.0, 11.0),
        (30.0, 30.0, 41.0, 11.0),
    ]
    assert result.duration == 41.0


def test_the_recording_has_what_was_asked_for_and_marks_jobs() -> None:
    _, recording = run(experiment(metrics=("memory_free", "temperature", "sm_clock")), REQUESTS, 0, 1)
    assert {"memory_free", "temperature", "power"} <= {series.metric for series in recording.series}
    assert recording.warnings == ["simulated GPUs have no sm_clock"]
    assert [(mark.at, mark.until, mark.label) for mark in recording.marks] == [(0.0, 11.0, "w-1"), (0.0, 11.0, "w-2")]
    free, power = recording.of("memory_free")[0], recording.of("power")[0]
    assert free.mean[5] + recording.of("memory_used")[0].mean[5] == 16 * GIB
    assert len(power.at) == 12
    assert (power.at[0], power.at[-1]) == (0.0, 11.0)


def test_samples_follow_the_period() -> None:
    _, recording = run(experiment(period=2.0), REQUESTS, 0, 1)
    assert recording.of("utilization")[0].at.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 11.0]


def test_a_run_of_years_is_told_of_less_often() -> None:
    long = Workload("w", 1, gpu_memory=4 * GIB, behaviour=Behaviour(1e8))
    _, recording = run(experiment(workloads=(long,), period=0.1), REQUESTS, 0, 1)
    assert 100_000 < len(recording.of("power")[0].at) <= 250_002
    assert "the run is so long that GPUs are told of every 6m 40s only" in recording.warnings


def test_over_provisioning_is_what_jobs_ask_for_and_not_what_they_use() -> None:
    beside, _ = run(experiment(), REQUESTS, 100, 1)
    alone, recording = run(experiment(), REQUESTS, 250, 1)
    assert (beside.duration, alone.duration) == (11.0, 22.0)
    assert max(recording.of("memory_used")[0].mean) <= 4 * GIB


def test_progress_is_told_with_every_end() -> None:
    told: list[tuple[int, int]] = []
    run(experiment(), REQUESTS, 0, 1, on_progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]
