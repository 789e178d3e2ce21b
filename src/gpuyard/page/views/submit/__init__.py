"""Submit: a job by a form, and the command line that does the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from nicegui import ui

from gpuyard.page.api import Away, Refused
from gpuyard.page.commandline import command_line, copied, copying_line, filled
from gpuyard.page.parts import empty, job_path, link
from gpuyard.page.submission import Form, Machine, Moment, Reading, placed, read, sentence, text_of, ticked
from gpuyard.page.views.submit.form import SubmitForm
from gpuyard.page.views.submit.outlook import followed, machine_of, outlook, prospect
from gpuyard.page.visit import Visit

_AWAY = "The daemon does not answer at the moment. What you typed is kept; submit it again in a moment."


async def build(visit: Visit) -> None:
    """Make the view."""
    if not visit.viewer.acts:
        empty(
            f"You look as {visit.viewer.name}, who may see everything and start nothing. Log in with a token of a "
            "user to submit a job; an admin of this machine makes one with",
            "gpuyard token create NAME --role user",
        )
        link("/login", "Log in")
        return
    former = await _former(visit)
    desk = _Desk(visit, former)
    visit.live(desk.look)


async def _former(visit: Visit) -> dict[str, Any] | None:
    """The job that the new one is to be like."""
    request = visit.client.request
    id = request.query_params.get("clone", "") if request is not None else ""
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


class _Desk:
    """Reads a form as it is typed, and hands it in."""

    def __init__(self, visit: Visit, former: dict[str, Any] | None) -> None:
        self._visit = visit
        self._id = former["id"] if former else ""
        self._former: Form = filled(former) if former else {}
        may_keep = former is not None and visit.viewer.owns(former["user"])
        self._form: Form = {}
        self._machine = Machine()
        self._status: Mapping[str, Any] = {"jobs": {}, "policy": ""}
        self._gpus: list[dict[str, Any]] = []
        self._element = SubmitForm(visit.viewer.name, self._former, self._id, may_keep)
        self._element.on_typed(self._typed)
        self._element.on_send(self._send)

    async def look(self) -> None:
        """See how the yard stands."""
        self._status = await self._visit.feed.ask("/status", 2.0)
        self._gpus = (await self._visit.feed.ask("/gpus", 2.0))["gpus"]
        self._machine = machine_of(self._gpus)
        self._element.say(outlook(self._status, self._gpus))
        if self._form:
            await self._tell()

    async def _typed(self, form: Form) -> None:
        self._form = form
        await self._tell()

    async def _tell(self) -> None:
        moment = self._moment()
        reading = read(self._form, moment, self._machine)
        note = await self._follow(self._form, reading)
        self._element.tell(
            {
                "errors": reading.errors, "warnings": reading.warnings, "wrap": reading.wrap,
                "notes": {"dependency": note} if note else {},
                "line": self._line(self._form, reading, moment),
                "prospect": "" if reading.errors else prospect(reading.body, self._status, self._gpus),
            }
        )  # fmt: skip

    async def _follow(self, form: Form, reading: Reading) -> str:
        if "dependency" not in reading.body:
            return ""
        try:
            note, wrong = await followed(text_of(form, "dependency"), self._visit.viewer.name, self._visit.feed)
        except (Refused, Away):
            return ""
        if wrong:
            reading.errors["dependency"] = wrong
        return note

    def _line(self, form: Form, reading: Reading, moment: Moment) -> str:
        wrong = frozenset(reading.errors)
        if self._keeps(form):
            return copying_line(self._id, form, self._former, moment, wrong)
        return command_line(form, moment, wrong)

    def _keeps(self, form: Form) -> bool:
        """Whether the new job is to have the environment of the former."""
        return bool(self._id) and ticked(form, "kept")

    def _moment(self) -> Moment:
        return Moment(time.time(), self._visit.zone)

    async def _send(self, form: Form, key: str, another: bool) -> None:
        """Hand it in; where that fails, what was typed stays."""
        moment = self._moment()
        reading = read(form, moment, self._machine)
        await self._follow(form, reading)
        if reading.errors:
            self._element.refused(reading.errors)
            return
        try:
            if self._keeps(form):
                path = f"/jobs/{quote(self._id, safe='')}/clone"
                answer = await self._visit.api.post(path, copied(form, self._former, moment), key)
            else:
                answer = await self._visit.api.post("/jobs", reading.body, key)
        except Refused as error:
            self._refuse(error)
        except Away:
            self._element.refused({"": _AWAY})
        else:
            self._element.done(answer["id"], job_path(answer["id"]), another)

    def _refuse(self, error: Refused) -> None:
        if error.status == 401:
            self._visit.tell(error)
            return
        self._element.refused(placed(str(error), error.errors))
