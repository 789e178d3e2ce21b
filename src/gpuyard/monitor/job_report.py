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
from gpuyard.figures.html_page import facts, heading, lead, page, paragraphs, soft, text_table
from gpuyard.figures.interactive_page import charts, numbers_table, style, warnings_of
from gpuyard.figures.panels import DRAWN_AS_ROWS, label_of
from gpuyard.monitor.plots import known
from gpuyard.monitor.summaries import seconds
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
_COMPARED = {
    "Waited": "waited", "Ran": "ran", "On GPU": "on GPU", "Peak of memory": "peak of GPU memory",
    "Utilization": "mean utilization", "Energy": "energy", "GPU-hours": "GPU-hours", "Exit code": "exit code",
}  # fmt: skip
"""Columns of a table of several jobs."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    job: Job
    name: str
    recording: Recording
    events: Sequence[tuple[str, str]] = ()  # when, and what happened, in words
    log: str = ""  # the end of its output
    log_cut: bool = False
    waiting: Sequence[str] = ()  # why it waits, in sentences
    facts: Mapping[str, str] = field(default_factory=dict)  # further facts, as the policy that decided


def numbers(story: JobRecord) -> dict[str, Any]:
    """The numbers of a job for JSON: seconds, bytes, percent, watt-hours."""
    job = story.job
    measured: Mapping[str, Any] = {**(job["measured"] or {})}
    submitted, started, ended = (_seconds(job, f"{name}_at") for name in ("submitted", "started", "ended"))
    return {
        "id": job["id"], "name": job["name"], "user": job["user"], "state": job["state"],
        "exit_code": job["exit_code"], "attempts": job["attempt"], "gpus": job["gpus"],
        "wait": None if started is None or submitted is None else round(started - submitted - job["ran_before"], 3),
        "run": None if started is None or ended is None else round(ended - started + job["ran_before"], 3),
        "peak_memory": measured.get("peak"), "mean_memory": measured.get("mean"),
        "utilization": measured.get("utilization"), "samples": measured.get("samples"),
        "energy_wh": job.get("energy_wh"), "gpu_hours": job.get("gpu_hours"),
        "simulated": story.recording.simulated, "warnings": list(story.recording.warnings),
        "series": [*_series(story.recording)],
    }  # fmt: skip


def _series(recording: Recording) -> Iterator[dict[str, Any]]:
    for one in recording.series:
        there = np.isfinite(one.mean)
        if one.metric in DRAWN_AS_ROWS or not there.any():
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
    several = len(stories) > 1
    body = [_compared(stories)] if several else _parts(stories[0])
    body.append(_charts(stories))
    for story in stories if several else ():
        body += [heading(_heading(story)), *_parts(story)]
    body += [_log(story, several) for story in stories]
    body.append(_made(made, command))
    return page(title or (f"{len(stories)} jobs" if several else _heading(stories[0])), body, style() + _STYLE)


def _compared(stories: Sequence[JobRecord]) -> str:
    rows = []
    for story in stories:
        course = dict(_course(story))
        rows.append((story.name, story.job["state"], *(course[key] or "–" for key in _COMPARED.values())))
    return text_table(("Job", "State", *_COMPARED), rows, "", fit=False)


def _heading(story: JobRecord) -> str:
    name = story.job["name"] or shlex.join(story.job["command"])
    return f"Job {story.job['id']}: {name if len(name) <= 80 else name[:79] + '…'}"


def _parts(story: JobRecord) -> list[str]:
    return [
        _lead(story),
        paragraphs(story.waiting, "warned"),
        _facts("What it was", _what(story)),
        _facts("How it went", _course(story)),
        _events(story),
    ]


def _lead(story: JobRecord) -> str:
    job, counted = story.job, numbers(story)
    state = f'<span class="state {escape(job["state"])}">{escape(job["state"])}</span>'
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
    return lead(f"{state}{sentence}{f' {reason}.' if reason else ''}{simulated}")


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
    yield "GPU-hours", "" if not counted["gpu_hours"] else format_plain(counted["gpu_hours"])


def _facts(title: str, values: Iterator[tuple[str, str]]) -> str:
    known = {key: value for key, value in values if value}
    return f"{heading(title)}\n{facts(known, wide=60)}" if known else ""


def _events(story: JobRecord) -> str:
    table = text_table((), story.events, "story")
    return f"<details><summary>What happened to it</summary>{table}</details>" if story.events else ""


def _charts(stories: Sequence[JobRecord]) -> str:
    recordings = [(story.name, story.recording) for story in stories]
    title = heading("What the GPUs did")
    metrics = [*known(recordings, DRAWN), *_rare(recordings)]
    if not metrics:
        return f"{title}{warnings_of(recordings)}{soft('Nothing was recorded of it.')}"
    return "\n".join((title, warnings_of(recordings), charts(recordings, metrics), numbers_table(recordings, metrics)))


def _rare(recordings: Sequence[tuple[str, Recording]]) -> list[str]:
    """Throttling other than idleness, and errors: drawn only if there were some."""
    found = {
        one.metric
        for _, recording in recordings
        for one in recording.series
        if one.metric in DRAWN_AS_ROWS and np.any(np.nan_to_num(one.mean if one.high is None else one.high) > 1)
    }
    return [metric for metric in DRAWN_AS_ROWS if metric in found]


def _log(story: JobRecord, several: bool) -> str:
    if not story.log:
        return ""
    cut = soft("Only its end is shown.") if story.log_cut else ""
    title = f"What job {story.job['id']} wrote" if several else "What it wrote"
    return f'{heading(title)}{cut}\n<pre class="log" tabindex="0">{escape(story.log)}</pre>'


def _made(made: str, command: str) -> str:
    on = f" on {escape(made)}" if made else ""
    by = f" by <code>{escape(command)}</code>" if command else ""
    return f'<p class="soft">Made{on}{by} with gpuyard {gpuyard.__version__}.</p>'


def _seconds(job: Job, key: str) -> float | None:
    text = job[key]  # type: ignore[literal-required]
    return None if text is None else seconds(text)


def _clock(text: str | None) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S %Z}" if text else ""
