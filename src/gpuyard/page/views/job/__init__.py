"""One job: how it stands, what it prints, what happened to it, and what its GPUs did. Also tasks, arrays and leases."""

from __future__ import annotations

from urllib.parse import quote

from nicegui import ui

from gpuyard.page.api import Refused
from gpuyard.page.parts import empty, heading
from gpuyard.page.views.job.screen import Screen
from gpuyard.page.visit import Visit

NOT_FOUND = 404


async def build(visit: Visit, id: str) -> int | None:
    """Make the view; the status of the page if there is no such job."""
    try:
        job = await visit.feed.ask(f"/jobs/{quote(id, safe='')}", 1.0)
    except Refused as error:
        heading("No such job", 1)
        empty(f"There is no job {id} here; it may have been removed. These are there:", "gpuyard ps --all")
        return NOT_FOUND if error.status == NOT_FOUND else error.status
    ui.page_title(f"{job['name'] or 'Job'} · {job['id']} · gpuyard")
    screen = Screen(visit, job)
    visit.live(screen.show)
    return None
