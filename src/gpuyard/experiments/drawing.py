"""What GPUs did in an experiment over time, drawn by several processes, for figures take long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuyard.errors import GpuyardError, UserError
from gpuyard.experiments.model import LAYOUTS, Experiment
from gpuyard.experiments.results import Results, Run
from gpuyard.monitor.beside import draw_beside
from gpuyard.monitor.plots import write_plots
from gpuyard.recordings.series import Recording
from gpuyard.sim.figures import png_bytes, write_atomically
from gpuyard.sim.parallel import available_cpus, start_method
from gpuyard.units import format_number

_FEW = 12
"""Jobs of a run whose starts and ends can be told apart in a figure."""


class Sheet(NamedTuple):
    """Some runs in one layout: all schedulers at one over-provisioning, one of them, or all at all."""

    folder: Path
    title: str
    runs: tuple[Run, ...]
    metrics: tuple[str, ...]
    layout: str

    @property
    def out(self) -> Path:
        """Where its figures go."""
        first = self.runs[0]
        of = {"each": f"-{first.scheduler.name}-{format_number(first.percent)}", "beside": ""}
        return self.folder / "plots" / f"{self.layout}{of.get(self.layout, f'-{format_number(first.percent)}')}"


class Drawn(NamedTuple):
    """What was written, or why nothing was."""

    written: list[Path]
    warning: str = ""


def draw_all(
    experiment: Experiment, folder: Path, done: Sequence[Run], layouts: Sequence[str] = LAYOUTS
) -> Iterator[Drawn]:
    """Every metric over time, in some layouts; one after another, in order."""
    sheets = list(_sheets(experiment, folder, done, layouts))
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
    if sheet.layout == "beside":
        return _draw_beside(sheet)
    results = Results(sheet.folder)
    recordings = [(run.scheduler.name, results.recording(run)) for run in sheet.runs]
    if sheet.layout == "overlay" or max(len(one.marks) for _, one in recordings) > _FEW:
        recordings = [(name, replace(one, marks=[])) for name, one in recordings]  # they would hide each other
    formats = ("png", "svg", "html") if sheet.layout == "overlay" else ("png",)
    layout = "overlay" if sheet.layout == "each" else sheet.layout
    try:
        return Drawn(
            write_plots(recordings, sheet.metrics, sheet.out, layout=layout, formats=formats, title=sheet.title)
        )
    except UserError as error:
        return Drawn([], f"{sheet.title}: {error}")


def _draw_beside(sheet: Sheet) -> Drawn:
    results, groups = Results(sheet.folder), list[tuple[str, list[tuple[str, Recording]]]]()
    names = dict.fromkeys(run.scheduler.name for run in sheet.runs)
    for percent in dict.fromkeys(run.percent for run in sheet.runs):
        found = {run.scheduler.name: results.recording(run) for run in sheet.runs if run.percent == percent}
        # who is missing keeps a place, for colours go by that
        several = [(name, replace(found.get(name, Recording(0.0, 0.0)), marks=[])) for name in names]
        groups.append((f"{format_number(percent)} % over-provisioning", several))
    written = []
    for metric in sheet.metrics:
        if (figure := draw_beside(groups, metric, sheet.title)) is not None:
            sheet.out.mkdir(parents=True, exist_ok=True)
            write_atomically(sheet.out / f"{metric}.png", png_bytes(figure))
            written.append(sheet.out / f"{metric}.png")
    return Drawn(written)


def _sheets(experiment: Experiment, folder: Path, done: Sequence[Run], layouts: Sequence[str]) -> Iterator[Sheet]:
    """The first repetition of every run, in each layout."""
    first: dict[tuple[float, str], Run] = {}
    for run in sorted(done, key=lambda run: run.turn):
        first.setdefault((run.percent, run.scheduler.name), run)
    if not first:
        return
    percents = sorted({run.percent for run in done})
    for percent in percents:
        title = f"{experiment.name}, {format_number(percent)} % over-provisioning"
        same = tuple(run for run in first.values() if run.percent == percent)
        for layout in LAYOUTS:
            if layout in layouts:
                yield Sheet(folder, title, same, experiment.metrics, layout)
        for run in same if "each" in layouts else ():
            yield Sheet(folder, f"{title}, {run.scheduler.name}", (run,), experiment.metrics, "each")
    if "beside" in layouts and len(percents) > 1:
        ordered = tuple(run for percent in percents for run in first.values() if run.percent == percent)
        yield Sheet(folder, experiment.name, ordered, experiment.metrics, "beside")


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a word; the parent has one
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End when the parent is killed: a worker that outlived it would keep the folder's lock."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
