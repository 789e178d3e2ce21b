"""The queue: who runs, who waits and why, who is held; and what may be done about it."""

from __future__ import annotations

from gpuyard.page.views.queue.board import Board
from gpuyard.page.visit import Visit


async def build(visit: Visit) -> None:
    """Make the view."""
    await Board(visit).build()
