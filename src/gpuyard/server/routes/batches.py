"""Routes of batches: state, report and cancellation."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request, Response

from gpuyard.api.batch_types import Cost, Span, achieved, by_themselves
from gpuyard.api.types import OVER
from gpuyard.core.limits.loans import loans
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.jobs.intake import BatchOptions, JobRequest, open_batch
from gpuyard.daemon.jobs.profiles import epochs_in
from gpuyard.daemon.store.batch_history import BatchHead, BatchLog, batch_log
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.views import JobView
from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.responses import iso, job_json, reply, state_text
from gpuyard.server.routes.submissions import Batch, Cancellation
from gpuyard.server.stream.streams import Wait

if TYPE_CHECKING:
    from gpuyard.server.api import Api


def report_json(head: BatchHead, log: BatchLog, now: float) -> dict[str, Any]:
    """What a batch achieved, as JSON has it."""
    jobs, spans = log.rows(head.id), log.spans(head.id, now)
    views = [view for view in jobs if view.work.get("row")]
    costs = _costs(views, spans, log)
    found = achieved(list(spans.values()), costs)
    succeeded = sum(view.state == "succeeded" for view in views)
    over = sum(view.over for view in views)
    return {
        "batch": head.id, "name": head.name, "state": "open" if head.ended is None else "over",
        "rows": len(views) + head.refused, "succeeded": succeeded, "failed": over - succeeded,
        "refused": head.refused, "waves": _waves(views, spans), "makespan": found.makespan,
        "sequential": found.sequential, "speedup": found.speedup, "gpu_hours": found.gpu_hours,
        "gpu_hours_sequential": found.gpu_hours_sequential, "gpu_hours_saved": found.gpu_hours_saved,
        "most_at_once": found.most_at_once, "ooms": log.ooms(head.id),
        "retries": _retries(views, spans), "profiles": len(jobs) - len(views),
        "evidence": _evidence(len(costs), found.alone),
    }  # fmt: skip


def _retries(views: Sequence[JobView], spans: Iterable[tuple[str, int]]) -> int:
    """How often rows were run again, but for those that were stopped so that others can run."""
    began = Counter(job for job, _ in spans)  # an attempt may never have begun, if the daemon was killed just then
    return sum(max(0, began[view.id] - 1 - view.preemptions) for view in views)


def _evidence(rows: int, alone: int) -> str:
    """Where the times of single rows come from."""
    if not rows:
        return "no row has run yet"
    if not alone:
        return "all rows as they ran here, beside others"
    if alone == rows:
        return "all rows by runs alone on their GPUs"
    known = f"{alone:,} row{'s' * (alone > 1)} by runs alone on their GPUs"
    return f"{known}, {rows - alone:,} as they ran here, beside others"


def _waves(views: Sequence[JobView], spans: dict[tuple[str, int], Span]) -> list[dict[str, Any]]:
    begins: dict[str, float] = {}
    for (job, _), span in spans.items():
        begins[job] = min(begins.get(job, span.begin), span.begin)
    waves: dict[int, list[JobView]] = {}
    for view in views:
        waves.setdefault((view.work.get("row") or (0, 1))[1], []).append(view)
    return [
        {
            "wave": wave, "rows": len(rows),
            "started_at": iso(min((begins[row.id] for row in rows if row.id in begins), default=None)),
            "ended_at": iso(max(row.ended or 0.0 for row in rows)) if all(row.over for row in rows) else None,
        }
        for wave, rows in sorted(waves.items())
    ]  # fmt: skip


def _costs(views: Sequence[JobView], spans: dict[tuple[str, int], Span], log: BatchLog) -> list[Cost]:
    """What each row that has ended costs by itself: as others like it took alone, or as its last attempt did."""
    single = by_themselves(spans)  # what was measured is looked at now and then, which may miss a short neighbour
    ended = [(view, spans[key]) for view in views if view.state in OVER and (key := (view.id, view.attempt)) in spans]
    alone = {v.id for v, _ in ended if (v.measured or {}).get("alone") and (v.id, v.attempt) in single}
    known: dict[tuple[str, float], float | None] = {}
    found = []
    for view, span in ended:
        like = (view.work.get("signature", ""), epochs_in(view.work.get("command", ())))
        if like not in known:
            known[like] = _runtime_alone(log, *like, {view.id for view in views} - alone)
        seconds = known[like] if view.state == "succeeded" and view.id not in alone else None
        took = span.end - span.begin if seconds is None else seconds
        found.append(Cost(took, len(span.gpus), view.id in alone or seconds is not None))
    return found


def _runtime_alone(log: BatchLog, signature: str, epochs: float, but: set[str]) -> float | None:
    """Seconds that runs like this took alone, of as many epochs, but for certain jobs; None if there was none."""
    runs = log.alone(signature) if signature else []
    times = [seconds for job, seconds, command in runs if job not in but and epochs_in(command) == epochs]
    return median(times) if times else None


_LOOK_SECONDS = 0.1  # seconds between looks at a batch that somebody waits for: its rows may end by the thousand
_MOST = 1000


def take_batch(
    api: Api, user: str, given: Batch, wanted: Sequence[JobRequest], refused: Sequence[tuple[int, str]]
) -> dict[str, Any]:
    """Take a batch in, in the yard's thread; or tell of the one with the same key that is open."""
    named = given.batch
    how = BatchOptions("batch", skip=given.skip_refused)
    if named is not None:
        how = BatchOptions(named.name, named.key, named.waves, named.again, given.skip_refused)
        before = None if named.again else open_batch(api.yard.context, user, named.key)
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
        add("/batches", self.batches, "GET", Permission.EVERYBODY)
        add("/batches/{batch}", self.batch, "GET", Permission.EVERYBODY)
        add("/batches/{batch}/report", self.report, "GET", Permission.EVERYBODY)
        add("/batches/{batch}/cancel", self.cancel, "POST", Permission.OWNER, "cancel batch {job}")

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
            await asyncio.sleep(_LOOK_SECONDS)

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

    def _head(self, batch: str) -> BatchHead:
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


def _known(log: BatchLog, batch: str) -> BatchHead:
    found = log.head(batch)
    if found is None:
        raise NoSuchJob(f"there is no batch {batch} (gpuyard batch list lists them)")
    return found


def _over(head: BatchHead) -> int:
    return sum(count for state, count in head.states.items() if state in OVER)


def _summary(head: BatchHead) -> dict[str, Any]:
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
        "reason": state_text(view), "exit_code": view.exit_code, "attempt": view.attempt, "gpus": list(view.gpus),
        "started_at": iso(view.started), "ended_at": iso(view.ended),
        "seconds": max(0.0, view.ended - view.started) if ran else None,  # type: ignore[operator]
        "gpu_memory": work["gpu_memory"], "peak": (view.measured or {}).get("peak"), "ooms": work.get("ooms", 0),
    }  # fmt: skip
