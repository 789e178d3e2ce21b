"""The routes of batches: how they stand, what they achieved, and their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request, Response

from gpuyard.client import OVER
from gpuyard.core.lending import loans
from gpuyard.daemon.batches import Together, open_batch
from gpuyard.daemon.batchlog import BatchLog, Head, batch_log
from gpuyard.daemon.described import NoSuchJob
from gpuyard.daemon.desk import NotNow
from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.views import JobView
from gpuyard.server import tasks
from gpuyard.server.answers import how_it_stands, job_json, reply
from gpuyard.server.batchreport import report_json
from gpuyard.server.models import Batch, Cancellation
from gpuyard.server.permissions import May
from gpuyard.server.times import iso
from gpuyard.server.watch import Wait

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_LOOK = 0.1  # seconds between looks at a batch that somebody waits for: its rows may end by the thousand
_MOST = 1000


def take_batch(
    api: Api, user: str, given: Batch, wanted: Sequence[Wanted], refused: Sequence[tuple[int, str]]
) -> dict[str, Any]:
    """Take a batch in, in the yard's thread; or tell of the one with the same key that is open."""
    named = given.batch
    how = Together("batch", skip=given.skip_refused)
    if named is not None:
        how = Together(named.name, named.key, named.waves, named.again, given.skip_refused)
        before = None if named.again else open_batch(api.yard, user, named.key)
        if before is not None:
            return {"ids": before[1], "batch": before[0], "refused": [], "open": True}
    taken = api.desk.submit_batch(wanted, how, refused)
    rows = [(row[0] if (row := wanted[place].work.row) else place + 1, why) for place, why in taken.refused]
    told = [{"row": row, "reason": why} for row, why in sorted([*refused, *rows])]
    return {"ids": taken.ids, "batch": next(iter(taken.ids), None), "refused": told, "open": False, **api.warned()}


class BatchRoutes:
    """The handlers; the API adds them to its routes."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, add: Any) -> None:
        """Make the routes known."""
        add("/batches", self.batches, "GET", May.EVERYBODY)
        add("/batches/{batch}", self.batch, "GET", May.EVERYBODY)
        add("/batches/{batch}/report", self.report, "GET", May.EVERYBODY)
        add("/batches/{batch}/cancel", self.cancel, "POST", May.OWNER, "cancel batch {job}")

    async def batches(
        self,
        user: Annotated[str, Query(max_length=200, description="Only this user's.")] = "",
        limit: Annotated[int, Query(ge=1, le=_MOST, description="At most so many, the newest.")] = 100,
    ) -> Response:
        """Batches, the newest first."""

        def look() -> list[dict[str, Any]]:
            with batch_log(self._api.settings.database) as log:
                return [_summary(head) for head in log.heads(user, limit)]

        return reply({"batches": await asyncio.to_thread(look)})

    async def batch(
        self,
        batch: str,
        wait: Wait = 0.0,
        over: Annotated[int, Query(ge=0, description="With `wait`: until other than so many rows are over.")] = 0,
        since: Annotated[
            float, Query(ge=0, le=2e10, description="Of rows that are over, those that ended at this time or later.")
        ] = 0.0,
    ) -> Response:
        """How a batch stands; with `wait`, when more of its rows are over, or the seconds are."""
        api, end = self._api, time.monotonic() + wait
        while True:
            head = await asyncio.to_thread(self._head, batch)
            left = end - time.monotonic()
            if head.ended is not None or _over(head) != over or left <= 0 or api.watch.over:
                return reply(await asyncio.to_thread(self._standing, batch, since))
            await api.watch.wait(left)
            await asyncio.sleep(_LOOK)

    async def report(self, batch: str) -> Response:
        """What a batch achieved, beside running its rows one after another."""

        def look() -> dict[str, Any]:
            with batch_log(self._api.settings.database) as log:
                return report_json(_known(log, batch), log, time.time())

        return reply(await asyncio.to_thread(look))

    async def cancel(self, request: Request, batch: str, how: Cancellation | None = None) -> Response:
        """Give up all that is left of a batch."""
        api, grace = self._api, how.grace if how else None
        await asyncio.to_thread(self._head, batch)  # which says so if there is none
        caller = api.permissions.caller(request)
        ids = await asyncio.to_thread(self._open_ids, batch)
        if not ids:
            raise NotNow(f"batch {batch} is over")
        await api.ask(tasks.each(ids, lambda id: api.desk.cancel(id, grace, caller.name)))
        return reply(await asyncio.to_thread(self._standing, batch, 2e10))

    def _head(self, batch: str) -> Head:
        with batch_log(self._api.settings.database) as log:
            return _known(log, batch)

    def _open_ids(self, batch: str) -> list[str]:
        """Those that wait last come first: none of them is to start because another has ended."""
        with batch_log(self._api.settings.database) as log:
            return [view.id for view in reversed(log.rows(batch, "AND ended IS NULL"))]

    def _standing(self, batch: str, since: float) -> dict[str, Any]:
        with batch_log(self._api.settings.database) as log:
            head = _known(log, batch)
            running = log.rows(batch, "AND ended IS NULL AND state = 'running'")
            ended, refusals = log.ended(batch, since), log.refusals(batch)
        open_waves = [wave for wave, states in head.waves.items() if states.keys() - OVER]
        now = self._api.yard.clock.now()
        return {
            **_summary(head),
            "wave": min(open_waves, default=None),
            "waves": max(head.waves, default=1),
            "running": [self._job(view, now) for view in running],
            "ended": [outcome(view) for view in ended],
            "refusals": [{"row": row, "reason": why} for row, why in refusals],
        }

    def _job(self, view: JobView, now: float) -> dict[str, Any]:
        yard = self._api.yard
        far, used = self._api.progress.of(view, now), yard.measures.live(view)
        return job_json(view, None, far, yard.machine.node, used, loans(yard.state, view.id))


def _known(log: BatchLog, batch: str) -> Head:
    found = log.head(batch)
    if found is None:
        raise NoSuchJob(f"there is no batch {batch} (gpuyard batch list lists them)")
    return found


def _over(head: Head) -> int:
    return sum(count for state, count in head.states.items() if state in OVER)


def _summary(head: Head) -> dict[str, Any]:
    return {
        "batch": head.id, "name": head.name, "user": head.user, "state": "open" if head.ended is None else "over",
        "rows": sum(head.states.values()) + head.refused, "states": head.states, "refused": head.refused,
        "submitted_at": iso(head.submitted), "ended_at": iso(head.ended),
    }  # fmt: skip


def outcome(view: JobView) -> dict[str, Any]:
    """How a row stands, or ended."""
    work = view.work
    row = work.get("row") or (0, 1)
    ran = view.started is not None and view.ended is not None
    return {
        "id": view.id, "row": row[0], "wave": row[1], "name": view.name, "state": view.state,
        "reason": how_it_stands(view), "exit_code": view.exit_code, "attempt": view.attempt, "gpus": list(view.gpus),
        "started_at": iso(view.started), "ended_at": iso(view.ended),
        "seconds": max(0.0, view.ended - view.started) if ran else None,  # type: ignore[operator]
        "gpu_memory": work["gpu_memory"], "peak": (view.measured or {}).get("peak"), "ooms": work.get("ooms", 0),
    }  # fmt: skip
