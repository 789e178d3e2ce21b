"""What a viewer can do to a job: actions, the edit dialog, and its environment."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, tzinfo
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from gpuyard.api.types import OVER
from gpuyard.errors import GpuyardError, UserError
from gpuyard.page.api import Facts
from gpuyard.page.parts import button, confirm, empty, heading, job_path, tagged
from gpuyard.page.views.job_form import Moment, read_field
from gpuyard.page.visit import Visit
from gpuyard.spec.fields import FIELD, FIELDS
from gpuyard.spec.job_field import JobField
from gpuyard.spec.kinds import INSTANT, SHARE
from gpuyard.spec.times import parse_when

_ENTRIES = sorted((field.dialog.place, field.name) for field in FIELDS if field.dialog)
EDITED = [FIELD[name] for _, name in _ENTRIES]  # what the dialog can change


def current_text(field: JobField, job: Facts) -> str:
    value = job.get(field.json_key)
    if field.kind is SHARE and job["gpu_memory_asked"] == "auto":
        return "auto"
    if value is None or field.kind is INSTANT:
        return value or ""
    return field.kind.format(value)


def editable_fields(job: Facts) -> list[JobField]:
    waits = set(job.get("tasks") or {job["state"]: 1}) & {"queued", "held"}
    return [field for field in EDITED if waits or field.while_running]


def changes(job: Facts, given: Mapping[str, str], instant: Callable[[str], str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in EDITED:
        text = given.get(field.name, current_text(field, job)).strip()
        if text == current_text(field, job):
            continue
        try:
            if not text:
                found[field.name] = field.blank
            elif field.kind is INSTANT:
                found[field.name] = instant(text)
            else:
                found |= read_field(field, text, Moment(time.time()))
        except UserError as error:
            raise UserError(f"{field.dialog.label if field.dialog else field.name}: {error}") from error
    return found


def instant_in(zone: tzinfo | None) -> Callable[[str], str]:
    """A parser of times on a clock of this zone."""

    def read(text: str) -> str:
        # `parse_when` uses this machine's clock, so shift it to the viewer's.
        now = datetime.now(zone)
        shift = (now.replace(tzinfo=None) - datetime.now()).total_seconds()
        if text.strip()[:4].isdecimal() and "T" in text and ("+" in text or text.endswith("Z")):
            return text
        relative = text.strip().startswith(("now", "+"))
        at = parse_when(text, time.time() + (0 if relative else shift)) - (0 if relative else shift)
        return datetime.fromtimestamp(at, zone).isoformat()

    return read


class EditDialog:
    def __init__(self, visit: Visit, path: str, job: Facts) -> None:
        self._visit, self._path, self._job = visit, path, job

    async def ask(self) -> None:
        inputs: dict[str, ui.input] = {}
        with ui.dialog() as dialog, ui.card().classes("gy-card gy-job-editing"):
            heading(f"Edit job {self._job['id']}", 2)
            with ui.element("div").classes("gy-job-fields"):
                for field in editable_fields(self._job):
                    assert field.dialog is not None
                    entry = ui.input(field.dialog.label, value=current_text(field, self._job)).props("outlined dense")
                    entry._props["hint"] = field.dialog.hint
                    inputs[field.name] = entry
            if self._job["state"] == "running":
                ui.label("It runs already; what its GPUs depend on cannot change any more.").classes("gy-soft")
            with ui.element("div").classes("gy-buttons"):
                ui.button("Leave it", on_click=dialog.close).props("flat no-caps")
                ui.button("Save", on_click=lambda: self._save(dialog, inputs)).props("unelevated no-caps color=primary")
        await dialog
        dialog.delete()

    async def _save(self, dialog: ui.dialog, inputs: Mapping[str, ui.input]) -> None:
        given = {name: str(entry.value or "") for name, entry in inputs.items()}
        try:
            wanted = changes(self._job, given, instant_in(self._visit.zone))
        except GpuyardError as error:
            self._visit.tell(error)
            return
        work = self._visit.api.ask("PATCH", self._path, wanted)
        if not wanted or await self._visit.do(work, f"Changed job {self._job['id']}."):
            dialog.submit(None)


_LOOKS = {
    "release": ("Release", "play_arrow", "primary"), "hold": ("Hold", "pause", ""),
    "give back": ("Give back", "undo", ""), "edit": ("Edit", "edit", ""), "retry": ("Retry", "replay", "primary"),
    "clone": ("Clone", "content_copy", ""), "cancel": ("Cancel", "close", "danger"),
}  # fmt: skip


class Actions:
    def __init__(self, visit: Visit, path: str, job: Callable[[], Mapping[str, Any]]) -> None:
        self._visit, self._path, self._job = visit, path, job

    def draw(self, able: list[str]) -> None:
        acts: dict[str, Callable[[], Awaitable[None]]] = {
            "release": lambda: self._simply("release", "Released"),
            "hold": lambda: self._simply("hold", "Held"),
            "give back": self._give_back,
            "edit": self._edit,
            "retry": self._retry,
            "clone": self._clone,
            "cancel": self._cancel,
        }
        for name in able:
            text, icon, kind = _LOOKS[name]
            button(text, acts[name], icon, kind)

    @property
    def _called(self) -> str:
        job = self._job()
        return f"{'lease' if job['kind'] == 'lease' else 'job'} {job['id']}"

    async def _simply(self, what: str, done: str) -> None:
        await self._visit.do(self._visit.api.post(f"{self._path}/{what}"), f"{done} {self._called}.")

    async def _give_back(self) -> None:
        path = f"/leases{self._path.removeprefix('/jobs')}/release"
        await self._visit.do(self._visit.api.post(path), f"Gave {self._called} back.")

    async def _cancel(self) -> None:
        job = self._job()
        tasks = sum(count for state, count in (job.get("tasks") or {}).items() if state not in OVER)
        one = f"{self._called} ({job['name']})"
        what = f"the {tasks:,} tasks of array {job['id']} that are not over" if tasks else one
        running = " What runs is asked to end, and made to after its grace." if job["state"] == "running" else ""
        if await confirm(f"Cancel {what}?{running}", "Cancel it" if not tasks else "Cancel them"):
            await self._visit.do(self._visit.api.post(f"{self._path}/cancel"), f"Cancelled {self._called}.")

    async def _clone(self) -> None:
        ui.navigate.to(f"/submit?{urlencode({'clone': self._job()['id']})}")

    async def _retry(self) -> None:
        try:
            new = await self._visit.api.post(f"{self._path}/retry")
        except GpuyardError as error:
            self._visit.tell(error)
            return
        ui.navigate.to(job_path(new["id"]))

    async def _edit(self) -> None:
        await EditDialog(self._visit, self._path, self._job()).ask()


_SECRET = re.compile(
    r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE|PRIVATE|SESSION|_DSN|_PAT$|WEBHOOK|SIGNATURE", re.IGNORECASE
)
_WITH_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


def is_secret(name: str, value: str) -> bool:
    return bool(value) and bool(_SECRET.search(name) or _WITH_PASSWORD.search(value))


def environment(visit: Visit, path: str) -> None:
    with ui.element("div").classes("gy-job-environment") as box:

        async def show() -> None:
            try:
                found = (await visit.api.get(f"{path}/environment"))["environment"]
            except GpuyardError as error:
                visit.tell(error)
                return
            box.clear()
            with box:
                _table(found)

        button("Show the environment", show, "visibility")


def _table(found: dict[str, str]) -> None:
    if not found:
        empty("It was submitted without any variable; it has those of a login.")
        return
    box = ui.element("div").classes("gy-job-scroll").props('tabindex=0 role=region aria-label="Environment"')
    with box, ui.element("table").classes("gy-job-table gy-job-variables"):
        with ui.element("thead"), ui.element("tr"):
            tagged("th", "Variable").props("scope=col")
            tagged("th", "Value").props("scope=col")
        with ui.element("tbody"):
            for name, value in sorted(found.items()):
                _row(name, value)


def _row(name: str, value: str) -> None:
    with ui.element("tr"):
        tagged("th", name).props("scope=row")
        with ui.element("td"):
            if not is_secret(name, value):
                ui.label(value)
                return
            with ui.element("span").classes("gy-job-secret"):
                shown = ui.label("looks like a secret, hidden")
                reveal = ui.button("Show").props("flat dense no-caps")
                reveal._props["aria-label"] = f"Show {name}"

                def show() -> None:
                    shown.set_text(value)
                    reveal.delete()

                reveal.on_click(show)
