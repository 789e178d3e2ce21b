"""The overview: every GPU as a tile, the day in a line, who comes next and who has just ended.

Everything that changes is one element, whose component keeps its own copy of what is shown. It is the same for all who
look, so it is worked out and encoded once (`board`), and each page is sent what is new since it was last sent anything.
"""

from __future__ import annotations

from gpuyard.page.views.overview.screen import Screen
from gpuyard.page.visit import Visit


async def build(visit: Visit) -> None:
    """Make the view."""
    screen = Screen(visit)
    await screen.begin()
    visit.live(screen.show)
