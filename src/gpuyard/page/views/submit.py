"""Submit: a job by a form, its expected start, and the equivalent command line."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from gpuyard.page.api import Refused, Unavailable
from gpuyard.page.feed import Feed
from gpuyard.page.parts import STATES, empty, job_path, link, set_props
from gpuyard.page.views.job_form import (
    Form,
    Machine,
    Moment,
    ParsedForm,
    RequestBody,
    clone_body,
    clone_line,
    command_line,
    errors_by_field,
    form_of,
    parse_form,
    sentence,
    text_of,
    ticked,
)
from gpuyard.page.visit import Visit
from gpuyard.spec.fields import FIELDS, FORM_GROUPS, MAIN
from gpuyard.spec.job_field import FormGroup
from gpuyard.spec.notation import parse_dependency
from gpuyard.units import format_duration

_COMMAND = {
    "name": "command", "label": "Command", "hint": "The program and its arguments, as you would type them.",
    "example": "python train.py --epochs 10", "kind": "area", "choices": [],
}  # fmt: skip


def _form_fields(group: FormGroup) -> list[dict[str, Any]]:
    entries = [(field.form, field) for field in FIELDS if field.form and field.form.group is group]
    return [
        {
            "name": field.form_name, "label": form.label, "hint": form.hint, "example": form.example,
            "kind": form.widget, "choices": ["", *field.choices] if form.widget == "choice" else [],
        }
        for form, field in sorted(entries, key=lambda entry: entry[0].place)
    ]  # fmt: skip


_LONGEST = 200_000  # characters of a form; no typed command is longer


class SubmitForm(Element, component="../assets/submit_form.js"):
    def __init__(self, user: str, start: Mapping[str, str | bool], copy: str = "", kept: bool = False) -> None:
        super().__init__()
        self._props |= {
            "main": [_COMMAND, *_form_fields(MAIN)],
            "groups": [
                {"title": group.title, "inside": group.inside, "fields": _form_fields(group)} for group in FORM_GROUPS
            ],
            "user": user,
            "start": dict(start),
            "copy": copy,
            "kept": kept,
            "told": {},
            "outlook": "",
        }

    def on_typed(self, read: Callable[[Form], Awaitable[None]]) -> None:
        self.on("typed", lambda event: read(_form(event)))

    def on_send(self, send: Callable[[Form, str, bool], Awaitable[None]]) -> None:

        async def sent(event: GenericEventArguments) -> None:
            await send(_form(event), str(event.args.get("key", "")), event.args.get("another") is True)

        self.on("send", sent)

    def tell(self, told: dict[str, Any]) -> None:
        set_props(self, told=told)

    def say(self, outlook: str) -> None:
        set_props(self, outlook=outlook)

    def refused(self, errors: Mapping[str, str]) -> None:
        self.run_method("refused", dict(errors))

    def done(self, id: str, path: str, another: bool) -> None:
        self.run_method("done", id, path, another)


def _form(event: GenericEventArguments) -> Form:
    """Texts and ticks; anything else that a browser sends is dropped."""
    given = event.args.get("form", {}) if isinstance(event.args, dict) else {}
    form = {str(name): value for name, value in given.items() if isinstance(value, str | bool)}
    return form if sum(len(value) for value in form.values() if isinstance(value, str)) <= _LONGEST else {}


_MOST = 20  # jobs of a dependency that are looked up


def machine_of(gpus: Sequence[Mapping[str, Any]]) -> Machine:
    memory = [gpu["memory_total"] for gpu in gpus if gpu["memory_total"]]
    return Machine(tuple(gpu["index"] for gpu in gpus), max(memory, default=float("inf")))


def load_text(status: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    free = sum(gpu["state"] == "free" for gpu in gpus)
    waiting = status["jobs"].get("queued", 0)
    if not gpus:
        return "There is no GPU here, so no job can start."
    many = f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"
    room = f"{free} of {many} {'is' if free == 1 else 'are'} free" if free else f"None of {many} is free"
    if not waiting:
        return f"{room}, and no job waits."
    return f"{room}, and {waiting} job{'s wait' if waiting != 1 else ' waits'}; {status['policy']} decides who is next."


def start_text(body: RequestBody, status: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]) -> str:
    if body.get("hold"):
        return "It would wait until it is released."
    if body.get("dependency") or "begin" in body:
        return ""
    scope = body.get("from")
    free = sum(gpu["state"] == "free" and (not scope or gpu["index"] in scope) for gpu in gpus)
    if not status["jobs"].get("queued", 0) and free >= body["gpus"]:
        return "It would start at once."
    if "time_limit" not in body and "estimate" not in body:
        return "With a time limit or an estimate it may go ahead of others, where that delays nobody."
    takes = format_duration(body.get("estimate") or body["time_limit"])
    return f"It may go ahead of others where {takes} on {body['gpus']} GPU{'s' * (body['gpus'] != 1)} delay nobody."


async def dependency_text(text: str, user: str, feed: Feed) -> tuple[str, str]:
    """Jobs that a dependency names, and errors; names are looked up among the user's own jobs."""
    told: list[str] = []
    for one in parse_dependency(text)[:_MOST]:
        if not one.who:
            continue
        job = await _job(one.who, feed) or await _named(one.who, user, feed)
        if job is None:
            return "", f"There is no job {one.who}, neither by its number nor, of yours, by its name."
        told.append(f"{job['id']} ({job['name'] or job['command'][0]}, {STATES.get(job['state'], job['state'])})")
    return (f"Follows {', '.join(dict.fromkeys(told))}.") if told else "", ""


async def _job(id: str, feed: Feed) -> Any:
    if not id[:1].isdigit():
        return None
    try:
        return await feed.ask(f"/jobs/{quote(id, safe='')}", 5.0)
    except Refused:
        return None


async def _named(name: str, user: str, feed: Feed) -> Any:
    wanted = urlencode({"all": "true", "limit": 1, "name": name, "user": user})
    found = (await feed.ask(f"/jobs?{wanted}", 5.0))["jobs"]
    return found[0] if found else None


_UNAVAILABLE = "The daemon does not answer at the moment. What you typed is kept; submit it again in a moment."


async def build(visit: Visit) -> None:
    if not visit.viewer.acts:
        empty(
            f"You look as {visit.viewer.name}, who may see everything and start nothing. Log in with a token of a "
            "user to submit a job; an admin of this machine makes one with",
            "gpuyard token create NAME --role user",
        )
        link("/login", "Log in")
        return
    visit.live(_SubmitView(visit, await _former(visit)).look)


async def _former(visit: Visit) -> dict[str, Any] | None:
    id = visit.query.get("clone", "")
    if not id:
        return None
    try:
        job: dict[str, Any] = await visit.api.get(f"/jobs/{quote(id, safe='')}")
    except Refused as error:
        empty(sentence(f"{error}; the form is empty, therefore"))
        return None
    if job["kind"] != "job":
        empty(f"{id} is a {job['kind']}, which has no command to run again; the form is empty, therefore.")
        return None
    if tasks := sum((job.get("tasks") or {}).values()):
        ui.label(f"{id} is an array of {tasks:,} tasks, and its copy is one, too.").classes("gy-soft")
    return job


class _SubmitView:
    def __init__(self, visit: Visit, former: dict[str, Any] | None) -> None:
        self._visit = visit
        self._id = former["id"] if former else ""
        self._former: Form = form_of(former) if former else {}
        may_keep = former is not None and visit.viewer.owns(former["user"])
        self._form: Form = {}
        self._machine = Machine()
        self._status: Mapping[str, Any] = {"jobs": {}, "policy": ""}
        self._gpus: list[dict[str, Any]] = []
        self._element = SubmitForm(visit.viewer.name, self._former, self._id, may_keep)
        self._element.on_typed(self._typed)
        self._element.on_send(self._send)

    async def look(self) -> None:
        self._status = await self._visit.feed.ask("/status", 2.0)
        self._gpus = (await self._visit.feed.ask("/gpus", 2.0))["gpus"]
        self._machine = machine_of(self._gpus)
        self._element.say(load_text(self._status, self._gpus))
        if self._form:
            await self._tell()

    async def _typed(self, form: Form) -> None:
        self._form = form
        await self._tell()

    async def _tell(self) -> None:
        moment = self._moment()
        reading = parse_form(self._form, moment, self._machine)
        note = await self._follow(self._form, reading)
        self._element.tell(
            {
                "errors": reading.errors, "warnings": reading.warnings, "wrap": reading.wrap,
                "notes": {"dependency": note} if note else {},
                "line": self._line(self._form, reading, moment),
                "prospect": "" if reading.errors else start_text(reading.body, self._status, self._gpus),
            }
        )  # fmt: skip

    async def _follow(self, form: Form, reading: ParsedForm) -> str:
        if "dependency" not in reading.body:
            return ""
        try:
            note, wrong = await dependency_text(text_of(form, "dependency"), self._visit.viewer.name, self._visit.feed)
        except (Refused, Unavailable):
            return ""
        if wrong:
            reading.errors["dependency"] = wrong
        return note

    def _line(self, form: Form, reading: ParsedForm, moment: Moment) -> str:
        wrong = frozenset(reading.errors)
        if self._keeps(form):
            return clone_line(self._id, form, self._former, moment, wrong)
        return command_line(form, moment, wrong)

    def _keeps(self, form: Form) -> bool:
        return bool(self._id) and ticked(form, "kept")

    def _moment(self) -> Moment:
        return Moment(time.time(), self._visit.zone)

    async def _send(self, form: Form, key: str, another: bool) -> None:
        """Submit; on failure the form keeps its content."""
        moment = self._moment()
        reading = parse_form(form, moment, self._machine)
        await self._follow(form, reading)
        if reading.errors:
            self._element.refused(reading.errors)
            return
        try:
            if self._keeps(form):
                path = f"/jobs/{quote(self._id, safe='')}/clone"
                answer = await self._visit.api.post(path, clone_body(form, self._former, moment), key)
            else:
                answer = await self._visit.api.post("/jobs", reading.body, key)
        except Refused as error:
            self._refuse(error)
        except Unavailable:
            self._element.refused({"": _UNAVAILABLE})
        else:
            self._element.done(answer["id"], job_path(answer["id"]), another)

    def _refuse(self, error: Refused) -> None:
        if error.status == 401:
            self._visit.tell(error)
            return
        self._element.refused(errors_by_field(str(error), error.errors))
