"""What can be done to a job: a button for each, if the viewer may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from gpuyard.errors import GpuyardError
from gpuyard.page.parts import button, confirm, job_path
from gpuyard.page.views.job.editing import Editing
from gpuyard.page.visit import Visit
from gpuyard.shapes import OVER

_LOOKS = {
    "release": ("Release", "play_arrow", "primary"), "hold": ("Hold", "pause", ""),
    "give back": ("Give back", "undo", ""), "edit": ("Edit", "edit", ""), "retry": ("Retry", "replay", "primary"),
    "clone": ("Clone", "content_copy", ""), "cancel": ("Cancel", "close", "danger"),
}  # fmt: skip


class Actions:
    """The buttons of one job."""

    def __init__(self, visit: Visit, path: str, job: Callable[[], Mapping[str, Any]]) -> None:
        self._visit, self._path, self._job = visit, path, job

    def draw(self, able: list[str]) -> None:
        """Make a button for each."""
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
        """Open the form with all that it asks for, to be changed and submitted."""
        ui.navigate.to(f"/submit?{urlencode({'clone': self._job()['id']})}")

    async def _retry(self) -> None:
        """Make a new job of it, and go there."""
        try:
            new = await self._visit.api.post(f"{self._path}/retry")
        except GpuyardError as error:
            self._visit.tell(error)
            return
        ui.navigate.to(job_path(new["id"]))

    async def _edit(self) -> None:
        await Editing(self._visit, self._path, self._job()).ask()
