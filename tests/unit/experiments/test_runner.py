"""The runner's part that all back ends share: arrivals, results of ended jobs, and interrupts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gpuyard.experiments.design import Arrival, JobResult, Scheduler, Workload
from gpuyard.experiments.private_daemon import interruptible
from gpuyard.experiments.results_folder import Run
from gpuyard.experiments.runner import EndedJob, run_result, submit_all
from gpuyard.recordings.series import Mark, Subject

WORKLOAD = Workload("w")
JOBS = [Arrival(0.0, "a", WORKLOAD), Arrival(0.0, "b", WORKLOAD), Arrival(0.05, "c", WORKLOAD)]


class Ending:
    """Jobs that end in the next wait after they were submitted, if they do."""

    def __init__(self, *, ends: bool = True) -> None:
        self.submitted: list[str] = []
        self.over, self._ends = 0, ends

    def submit(self, arrival: Arrival) -> None:
        self.submitted.append(arrival.name)

    def ended(self) -> int:
        return self.over

    def wait(self, timeout: float) -> None:
        assert 0.0 <= timeout <= 1.0
        if self._ends:
            self.over = len(self.submitted)


def test_jobs_are_submitted_when_they_arrive_until_all_are_over() -> None:
    jobs, seen = Ending(), list[tuple[int, int]]()
    assert submit_all(JOBS, jobs, lambda done, total: seen.append((done, total))) == 3
    assert jobs.submitted == ["a", "b", "c"]
    assert seen[0] == (0, 3)
    assert seen[-1] == (3, 3)
    assert (2, 3) in seen


def test_a_run_is_given_up_after_its_limit() -> None:
    assert submit_all(JOBS, Ending(ends=False), lambda done, total: None, limit=0.1) == 0


def test_ended_jobs_become_a_result_with_marks_and_warnings() -> None:
    def ended() -> Iterator[EndedJob]:
        yield EndedJob(JobResult("a", "w", 0.0, 1.0, 5.0, 4.0), b"GPUYARD_RESULT p99=0.5 x=y\n", ": no", Subject(2))
        yield EndedJob(JobResult("b", "w", 0.0, None, 7.0, 0.0, state="failed"), b"", ": killed")

    result, marks, warnings = run_result(Run(Scheduler("s"), 50.0, 2), ended(), 100.0)
    assert (result.scheduler, result.percent, result.turn, result.duration) == ("s", 50.0, 2, 7.0)
    assert [dict(job.reported) for job in result.jobs] == [{"p99": 0.5}, {}]
    assert marks == [Mark(101.0, "a", 105.0, Subject(2))]
    assert "job a reported 'x=y'" in warnings[0]
    assert warnings[1:] == ["job b ended as failed: killed"]


def test_times_of_a_result_are_relative_to_the_run() -> None:
    found = JobResult.since(100.0, JOBS[0], arrived=100.5, started=None, ended=103.25, ran=1.0, bound=101.0)
    assert (found.name, found.workload, found.arrived, found.started) == ("a", "w", 0.5, None)
    assert (found.ended, found.bound, found.ran) == (3.25, 1.0, 1.0)


def test_signals_are_like_an_interrupt_until_clearing_up_begins() -> None:
    before, heard = signal.getsignal(signal.SIGTERM), list[int]()
    with interruptible() as handle:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        handle(lambda number, frame: heard.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == before
