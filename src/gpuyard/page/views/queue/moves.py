"""Bringing a job to another place of the queue, by the priority that does it, and telling whether that worked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nicegui import ui

from gpuyard.errors import GpuyardError
from gpuyard.page.views.queue.acts import Acts
from gpuyard.page.views.queue.listing import Listed
from gpuyard.page.views.queue.moving import Order, Standing, priority_between
from gpuyard.page.visit import Visit

_LOOKED = 2000  # waiting jobs among which it is looked for
_SETTLED = 0.7  # seconds after which the daemon's order is surely of after the change


class Moves:
    """Moves jobs under the policy in force."""

    def __init__(self, visit: Visit, acts: Acts, order: Order) -> None:
        self._visit, self._acts, self._order = visit, acts, order

    async def move(self, job: Listed, above: Listed | None, below: Listed | None, up: bool) -> None:
        """Bring a job behind one and before another, up or down, as far as a priority can."""
        if not (self._order.known and self._order.counts):
            ui.notify(
                f"The policy {self._order.name} does not order by priority, so nothing can be moved.", type="info"
            )
            return
        above, below = _waiting(above), _waiting(below)
        priority = await self._priority(job, above, below)
        if priority is None:  # these two are ranked alike: as far as it can go is before both, or behind
            above, below = (None, below) if up else (above, None)
            priority = await self._priority(job, above, below)
            ui.notify(_alike(job, up), type="info", multi_line=True, timeout=8000)
        if priority is None or priority == job.priority:
            ui.notify(f"{_begin(job.label)} keeps its priority.", type="info")
        elif await self._acts.set_priority(job, priority):
            await self._look(job, above, below)

    async def _priority(self, job: Listed, above: Listed | None, below: Listed | None) -> float | None:
        had: dict[str, float] = {}
        if self._order.fairness:
            rules = await self._visit.feed.ask("/rules")
            had = {one["name"]: one["faded_gpu_hours"] for one in rules["users"]}

        def standing(one: Listed | None) -> Standing | None:
            # From the first on: seconds since the epoch are so many that their fractions would be lost.
            return (
                None if one is None else Standing(one.priority, one.submitted - job.submitted, had.get(one.user, 0.0))
            )

        own = Standing(job.priority, 0.0, had.get(job.user, 0.0))
        return priority_between(self._order, own, standing(above), standing(below))

    async def _look(self, job: Listed, above: Listed | None, below: Listed | None) -> None:
        """Say so if it did not come to where it was wanted."""
        await asyncio.sleep(_SETTLED)
        try:
            found = await self._visit.api.get("/jobs", columns=True, fold=True, state="queued", limit=_LOOKED)
        except GpuyardError:
            return  # the banner tells
        ids: list[str] = found["columns"]["id"]
        if job.id in ids and not _between(ids, job.id, above, below):
            ui.notify(
                f"{_begin(job.label)} is number {ids.index(job.id) + 1} of those that wait now, not where it was put: "
                f"the policy {self._order.name} also counts what goes on changing.",
                type="warning", multi_line=True, timeout=8000,
            )  # fmt: skip


def _waiting(job: Listed | None) -> Listed | None:
    """A neighbour that says something about the order: those that run or are held do not."""
    return job if job is not None and job.state == "queued" else None


def _between(ids: Sequence[str], job: str, above: Listed | None, below: Listed | None) -> bool:
    place = ids.index(job)
    behind = above is None or above.id not in ids or ids.index(above.id) < place
    return behind and (below is None or below.id not in ids or place < ids.index(below.id))


def _alike(job: Listed, up: bool) -> str:
    where = "before" if up else "behind"
    return f"No priority comes between those two, which are ranked alike: {job.label} goes {where} all of their kind."


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]
