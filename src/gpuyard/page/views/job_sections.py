"""Sections of the job view, each drawn from facts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from nicegui import ui
from nicegui.element import Element

from gpuyard.api.types import SILENT
from gpuyard.page.api import Facts
from gpuyard.page.parts import (
    Since,
    capitalized,
    chip,
    command,
    epoch,
    facts_list,
    heading,
    job_path,
    link,
    sentence,
    span,
    tagged,
)
from gpuyard.page.views import job_facts
from gpuyard.page.visit import Visit

_LISTED = 10  # jobs that are named where there may be thousands
_LINKED = {"Memory by": "/sharing#estimates", "Batch": "/sharing#batches"}
"""Facts that link to another page."""
MAX_EVENTS = 100  # events that are listed; the command line has them all


def title(job: Facts) -> None:
    kind = "Lease" if job["kind"] == "lease" else "Array" if "tasks" in job else "Job"
    with ui.element("h1").classes("gy-h1 gy-job-title"):
        ui.label(job["name"] or f"{kind} {job['id']}").classes("gy-job-name")
        if job["name"]:
            ui.label(f"{kind} {job['id']}").classes("gy-job-id")
    chip(job["state"])


def line(job: Facts, visit: Visit, ends: str) -> None:
    with ui.element("p").classes("gy-job-line"):
        ui.label(f"Of {job['user']}")
        if job["array"] and "tasks" not in job:
            _text("task of array ", link(job_path(job["array"]), job["array"]))
        begin, end = job["started_at"], job["ended_at"]
        if job["state"] == "running":
            _on(job["gpus"])
            if job["granted"]:
                ui.label(f"and on {job_facts.gpus_text(job['granted'])}, on loan")
            if begin:
                _text("running for ", Since(begin), f", since {visit.when(begin)}")
            if ends:
                ui.label(ends)
        elif job["state"] in job_facts.WAITING:
            _text("waiting for ", Since(job["submitted_at"]), f", since {visit.when(job['submitted_at'])}")
        else:
            if begin and end:
                _on(job["gpus"])
                ui.label(f"ran {_between(begin, end)}, from {visit.when(begin)} to {visit.when(end)}")
                if job["ran_before"]:
                    ui.label(f"and {span(job['ran_before'])} before it was preempted")
            elif end:
                ui.label(f"never started; ended {visit.when(end)}")
        if job["state"] not in job_facts.WAITING:
            ui.label(f"submitted {visit.when(job['submitted_at'])}")


def _text(*parts: str | Element) -> None:
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
    return span(epoch(end) - epoch(begin))


def progress(job: Facts) -> None:
    far = job["progress"]
    if not far:
        return
    percent = f"{100 * far['fraction']:.0f} %"
    bar = ui.element("div").classes("gy-job-bar").props("role=progressbar aria-valuemin=0 aria-valuemax=100")
    bar.props(f'aria-valuenow={100 * far["fraction"]:.0f} aria-label="Progress"')
    with bar:
        ui.element("div").style(f"width: {100 * min(1.0, max(0.0, far['fraction'])):.1f}%")
    ui.label(f"{far['done']:g} of {far['total']:g}, {percent}").classes("gy-soft")


def waiting(found: Facts, visit: Visit) -> None:
    heading("Why is it waiting?")
    if (counts := found.get("tasks")) is not None:
        ui.label(f"This is of task {found['id']}, the next of {sum(counts.values()):,}.").classes("gy-soft")
    ui.label(job_facts.waiting_text(found, visit.when)).classes("gy-job-why")
    if found["expected_at"]:
        at = visit.when(found["expected_at"])
        told = (
            f"{at} at the latest, by time limits"
            if found["expected_by"] == "limit"
            else f"about {at}, if estimates hold"
        )
        ui.label(f"Expected to start at {told}.")
    if ahead := found["ahead"]:
        with ui.element("p").classes("gy-job-ahead"):
            ui.label(f"It is number {found['place']:,} in line; when its turn comes, {found['needs']} will do. First: ")
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
                where = f" on {job_facts.gpus_text(other['gpus'])}" if other["gpus"] else ""
                ui.label(
                    f" {other['name'] or ''} of {other['user']}{where}, {job_facts.blocker_end(other, visit.when)}"
                )
        if len(found) > _LISTED:
            tagged("li", f"and {len(found) - _LISTED:,} more")


def request_section(job: Facts, visit: Visit) -> None:
    heading("What it asks for")
    if job["command"]:
        command(shlex.join(job["command"]))
    with ui.element("dl").classes("gy-job-facts"):
        _fact("Directory", job["directory"])
        if job["tags"]:
            _fact("Tags", ", ".join(job["tags"]))
        for label, value in job_facts.request_facts(job, visit.when):
            _fact(label, value)
        if job["dependency"]:
            with _pair("After"):
                _dependencies(job["dependency"])


def _fact(label: str, value: str) -> None:
    if value:
        with _pair(label):
            if label in _LINKED:
                link(_LINKED[label], value)
            else:
                ui.label(value)


def _pair(label: str) -> Element:
    tagged("dt", label)
    return ui.element("dd")


def _dependencies(text: str) -> None:
    """`afterok:12,afterany:13`, with a link to each."""
    for number, condition in enumerate(text.split(",")):
        how, _, job = condition.partition(":")
        ui.label(f"{', ' * bool(number)}{how} ")
        link(job_path(job), job)


def attempts(found: Sequence[job_facts.Attempt], visit: Visit) -> None:
    heading("Attempts")
    if len(found) > MAX_EVENTS:
        ui.label(f"{len(found) - MAX_EVENTS:,} earlier ones are left out.").classes("gy-soft")
    with ui.element("ul").classes("gy-job-attempts"):
        for one in found[-MAX_EVENTS:]:
            with ui.element("li"):
                ui.label(f"Attempt {one.number} on {job_facts.gpus_text(one.gpus)}: {one.how}")
                begin = one.begin or one.placed
                times = f"from {visit.when(begin, seconds=True)}"
                if one.end:
                    times += f" to {visit.when(one.end, seconds=True)} ({_between(begin, one.end)})"
                ui.label(times).classes("gy-soft")


def timeline(events: Sequence[Facts], visit: Visit) -> None:
    heading("What happened")
    told = [event for event in events if event["kind"] not in SILENT]
    if len(told) > MAX_EVENTS:
        ui.label(f"{len(told) - MAX_EVENTS:,} earlier events are left out; gpuyard show has more.").classes("gy-soft")
    with ui.element("ol").classes("gy-job-timeline"):
        for event in told[-MAX_EVENTS:]:
            with ui.element("li").classes(f"gy-job-event gy-job-event-{str(event['kind']).lower()}"):
                with ui.element("time") as at:
                    at._props["datetime"] = event["at"]
                    ui.label(visit.when(event["at"], seconds=True))
                ui.label(job_facts.event_text(event))


def tasks(found: Facts, id: str, visit: Visit) -> None:
    columns = found["columns"]
    with ui.element("table").classes("gy-job-table"):
        with ui.element("thead"), ui.element("tr"):
            for head in ("Task", "State", "GPUs", "Began", "Ran", "Why"):
                tagged("th", head).props("scope=col")
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
        for text in (gpus, visit.when(begin), ran, capitalized(why)):
            tagged("td", text)


_AdaptationTime = Callable[[float | None], str]
_ADAPTATION_LISTED = 50  # latest grants and decisions that are listed; the command line has them all


def adaptation_facts(found: Facts, when: _AdaptationTime) -> Iterator[tuple[str, str]]:
    yield "Budget", span(found["budget"]) or "as long as it likes"
    yield "To be done by", when(found["deadline"]) if found["deadline"] else ""
    yield "On loan", ", ".join(f"GPU {gpu}" for gpu in found["granted"])
    report = found["report"] or {}
    if report.get("gain_per_second") is not None:
        yield "One more GPU brings", f"{gain_points(report['gain_per_second'])} points per minute"
    if report.get("step_seconds"):
        step = report["step_seconds"]
        yield "A step takes", f"{1000 * step:.3g} ms" if step < 1 else span(step)
    if report.get("parameters") is not None:
        yield "Parameters", f"{report['parameters']:,}"


def gain_points(gain: float) -> str:
    return f"{gain * 6000:.3g}"


def loan_text(lent: Facts, when: _AdaptationTime) -> tuple[str, str, str]:
    began, ended = when(lent["since"]), lent["until"]
    times = f"from {began} to {when(ended)} ({span(ended - lent['since'])})" if ended else f"since {began}"
    if not ended and lent.get("told"):
        times += f", told to leave at {when(lent['told'])}"
    return f"GPU {lent['gpu']} {times}", sentence(f"Given since {lent['why']}"), _ended(lent)


def _ended(lent: Facts) -> str:
    said = lent.get("ended") or ""
    return sentence(f"Taken back: {said}" if lent.get("told") else said) if said else ""


def decision_text(decided: Facts) -> tuple[str, str, str]:
    before, after, ratio = decided["parameters_before"], decided["parameters"], decided["cost_ratio"]
    changed = []
    if after is not None:
        changed.append(f"{after:,} parameters" if before is None else f"{before:,} to {after:,} parameters")
    if ratio is not None:
        changed.append(f"steps take {ratio:.3g} times as long")
    if decided["predicted_gain"] is not None:
        changed.append(f"{100 * decided['predicted_gain']:+.3g} points expected")
    answer = {True: "Accepted", False: "Declined", None: "Decided"}[decided["accepted"]]
    return f"{answer}: {decided['decision']}", sentence(decided["reason"]), sentence(", ".join(changed))


def adaptation(found: Facts, visit: Visit) -> None:
    def when(at: float | None) -> str:
        return visit.when(at, seconds=True) if at else ""

    heading("Adaptation")
    if found["standing"]:
        ui.label(sentence(f"It {found['standing']}"))
    with ui.element("dl").classes("gy-job-facts"):
        facts_list((label, value) for label, value in adaptation_facts(found, when) if value)
    _list("What it decided", [(when(one["at"]), *decision_text(one)) for one in found["decisions"]])
    _list("GPUs that it was lent", [("", *loan_text(one, when)) for one in found["grants"]])
    changes = [
        (when(one["at"]), f"{_budget(one['before'])} to {_budget(one['after'])}", "", "") for one in found["times"]
    ]
    _list("Its time was changed", changes)


def _budget(seconds: float | None) -> str:
    return span(seconds) if seconds else "no limit"


def _list(title: str, entries: list[tuple[str, str, str, str]]) -> None:
    if not entries:
        return
    heading(title, 3)
    if len(entries) > _ADAPTATION_LISTED:
        ui.label(f"{len(entries) - _ADAPTATION_LISTED:,} earlier ones are left out.").classes("gy-soft")
    with ui.element("ol").classes("gy-job-adapted"):
        for at, what, why, more in entries[-_ADAPTATION_LISTED:]:
            with ui.element("li"):
                if at:
                    ui.label(at).classes("gy-soft")
                ui.label(what).classes("gy-job-adapted-what")
                for text in (why, more):
                    if text:
                        ui.label(text)
