"""Runs an experiment on a back end, run after run, and writes its outputs.

The back ends are `simulated_backend`, `local_backend` and `gpuyard.kubernetes.experiment.backend`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gpuyard.errors import UserError, suggest
from gpuyard.experiments.design import LAYOUTS, Arrival, Experiment, JobResult, RunResult
from gpuyard.experiments.measures import measure, reported, summaries
from gpuyard.experiments.results_folder import Results, Run, meaning, planned
from gpuyard.recordings.series import Mark, Recording, Subject
from gpuyard.units import format_number

Progress = Callable[[int, int], None]  # called with the number of jobs that are over, and of all jobs
_LOOK = 1.0  # seconds between two counts of the jobs that are over, at most
_SHOWN = 3  # warnings of a run that are shown; its recording has all


class Watcher(Protocol):
    """Shows the progress of an experiment."""

    def begins(self, number: int, total: int, run: Run) -> None: ...

    def progress(self, done: int, total: int) -> None:
        """Jobs of the run that are over, of all."""

    def warn(self, sentence: str) -> None: ...

    def draws(self) -> None:
        """The runs are done, and figures are drawn."""


class Backend(Protocol):
    """Where the runs of an experiment take place."""

    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        """Refuse what can never run, before anything does."""

    def clear(self, results: Results) -> None:
        """End what an experiment in this folder left when it was killed."""

    def run(
        self, experiment: Experiment, run: Run, results: Results, on_progress: Progress
    ) -> tuple[RunResult, Recording]: ...


class Submissions(Protocol):
    """The jobs of one run on a back end whose time really passes."""

    def submit(self, arrival: Arrival) -> None: ...

    def ended(self) -> int:
        """How many submitted jobs are over."""

    def wait(self, timeout: float) -> None:
        """Wait so long, or until something happens to a job."""


def submit_all(
    jobs: Sequence[Arrival], submissions: Submissions, on_progress: Progress, *, limit: float | None = None
) -> int:
    """Submit jobs as they arrive, and wait until all are over, or for `limit` seconds; how many are over."""
    began, submitted = time.monotonic(), 0
    while True:
        now = time.monotonic() - began
        while submitted < len(jobs) and jobs[submitted].at <= now:
            submissions.submit(jobs[submitted])
            submitted, now = submitted + 1, time.monotonic() - began
        ended = submissions.ended()
        on_progress(ended, len(jobs))
        if ended == len(jobs) or (limit is not None and now > limit):
            return ended
        due = jobs[submitted].at - now if submitted < len(jobs) else _LOOK
        submissions.wait(min(_LOOK, max(0.0, due)))


class EndedJob(NamedTuple):
    result: JobResult
    output: bytes  # the end of its output, which may have a report
    details: str = ""  # where its output is, or why it failed; a part of a sentence
    subject: Subject | None = None  # the first GPU that it was on


def run_result(run: Run, jobs: Iterable[EndedJob], begin: float) -> tuple[RunResult, list[Mark], list[str]]:
    """The jobs as a result, as marks for plots, and warnings; `begin` is in seconds since the epoch."""
    result, marks, warnings = RunResult(run.scheduler.name, run.percent, run.turn, 0.0, []), list[Mark](), list[str]()
    for job, output, details, subject in jobs:
        numbers, complaints = reported(output, f"job {job.name}")
        warnings += complaints
        result.jobs.append(replace(job, reported=numbers))
        if job.state != "succeeded":
            warnings.append(f"job {job.name} ended as {job.state}{details}")
        if job.started is not None and job.ended is not None:
            marks.append(Mark(begin + job.started, job.name, begin + job.ended, subject))
    result.duration = max((job.ended or 0.0 for job in result.jobs), default=0.0)
    return result, marks, warnings


def measured(
    result: RunResult, recording: Recording, marks: Sequence[Mark], warnings: Sequence[str]
) -> tuple[RunResult, Recording]:
    recording.marks, recording.warnings = list(marks), [*recording.warnings, *warnings]
    result.simulated = recording.simulated
    return measure(result, recording), recording


@dataclass(frozen=True, slots=True)
class Choice:
    repeat: int | None = None
    only: Sequence[str] = ()  # names of schedulers; none: all
    percents: Sequence[float] = ()
    simulate: bool = False
    fresh: bool = False

    def runs(self, experiment: Experiment) -> list[Run]:
        names = [one.name for one in experiment.schedulers]
        for name in self.only:
            if name not in names:
                raise UserError(f"there is no scheduler '{name}'{suggest(name, names)}; there are {', '.join(names)}")
        for percent in self.percents:
            if percent not in experiment.over_provisioning:
                known = ", ".join(map(format_number, experiment.over_provisioning))
                raise UserError(f"the experiment has no over-provisioning of {format_number(percent)} %, but {known}")
        return [
            run
            for run in planned(experiment, self.repeat or experiment.repeat)
            if (not self.only or run.scheduler.name in self.only)
            and (not self.percents or run.percent in self.percents)
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    rows: list[dict[str, Any]]
    results: list[RunResult]
    written: list[Path]
    done_before: int


def run_experiment(
    experiment: Experiment,
    out: Path,
    choice: Choice,
    watcher: Watcher,
    backend: Backend,
    *,
    plots: bool = True,
    layouts: Sequence[str] = LAYOUTS,
) -> Outcome:
    """Do the runs that are not done yet, and write all outputs."""
    from gpuyard.experiments.outputs import write_outputs

    runs, results = choice.runs(experiment), Results(out)
    backend.check(experiment, runs)
    with results.opened(choice.fresh):
        backend.clear(results)
        there = [run.name for run, _ in results.done(experiment, choice.simulate)]
        results.claim(experiment, choice.simulate)
        missing = [run for run in runs if run.name not in there]
        for number, run in enumerate(missing, 1):
            watcher.begins(number, len(missing), run)
            result, recording = backend.run(experiment, run, results, watcher.progress)
            _warn(watcher, run, recording.warnings)
            results.save(run, meaning(experiment, run, choice.simulate), result, recording)
        done = results.done(experiment, choice.simulate)
        rows = summaries(result for _, result in done)
        if plots:
            watcher.draws()
        written = write_outputs(experiment, results, done, rows, watcher.warn, layouts=layouts if plots else ())
    return Outcome(rows, [result for _, result in done], written, len(runs) - len(missing))


def _warn(watcher: Watcher, run: Run, warnings: Sequence[str]) -> None:
    for sentence in warnings[:_SHOWN]:
        watcher.warn(f"{run.name}: {sentence}")
    if len(warnings) > _SHOWN:
        watcher.warn(f"{run.name}: and {len(warnings) - _SHOWN} more (its recording has all)")
