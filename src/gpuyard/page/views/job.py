"""One job, task, array or lease: state, output, events, and the use of its GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from urllib.parse import quote

from nicegui import ui
from nicegui.element import Element

from gpuyard.page.api import Facts, Refused
from gpuyard.page.feed import METRICS
from gpuyard.page.parts import Section, button, empty, epoch, fact, heading, set_props
from gpuyard.page.views import job_facts, job_sections
from gpuyard.page.views.job_actions import Actions, environment
from gpuyard.page.visit import Visit

Run = tuple[tuple[int, ...], float]  # the GPUs of an attempt, and when it began


class GpuCurves(Element, component="../assets/curves.js"):
    """Charts; samples are sent to the component's `take`."""

    def __init__(self, job: Facts, run: Run, end: float | None) -> None:
        super().__init__()
        gpus, begin = run
        self._props |= {
            "job": job["id"], "attempt": job["attempt"], "gpus": list(gpus), "begin": begin, "end": end,
            "promised": job["gpu_memory"] or None,
        }  # fmt: skip

    def show(self, end: float) -> None:
        self._props["end"] = end
        self.update()


class GpuCharts:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._box = ui.element("section").classes("gy-job-charts")
        with self._box:
            self._facts = Section()
            self._drawn = ui.element("div")
        self._run: Run | None = None
        self._curves: GpuCurves | None = None
        self._end: float | None = None
        self._last = 0.0

    def show(self, job: Facts) -> None:
        gpus, begin = tuple(job["gpus"]), epoch(job["started_at"])
        if not gpus or begin is None:
            return
        end = epoch(job["ended_at"])
        used = list(job_facts.usage_facts(job))
        self._facts.show(used, lambda: _head(used))
        if (gpus, begin) != self._run:
            self._run, self._end, self._last = (gpus, begin), end, begin
            self._drawn.clear()
            with self._drawn:
                self._curves = GpuCurves(job, self._run, end)
        if self._curves is not None and self._end is None:
            self._go_on(self._curves, gpus)
            if end is not None:
                self._end = end
                self._curves.show(end)

    def _go_on(self, curves: GpuCurves, gpus: tuple[int, ...]) -> None:
        samples = self._visit.feed.samples
        at = [time for time in samples.at if time > self._last]
        if not at:
            return
        self._last = at[-1]
        told = [{"index": gpu, **{name: samples.latest(gpu, name, len(at)) for name in METRICS}} for gpu in gpus]
        curves.run_method("take", json.dumps({"at": at, "gpus": told}))


def _head(used: Sequence[tuple[str, str]]) -> None:
    heading("Its GPUs")
    if used:
        with ui.element("dl").classes("gy-job-used"):
            for label, value in used:
                with ui.element("div"):
                    fact(label, value)


_LOG_PARTS = ("ansi", "logfile", "logrows", "logscreen", "logsearch", "logtemplate")
"""Scripts that `log.js` imports, directly or not: loaded in parallel instead of one after another."""


class JobLog(Element, component="../assets/log.js"):
    """A job's output; the browser requests it."""

    def __init__(self, job: str, attempts: int, state: str, note: str) -> None:
        super().__init__()
        ui.add_head_html("".join(f'<link rel="modulepreload" href="/page/assets/{name}.js">' for name in _LOG_PARTS))
        self._props |= {"job": job, "attempts": attempts, "state": state, "note": note}

    def show(self, attempts: int, state: str) -> None:
        set_props(self, attempts=attempts, state=state)


_PAGE = 1000
_MOST_EVENTS = 5000
TASKS = 50  # tasks of an array on a page


class JobView:
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
                self._charts = GpuCharts(self._visit)
            with ui.element("div").classes("gy-job-side"):
                self._request = Section("", "section")
                if self._owns and self._job["kind"] == "job":
                    environment(self._visit, self._path)
                self._attempts = Section("", "section")
                self._timeline = Section("", "section")

    def _output(self) -> JobLog | None:
        job = self._job
        heading("Output")
        if job["kind"] == "lease":
            empty("This is a lease: gpuyard did not start its process, and has no output of it.")
        elif not self._owns:
            empty(f"Only {job['user']} and admins may read what it prints.")
        else:
            return JobLog(job["id"], job["attempt"], job["state"], _elsewhere(job))
        return None

    async def show(self) -> None:
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
            tried = job_facts.attempts(self._events)
            self._attempts.show((zone, tried), lambda: job_sections.attempts(tried, self._visit), visible=bool(tried))
            self._timeline.show((zone, self._last), lambda: job_sections.timeline(self._events, self._visit))

    def _draw(self) -> None:
        job, visit = self._job, self._visit
        self._title.show((job["name"], job["state"]), lambda: job_sections.title(job))
        able = job_facts.allowed_actions(job, owns=self._owns)
        self._buttons.show(able, lambda: self._actions.draw(able))
        times = [job[key] for key in ("state", "gpus", "submitted_at", "started_at", "ended_at")]
        ends = job_facts.end_text(job, visit.when, time.time())
        self._line.show((visit.zone, times, ends), lambda: job_sections.line(job, visit, ends))
        self._far.show(job["progress"], lambda: job_sections.progress(job), visible=bool(job["progress"]))
        said = job_facts.outcome_text(job)
        self._outcome.show((job["state"], said), lambda: _told(job["state"], said), visible=bool(said))
        request = (visit.zone, job["command"], job["directory"], job["tags"], job["dependency"])
        told = list(job_facts.request_facts(job, visit.when))
        self._request.show((*request, told), lambda: job_sections.request_section(job, visit))

    async def _show_why(self) -> None:
        waits = self._job["state"] in job_facts.WAITING or bool((self._job.get("tasks") or {}).get("queued"))
        if not waits:
            self._why.show(None, lambda: None, visible=False)
            return
        found = await self._visit.feed.ask(f"{self._path}/explain", 2.0)
        self._why.show((self._visit.zone, found), lambda: job_sections.waiting(found, self._visit))

    async def _show_adaptation(self) -> None:
        if not self._job["adaptive"]:
            self._adapts.show(None, lambda: None, visible=False)
            return
        found = await self._visit.feed.ask(f"{self._path}/adaptation", 2.0)
        self._adapts.show((self._visit.zone, found), lambda: job_sections.adaptation(found, self._visit))

    async def _heard(self) -> bool:
        """Read new events; returns whether these were all."""
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
            job_sections.tasks(found, self._job["id"], self._visit)
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
    output, error = job["output"], job["error"]
    if output:
        return f"Its output goes to {output}, and gpuyard logs {job['id']} shows it; here is what did not get there."
    return f"Its errors go to {error}; gpuyard logs --error {job['id']} shows them." if error else ""


async def build(visit: Visit, id: str) -> int | None:
    try:
        job = await visit.feed.ask(f"/jobs/{quote(id, safe='')}", 1.0)
    except Refused as error:
        heading("No such job", 1)
        empty(f"There is no job {id} here; it may have been removed. These are there:", "gpuyard ps --all")
        return error.status
    ui.page_title(f"{job['name'] or 'Job'} · {job['id']} · gpuyard")
    visit.live(JobView(visit, job).show)
    return None
