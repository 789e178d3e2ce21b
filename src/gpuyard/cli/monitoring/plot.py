"""`gpuyard plot` and `gpuyard report`: GPU metrics as figures, and a job as one HTML page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpuyard.cli.common_options import DaemonOptions, JobIds, Json, SomeJobIds, option, option_groups
from gpuyard.cli.terminal import output
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.api.types import Job
    from gpuyard.client.client import Client
    from gpuyard.monitor.job_report import JobRecord


@dataclass(frozen=True, slots=True)
class SourceOptions:
    source: Annotated[
        list[str] | None,
        option(
            "--source",
            "SOURCE",
            "recordings (the daemon's), prometheus, simulated, a CSV of nvidia-smi or a recording.json. May be "
            "repeated.",
        ),
    ] = None
    url: Annotated[str | None, option("--url", "URL", "Where Prometheus is ($GPUYARD_PROMETHEUS_URL).")] = None
    gpus: Annotated[str | None, option("--gpus", "--gpu", "0,1", "Only these GPUs.")] = None
    since: Annotated[str | None, option("--since", "WHEN", "From then on: 1h for an hour ago, a time, a date.")] = None
    from_: Annotated[str | None, option("--from", "WHEN", "The same as --since.")] = None
    to: Annotated[str | None, option("--to", "--until", "WHEN", "Until then; now if not said.")] = None


@dataclass(frozen=True, slots=True)
class FigureOptions:
    metrics: Annotated[
        str | None, option("--metrics", "A,B", "utilization,temperature,memcopy,power; memory, all and more.")
    ] = None
    out: Annotated[Path, option("--out", "-o", "DIR", "Where files go.")] = Path("gpuyard-plots")
    format: Annotated[str, option("--format", "A,B", "Some of png, svg, html.")] = "png,svg,html"
    layout: Annotated[str, option("--layout", "LAYOUT", "overlay: all in one panel; stacked: a panel for each.")] = (
        "overlay"
    )
    title: Annotated[str, option("--title", "TEXT", "What the figures are called.")] = ""


@option_groups
def plot(
    daemon: DaemonOptions,
    origin: SourceOptions,
    figures: FigureOptions,
    jobs: SomeJobIds = None,
    group: Annotated[
        list[str] | None, option("--group", "NAME=IDS", "Jobs as one, as in --group sjf=4,5,6. May be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw what GPUs did for jobs, or in a span of time: figures, and a page to look closer."""
    from gpuyard.cli.monitoring.plot_sources import Query, gather, metrics_of, named_gpus, span_of
    from gpuyard.monitor.plots import FORMATS, LAYOUTS, known, write_plots

    formats = [part.strip() for part in figures.format.split(",") if part.strip()]
    _check(formats, FORMATS, "--format")
    _check([figures.layout], LAYOUTS, "--layout")
    for job in jobs or ():
        if job.endswith((".csv", ".json", ".json.gz")):
            raise UserError(f"'{job}' is no job's id; to draw a file, write gpuyard plot --source {job}")
    metrics = metrics_of(figures.metrics)
    span = span_of(origin.since, origin.from_, origin.to)
    query = Query(daemon.client, metrics, span, named_gpus(origin.gpus), origin.url or "")
    recordings = gather(query, origin.source or ["recordings"], jobs or [], group or [])
    for name, recording in recordings:
        for text in dict.fromkeys(recording.warnings):
            output.say(f"gpuyard: warning: {name}: {text}" if len(recordings) > 1 else f"gpuyard: warning: {text}")
    if figures.metrics and figures.metrics != "all":
        drawn = known(recordings, metrics)
        for metric in [metric for metric in metrics if metric not in drawn] if drawn else ():
            output.say(f"gpuyard: warning: nothing is known of {metric}, so it is not drawn")
    paths = write_plots(
        recordings, metrics, figures.out, layout=figures.layout, formats=formats, title=figures.title
    )  # fmt: skip
    output.print_either(json, [str(path) for path in paths], lambda: print("\n".join(map(str, paths))))


def _check(words: list[str], known: tuple[str, ...], option: str) -> None:
    from gpuyard.errors import suggest

    if wrong := [word for word in words if word not in known]:
        raise UserError(f"{option}: there is no '{wrong[0]}'{suggest(wrong[0], known)}; there are {', '.join(known)}")
    if not words:
        raise UserError(f"{option}: nothing is named; there are {', '.join(known)}")


_LOG = 32_768  # bytes of a job's output that are shown: its end
_EVENTS = 200
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal obeys: colours and the like, which a page shows as rubbish."""


@option_groups
def report(
    daemon: DaemonOptions,
    jobs: JobIds,
    out: Annotated[Path | None, option("--out", "-o", "FILE", "The page (gpuyard-report-ID.html).")] = None,
    title: Annotated[str, option("--title", "TEXT", "What the page is called.")] = "",
    json: Json = False,
) -> None:
    """Write what a job was, how it went and what its GPUs did as one HTML page."""
    from datetime import datetime

    from gpuyard.files import write_atomically
    from gpuyard.monitor.job_report import numbers, report_page

    client = daemon.client()
    records = [_job_record(client, id) for id in jobs]
    for text in dict.fromkeys(text for record in records for text in record.recording.warnings):
        output.say(f"gpuyard: warning: {text}")
    if json:
        output.print_json([numbers(record) for record in records])
        if out is None:
            return
    path = out or Path(f"gpuyard-report-{'-'.join(re.sub(r'[^A-Za-z0-9_.]', '_', id) for id in jobs)[:80]}.html")
    if path.is_dir():
        raise UserError(f"{path} is a directory; name a file, as in --out {path / 'report.html'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    made, command = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}", f"gpuyard report {' '.join(jobs)}"
    write_atomically(path, report_page(records, title=title, made=made, command=command).encode(errors="replace"))
    if not json:
        print(path)


def _job_record(client: Client, id: str) -> JobRecord:
    from gpuyard.cli.jobs.show import said, sentences
    from gpuyard.cli.monitoring.plot_sources import job_label
    from gpuyard.cli.terminal.text_table import clock
    from gpuyard.monitor.job_report import JobRecord
    from gpuyard.monitor.sources.recorded import recording_of
    from gpuyard.recordings.series import METRICS

    job = client.job(id)
    events = client.events(job=job["id"], limit=_EVENTS)["events"]
    log, cut = _log(client, job)
    open_ = job["state"] in ("queued", "held")
    return JobRecord(
        job,
        job_label(job),
        recording_of(client.recording(job["id"], metrics=list(METRICS), points=2000)),
        [(clock(event["at"], seconds=True), said(event)) for event in events],
        log,
        cut,
        sentences(client.explain(job["id"])) if open_ else (),
        _policy(client, job),
    )


def _policy(client: Client, job: Job) -> dict[str, str]:
    """The policy; under another key if it has changed since the job started."""
    found: dict[str, Any] = client.policy()
    same = job["started_at"] is None or found["since"] <= job["started_at"]
    return {"policy" if same else "policy now": found["policy"]}


def _log(client: Client, job: Job) -> tuple[str, bool]:
    from gpuyard.client.transport import Refused

    if job["output"]:
        return f"(its output goes to {job['output']})", False
    if job["started_at"] is None:
        return "", False
    try:
        part = client.log(job["id"], -_LOG, size=_LOG)
    except Refused as error:  # another user's, or gone by now
        return f"({error})", False
    text = part.data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    cut = part.size > len(part.data)
    if cut:
        text = text.partition("\n")[2] or text
    return _CONTROL.sub("", text).rstrip(), cut
