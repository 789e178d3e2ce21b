"""`gpuyard kubernetes experiment` and `monitor`: compare ways to share GPUs, or measure one workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.common_options import Json, option_groups
from gpuyard.cli.kubernetes.connection import ClusterOptions
from gpuyard.cli.monitoring.experiment import Teller, percents
from gpuyard.cli.terminal import output
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuyard.experiments.runner import Choice, Outcome
    from gpuyard.kubernetes.api_client import Api
    from gpuyard.kubernetes.experiment.gpu_recorder import Wanted
    from gpuyard.kubernetes.experiment.manifests import ClusterExperiment
    from gpuyard.recordings.series import Recording


@dataclass(frozen=True, slots=True)
class Place:
    """Where pods are made, and who knows what GPUs do."""

    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Where pods are made (the context's).")
    ] = None
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="Who knows what GPUs do ($GPUYARD_PROMETHEUS_URL)."),
    ] = None


@dataclass(frozen=True, slots=True)
class Choosing:
    """What of the file is run, and how."""

    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, max=1000, metavar="N", help="How often (as the file says).")
    ] = None
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="SCHEDULER", help="This scheduler; can be given again.")
    ] = None
    percent: Annotated[
        str | None, typer.Option("--percent", metavar="0,50", help="Of the over-provisionings, these.")
    ] = None
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="X", help="Jobs come, and are said to run, X times as fast (1)."),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw former results away; else done runs are not done again.")
    ] = False

    def choice(self) -> Choice:
        """The same for the runner."""
        from gpuyard.experiments.runner import Choice

        return Choice(self.repeat, tuple(self.only or ()), percents(self.percent), fresh=self.fresh)


@option_groups
def experiment(
    reaching: ClusterOptions,
    place: Place,
    choosing: Choosing,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The experiment, in YAML, TOML or JSON; or Kube-Knots' own JSON.")
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Where results go (NAME-results, in this folder).")
    ] = None,
    generate: Annotated[
        Path | None, typer.Option("--generate", metavar="DIR", help="Write the manifests there, and run nothing.")
    ] = None,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Write numbers only.")] = False,
    json: Json = False,
) -> None:
    """Compare ways to share the GPUs of a cluster, on pods as they come: times, restarts, energy, plots."""
    from gpuyard.kubernetes.experiment.cluster_settings import speed
    from gpuyard.kubernetes.experiment.manifests import read_file

    try:
        fast = None if choosing.speed is None else speed(choosing.speed)
    except UserError as error:
        raise UserError(f"--speed: {error}") from None
    found = read_file(file, namespace=place.namespace, prometheus=place.prometheus, speed=fast)
    if generate is not None:
        _generate(found, reaching, choosing.choice(), generate, json)
        return
    _run(found, reaching.api(), choosing.choice(), Path(out or f"{found.experiment.name}-results"), not no_plots, json)


def _generate(found: ClusterExperiment, reaching: ClusterOptions, choice: Choice, folder: Path, json: bool) -> None:
    """Write manifests; what nodes say of their GPUs is asked for if the file does not, and if somebody answers."""
    from gpuyard.kubernetes.experiment.backend import look_at
    from gpuyard.kubernetes.experiment.manifests import write_manifests

    capacity = found.settings.cluster.gpu_memory
    if not capacity:
        try:
            api = reaching.api()
            capacity = look_at(api, found.settings.cluster.namespace or api.connection.namespace).capacity
        except GpuyardError as error:
            capacity = float("inf")
            output.say(
                f"gpuyard: warning: requests are not capped at what a GPU has, which no cluster says ({error}); write "
                "kubernetes: {gpu_memory: 32510M} in the file"
            )
    written = write_manifests(found, choice.runs(found.experiment), capacity, folder)
    if json:
        output.print_json([str(path) for path in written])
    output.say(f"{output.many(len(written), 'manifest')} are in {folder}, with arrivals.csv that says when each comes")


def _run(found: ClusterExperiment, api: Api, choice: Choice, folder: Path, plots: bool, json: bool) -> None:
    from gpuyard.experiments.design import MORE_LAYOUTS
    from gpuyard.experiments.runner import run_experiment
    from gpuyard.kubernetes.experiment.backend import ClusterBackend, as_json, write_results
    from gpuyard.monitor.sources.prometheus import PrometheusSource

    teller, server, settings = Teller(), api.connection.server, found.settings.cluster
    experiment = replace(found.experiment, kubernetes={**found.experiment.kubernetes, "server": server})
    namespace = settings.namespace or api.connection.namespace
    backend = ClusterBackend(api, found.settings, PrometheusSource(settings.prometheus), teller.warn, namespace)
    try:
        outcome = run_experiment(
            experiment, folder, choice, teller, backend, plots=plots, layouts=MORE_LAYOUTS
        )  # fmt: skip
    except KeyboardInterrupt:
        teller.clear()
        output.say("interrupted: what was made is deleted; the same command goes on with what is missing")
        raise SystemExit(130) from None
    finally:
        teller.clear()
    write_results(folder, experiment, outcome, server)
    if json:
        output.print_json(as_json(experiment, outcome, server))
    _tell_experiment(outcome, folder, settings.speed, table=not json)


def _tell_experiment(found: Outcome, folder: Path, speed: float, *, table: bool) -> None:
    from gpuyard.experiments.measures import lines, speedups

    if found.done_before:
        output.say(f"{output.many(found.done_before, 'run')} had been done before (--fresh does all anew)")
    if table:
        print("\n".join([*lines(found.rows), "", *speedups(found.rows)]).rstrip())
    if speed != 1:
        output.say(f"times are as they passed: 1 s stands for {speed:g} s of the file's")
    output.say(f"results are in {folder}" + (f"; look at {found.written[-1]}" if found.written else ""))


_USUAL = "utilization,memory_used,memcopy,power,temperature"


@option_groups
def monitor(
    reaching: ClusterOptions,
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
    from gpuyard.kubernetes.experiment.gpu_recorder import COMBINED, Recorder, wanted, write_metrics
    from gpuyard.kubernetes.experiment.single_workload import read_manifest, summary, watch
    from gpuyard.monitor.output_folder import RECORDING, SUMMARY, prepare, usual_folder, write_summary
    from gpuyard.monitor.sources.prometheus import PrometheusSource
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
    _tell_workload(told, folder, files, table=not json)
    if found.interrupted or any(job.state != "succeeded" for job in found.jobs):
        raise SystemExit(130 if found.interrupted else 1)


def _warn(sentence: str) -> None:
    output.say(f"gpuyard: warning: {sentence}")


def _draw(folder: Path, recording: Recording, asked: Sequence[Wanted], title: str) -> list[Path]:
    """A figure of each metric that is known, called as its CSV."""
    from gpuyard.figures.files import write_atomically
    from gpuyard.figures.style import png_bytes
    from gpuyard.monitor.plots import draw, known

    written = []
    for one in asked:
        if known([(title, recording)], [one.metric]):
            path = folder / f"{one.name}.png"
            write_atomically(path, png_bytes(draw([(title, recording)], one.metric)))
            written.append(path)
    return written


def _tell_workload(told: Mapping[str, Any], folder: Path, files: Sequence[Path], *, table: bool) -> None:
    from gpuyard.cli.terminal.text_table import print_table

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
