"""What GPUs did in an experiment over time, drawn by several processes, for figures take long."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuyard.errors import GpuyardError, UserError
from gpuyard.experiments.model import Experiment
from gpuyard.experiments.results import Results, Run
from gpuyard.monitor.plots import write_plots
from gpuyard.sim.parallel import available_cpus, start_method
from gpuyard.units import format_number

LAYOUTS = ("overlay", "stacked")
_FEW = 12
"""Jobs of a run whose starts and ends can be told apart in a figure."""


class Sheet(NamedTuple):
    """All schedulers at one over-provisioning, in one layout."""

    folder: Path
    title: str
    runs: tuple[Run, ...]
    metrics: tuple[str, ...]
    layout: str

    @property
    def out(self) -> Path:
        """Where its figures go."""
        return self.folder / "plots" / f"{self.layout}-{format_number(self.runs[0].percent)}"


class Drawn(NamedTuple):
    """What was written, or why nothing was."""

    written: list[Path]
    warning: str = ""


def draw_all(experiment: Experiment, folder: Path, done: Sequence[Run]) -> Iterator[Drawn]:
    """Every metric over time: all schedulers in one figure, and above each other; one after another, in order."""
    sheets = list(_sheets(experiment, folder, done))
    processes = min(available_cpus(), len(sheets))
    if processes <= 1:
        yield from map(draw, sheets)
        return
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context(start_method()), _begin)
    try:
        with warnings.catch_warnings():  # of threads, as numpy's, which are made to be forked
            warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
            futures = [pool.submit(draw, sheet) for sheet in sheets]
        for future in futures:
            yield future.result()
    except BrokenProcessPool:
        raise GpuyardError("a process that drew was killed, perhaps for want of memory; try --no-plots") from None
    finally:
        pool.shutdown(cancel_futures=True)


def draw(sheet: Sheet) -> Drawn:
    """Draw one; where nothing was recorded that is told, for the numbers of jobs are worth having still."""
    results = Results(sheet.folder)
    recordings = [(run.scheduler.name, results.recording(run)) for run in sheet.runs]
    if sheet.layout == "overlay" or max(len(one.marks) for _, one in recordings) > _FEW:
        recordings = [(name, replace(one, marks=[])) for name, one in recordings]  # they would hide each other
    formats = ("png", "svg", "html") if sheet.layout == "overlay" else ("png",)
    try:
        return Drawn(
            write_plots(recordings, sheet.metrics, sheet.out, layout=sheet.layout, formats=formats, title=sheet.title)
        )
    except UserError as error:
        return Drawn([], f"{sheet.title}: {error}")


def _sheets(experiment: Experiment, folder: Path, done: Sequence[Run]) -> Iterator[Sheet]:
    for percent in sorted({run.percent for run in done}):
        first: dict[str, Run] = {}
        for run in sorted(done, key=lambda run: run.turn):
            if run.percent == percent:
                first.setdefault(run.scheduler.name, run)
        title = f"{experiment.name}, {format_number(percent)} % over-provisioning"
        for layout in LAYOUTS:
            yield Sheet(folder, title, tuple(first.values()), experiment.metrics, layout)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a word; the parent has one
