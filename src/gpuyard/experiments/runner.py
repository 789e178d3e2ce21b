"""Runs an experiment on a back end, run after run, and writes its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuyard.errors import UserError, suggest
from gpuyard.experiments.design import LAYOUTS, Experiment, RunResult
from gpuyard.experiments.measures import summaries
from gpuyard.experiments.private_daemon import clear_remains
from gpuyard.experiments.results_folder import Results, Run, meaning, planned
from gpuyard.recordings.series import Recording
from gpuyard.units import format_number

_TOLD = 3


class Watcher(Protocol):
    """Is told how an experiment gets on."""

    def begins(self, number: int, total: int, run: Run) -> None:
        """A run begins, of so many that are to be done."""
        ...

    def progress(self, done: int, total: int) -> None:
        """So many of its jobs are over."""
        ...

    def warn(self, sentence: str) -> None:
        """Something is not as it should be."""
        ...

    def draws(self) -> None:
        """The runs are done, and figures are drawn, which takes a while."""
        ...


class Backend(Protocol):
    """Where runs of an experiment take place."""

    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        """Refuse what can never run before anything does."""
        ...

    def clear(self, results: Results) -> None:
        """End what was left by an experiment in this folder that nobody could end."""
        ...

    def run(
        self, experiment: Experiment, run: Run, results: Results, on_progress: Callable[[int, int], None]
    ) -> tuple[RunResult, Recording]:
        """One run; `on_progress` is told how many jobs of how many are over."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """Which runs of an experiment are wanted."""

    repeat: int | None = None
    only: Sequence[str] = ()
    """Names of schedulers; none: all."""
    percents: Sequence[float] = ()
    simulate: bool = False
    fresh: bool = False

    def runs(self, experiment: Experiment) -> list[Run]:
        """Those of the experiment."""
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
    """What an experiment showed."""

    rows: list[dict[str, Any]]
    results: list[RunResult]
    written: list[Path]
    done_before: int


def run_experiment(
    experiment: Experiment,
    out: Path,
    choice: Choice,
    watcher: Watcher,
    *,
    engine: Backend | None = None,
    plots: bool = True,
    layouts: Sequence[str] = LAYOUTS,
) -> Outcome:
    """Do what is not done yet, and write everything down; on this machine, if no other engine is given."""
    from gpuyard.experiments.outputs import write_outputs

    engine = engine or (_SimulatedBackend() if choice.simulate else _LocalBackend())
    runs, results = choice.runs(experiment), Results(out)
    engine.check(experiment, runs)
    with results.opened(choice.fresh):
        engine.clear(results)
        there = [run.name for run, _ in results.done(experiment, choice.simulate)]
        results.claim(experiment, choice.simulate)
        missing = [run for run in runs if run.name not in there]
        for number, run in enumerate(missing, 1):
            watcher.begins(number, len(missing), run)
            result, recording = engine.run(experiment, run, results, watcher.progress)
            _warn(watcher, run, recording.warnings)
            results.save(run, meaning(experiment, run, choice.simulate), result, recording)
        done = results.done(experiment, choice.simulate)
        rows = summaries(result for _, result in done)
        if plots:
            watcher.draws()
        written = write_outputs(experiment, results, done, rows, watcher.warn, layouts=layouts if plots else ())
    return Outcome(rows, [result for _, result in done], written, len(runs) - len(missing))


def _warn(watcher: Watcher, run: Run, warnings: Sequence[str]) -> None:
    """Tell what was odd in a run, but not of every one of a thousand jobs."""
    for sentence in warnings[:_TOLD]:
        watcher.warn(f"{run.name}: {sentence}")
    if len(warnings) > _TOLD:
        watcher.warn(f"{run.name}: and {len(warnings) - _TOLD} more (its recording has all)")


class _SimulatedBackend:
    """On a virtual clock."""

    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        pass  # what cannot be simulated is told by the run itself, at once

    def clear(self, results: Results) -> None:
        clear_remains(results.yard)  # of a run for real in the same folder

    def run(
        self, experiment: Experiment, run: Run, results: Results, on_progress: Callable[[int, int], None]
    ) -> tuple[RunResult, Recording]:
        from gpuyard.experiments import simulated_backend

        return simulated_backend.run(experiment, run.scheduler, run.percent, run.turn, on_progress=on_progress)


class _LocalBackend:
    """For real, on this machine."""

    def check(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        from gpuyard.experiments import local_backend

        for run in runs:
            local_backend.check(experiment, run.scheduler)

    def clear(self, results: Results) -> None:
        clear_remains(results.yard)

    def run(
        self, experiment: Experiment, run: Run, results: Results, on_progress: Callable[[int, int], None]
    ) -> tuple[RunResult, Recording]:
        from gpuyard.experiments import local_backend

        return local_backend.run(
            experiment, run.scheduler, run.percent, run.turn, on_progress=on_progress,
            folder=results.yard, logs=results.folder / "logs" / run.name,
        )  # fmt: skip
