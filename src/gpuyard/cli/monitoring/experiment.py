"""`gpuyard experiment`: compare schedulers on the jobs of a file, real or simulated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.common_options import Json, option_groups
from gpuyard.cli.parser import QuickCommand, QuickGroup
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.experiments.results_folder import Run
    from gpuyard.experiments.runner import Outcome

app = typer.Typer(
    cls=QuickGroup,
    help="Compare schedulers on the jobs of a file, for real or simulated: times, restarts, energy, plots.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
File = Annotated[str, typer.Argument(metavar="FILE", help="The experiment, in YAML, TOML or JSON.")]


@app.callback()
def _experiment() -> None:
    """Compare schedulers on the jobs of a file, for real or simulated: times, restarts, energy, plots."""


@app.command("run", cls=QuickCommand)
@option_groups
def run(
    file: File,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Where results go (NAME-results, in this folder).")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="On a virtual clock, by what the file says of behaviour.")
    ] = False,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, max=1000, metavar="N", help="How often (as the file says).")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="SCHEDULER", help="This scheduler; can be given again.")
    ] = None,
    percent: Annotated[
        str | None, typer.Option("--percent", metavar="0,50", help="Of the over-provisionings, these.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw former results away; else done runs are not done again.")
    ] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Write numbers only.")] = False,
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
    teller = Teller()
    try:
        backend = SimulatedBackend() if simulate else LocalBackend()
        found = run_experiment(experiment, folder, choice, teller, backend, plots=not no_plots)
    except KeyboardInterrupt:
        teller.clear()
        output.say("interrupted: jobs and daemon are ended; the same command goes on with what is missing")
        raise SystemExit(130) from None
    finally:
        teller.clear()
    _tell(found, folder, json)


@app.command("show", cls=QuickCommand)
@option_groups
def show(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of an experiment's results.")],
    json: Json = False,
) -> None:
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


@app.command("check", cls=QuickCommand)
@option_groups
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
    """The over-provisionings that an option names; none: all."""
    from gpuyard.experiments.validation import percentage

    try:
        return tuple(percentage(part) for part in (text or "").split(",") if part.strip())
    except UserError as error:
        raise UserError(f"--percent: {error}") from None


def _tell(found: Outcome, folder: Path, json: bool) -> None:
    from gpuyard.experiments.measures import lines

    if found.done_before:
        output.say(f"{output.many(found.done_before, 'run')} had been done before (--fresh does all anew)")
    if json:
        output.print_json(found.rows)
    else:
        print("\n".join(lines(found.rows)))
    output.say(f"results are in {folder}" + (f"; look at {found.written[-1]}" if found.written else ""))


class Teller:
    """Tells on stderr how far an experiment is: a line that moves on a terminal, a line for each run elsewhere."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty()
        self._head = ""

    def begins(self, number: int, total: int, run: Run) -> None:
        """A run begins."""
        what = f"{run.scheduler.name} at {run.percent:g} %" + (f", turn {run.turn}" if run.turn > 1 else "")
        self._head = f"run {number} of {total}: {what}"
        if not self._moves:
            output.say(self._head)

    def progress(self, done: int, total: int) -> None:
        """So many jobs are over."""
        if self._moves:
            print(f"\r\x1b[K{self._head}: {done} of {total} jobs", end="", file=sys.stderr, flush=True)

    def warn(self, sentence: str) -> None:
        """Something is not as it should be."""
        self.clear()
        output.say(f"gpuyard: warning: {sentence}")

    def draws(self) -> None:
        """Figures are drawn."""
        self.clear()
        output.say("drawing ...")

    def clear(self) -> None:
        """Leave no half line."""
        if self._moves:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
