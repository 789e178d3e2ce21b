"""The files of an experiment that people look at: tables, plots, and one page with all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from gpuyard.experiments.model import LAYOUTS, Experiment, RunResult
from gpuyard.experiments.results import Results, Run
from gpuyard.experiments.table import jobs_csv, lines, speedups, summary_csv
from gpuyard.sim.figures import write_atomically
from gpuyard.units import format_number

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
    """Write tables, plots and the page; returns what was written, the page last. No layouts: numbers only."""
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
    drawn = [*_comparison(experiment, results.folder, rows), *_series(experiment, results.folder, done, layouts, warn)]
    page = results.folder / "report.html"
    write_atomically(page, _page(experiment, results.folder, rows, drawn).encode())
    return [*written, *drawn, page]


def _comparison(experiment: Experiment, folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[Path]:
    from gpuyard.experiments.charts import comparison
    from gpuyard.sim.figures import save

    return list(save(comparison(rows, experiment.name), folder / "plots", "duration"))


def _series(
    experiment: Experiment,
    folder: Path,
    done: Sequence[tuple[Run, RunResult]],
    layouts: Sequence[str],
    warn: Callable[[str], None],
) -> list[Path]:
    """What GPUs did over time."""
    from gpuyard.experiments.drawing import draw_all

    written: list[Path] = []
    for sheet in draw_all(experiment, folder, [run for run, _ in done], layouts):
        written += sheet.written
        if sheet.warning:
            warn(sheet.warning)
    return written


def _page(experiment: Experiment, folder: Path, rows: Sequence[Mapping[str, Any]], drawn: Sequence[Path]) -> str:
    from gpuyard.sim.page import image, page

    made_up = " Power is that of a model: nothing was measured." if any(row["simulated"] for row in rows) else ""
    body = [
        f"<h1>{escape(experiment.name)}</h1>",
        f'<p class="lead">{_lead(experiment)}{made_up}</p>',
        "<h2>Schedulers</h2>",
        f"<pre>{escape(chr(10).join([*lines(rows), '', *speedups(rows)]).rstrip())}</pre>",
        f'<p class="soft">{_MEANING}</p>',
        image(
            (folder / "plots" / "duration.svg").read_bytes(), "Duration, mean wait and energy against over-provisioning"
        ),
        *_figures(folder, drawn),
        "<h2>Files</h2>",
        f"<p>{', '.join(_link(name, name) for name in _FILES)}; runs/ and recordings/ have every run.</p>",
    ]
    return page(experiment.name, "\n".join(body))


def _figures(folder: Path, drawn: Sequence[Path]) -> list[str]:
    """What GPUs did, over time: overlays to look at, and links to the rest."""
    from gpuyard.sim.page import image

    found: list[str] = []
    groups: dict[str, list[Path]] = {}
    for path in drawn:
        layout, _, percent = path.parent.name.partition("-")
        if layout in LAYOUTS:
            groups.setdefault(percent, []).append(path)
    for percent, paths in groups.items():
        found.append(f"<h2>{escape(percent)} % over-provisioning</h2>")
        curves = [path for path in paths if path.suffix == ".svg"]
        found += [image(path.read_bytes(), f"{path.stem.replace('_', ' ')}, all schedulers") for path in curves]
        found.append(_links(folder, paths))
    if others := [path for path in drawn if path.parent.name == "beside" or path.parent.name.startswith("each-")]:
        found += ["<h2>Side by side, and each by itself</h2>", _links(folder, others)]
    return found


def _links(folder: Path, paths: Sequence[Path]) -> str:
    links = (_link(str(path.relative_to(folder)), f"{path.parent.name}/{path.name}") for path in paths)
    return f'<p class="soft">{", ".join(links)}</p>'


def _lead(experiment: Experiment) -> str:
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
