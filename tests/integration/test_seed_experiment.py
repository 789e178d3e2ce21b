"""The published experiment of 30 inference jobs on one V100, replayed: durations, what the GPU showed, who died."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.experiments.design import Arrivals, Behaviour, Experiment, RunResult, Scheduler, Workload
from gpuyard.experiments.experiment_file import read_experiment
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.experiments.simulated_backend import MOST_RESTARTS, SimulatedBackend
from gpuyard.recordings.series import Recording, energy

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "experiments"
MIB, GIB = 2.0**20, 2.0**30
PERCENTS = (0, 50, 100, 150, 200, 250)
EXCLUSIVE, REQUESTS, USAGE = Scheduler("e", "exclusive"), Scheduler("r", "requests"), Scheduler("u", "usage")


def run(experiment: Experiment, scheduler: Scheduler, percent: float, turn: int) -> tuple[RunResult, Recording]:
    return SimulatedBackend().run(experiment, Run(scheduler, percent, turn), Results(Path()), lambda done, total: None)


@pytest.fixture(scope="module")
def fitted() -> Experiment:
    return read_experiment(EXAMPLES / "kube-knots.yaml")


@pytest.fixture(scope="module")
def shared(fitted: Experiment) -> RunResult:
    """Sharing by requests, where everybody asks for what it uses."""
    return run(fitted, REQUESTS, 0, 1)[0]


def test_the_examples_say_what_was_published(fitted: Experiment) -> None:
    assert fitted.over_provisioning == PERCENTS
    assert [one.sharing for one in fitted.schedulers] == ["exclusive", "requests", "usage"]
    assert (fitted.arrivals.low, fitted.arrivals.high, fitted.arrivals.seed) == (20, 40, 2020)
    assert [(one.replicas, one.gpu_memory / MIB) for one in fitted.workloads] == [(30, 6994)]
    measured = read_experiment(EXAMPLES / "kube-knots-as-measured.yaml")
    assert measured.workloads[0].behaviour
    unchanged = replace(measured.workloads[0].behaviour, seconds_by_percent={})
    assert unchanged == fitted.workloads[0].behaviour


@pytest.mark.parametrize("percent", PERCENTS)
def test_a_gpu_for_each_job_takes_as_long_as_published(fitted: Experiment, percent: int) -> None:
    assert run(fitted, EXCLUSIVE, percent, 1)[0].duration == pytest.approx(4077, rel=0.001)


def test_four_share_a_gpu_where_nobody_asks_for_too_much(shared: RunResult) -> None:
    assert shared.duration == pytest.approx(1326, rel=0.02)
    assert sum(job.restarts for job in shared.jobs) == 0


@pytest.mark.parametrize("seed", [0, 1, 7, 99])
def test_that_is_not_an_accident_of_the_seed(fitted: Experiment, seed: int) -> None:
    other = replace(fitted, arrivals=replace(fitted.arrivals, seed=seed))
    shared = run(other, REQUESTS, 0, 1)[0].duration
    assert shared == pytest.approx(1326, rel=0.02)
    assert run(other, USAGE, 250, 1)[0].duration <= 1.02 * shared


@pytest.mark.parametrize(("percent", "together"), list(zip(PERCENTS, (4, 3, 2, 1, 1, 1), strict=True)))
def test_sharing_by_requests_gets_worse_the_more_jobs_ask_for(fitted: Experiment, percent: int, together: int) -> None:
    result, recording = run(fitted, REQUESTS, percent, 1)
    most = max(series.mean.max() for series in recording.of("memory_used"))
    assert round(most / MIB / 6994) == together
    assert result.duration == pytest.approx({4: 1319, 3: 1593, 2: 2206, 1: 4077}[together], rel=0.01)


@pytest.mark.parametrize("percent", PERCENTS)
def test_sharing_by_usage_does_not(fitted: Experiment, shared: RunResult, percent: int) -> None:
    result, _ = run(fitted, USAGE, percent, 1)
    assert result.duration <= 1.02 * shared.duration
    assert sum(job.ooms + job.restarts for job in result.jobs) == 0
    ways = {job.admitted_by for job in result.jobs}
    assert ways == ({"fit", "history"} if percent else {"fit"})


def test_without_the_guard_jobs_die_as_they_did_there(fitted: Experiment) -> None:
    result, recording = run(fitted, replace(USAGE, options={"guard": False}), 0, 1)
    assert sum(job.ooms for job in result.jobs) >= 3
    assert {job.state for job in result.jobs} == {"succeeded"}
    assert "cbp" in {job.admitted_by for job in result.jobs}
    assert max(series.mean.max() for series in recording.of("memory_used")) <= 32510 * MIB + 1


@pytest.mark.parametrize(
    ("scheduler", "utilization", "memory", "power", "watt_hours"),
    [(EXCLUSIVE, 4.3, 5959, 40.0, 45.3), (REQUESTS, 59.7, 21567, 52.0, 19.3)],
)
def test_the_gpu_shows_what_was_measured(
    fitted: Experiment, scheduler: Scheduler, utilization: float, memory: float, power: float, watt_hours: float
) -> None:
    result, recording = run(fitted, scheduler, 0, 1)
    assert result.memory_used is not None
    assert result.power is not None
    assert result.utilization == pytest.approx(utilization, rel=0.05)
    assert result.memory_used / MIB == pytest.approx(memory, rel=0.10)
    assert result.power == pytest.approx(power, rel=0.02)
    assert result.energy == pytest.approx(watt_hours, rel=0.05)
    assert result.energy == pytest.approx(result.power * result.duration / 3600, rel=1e-3)
    assert result.energy == pytest.approx(sum(energy(series) for series in recording.of("power")), rel=1e-3)
    assert recording.simulated
    assert result.simulated


@pytest.mark.parametrize(
    ("scheduler", "percent", "seconds"),
    [(EXCLUSIVE, 0, 4077), (EXCLUSIVE, 100, 4626), (EXCLUSIVE, 200, 4905),
     (REQUESTS, 50, 1516), (REQUESTS, 100, 2411), (REQUESTS, 150, 4796), (REQUESTS, 200, 4806)],
)  # fmt: skip
def test_as_measured_jobs_are_slower_the_more_they_ask_for(scheduler: Scheduler, percent: int, seconds: float) -> None:
    measured = read_experiment(EXAMPLES / "kube-knots-as-measured.yaml")
    assert run(measured, scheduler, percent, 1)[0].duration == pytest.approx(seconds, rel=0.06)


# -- other experiments than that ------------------------------------------------------------------


def jobs(
    name: str, replicas: int, used: float, asked: float, *, seconds: float = 100.0, ramp: float = 10.0, gpus: int = 1
) -> Workload:
    behaviour = Behaviour(seconds, memory=used * GIB, ramp=ramp, utilization=20.0)
    return Workload(name, replicas, gpus=gpus, gpu_memory=asked * GIB, behaviour=behaviour)


def experiment(*workloads: Workload, gpus: str, every: float = 10.0) -> Experiment:
    return Experiment("other", workloads, (), Arrivals("fixed", mean=every, shuffle=True, seed=1), gpus=gpus)


def test_one_who_grows_slowly_gets_its_memory_when_it_needs_it() -> None:
    both = experiment(jobs("quick", 12, 2, 8), jobs("slow", 4, 8, 12, seconds=300.0, ramp=120.0), gpus="2x16G")
    by_usage, by_requests = run(both, USAGE, 0, 1)[0], run(both, REQUESTS, 0, 1)[0]
    assert sum(job.ooms for job in by_usage.jobs) == 0
    assert by_usage.duration < by_requests.duration


def test_a_job_on_two_gpus_among_others() -> None:
    both = experiment(jobs("wide", 3, 4, 10, gpus=2), jobs("small", 10, 3, 6), gpus="1x16G,2x24G")
    result, recording = run(both, USAGE, 50, 1)
    assert [job.state for job in result.jobs] == ["succeeded"] * 13
    assert sum(job.ooms for job in result.jobs) == 0
    assert {series.subject.gpu for series in recording.of("power")} == {0, 1, 2}


def test_who_uses_more_than_it_asked_for_dies_and_begins_anew() -> None:
    liars = experiment(jobs("liar", 4, 8, 2), gpus="1x16G", every=5.0)
    result, _ = run(liars, REQUESTS, 0, 1)
    assert sum(job.ooms for job in result.jobs) > 0
    assert all(job.restarts == job.ooms for job in result.jobs)
    assert {job.state for job in result.jobs} == {"succeeded"}


def test_who_never_fits_is_given_up() -> None:
    hopeless = experiment(jobs("hopeless", 1, 20, 2), gpus="1x16G")
    result, _ = run(hopeless, REQUESTS, 0, 1)
    assert [(job.state, job.ooms) for job in result.jobs] == [("oom", MOST_RESTARTS)]


def test_a_run_can_be_done_again_to_the_last_digit(fitted: Experiment) -> None:
    assert run(fitted, USAGE, 150, 1)[0] == run(fitted, USAGE, 150, 1)[0]


def test_a_repetition_draws_other_arrivals(fitted: Experiment) -> None:
    first, second = (run(fitted, REQUESTS, 0, turn)[0] for turn in (1, 2))
    assert [job.arrived for job in first.jobs] != [job.arrived for job in second.jobs]
    assert second.turn == 2
