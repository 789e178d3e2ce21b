"""`gpuyard plot`: what GPUs did, as figures and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import SomeJobIds, Yard
from gpuyard.errors import UserError


@dataclass(frozen=True, slots=True)
class Origin:
    """Who tells what GPUs did, and of when and which."""

    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="SOURCE",
            help="recordings (the daemon's), prometheus, simulated, a CSV of nvidia-smi or a recording.json. May be "
            "repeated.",
        ),
    ] = None
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Where Prometheus is ($GPUYARD_PROMETHEUS_URL).")
    ] = None
    gpus: Annotated[str | None, typer.Option("--gpus", "--gpu", metavar="0,1", help="Only these GPUs.")] = None
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="From then on: 1h for an hour ago, a time, a date.")
    ] = None
    from_: Annotated[str | None, typer.Option("--from", metavar="WHEN", help="The same as --since.")] = None
    to: Annotated[str | None, typer.Option("--to", "--until", metavar="WHEN", help="Until then; now if not said.")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class Making:
    """What is drawn, and how."""

    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="A,B", help="utilization,temperature,memcopy,power; memory, all and more."),
    ] = None
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where files go.")] = Path("gpuyard-plots")
    format: Annotated[str, typer.Option("--format", metavar="A,B", help="Some of png, svg, html.")] = "png,svg,html"
    layout: Annotated[
        str,
        typer.Option("--layout", metavar="LAYOUT", help="overlay: all in one panel; stacked: a panel for each."),
    ] = "overlay"
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="What the figures are called.")] = ""


@shared
def plot(
    yard: Yard,
    origin: Origin,
    making: Making,
    jobs: SomeJobIds = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME=IDS", help="Jobs as one, as in --group sjf=4,5,6. May be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Draw what GPUs did for jobs, or in a span of time: figures, and a page to look closer."""
    from gpuyard.cli.plotting import Asked, gather, metrics_of, named_gpus, span_of
    from gpuyard.monitor.plots import FORMATS, LAYOUTS, known, write_plots

    formats = [part.strip() for part in making.format.split(",") if part.strip()]
    _check(formats, FORMATS, "--format")
    _check([making.layout], LAYOUTS, "--layout")
    for job in jobs or ():
        if job.endswith((".csv", ".json", ".json.gz")):
            raise UserError(f"'{job}' is no job's id; to draw a file, write gpuyard plot --source {job}")
    metrics = metrics_of(making.metrics)
    span = span_of(origin.since, origin.from_, origin.to)
    asked = Asked(yard.client, metrics, span, named_gpus(origin.gpus), origin.url or "")
    recordings = gather(asked, origin.source or ["recordings"], jobs or [], group or [])
    for name, recording in recordings:
        for text in dict.fromkeys(recording.warnings):
            output.say(f"gpuyard: warning: {name}: {text}" if len(recordings) > 1 else f"gpuyard: warning: {text}")
    if making.metrics and making.metrics != "all":
        drawn = known(recordings, metrics)
        for metric in [metric for metric in metrics if metric not in drawn] if drawn else ():
            output.say(f"gpuyard: warning: nothing is known of {metric}, so it is not drawn")
    paths = write_plots(
        recordings, metrics, making.out, layout=making.layout, formats=formats, title=making.title
    )  # fmt: skip
    if json:
        output.print_json([str(path) for path in paths])
    else:
        print("\n".join(map(str, paths)))


def _check(words: list[str], known: tuple[str, ...], option: str) -> None:
    from gpuyard.errors import suggest

    if wrong := [word for word in words if word not in known]:
        raise UserError(f"{option}: there is no '{wrong[0]}'{suggest(wrong[0], known)}; there are {', '.join(known)}")
    if not words:
        raise UserError(f"{option}: nothing is named; there are {', '.join(known)}")
