"""The history: what is over, who used how much, who was on which GPU when."""

from __future__ import annotations

from gpuyard.page.views.history.board import Board
from gpuyard.page.visit import Visit


async def build(visit: Visit) -> None:
    """Make the view."""
    await Board(visit).build()
