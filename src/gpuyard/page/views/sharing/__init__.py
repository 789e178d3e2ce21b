"""Sharing: how batches go, what jobs are known to need, and which of them slow each other down."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gpuyard.page.api import Away, Refused
from gpuyard.page.parts import heading
from gpuyard.page.views.sharing.batches import Batches
from gpuyard.page.views.sharing.needs import Needs
from gpuyard.page.views.sharing.pairs import Pairs
from gpuyard.page.views.sharing.section import section
from gpuyard.page.visit import Visit

_SOON = 1.0  # seconds that a new page waits for its content


async def build(visit: Visit) -> None:
    """Make the view, with what there is to see already: else what an address leads to would move away."""
    with section("batches"):
        heading("Batches")
        batches = Batches(visit)
    with section("estimates"):
        heading("What jobs need")
        needs = Needs(visit)
    with section("interference"):
        heading("Who slows whom")
        pairs = Pairs(visit)
    with suppress(Away, Refused, TimeoutError):  # the banner tells, and what is late follows
        async with asyncio.timeout(_SOON):
            await batches.begin()
            await needs.show()
            await pairs.show()
    for part in (batches.show, needs.show, pairs.show):
        visit.live(part)
