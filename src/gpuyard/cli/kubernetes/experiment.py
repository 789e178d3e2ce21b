"""`gpuyard kubernetes experiment`: compare ways to share GPUs on a cluster, on the jobs of a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.experiment import Teller, percents
from gpuyard.cli.kubernetes.reaching import Reaching
from gpuyard.cli.sharing import Json, shared
from gpuyard.errors import GpuyardError, UserError

if TYPE_CHECKING:
    from gpuyard.experiments.runner import Choice, Outcome
    from gpuyard.kubernetes.api import Api
    from gpuyard.kubernetes.experiment.file import Described


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


@shared
def experiment(
    reaching: Reaching,
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
    from gpuyard.kubernetes.experiment.file import read_file
    from gpuyard.kubernetes.experiment.settings import speed

    try:
        fast = None if choosing.speed is None else speed(choosing.speed)
    except UserError as error:
        raise UserError(f"--speed: {error}") from None
    found = read_file(file, namespace=place.namespace, prometheus=place.prometheus, speed=fast)
    if generate is not None:
        _generate(found, reaching, choosing.choice(), generate, json)
        return
    _run(found, reaching.api(), choosing.choice(), Path(out or f"{found.experiment.name}-results"), not no_plots, json)


def _generate(found: Described, reaching: Reaching, choice: Choice, folder: Path, json: bool) -> None:
    """Write manifests; what nodes say of their GPUs is asked for if the file does not, and if somebody answers."""
    from gpuyard.kubernetes.experiment.cluster import look_at
    from gpuyard.kubernetes.experiment.file import write_manifests

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


def _run(found: Described, api: Api, choice: Choice, folder: Path, plots: bool, json: bool) -> None:
    from gpuyard.experiments.model import MORE_LAYOUTS
    from gpuyard.experiments.runner import run_experiment
    from gpuyard.kubernetes.experiment.engine import ClusterEngine
    from gpuyard.kubernetes.experiment.results import as_json, write_results
    from gpuyard.monitor.prometheus import PrometheusSource

    teller, server, settings = Teller(), api.connection.server, found.settings.cluster
    experiment = replace(found.experiment, kubernetes={**found.experiment.kubernetes, "server": server})
    namespace = settings.namespace or api.connection.namespace
    engine = ClusterEngine(api, found.settings, PrometheusSource(settings.prometheus), teller.warn, namespace)
    try:
        outcome = run_experiment(
            experiment, folder, choice, teller, engine=engine, plots=plots, layouts=MORE_LAYOUTS
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
    _tell(outcome, folder, settings.speed, table=not json)


def _tell(found: Outcome, folder: Path, speed: float, *, table: bool) -> None:
    from gpuyard.experiments.table import lines, speedups

    if found.done_before:
        output.say(f"{output.many(found.done_before, 'run')} had been done before (--fresh does all anew)")
    if table:
        print("\n".join([*lines(found.rows), "", *speedups(found.rows)]).rstrip())
    if speed != 1:
        output.say(f"times are as they passed: 1 s stands for {speed:g} s of the file's")
    output.say(f"results are in {folder}" + (f"; look at {found.written[-1]}" if found.written else ""))
