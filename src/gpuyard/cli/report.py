"""`gpuyard report`: a job as one page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import output
from gpuyard.cli.sharing import Json, shared
from gpuyard.cli.yard import JobIds, Yard
from gpuyard.errors import UserError

if TYPE_CHECKING:
    from gpuyard.client import Client, Job
    from gpuyard.monitor.report import Story

_LOG = 32_768
"""Bytes of a job's output that are shown: its end."""
_EVENTS = 200
_OBEYED = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal obeys: colours and the like, which a page shows as rubbish."""


@shared
def report(
    yard: Yard,
    jobs: JobIds,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The page (gpuyard-report-ID.html).")
    ] = None,
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="What the page is called.")] = "",
    json: Json = False,
) -> None:
    """Write what a job was, how it went and what its GPUs did as one HTML page."""
    from datetime import datetime

    from gpuyard.monitor.report import numbers, report_page
    from gpuyard.sim.figures import write_atomically

    client = yard.client()
    stories = [_story(client, id) for id in jobs]
    for text in dict.fromkeys(text for story in stories for text in story.recording.warnings):
        output.say(f"gpuyard: warning: {text}")
    if json:
        output.print_json([numbers(story) for story in stories])
        if out is None:
            return
    path = out or Path(f"gpuyard-report-{'-'.join(re.sub(r'[^A-Za-z0-9_.]', '_', id) for id in jobs)[:80]}.html")
    if path.is_dir():
        raise UserError(f"{path} is a directory; name a file, as in --out {path / 'report.html'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    made, command = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}", f"gpuyard report {' '.join(jobs)}"
    write_atomically(path, report_page(stories, title=title, made=made, command=command).encode(errors="replace"))
    if not json:
        print(path)


def _story(client: Client, id: str) -> Story:
    from gpuyard.cli.explain import sentences
    from gpuyard.cli.plotting import called
    from gpuyard.cli.show import said
    from gpuyard.monitor.recorded import recording_of
    from gpuyard.monitor.report import Story
    from gpuyard.recordings.series import METRICS

    job = client.job(id)
    told = client.events(job=job["id"], limit=_EVENTS)["events"]
    log, cut = _log(client, job)
    open_ = job["state"] in ("queued", "held")
    return Story(
        job,
        called(job),
        recording_of(client.recording(job["id"], metrics=list(METRICS), points=2000)),
        [(_when(event["at"]), said(event)) for event in told],
        log,
        cut,
        sentences(client.explain(job["id"])) if open_ else (),
        _policy(client, job),
    )


def _policy(client: Client, job: Job) -> dict[str, str]:
    """What decides; if it has changed since the job started, that is said."""
    found: dict[str, Any] = client.policy()
    same = job["started_at"] is None or found["since"] <= job["started_at"]
    return {"policy" if same else "policy now": found["policy"]}


def _log(client: Client, job: Job) -> tuple[str, bool]:
    """The end of a job's output as text, and whether there is more of it."""
    from gpuyard.refusals import Refused

    if job["output"]:
        return f"(its output goes to {job['output']})", False
    if job["started_at"] is None:
        return "", False
    try:
        part = client.log(job["id"], -_LOG, size=_LOG)
    except Refused as error:  # somebody else's, or gone by now
        return f"({error})", False
    text = part.data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    cut = part.size > len(part.data)
    if cut:
        text = text.partition("\n")[2] or text
    return _OBEYED.sub("", text).rstrip(), cut


def _when(text: str) -> str:
    from gpuyard.cli.table import instant

    return f"{instant(text).astimezone():%Y-%m-%d %H:%M:%S}"
