"""The parts of this view, each drawn from facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from nicegui import ui
from nicegui.element import Element

from gpuyard.page.parts import chip, command, heading, job_path, link, span
from gpuyard.page.sections import Since
from gpuyard.page.views.job import story, telling
from gpuyard.page.visit import Visit

Facts = Mapping[str, Any]
_LISTED = 10
"""Jobs that are named where there may be thousands."""
_ELSEWHERE = {"Memory by": "/sharing#estimates", "Batch": "/sharing#batches"}
"""Facts of which another page tells more."""
EVENTS = 100
"""Events that are listed; the command line has them all."""


def title(job: Facts) -> None:
    """What it is called, and how it stands."""
    kind = "Lease" if job["kind"] == "lease" else "Array" if "tasks" in job else "Job"
    with ui.element("h1").classes("gy-h1 gy-job-title"):
        ui.label(job["name"] or f"{kind} {job['id']}").classes("gy-job-name")
        if job["name"]:
            ui.label(f"{kind} {job['id']}").classes("gy-job-id")
    chip(job["state"])


def line(job: Facts, visit: Visit, ends: str) -> None:
    """Whose it is, where it is, for how long, and when it ends."""
    with ui.element("p").classes("gy-job-line"):
        ui.label(f"Of {job['user']}")
        if job["array"] and "tasks" not in job:
            _text("task of array ", link(job_path(job["array"]), job["array"]))
        begin, end = job["started_at"], job["ended_at"]
        if job["state"] == "running":
            _on(job["gpus"])
            if job["granted"]:
                ui.label(f"and on {story.gpus_in_words(job['granted'])}, on loan")
            if begin:
                _text("running for ", Since(begin), f", since {visit.when(begin)}")
            if ends:
                ui.label(ends)
        elif job["state"] in telling.WAITING:
            _text("waiting for ", Since(job["submitted_at"]), f", since {visit.when(job['submitted_at'])}")
        else:
            if begin and end:
                _on(job["gpus"])
                ui.label(f"ran {_between(begin, end)}, from {visit.when(begin)} to {visit.when(end)}")
            elif end:
                ui.label(f"never started; ended {visit.when(end)}")
        if job["state"] not in telling.WAITING:
            ui.label(f"submitted {visit.when(job['submitted_at'])}")


def _text(*parts: str | Element) -> None:
    """Some words with an element among them, which was made just now."""
    with ui.element("span") as found:
        for part in parts:
            if isinstance(part, str):
                ui.label(part)
            else:
                part.move(found)


def _on(gpus: Sequence[int]) -> None:
    if not gpus:
        return
    with ui.element("span"):
        ui.label("on GPU" + ("s " if len(gpus) > 1 else " "))
        for number, gpu in enumerate(gpus):
            link(f"/#gpu-{gpu}", str(gpu)).props(f'aria-label="GPU {int(gpu)}"')
            if number + 1 < len(gpus):
                ui.label(", ")


def _between(begin: str, end: str) -> str:
    return span((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())


def progress(job: Facts) -> None:
    """How far it is."""
    far = job["progress"]
    if not far:
        return
    percent = f"{100 * far['fraction']:.0f} %"
    left = f", about {span(far['remaining'])} left" if far["remaining"] is not None else ""
    bar = ui.element("div").classes("gy-job-bar").props("role=progressbar aria-valuemin=0 aria-valuemax=100")
    bar.props(f'aria-valuenow={100 * far["fraction"]:.0f} aria-label="Progress"')
    with bar:
        ui.element("div").style(f"width: {100 * min(1.0, max(0.0, far['fraction'])):.1f}%")
    ui.label(f"{far['done']:g} of {far['total']:g}, {percent}{left}").classes("gy-soft")


def waiting(found: Facts, visit: Visit) -> None:
    """Why it waits, and for whom."""
    heading("Why is it waiting?")
    if (counts := found.get("tasks")) is not None:
        ui.label(f"This is of task {found['id']}, the next of {sum(counts.values()):,}.").classes("gy-soft")
    ui.label(telling.why_it_waits(found, visit.when)).classes("gy-job-why")
    if found["expected_at"]:
        ui.label(f"Expected to start at about {visit.when(found['expected_at'])}, if estimates hold.")
    if ahead := found["ahead"]:
        with ui.element("p").classes("gy-job-ahead"):
            ui.label(f"{len(ahead):,} job{'s go' if len(ahead) > 1 else ' goes'} first: ")
            _links(ahead)
    if found["must_end_first"]:
        _blockers("These have to end before it can start:", found["must_end_first"], visit)
    if found.get("holds"):
        _blockers("Its own holder has these already:", found["holds"], visit)


def _links(jobs: Sequence[str]) -> None:
    for number, job in enumerate(jobs[:_LISTED]):
        link(job_path(job), job)
        if number + 1 < min(len(jobs), _LISTED):
            ui.label(", ")
    if len(jobs) > _LISTED:
        ui.label(f" and {len(jobs) - _LISTED:,} more")


def _blockers(text: str, found: Sequence[Facts], visit: Visit) -> None:
    ui.label(text)
    with ui.element("ul").classes("gy-job-blockers"):
        for other in found[:_LISTED]:
            with ui.element("li"):
                link(job_path(other["id"]), f"job {other['id']}")
                where = f" on {story.gpus_in_words(other['gpus'])}" if other["gpus"] else ""
                ui.label(f" {other['name'] or ''} of {other['user']}{where}, {telling.until(other, visit.when)}")
        if len(found) > _LISTED:
            with ui.element("li"):
                ui.label(f"and {len(found) - _LISTED:,} more")


def wishes(job: Facts, visit: Visit) -> None:
    """What it is to run, and with what."""
    heading("What it asks for")
    if job["command"]:
        command(telling.command_line(job["command"]))
    with ui.element("dl").classes("gy-job-facts"):
        _fact("Directory", job["directory"])
        if job["tags"]:
            _fact("Tags", ", ".join(job["tags"]))
        for label, value in telling.wishes(job, visit.when):
            _fact(label, value)
        if job["dependency"]:
            with _pair("After"):
                _dependencies(job["dependency"])


def _fact(label: str, value: str) -> None:
    if value:
        with _pair(label):
            if label in _ELSEWHERE:
                link(_ELSEWHERE[label], value)
            else:
                ui.label(value)


def _pair(label: str) -> Element:
    with ui.element("dt"):
        ui.label(label)
    return ui.element("dd")


def _dependencies(text: str) -> None:
    """`afterok:12,afterany:13`, with a way to each."""
    for number, wish in enumerate(text.split(",")):
        how, _, job = wish.partition(":")
        ui.label(f"{', ' * bool(number)}{how} ")
        link(job_path(job), job)


def attempts(found: Sequence[story.Attempt], visit: Visit) -> None:
    """How often it was tried."""
    heading("Attempts")
    if len(found) > EVENTS:
        ui.label(f"{len(found) - EVENTS:,} earlier ones are left out.").classes("gy-soft")
    with ui.element("ul").classes("gy-job-attempts"):
        for one in found[-EVENTS:]:
            with ui.element("li"):
                ui.label(f"Attempt {one.number} on {story.gpus_in_words(one.gpus)}: {one.how}")
                begin = one.begin or one.placed
                times = f"from {visit.when(begin, seconds=True)}"
                if one.end:
                    times += f" to {visit.when(one.end, seconds=True)} ({_between(begin, one.end)})"
                ui.label(times).classes("gy-soft")


def timeline(events: Sequence[Facts], visit: Visit) -> None:
    """What happened, the latest last."""
    heading("What happened")
    told = [event for event in events if event["kind"] not in story.SILENT]
    if len(told) > EVENTS:
        ui.label(f"{len(told) - EVENTS:,} earlier events are left out; gpuyard show has more.").classes("gy-soft")
    with ui.element("ol").classes("gy-job-timeline"):
        for event in told[-EVENTS:]:
            with ui.element("li").classes(f"gy-job-event gy-job-event-{str(event['kind']).lower()}"):
                with ui.element("time") as at:
                    at._props["datetime"] = event["at"]
                    ui.label(visit.when(event["at"], seconds=True))
                ui.label(story.said(event))


def tasks(found: Facts, id: str, visit: Visit) -> None:
    """Some tasks of an array."""
    columns = found["columns"]
    with ui.element("table").classes("gy-job-table"):
        with ui.element("thead"), ui.element("tr"):
            for head in ("Task", "State", "GPUs", "Began", "Ran", "Why"):
                with ui.element("th").props("scope=col"):
                    ui.label(head)
        with ui.element("tbody"):
            for n, task in enumerate(columns["id"]):
                _task(task, {name: values[n] for name, values in columns.items()}, visit)


def _task(id: str, row: Facts, visit: Visit) -> None:
    begin, end = row["started"], row["ended"]
    gpus = ", ".join(map(str, row["gpus"]))
    with ui.element("tr"):
        with ui.element("td"):
            link(job_path(id), id)
        with ui.element("td"):
            chip(row["state"])
        ran = span(end - begin) if begin and end else ""
        why = visit.words(row["reason"])
        for text in (gpus, visit.when(begin), ran, why[:1].upper() + why[1:]):
            with ui.element("td"):
                ui.label(text)
