"""`gpuyard experiment`: compare schedulers on the jobs of a file, real or simulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpuyard.cli.common_options import Json, argument, option, subcommand
from gpuyard.cli.parser import command_group
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.experiments.results_folder import Run
    from gpuyard.experiments.runner import Outcome

app = command_group("Compare schedulers on the jobs of a file, for real or simulated: times, restarts, energy, plots.")
File = Annotated[str, argument("FILE", "The experiment, in YAML, TOML or JSON.")]


@subcommand(app, "run")
def run(
    file: File,
    out: Annotated[str | None, option("--out", "DIR", "Where results go (NAME-results, in this folder).")] = None,
    simulate: Annotated[bool, option("--simulate", "On a virtual clock, by what the file says of behaviour.")] = False,
    repeat: Annotated[int | None, option("--repeat", "N", "How often (as the file says).", min=1, max=1000)] = None,
    only: Annotated[list[str] | None, option("--only", "SCHEDULER", "This scheduler; can be given again.")] = None,
    percent: Annotated[str | None, option("--percent", "0,50", "Of the over-provisionings, these.")] = None,
    fresh: Annotated[bool, option("--fresh", "Throw former results away; else done runs are not done again.")] = False,
    no_plots: Annotated[bool, option("--no-plots", "Write numbers only.")] = False,
    json: Json = False,
) -> None:
    """Run what an experiment still lacks, and tell how the schedulers compare."""
    from gpuyard.experiments.experiment_file import read_experiment
    from gpuyard.experiments.local_backend import LocalBackend
    from gpuyard.experiments.runner import Choice, run_experiment
    from gpuyard.experiments.simulated_backend import SimulatedBackend

    experiment = read_experiment(file)
    folder = Path(out or f"{experiment.name}-results")
    choice = Choice(repeat, tuple(only or ()), percents(percent), simulate, fresh)
    progress = ProgressLine()
    try:
        backend = SimulatedBackend() if simulate else LocalBackend()
        found = run_experiment(experiment, folder, choice, progress, backend, plots=not no_plots)
    except KeyboardInterrupt:
        progress.clear()
        output.say("interrupted: jobs and daemon are ended; the same command goes on with what is missing")
        raise SystemExit(130) from None
    finally:
        progress.clear()
    _print_outcome(found, folder, json)


@subcommand(app, "show")
def show(folder: Annotated[str, argument("DIR", "The folder of an experiment's results.")], json: Json = False) -> None:
    """Print the table of an experiment that was run."""
    from gpuyard.experiments.measures import lines, summaries
    from gpuyard.experiments.results_folder import Results

    rows = summaries(Results(Path(folder)).stored())
    if json:
        output.print_json(rows)
    elif rows:
        print("\n".join(lines(rows)))
    else:
        output.say("no run is done yet; gpuyard experiment run FILE goes on")


@subcommand(app, "check")
def check(file: File, json: Json = False) -> None:
    """Tell whether a file is an experiment, and what it would run."""
    from dataclasses import asdict

    from gpuyard.experiments.design import arrivals
    from gpuyard.experiments.experiment_file import read_experiment
    from gpuyard.experiments.results_folder import planned

    found = read_experiment(file)
    if json:
        output.print_json(asdict(found))
        return
    jobs, runs = arrivals(found), planned(found, found.repeat)
    last = output.duration(jobs[-1].at)
    print(f"{file}: {output.many(len(runs), 'run')} of {output.many(len(jobs), 'job')}, which come within {last}")


def percents(text: str | None) -> tuple[float, ...]:
    from gpuyard.experiments.validation import percentage

    try:
        return tuple(percentage(part) for part in (text or "").split(",") if part.strip())
    except UserError as error:
        raise UserError(f"--percent: {error}") from None


def _print_outcome(found: Outcome, folder: Path, json: bool) -> None:
    from gpuyard.experiments.measures import lines

    if found.done_before:
        output.say(f"{output.many(found.done_before, 'run')} had been done before (--fresh does all anew)")
    output.print_either(json, found.rows, lambda: print("\n".join(lines(found.rows))))
    output.say(f"results are in {folder}" + (f"; look at {found.written[-1]}" if found.written else ""))


class ProgressLine:
    """Progress on stderr: one line that is rewritten on a terminal, a line for each run elsewhere."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty()
        self._head = ""

    def begins(self, number: int, total: int, run: Run) -> None:
        what = f"{run.scheduler.name} at {run.percent:g} %" + (f", turn {run.turn}" if run.turn > 1 else "")
        self._head = f"run {number} of {total}: {what}"
        if not self._moves:
            output.say(self._head)

    def progress(self, done: int, total: int) -> None:
        if self._moves:
            print(f"\r\x1b[K{self._head}: {done} of {total} jobs", end="", file=sys.stderr, flush=True)

    def warn(self, sentence: str) -> None:
        self.clear()
        output.say(f"gpuyard: warning: {sentence}")

    def draws(self) -> None:
        self.clear()
        output.say("drawing ...")

    def clear(self) -> None:
        if self._moves:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
