"""`gpuyard kubernetes monitor`: run one workload on a cluster, and write down what its GPUs did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.kubernetes.experiment import Place
from gpuyard.cli.kubernetes.reaching import Reaching
from gpuyard.cli.sharing import Json, shared
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuyard.kubernetes.experiment.metrics import Wanted
    from gpuyard.recordings.series import Recording

_USUAL = "utilization,memory_used,memcopy,power,temperature"


@shared
def monitor(
    reaching: Reaching,
    place: Place,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A manifest: a Pod or a Job, or several.")],
    metrics: Annotated[
        str,
        typer.Option("--metrics", metavar="A,B", help="By gpuyard's names or DCGM's, as dcgm_gpu_utilization."),
    ] = _USUAL,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", file_okay=False, help="Where files go (./gpuyard-monitor-TIME)."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete what was made.")] = False,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Draw nothing.")] = False,
    json: Json = False,
) -> None:
    """Run the workload of a manifest to its end, and write a CSV and a plot of each metric of its GPUs."""
    from gpuyard.kubernetes.experiment.metrics import COMBINED, wanted, write_metrics
    from gpuyard.kubernetes.experiment.recording import Recorder
    from gpuyard.kubernetes.experiment.single import read_manifest, summary, watch
    from gpuyard.monitor.folder import RECORDING, SUMMARY, prepare, usual_folder, write_summary
    from gpuyard.monitor.prometheus import PrometheusSource
    from gpuyard.recordings.series import names_of
    from gpuyard.recordings.textform import write_recording

    names = [part.strip() for part in metrics.split(",") if part.strip()]
    asked = wanted(names)
    if not asked:
        raise UserError(f"--metrics: nothing is named; write for example {_USUAL}")
    manifest, api = read_manifest(file), reaching.api()
    namespace = place.namespace or manifest.namespace or api.connection.namespace
    if manifest.namespace and place.namespace not in (None, manifest.namespace):
        raise UserError(f"{file} says namespace {manifest.namespace}; leave --namespace out")
    folder = prepare(out or usual_folder(), (COMBINED, RECORDING, SUMMARY))
    source = PrometheusSource(place.prometheus or "")
    recorder = Recorder(source, names_of([one.metric for one in asked]), _warn)
    output.say(f"{file} is applied in {namespace}; Ctrl-C {'stops watching it' if keep else 'ends and deletes it'}")
    found = watch(api, namespace, manifest, recorder, _warn, keep=keep)
    told = summary(found, source, asked)
    files = [write_recording(folder / RECORDING, found.recording), write_summary(folder, told)]
    files += write_metrics(folder, found.recording, names)
    files += [] if no_plots else _draw(folder, found.recording, asked, file.stem)
    if json:
        output.print_json({**told, "files": [str(path) for path in files]})
    _tell(told, folder, files, table=not json)
    if found.interrupted or any(job.state != "succeeded" for job in found.jobs):
        raise SystemExit(130 if found.interrupted else 1)


def _warn(sentence: str) -> None:
    output.say(f"gpuyard: warning: {sentence}")


def _draw(folder: Path, recording: Recording, asked: Sequence[Wanted], title: str) -> list[Path]:
    """A figure of each metric that is known, called as its CSV."""
    from gpuyard.monitor.plots import draw, known
    from gpuyard.sim.figures import png_bytes, write_atomically

    written = []
    for one in asked:
        if known([(title, recording)], [one.metric]):
            path = folder / f"{one.name}.png"
            write_atomically(path, png_bytes(draw([(title, recording)], one.metric)))
            written.append(path)
    return written


def _tell(told: Mapping[str, Any], folder: Path, files: Sequence[Path], *, table: bool) -> None:
    from gpuyard.cli.table import print_table

    for sentence in told["warnings"]:
        _warn(sentence)
    if table:
        heads = ("WORKLOAD", "STATE", "WAIT", "RUN", "TOTAL", "RESTARTS", "WHERE")
        print_table(heads, [_row(job) for job in told["workloads"]])
        print()
        rows = [(one["name"], output.number(one["mean"]), output.number(one["peak"]), one["unit"])
                for one in told["metrics"]]  # fmt: skip
        print_table(("METRIC", "MEAN", "PEAK", "UNIT"), rows)
    output.say(f"{output.duration(told['seconds'])} in all; written to {folder}: {', '.join(p.name for p in files)}")


def _row(job: Mapping[str, Any]) -> Sequence[str]:
    wait = None if job["started"] is None else max(0.0, job["started"] - job["arrived"])
    total = None if job["ended"] is None else job["ended"] - job["arrived"]
    restarts = str(job["restarts"]) + (f" ({job['ooms']} oom)" if job["ooms"] else "")
    run = job["ran"] if job["started"] is not None and job["ended"] is not None else None
    times = (output.duration(value) for value in (wait, run, total))
    return job["name"], job["state"], *times, restarts, job["where"] or "-"
