"""The views: `build(visit)` makes the elements of one, and `visit.live` registers what is updated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from gpuyard.page.views import job, overview, settings, sharing, simulate, submit
from gpuyard.page.views.history import HistoryView
from gpuyard.page.views.queue import QueueView


class View(NamedTuple):
    path: str
    title: str
    build: Callable[..., Awaitable[int | None]]
    """Called with the visit and the path's parameters; returns the HTTP status if it is not 200."""
    headed: bool = True  # whether the title is its heading; else it makes one of its own


VIEWS = (
    View("/", "Overview", overview.build),
    View("/queue", "Queue", lambda visit: QueueView(visit).build()),
    View("/jobs/{id}", "Job", job.build, headed=False),
    View("/submit", "Submit a job", submit.build),
    View("/history", "History", lambda visit: HistoryView(visit).build()),
    View("/sharing", "Sharing", sharing.build),
    View("/simulate", "Simulate", simulate.build),
    View("/settings", "Settings", settings.build),
)
