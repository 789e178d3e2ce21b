"""Jobs as one HTML page: request, course, GPU series, and the end of the output."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Any

import numpy as np

import gpuyard
from gpuyard.api.types import Job
from gpuyard.figures.html_page import page
from gpuyard.figures.interactive_page import charts, main_element, numbers_table, style, warnings_of
from gpuyard.figures.panels import label_of
from gpuyard.monitor.plots import known
from gpuyard.recordings.series import METRICS, Recording
from gpuyard.units import format_duration, format_plain, format_size

DRAWN = ("utilization", "memory_used", "process_memory", "power", "temperature", "memcopy")
"""What a report draws; throttling and errors come on top of it where there were some."""
_STYLE = """
.state{display:inline-block;border-radius:999px;padding:.05rem .7rem;font-size:.9rem;font-weight:600;
vertical-align:middle;background:var(--card);border:1px solid var(--line)}
.state.succeeded{background:var(--best);color:var(--best-ink);border-color:transparent}
.state.failed,.state.oom,.state.timeout,.state.interrupted{color:var(--bad);border-color:var(--bad)}
.facts .wide{grid-column:1/-1}
.log{max-height:32rem;overflow:auto;font-size:.82rem}
table{font-size:.9rem}th,td{padding:.42rem .7rem}
table.story{width:auto}table.story th,table.story td{text-align:left;white-space:normal;padding:.3rem .8rem}
table.story th:first-child{white-space:nowrap;min-width:0}
@media print{.facts .wide{grid-column:1/-1}
.log{max-height:none;overflow:visible}}
"""
_WIDE = ' class="wide"'
_COMPARED = {
    "Waited": "waited", "Ran": "ran", "On GPU": "on GPU", "Peak of memory": "peak of GPU memory",
    "Utilization": "mean utilization", "Energy": "energy", "GPU-hours": "GPU-hours", "Exit code": "exit code",
}  # fmt: skip
"""Columns of a table of several jobs."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is told of a job."""

    job: Job
    name: str
    recording: Recording
    events: Sequence[tuple[str, str]] = ()
    """When, and what happened, in words."""
    log: str = ""
    """The end of its output."""
    log_cut: bool = False
    waiting: Sequence[str] = ()
    """Why it waits, in sentences."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else is to be said of it, as the policy that decided."""


def numbers(story: JobRecord) -> dict[str, Any]:
    """What can be counted of a job, as JSON has it: seconds, bytes, percent, watt-hours."""
    job = story.job
    measured: Mapping[str, Any] = {**(job["measured"] or {})}
    submitted, started, ended = (_seconds(job, f"{name}_at") for name in ("submitted", "started", "ended"))
    return {
        "id": job["id"], "name": job["name"], "user": job["user"], "state": job["state"],
        "exit_code": job["exit_code"], "attempts": job["attempt"], "gpus": job["gpus"],
        "wait": None if started is None or submitted is None else round(started - submitted, 3),
        "run": None if started is None or ended is None else round(ended - started, 3),
        "peak_memory": measured.get("peak"), "mean_memory": measured.get("mean"),
        "utilization": measured.get("utilization"), "samples": measured.get("samples"),
        "energy_wh": job.get("energy_wh"), "gpu_hours": job.get("gpu_hours"),
        "simulated": story.recording.simulated, "warnings": list(story.recording.warnings),
        "series": [*_series(story.recording)],
    }  # fmt: skip


def _series(recording: Recording) -> Iterator[dict[str, Any]]:
    for one in recording.series:
        there = np.isfinite(one.mean)
        if one.metric in ("throttle", "xid") or not there.any():
            continue
        yield {
            "metric": one.metric, "unit": METRICS[one.metric].unit, "gpu": one.subject.gpu,
            "job": one.subject.job or None, "of": label_of(one.subject, recording, one.metric),
            "least": float(np.nanmin(one.mean if one.low is None else one.low)),
            "mean": float(one.mean[there].mean()),
            "most": float(np.nanmax(one.mean if one.high is None else one.high)),
            "values": int(there.sum()),
        }  # fmt: skip


def report_page(stories: Sequence[JobRecord], *, title: str = "", made: str = "", command: str = "") -> str:
    """The whole page."""
    heading = title or (_heading(stories[0]) if len(stories) == 1 else f"{len(stories)} jobs")
    body = [f"<h1>{escape(heading)}</h1>"]
    if len(stories) == 1:
        body += _parts(stories[0])
    else:
        body.append(_compared(stories))
    body.append(_charts(stories))
    for story in stories if len(stories) > 1 else ():
        body += [f"<h2>{escape(_heading(story))}</h2>", *_parts(story)]
    for story in stories:
        body += [_log(story, len(stories) > 1)]
    body.append(_made(made, command))
    return page(heading, main_element(body), style() + _STYLE)


def _compared(stories: Sequence[JobRecord]) -> str:
    """Several jobs side by side, as a table."""
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("Job", "State", *_COMPARED))
    rows = []
    for story in stories:
        told = dict(_course(story))
        cells = [story.job["state"], *(told[key] or "–" for key in _COMPARED.values())]
        row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(story.name)}</th>{row}</tr>')
    body = "\n".join(rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _heading(story: JobRecord) -> str:
    name = story.job["name"] or shlex.join(story.job["command"])
    return f"Job {story.job['id']}: {name if len(name) <= 80 else name[:79] + '…'}"


def _parts(story: JobRecord) -> list[str]:
    waiting = "".join(f"<p>{escape(line)}</p>" for line in story.waiting)
    return [
        _lead(story),
        f'<div class="warned">{waiting}</div>' if waiting else "",
        _facts("What it was", _what(story)),
        _facts("How it went", _course(story)),
        _events(story),
    ]


def _lead(story: JobRecord) -> str:
    """How it stands, in a sentence."""
    job, counted = story.job, numbers(story)
    told = f'<span class="state {escape(job["state"])}">{escape(job["state"])}</span>'
    parts = []
    if counted["wait"] is not None:
        parts.append(f"waited {format_duration(counted['wait'])}")
    if counted["run"] is not None:
        gpus = ", ".join(map(str, job["gpus"]))
        on = f" on GPU {gpus}" if job["gpus"] else ""
        parts.append(f"ran {format_duration(counted['run'])}{on}")
    if counted["energy_wh"]:
        parts.append(f"used {format_plain(counted['energy_wh'])} Wh")
    text = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 2 else parts)
    reason = escape(job["message"] or job["reason"] or "")
    simulated = ' <span class="soft">The GPUs are simulated.</span>' if story.recording.simulated else ""
    sentence = f" It {escape(text)}." if text else ""
    return f'<p class="lead">{told}{sentence}{f" {reason}." if reason else ""}{simulated}</p>'


def _what(story: JobRecord) -> Iterator[tuple[str, str]]:
    job = story.job
    yield "command", shlex.join(job["command"])
    yield "name", job["name"] or ""
    yield "user", job["user"]
    yield "directory", job["directory"]
    memory = job["gpu_memory"]
    wanted = f"{job['gpu_count']}" + (f" x {format_size(memory)}" if memory else "")
    yield "GPUs wanted", wanted
    models = {one.subject.name for one in story.recording.series if one.subject.name}
    yield "GPU", ", ".join(sorted(models))
    yield "priority", f"{job['priority']:g}"
    yield "time limit", "" if job["time_limit"] is None else format_duration(job["time_limit"])
    yield "tags", ", ".join(job["tags"])
    yield "dependency", job["dependency"] or ""
    yield from story.facts.items()


def _course(story: JobRecord) -> Iterator[tuple[str, str]]:
    job, counted = story.job, numbers(story)
    for name in ("submitted", "started", "ended"):
        yield name, _clock(job[f"{name}_at"])  # type: ignore[literal-required]
    yield "waited", "" if counted["wait"] is None else format_duration(counted["wait"])
    yield "ran", "" if counted["run"] is None else format_duration(counted["run"])
    yield "on GPU", ", ".join(map(str, job["gpus"]))
    yield "attempts", str(job["attempt"]) if job["attempt"] > 1 else ""
    yield "preempted", f"{job['preemptions']} times" if job["preemptions"] else ""
    yield "out of GPU memory", f"{job['ooms']} times" if job["ooms"] else ""
    yield "exit code", "" if job["exit_code"] is None else str(job["exit_code"])
    yield "peak of GPU memory", "" if not counted["peak_memory"] else f"{format_size(counted['peak_memory'])} per GPU"
    yield "mean of GPU memory", "" if not counted["mean_memory"] else format_size(counted["mean_memory"])
    yield "mean utilization", "" if counted["utilization"] is None else f"{counted['utilization']:.0f} %"
    yield "energy", "" if counted["energy_wh"] is None else f"{format_plain(counted['energy_wh'])} Wh"
    yield "GPU-hours", _hours(counted["gpu_hours"])


def _facts(title: str, facts: Iterator[tuple[str, str]]) -> str:
    items = "".join(
        f"<div{_WIDE if len(value) > 60 else ''}><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>"
        for key, value in facts
        if value
    )
    return f'<h2>{escape(title)}</h2>\n<dl class="facts">{items}</dl>' if items else ""


def _events(story: JobRecord) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(when)}</th><td>{escape(what)}</td></tr>' for when, what in story.events
    )
    if not rows:
        return ""
    return (
        "<details><summary>What happened to it</summary>"
        f'<div class="scroll fit"><table class="story"><tbody>{rows}</tbody></table></div></details>'
    )


def _charts(stories: Sequence[JobRecord]) -> str:
    """The charts of all jobs on one axis; a sentence where nothing was recorded."""
    recordings = [(story.name, story.recording) for story in stories]
    title = "<h2>What the GPUs did</h2>"
    metrics = [*known(recordings, DRAWN), *_rare(recordings)]
    if not metrics:
        return f'{title}{warnings_of(recordings)}<p class="soft">Nothing was recorded of it.</p>'
    return "\n".join((title, warnings_of(recordings), charts(recordings, metrics), numbers_table(recordings, metrics)))


def _rare(recordings: Sequence[tuple[str, Recording]]) -> list[str]:
    """Throttling, but for idleness, and errors: drawn only where there were some."""
    found = {
        one.metric
        for _, recording in recordings
        for one in recording.series
        if one.metric in ("throttle", "xid") and np.any(np.nan_to_num(one.mean if one.high is None else one.high) > 1)
    }
    return [metric for metric in ("throttle", "xid") if metric in found]


def _log(story: JobRecord, several: bool) -> str:
    if not story.log:
        return ""
    cut = '<p class="soft">Only its end is shown.</p>' if story.log_cut else ""
    title = f"What job {story.job['id']} wrote" if several else "What it wrote"
    return f'<h2>{escape(title)}</h2>{cut}\n<pre class="log" tabindex="0">{escape(story.log)}</pre>'


def _made(made: str, command: str) -> str:
    """When and by what the page was made."""
    on = f" on {escape(made)}" if made else ""
    by = f" by <code>{escape(command)}</code>" if command else ""
    return f'<p class="soft">Made{on}{by} with gpuyard {gpuyard.__version__}.</p>'


def _seconds(job: Job, key: str) -> float | None:
    text = job[key]  # type: ignore[literal-required]
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _clock(text: str | None) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S %Z}" if text else ""


def _hours(value: float | None) -> str:
    """GPU-hours, if there are any."""
    return format_plain(value) if value else ""
