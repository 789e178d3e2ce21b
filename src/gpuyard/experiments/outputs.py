"""Outputs of an experiment: tables, figures drawn by several processes, and one HTML page."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuyard.errors import GpuyardError, UserError
from gpuyard.experiments.design import LAYOUTS, Experiment, RunResult
from gpuyard.experiments.measures import jobs_csv, lines, speedups, summary_csv
from gpuyard.experiments.results_folder import Results, Run
from gpuyard.figures.axes import label_axis, label_time
from gpuyard.figures.html_page import heading, image, lead, page, soft
from gpuyard.figures.panels import DRAWN_AS_ROWS, Axis, Named, axis_of, highest, panels, scale_of
from gpuyard.figures.style import (
    COLOURS,
    MARKS,
    clipped,
    figure_title,
    legend_beside,
    new_figure,
    png_bytes,
    save,
    styled,
)
from gpuyard.files import write_atomically
from gpuyard.monitor import plots
from gpuyard.monitor.plots import draw_line, legend, value_axis, write_plots
from gpuyard.recordings.series import METRICS, Recording
from gpuyard.sim.parallel import available_cpus, start_method
from gpuyard.units import format_number

_PANELS = (
    ("duration", "duration_std", "Duration (s)", "First arrival to last end"),
    ("wait", None, "Mean wait (s)", "Arrival to start"),
    ("energy", None, "Energy (Wh)", "All GPUs"),
)


def comparison(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Duration, mean wait and energy of each scheduler; bars are the deviation of repetitions."""
    panels = [panel for panel in _PANELS if any(row[panel[0]] is not None for row in rows)]
    names = list(dict.fromkeys(row["scheduler"] for row in rows))
    with styled():
        figure = new_figure(4.2 * len(panels) + 1.2, 4.0)
        places = figure.subplots(1, len(panels), squeeze=False).flat
        for axes, (key, spread, label, note) in zip(places, panels, strict=True):
            for place, name in enumerate(names):
                _line(axes, [row for row in rows if row["scheduler"] == name], key, spread, place, len(names))
            _finish(axes, rows, label, note)
        made_up = " (simulated GPUs)" if any(row["simulated"] for row in rows) else ""
        figure_title(figure, clipped(title, 90) + made_up)
        legend_beside(figure, handles=figure.axes[0].get_legend_handles_labels()[0])
        return figure


def _line(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, spread: str | None, place: int, count: int) -> None:
    """The line of one scheduler; those drawn earlier are broader, so that they are seen under others."""
    known = sorted((row for row in rows if row[key] is not None), key=lambda row: row["percent"])
    if not known:
        return
    broader = min(3, count - 1 - place)
    bars = [row[spread] or 0.0 for row in known] if spread and any(row[spread] for row in known) else None
    axes.errorbar(
        [row["percent"] for row in known], [row[key] for row in known], yerr=bars,
        color=COLOURS[place % len(COLOURS)], marker=MARKS[place % len(MARKS)],
        markersize=5 + 2 * broader, linewidth=1.6 + broader, capsize=3, label=clipped(known[0]["scheduler"], 30),
    )  # fmt: skip


def _finish(axes: Axes, rows: Sequence[Mapping[str, Any]], label: str, note: str) -> None:
    axes.set_ylabel(label)
    axes.set_xlabel("Over-provisioning (%)")
    axes.set_title(note, loc="left", fontsize=9)
    percents = sorted({row["percent"] for row in rows})
    apart = (percents[-1] - percents[0]) or 1.0
    axes.set_xlim(percents[0] - 0.06 * apart, percents[-1] + 0.06 * apart)
    if len(percents) <= 8:
        label_axis(axes.xaxis, [(percent, format_number(percent)) for percent in percents])
    axes.set_ylim(bottom=0)
    axes.grid()


_COLUMNS = 3
_POINTS = 2000  # of one line: about two for each dot of a panel's width
_POINTS_WIDE = 620.0  # points of paper that the panels of a row have together


def draw_beside(groups: Sequence[tuple[str, Named]], metric: str, title: str = "") -> Figure | None:
    """One metric of several groups, each with its name; None where nothing is known of it, or it has no lines.

    A recording has the same colour in all groups, by its place in them.
    """
    known = [(name, several, found) for name, several in groups if (found := panels(several, metric, "overlay"))]
    if not known or metric in DRAWN_AS_ROWS:
        return None
    every = [panel for _, _, found in known for panel in found]
    axes_of = [axis_of(recordings) for _, recordings, _ in known]
    axis = Axis(False, 0.0, min(one.left for one in axes_of), max(one.right for one in axes_of))
    scale, columns = scale_of(METRICS[metric], highest(every)), min(_COLUMNS, len(known))
    rows = -(-len(known) // columns)
    with styled():
        figure = new_figure(max(6.0, 4.2 * columns) + 1.4, 3.0 * rows + 0.8)
        places = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
        for number, (axes, (name, _, (panel, *_rest))) in enumerate(zip(places, known, strict=False)):
            for line in panel.lines:
                draw_line(axes, line, scale, _POINTS)
            value_axis(axes, METRICS[metric], scale, every)
            axes.set_title(clipped(name, 40), loc="left", fontsize=9)
            axes.grid()
            label_time(axes, axis, width=_POINTS_WIDE / columns)
            axes.tick_params(labelbottom=True)
            if number % columns:
                axes.set_ylabel("")
        for spare in places[len(known) :]:
            spare.set_visible(False)
        recordings = [pair for _, several, _ in known for pair in several]
        figure_title(figure, plots.heading(recordings, METRICS[metric], title))
        legend(figure, recordings, every)
        return figure


_FEW = 12  # jobs of a run whose starts and ends can be told apart in a figure


class Sheet(NamedTuple):
    """Some runs in one layout: all schedulers at one over-provisioning, one of them, or all at all."""

    folder: Path
    title: str
    runs: tuple[Run, ...]
    metrics: tuple[str, ...]
    layout: str

    @property
    def out(self) -> Path:
        first = self.runs[0]
        of = {"each": f"-{first.scheduler.name}-{format_number(first.percent)}", "beside": ""}
        return self.folder / "plots" / f"{self.layout}{of.get(self.layout, f'-{format_number(first.percent)}')}"


class Drawn(NamedTuple):
    written: list[Path]
    warning: str = ""


def draw_all(
    experiment: Experiment, folder: Path, done: Sequence[Run], layouts: Sequence[str] = LAYOUTS
) -> Iterator[Drawn]:
    """Every metric over time, in some layouts; in several processes, in order."""
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
    """Draw one; if nothing was recorded that is a warning, since the numbers of jobs are worth having still."""
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
        # a missing scheduler keeps its place, since colours go by that
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


_FILES = ("jobs.csv", "summary.csv", "summary.json", "table.txt")
_MEANING = (
    "Duration: from the first arrival to the last end. Wait: from arrival to start, the longest in brackets. Job: from "
    "arrival to end. Run: the last attempt alone. Restarts: attempts beyond the first, of all jobs. Utilization, "
    "memory and power are means over all GPUs and the whole duration. ± is the standard deviation of repetitions."
)


def write_outputs(
    experiment: Experiment,
    results: Results,
    done: Sequence[tuple[Run, RunResult]],
    rows: Sequence[dict[str, Any]],
    warn: Callable[[str], None],
    *,
    layouts: Sequence[str] = LAYOUTS,
) -> list[Path]:
    """Write tables, plots and the page; returns the files, the page last. No layouts: numbers only."""
    texts = {
        "jobs.csv": jobs_csv([result for _, result in done]),
        "summary.csv": summary_csv(rows),
        "summary.json": json.dumps({"experiment": experiment.name, "rows": rows}, indent=2) + "\n",
        "table.txt": "\n".join([*lines(rows), "", *speedups(rows)]).rstrip() + "\n",
    }
    written = []
    for name, text in texts.items():
        write_atomically(results.folder / name, text.encode())
        written.append(results.folder / name)
    if not layouts or not rows:
        return written
    shutil.rmtree(results.folder / "plots", ignore_errors=True)
    drawn = list(save(comparison(rows, experiment.name), results.folder / "plots", "duration"))
    for sheet in draw_all(experiment, results.folder, [run for run, _ in done], layouts):
        drawn += sheet.written
        if sheet.warning:
            warn(sheet.warning)
    report = results.folder / "report.html"
    write_atomically(report, _page(experiment, results.folder, rows, drawn).encode())
    return [*written, *drawn, report]


def _page(experiment: Experiment, folder: Path, rows: Sequence[Mapping[str, Any]], drawn: Sequence[Path]) -> str:
    made_up = " Power is that of a model: nothing was measured." if any(row["simulated"] for row in rows) else ""
    caption = "Duration, mean wait and energy against over-provisioning"
    parts = [
        lead(f"{_described(experiment)}{made_up}"),
        heading("Schedulers"),
        f"<pre>{escape(chr(10).join([*lines(rows), '', *speedups(rows)]).rstrip())}</pre>",
        soft(_MEANING),
        image((folder / "plots" / "duration.svg").read_bytes(), caption),
        *_figures(folder, drawn),
        heading("Files"),
        f"<p>{', '.join(_link(name, name) for name in _FILES)}; runs/ and recordings/ have every run.</p>",
    ]
    return page(experiment.name, parts)


def _figures(folder: Path, drawn: Sequence[Path]) -> list[str]:
    found: list[str] = []
    groups: dict[str, list[Path]] = {}
    for path in drawn:
        layout, _, percent = path.parent.name.partition("-")
        if layout in LAYOUTS:
            groups.setdefault(percent, []).append(path)
    for percent, paths in groups.items():
        found.append(heading(f"{percent} % over-provisioning"))
        curves = [path for path in paths if path.suffix == ".svg"]
        found += [image(path.read_bytes(), f"{path.stem.replace('_', ' ')}, all schedulers") for path in curves]
        found.append(_links(folder, paths))
    if others := [path for path in drawn if path.parent.name == "beside" or path.parent.name.startswith("each-")]:
        found += [heading("Side by side, and each by itself"), _links(folder, others)]
    return found


def _links(folder: Path, paths: Sequence[Path]) -> str:
    links = (_link(str(path.relative_to(folder)), f"{path.parent.name}/{path.name}") for path in paths)
    return f'<p class="soft">{", ".join(links)}</p>'


def _described(experiment: Experiment) -> str:
    jobs = sum(one.replicas for one in experiment.workloads)
    kinds = ", ".join(f"{one.replicas} x {one.name}" for one in experiment.workloads[:8])
    given = experiment.arrivals
    come = {
        "uniform": f"{format_number(given.low)} to {format_number(given.high)} s apart (uniform, seed {given.seed})",
        "exponential": f"{format_number(given.mean)} s apart on average (exponential, seed {given.seed})",
        "fixed": f"{format_number(given.mean)} s apart",
        "at-once": "all at once",
    }[given.process]
    where = f", on {experiment.gpus} simulated GPUs" if experiment.gpus else ""
    return escape(f"{jobs} jobs ({kinds}), {come}{where}.")


def _link(target: str, text: str) -> str:
    return f'<a href="{escape(target)}">{escape(text)}</a>'
