"""`gpuyard kubernetes experiment` and `monitor`: compare ways to share GPUs, or measure one workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import Json, argument, option, option_groups
from gpuyard.cli.kubernetes.connection import ClusterOptions
from gpuyard.cli.monitoring.experiment import ProgressLine, percents
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
class WorkloadOptions:
    namespace: Annotated[str | None, option("--namespace", "-n", "NAME", "Where pods are made (the context's).")] = None
    prometheus: Annotated[
        str | None, option("--prometheus", "URL", "Who knows what GPUs do ($GPUYARD_PROMETHEUS_URL).")
    ] = None


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    repeat: Annotated[int | None, option("--repeat", "N", "How often (as the file says).", min=1, max=1000)] = None
    only: Annotated[list[str] | None, option("--only", "SCHEDULER", "This scheduler; can be given again.")] = None
    percent: Annotated[str | None, option("--percent", "0,50", "Of the over-provisionings, these.")] = None
    speed: Annotated[float | None, option("--speed", "X", "Jobs come, and are said to run, X times as fast (1).")] = (
        None
    )
    fresh: Annotated[bool, option("--fresh", "Throw former results away; else done runs are not done again.")] = False

    def choice(self) -> Choice:
        from gpuyard.experiments.runner import Choice

        return Choice(self.repeat, tuple(self.only or ()), percents(self.percent), fresh=self.fresh)


@option_groups
def experiment(
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    choices: ChoiceOptions,
    file: Annotated[str, argument("FILE", "The experiment, in YAML, TOML or JSON; or Kube-Knots' own JSON.")],
    out: Annotated[str | None, option("--out", "DIR", "Where results go (NAME-results, in this folder).")] = None,
    generate: Annotated[Path | None, option("--generate", "DIR", "Write the manifests there, and run nothing.")] = None,
    no_plots: Annotated[bool, option("--no-plots", "Write numbers only.")] = False,
    json: Json = False,
) -> None:
    """Compare ways to share the GPUs of a cluster, on pods as they come: times, restarts, energy, plots."""
    from gpuyard.kubernetes.experiment.cluster_settings import speed
    from gpuyard.kubernetes.experiment.manifests import read_file

    try:
        fast = None if choices.speed is None else speed(choices.speed)
    except UserError as error:
        raise UserError(f"--speed: {error}") from None
    found = read_file(file, namespace=workload.namespace, prometheus=workload.prometheus, speed=fast)
    if generate is not None:
        _generate(found, cluster, choices.choice(), generate, json)
        return
    _run(found, cluster.api(), choices.choice(), Path(out or f"{found.experiment.name}-results"), not no_plots, json)


def _generate(found: ClusterExperiment, cluster: ClusterOptions, choice: Choice, folder: Path, json: bool) -> None:
    """Write manifests; if the file does not say how much memory GPUs have, ask the cluster."""
    from gpuyard.kubernetes.experiment.backend import look_at
    from gpuyard.kubernetes.experiment.manifests import write_manifests

    capacity = found.settings.cluster.gpu_memory
    if not capacity:
        try:
            api = cluster.api()
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

    progress, server, settings = ProgressLine(), api.connection.server, found.settings.cluster
    experiment = replace(found.experiment, kubernetes={**found.experiment.kubernetes, "server": server})
    namespace = settings.namespace or api.connection.namespace
    backend = ClusterBackend(api, found.settings, PrometheusSource(settings.prometheus), progress.warn, namespace)
    try:
        outcome = run_experiment(
            experiment, folder, choice, progress, backend, plots=plots, layouts=MORE_LAYOUTS
        )  # fmt: skip
    except KeyboardInterrupt:
        progress.clear()
        output.say("interrupted: what was made is deleted; the same command goes on with what is missing")
        raise SystemExit(130) from None
    finally:
        progress.clear()
    write_results(folder, experiment, outcome, server)
    if json:
        output.print_json(as_json(experiment, outcome, server))
    _print_experiment(outcome, folder, settings.speed, table=not json)


def _print_experiment(found: Outcome, folder: Path, speed: float, *, table: bool) -> None:
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
    cluster: ClusterOptions,
    workload: WorkloadOptions,
    file: Annotated[Path, argument("FILE", "A manifest: a Pod or a Job, or several.")],
    metrics: Annotated[
        str, option("--metrics", "A,B", "By gpuyard's names or DCGM's, as dcgm_gpu_utilization.")
    ] = _USUAL,
    out: Annotated[
        Path | None, option("--out", "DIR", "Where files go (./gpuyard-monitor-TIME).", file_okay=False)
    ] = None,
    keep: Annotated[bool, option("--keep", "Do not delete what was made.")] = False,
    no_plots: Annotated[bool, option("--no-plots", "Draw nothing.")] = False,
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
    chosen = wanted(names)
    if not chosen:
        raise UserError(f"--metrics: nothing is named; write for example {_USUAL}")
    manifest, api = read_manifest(file), cluster.api()
    namespace = workload.namespace or manifest.namespace or api.connection.namespace
    if manifest.namespace and workload.namespace not in (None, manifest.namespace):
        raise UserError(f"{file} says namespace {manifest.namespace}; leave --namespace out")
    folder = prepare(out or usual_folder(), (COMBINED, RECORDING, SUMMARY))
    source = PrometheusSource(workload.prometheus or "")
    recorder = Recorder(source, names_of([one.metric for one in chosen]), _warn)
    output.say(f"{file} is applied in {namespace}; Ctrl-C {'stops watching it' if keep else 'ends and deletes it'}")
    found = watch(api, namespace, manifest, recorder, _warn, keep=keep)
    facts = summary(found, source, chosen)
    files = [write_recording(folder / RECORDING, found.recording), write_summary(folder, facts)]
    files += write_metrics(folder, found.recording, names)
    files += [] if no_plots else _draw(folder, found.recording, chosen, file.stem)
    if json:
        output.print_json({**facts, "files": [str(path) for path in files]})
    _print_workload(facts, folder, files, table=not json)
    if found.interrupted or any(job.state != "succeeded" for job in found.jobs):
        raise SystemExit(130 if found.interrupted else 1)


def _warn(sentence: str) -> None:
    output.say(f"gpuyard: warning: {sentence}")


def _draw(folder: Path, recording: Recording, chosen: Sequence[Wanted], title: str) -> list[Path]:
    from gpuyard.figures.style import png_bytes
    from gpuyard.files import write_atomically
    from gpuyard.monitor.plots import draw, known

    written = []
    for one in chosen:
        if known([(title, recording)], [one.metric]):
            path = folder / f"{one.name}.png"
            write_atomically(path, png_bytes(draw([(title, recording)], one.metric)))
            written.append(path)
    return written


def _print_workload(facts: Mapping[str, Any], folder: Path, files: Sequence[Path], *, table: bool) -> None:
    from gpuyard.cli.terminal.text_table import print_table

    for sentence in facts["warnings"]:
        _warn(sentence)
    if table:
        heads = ("WORKLOAD", "STATE", "WAIT", "RUN", "TOTAL", "RESTARTS", "WHERE")
        print_table(heads, [_row(job) for job in facts["workloads"]])
        print()
        rows = [(one["name"], output.number(one["mean"]), output.number(one["peak"]), one["unit"])
                for one in facts["metrics"]]  # fmt: skip
        print_table(("METRIC", "MEAN", "PEAK", "UNIT"), rows)
    output.say(f"{output.duration(facts['seconds'])} in all; written to {folder}: {', '.join(p.name for p in files)}")


def _row(job: Mapping[str, Any]) -> Sequence[str]:
    wait = None if job["started"] is None else max(0.0, job["started"] - job["arrived"])
    total = None if job["ended"] is None else job["ended"] - job["arrived"]
    restarts = str(job["restarts"]) + (f" ({job['ooms']} oom)" if job["ooms"] else "")
    run = job["ran"] if job["started"] is not None and job["ended"] is not None else None
    times = (output.duration(value) for value in (wait, run, total))
    return job["name"], job["state"], *times, restarts, job["where"] or "-"
