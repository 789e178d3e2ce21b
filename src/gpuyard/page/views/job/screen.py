"""One job's page: its sections, and how they are kept up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from nicegui import ui

from gpuyard.page.parts import button, empty, heading
from gpuyard.page.sections import Section
from gpuyard.page.views.job import adapting, drawing, story, telling
from gpuyard.page.views.job.actions import Actions
from gpuyard.page.views.job.charts import Charts
from gpuyard.page.views.job.elements import Log
from gpuyard.page.views.job.environment import environment
from gpuyard.page.visit import Visit

Facts = Mapping[str, Any]
_PAGE = 1000
_MOST_EVENTS = 5000
TASKS = 50
"""Tasks of an array on a page."""


class Screen:
    """All of the view."""

    def __init__(self, visit: Visit, job: Facts) -> None:
        self._visit, self._job = visit, job
        self._path = f"/jobs/{quote(job['id'], safe='')}"
        self._owns = visit.viewer.owns(job["user"])
        self._events: list[Facts] = []
        self._last = 0
        self._offset = 0
        self._actions = Actions(visit, self._path, lambda: self._job)
        self._build()
        self._draw()

    @property
    def _is_array(self) -> bool:
        return "tasks" in self._job

    def _build(self) -> None:
        with ui.element("div").classes("gy-job-head"):
            self._title = Section("gy-job-top")
            self._buttons = Section("gy-job-actions")
        self._line, self._far = Section(), Section("gy-job-progress")
        self._outcome = Section("gy-job-outcome")
        self._why = Section("gy-card gy-job-waiting", "section")
        with ui.element("div").classes("gy-job-columns"):
            with ui.element("div").classes("gy-job-main"):
                self._log = None if self._is_array else self._output()
                self._adapts = Section("gy-card gy-job-adapts", "section")
                self._tasks = Section("gy-job-tasks", "section") if self._is_array else None
                self._charts = Charts(self._visit)
            with ui.element("div").classes("gy-job-side"):
                self._wishes = Section("", "section")
                if self._owns and self._job["kind"] == "job":
                    environment(self._visit, self._path)
                self._attempts = Section("", "section")
                self._timeline = Section("", "section")

    def _output(self) -> Log | None:
        job = self._job
        heading("Output")
        if job["kind"] == "lease":
            empty("This is a lease: gpuyard did not start its process, and has no output of it.")
        elif not self._owns:
            empty(f"Only {job['user']} and admins may read what it prints.")
        else:
            return Log(job["id"], job["attempt"], job["state"], _elsewhere(job))
        return None

    async def show(self) -> None:
        """Show how it stands now."""
        feed = self._visit.feed
        self._job = await feed.ask(self._path, 1.0)
        self._draw()
        if self._log is not None:
            self._log.show(self._job["attempt"], self._job["state"])
        await self._show_why()
        if self._is_array:
            await self._show_tasks()
            return
        self._charts.show(self._job)
        await self._show_adaptation()
        if await self._heard():
            zone = self._visit.zone
            tried = story.attempts(self._events)
            self._attempts.show((zone, tried), lambda: drawing.attempts(tried, self._visit), visible=bool(tried))
            self._timeline.show((zone, self._last), lambda: drawing.timeline(self._events, self._visit))

    def _draw(self) -> None:
        job, visit = self._job, self._visit
        self._title.show((job["name"], job["state"]), lambda: drawing.title(job))
        able = telling.may_do(job, owns=self._owns)
        self._buttons.show(able, lambda: self._actions.draw(able))
        times = [job[key] for key in ("state", "gpus", "submitted_at", "started_at", "ended_at")]
        ends = telling.ends(job, visit.when, time.time())
        self._line.show((visit.zone, times, ends), lambda: drawing.line(job, visit, ends))
        self._far.show(job["progress"], lambda: drawing.progress(job), visible=bool(job["progress"]))
        said = telling.outcome(job)
        self._outcome.show((job["state"], said), lambda: _told(job["state"], said), visible=bool(said))
        wishes = (visit.zone, job["command"], job["directory"], job["tags"], job["dependency"])
        told = list(telling.wishes(job, visit.when))
        self._wishes.show((*wishes, told), lambda: drawing.wishes(job, visit))

    async def _show_why(self) -> None:
        waits = self._job["state"] in telling.WAITING or bool((self._job.get("tasks") or {}).get("queued"))
        if not waits:
            self._why.show(None, lambda: None, visible=False)
            return
        found = await self._visit.feed.ask(f"{self._path}/explain", 2.0)
        self._why.show((self._visit.zone, found), lambda: drawing.waiting(found, self._visit))

    async def _show_adaptation(self) -> None:
        if not self._job["adaptive"]:
            self._adapts.show(None, lambda: None, visible=False)
            return
        found = await self._visit.feed.ask(f"{self._path}/adaptation", 2.0)
        self._adapts.show((self._visit.zone, found), lambda: adapting.section(found, self._visit))

    async def _heard(self) -> bool:
        """Read what happened since; whether that is all for now."""
        while len(self._events) < _MOST_EVENTS:
            path = f"/events?job={quote(self._job['id'], safe='')}&after={self._last}&limit={_PAGE}"
            found = await self._visit.feed.ask(path, 30.0)
            self._events += found["events"]
            self._last = found["last"]
            if len(found["events"]) < _PAGE:
                break
        return True

    async def _show_tasks(self) -> None:
        if self._tasks is None:
            return
        path = (
            f"/jobs?all=true&columns=true&array={quote(self._job['id'], safe='')}&limit={TASKS}&offset={self._offset}"
        )
        found = await self._visit.feed.ask(path, 5.0, until_event=False)
        self._tasks.show((self._visit.zone, self._offset, found["columns"]), lambda: self._draw_tasks(found))

    def _draw_tasks(self, found: Facts) -> None:
        heading("Tasks")
        with ui.element("div").classes("gy-job-scroll").props('tabindex=0 role=region aria-label="Tasks"'):
            drawing.tasks(found, self._job["id"], self._visit)
        total = found["total"]
        if total <= TASKS:
            return
        with ui.element("div").classes("gy-job-pages"):
            if self._offset:
                button("Earlier", lambda: self._turn(-TASKS), "chevron_left")
            ui.label(f"{self._offset + 1:,} to {min(total, self._offset + TASKS):,} of {total:,}").classes("gy-soft")
            if self._offset + TASKS < total:
                button("Later", lambda: self._turn(TASKS), "chevron_right")

    async def _turn(self, by: int) -> None:
        self._offset = max(0, self._offset + by)
        await self._show_tasks()


def _told(state: str, said: str) -> None:
    if said:
        ui.label(said).classes(f"gy-job-said gy-job-said-{state}")


def _elsewhere(job: Facts) -> str:
    """What is to be known of output that does not come here."""
    output, error = job["output"], job["error"]
    if output:
        return f"Its output goes to {output}, and gpuyard logs {job['id']} shows it; here is what did not get there."
    return f"Its errors go to {error}; gpuyard logs --error {job['id']} shows them." if error else ""
