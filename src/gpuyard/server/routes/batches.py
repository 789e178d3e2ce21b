"""Routes of batches: state, report and cancellation."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Annotated, Any

from fastapi import Query, Request, Response

from gpuyard.api import batch_types, replies
from gpuyard.api.batch_types import Cost, Span, achieved, by_themselves
from gpuyard.api.types import OVER
from gpuyard.core.limits.loans import loans
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.context import Steps
from gpuyard.daemon.jobs.bulk import CANCEL, Chosen
from gpuyard.daemon.jobs.intake import BatchOptions, IntakeResult, JobRequest, open_batch
from gpuyard.daemon.jobs.profiles import epochs_in
from gpuyard.daemon.jobs.progress_reader import expected_end
from gpuyard.daemon.store.batch_history import BatchHead, BatchLog, batch_log
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.server.context import Context
from gpuyard.server.requests import Command, JobIntake, checked, read_json, with_login_defaults
from gpuyard.server.responses import iso, job_json, reply, state_text
from gpuyard.server.routes.jobs import CANCELLATIONS
from gpuyard.server.routes.notifications import Notifications
from gpuyard.server.routes.submissions import MOST_ROWS, Batch, Cancellation, Submission
from gpuyard.server.routing import AT, LATER, NO_JOB, NOT_CHANGED, Route, created, links_to, ok, owner
from gpuyard.server.stream.streams import Wait

_LOOK_SECONDS = 0.1  # seconds between reads of a batch: thousands of rows may end at once
_MOST = 1000
_ROWS_AT_ONCE = 100

BATCH: dict[str, Any] = {
    "batch": "20", "name": "commands.csv", "user": "ann", "state": "open", "rows": 50,
    "states": {"succeeded": 20, "running": 4, "queued": 25}, "refused": 1, "submitted_at": AT, "ended_at": None,
}  # fmt: skip
BATCH_STANDING: dict[str, Any] = {
    **BATCH, "wave": 2, "waves": 3, "running": [],
    "ended": [
        {
            "id": "20", "row": 3, "wave": 1, "name": "train.py", "state": "succeeded", "reason": None, "exit_code": 0,
            "attempt": 1, "gpus": [0], "started_at": AT, "ended_at": LATER, "seconds": 5400.0,
            "gpu_memory": 1999634432, "peak": 1907359744, "ooms": 0,
        }
    ],
    "refusals": [{"row": 7, "reason": "this job can never run here: it wants 20G of a GPU, the largest has 16G"}],
}  # fmt: skip
BATCH_REPORT: dict[str, Any] = {
    "batch": "20", "name": "commands.csv", "state": "over", "rows": 50, "succeeded": 48, "failed": 1, "refused": 1,
    "waves": [{"wave": 1, "rows": 20, "started_at": AT, "ended_at": LATER}], "makespan": 5400.0,
    "sequential": 16200.0, "speedup": 3.0, "gpu_hours": 1.5, "gpu_hours_sequential": 4.5, "gpu_hours_saved": 3.0,
    "most_at_once": 4, "ooms": 0, "retries": 0, "profiles": 2,
    "evidence": "12 rows by runs alone on their GPUs, 37 as they ran here",
}  # fmt: skip
BATCHES: dict[str, Any] = {
    "one after the other": {
        "jobs": [
            {"command": ["python", "prepare.py"], "directory": "/home/ann"},
            {"command": ["python", "train.py"], "directory": "/home/ann", "dependency": "afterok:@0"},
        ],
        "environment": {"PATH": "/usr/bin:/bin"},
    },
    "rows of a file, in waves": {
        "jobs": [
            {
                "command": ["python", "train.py", "--epochs=5", "--id={id}"], "directory": "/home/ann", "own_id": True,
                "gpu_memory": 2147483648, "row": {"number": 1, "wave": 1, "epochs": 5, "priority": 1},
            }
        ],
        "batch": {"name": "commands.csv", "waves": True}, "skip_refused": True,
    },
}  # fmt: skip
_STANDING = ok("How it stands.", batch_types.BatchStanding, BATCH_STANDING)


def report_json(head: BatchHead, log: BatchLog, now: float) -> dict[str, Any]:
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
    """How often rows ran again, preemptions not counted."""
    began = Counter(job for job, _ in spans)  # an attempt may not have begun, if the daemon was killed just then
    return sum(max(0, began[view.id] - 1 - view.preemptions) for view in views)


def _evidence(rows: int, alone: int) -> str:
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
    """What each row that has ended costs alone: by similar runs alone on a GPU, or as it ran here."""
    single = by_themselves(spans)  # samples may miss a short neighbour
    ended = [(view, spans[key]) for view in views if view.state in OVER and (key := (view.id, view.attempt)) in spans]
    beside = {job for job, attempt in spans if (job, attempt) not in single}
    alone = {v.id for v, _ in ended if (v.measured or {}).get("alone") and v.id not in beside}
    known: dict[tuple[str, float], float | None] = {}
    found = []
    for view, span in ended:
        like = (view.work.get("signature", ""), epochs_in(view.work.get("command", ())))
        if like not in known:
            known[like] = _runtime_alone(log, *like, {view.id for view in views} - alone)
        seconds = known[like] if view.state == "succeeded" and view.id not in alone else None
        took = span.end - span.begin + view.ran_before if seconds is None else seconds
        found.append(Cost(took, len(span.gpus), view.id in alone or seconds is not None))
    return found


def _runtime_alone(log: BatchLog, signature: str, epochs: float, but: set[str]) -> float | None:
    """The median seconds of similar runs alone, of as many epochs, without some jobs; None if there is none."""
    runs = log.alone(signature) if signature else []
    times = [seconds for job, seconds, command in runs if job not in but and epochs_in(command) == epochs]
    return median(times) if times else None


class BatchRoutes:
    def __init__(self, context: Context, intake: JobIntake, notifications: Notifications) -> None:
        self._context, self._intake, self._notifications = context, intake, notifications

    @Route(
        "POST /jobs/batch", "submitBatch", "Submit several jobs", "Jobs",
        created((replies.Ids, batch_types.Taken), {"ids": ["17", "18"]}, links_to(("getJob", "cancelJob"), "ids/0")),
        (422, 503), BATCHES, model=Batch,
        once=True,
    )  # fmt: skip
    async def submit(self, request: Request) -> Response:
        """Take several jobs in, all or none of them; or, as a batch, those that can run. They are on disk then."""
        body = await request.body()
        context, intake = self._context, self._intake
        caller = context.permissions.caller(request)

        async def take() -> Command:
            wanted, refused, resolved = list[JobRequest](), list[tuple[int, str]](), list[Submission]()
            given = await read_batch(read_json(body))
            for number, one in enumerate(given.complete()):
                if number % _ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # others come between
                resolved.append(await self._notifications.resolved(request, one))
            for number, one in enumerate(resolved):
                if number % _ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                try:
                    whole = with_login_defaults(one, caller, context.settings)
                    wanted.append(intake.owned(request, whole.wanted(context.settings)))
                except UserError as error:
                    if not given.skip_refused:
                        raise UserError(f"job {number + 1} of {len(given.jobs)}: {error}") from error
                    refused.append((one.row.number if one.row else number + 1, str(error)))
            signed = await intake.signed(request, wanted)
            if given.batch is None and not given.skip_refused:
                return lambda: context.commands.submitting(signed, lambda ids: {"ids": ids, **intake.warnings()})
            return lambda: self._take(caller.name, given, signed, refused)

        return await intake.once(request, take)

    def _take(
        self, user: str, given: Batch, wanted: Sequence[JobRequest], refused: Sequence[tuple[int, str]]
    ) -> dict[str, Any] | Steps[dict[str, Any]]:
        """Submit a batch, or return the open one with the same key. For the daemon's thread."""
        named = given.batch
        how = BatchOptions("batch", skip=given.skip_refused)
        if named is not None:
            how = BatchOptions(named.name, named.key, named.waves, named.again, given.skip_refused)
            before = None if named.again else open_batch(self._context.daemon.context, user, named.key)
            if before is not None:
                return {"ids": before[1], "batch": before[0], "refused": [], "open": True}

        def answer(taken: IntakeResult) -> dict[str, Any]:
            rows = [(row[0] if (row := wanted[place].work.row) else place + 1, why) for place, why in taken.refused]
            reasons = [{"row": row, "reason": why} for row, why in sorted([*refused, *rows])]
            batch = next(iter(taken.ids), None)
            return {"ids": taken.ids, "batch": batch, "refused": reasons, "open": False, **self._intake.warnings()}

        return self._context.commands.submitting_batch(wanted, how, refused, answer)

    @Route(
        "GET /batches", "listBatches", "List batches", "Batches",
        ok(
            "Batches.", batch_types.Batches, {"batches": [BATCH]},
            links=links_to(("getBatch", "getBatchReport", "cancelBatch"), "batches/0/batch", "batch"),
        ),
        (422,),
    )  # fmt: skip
    async def batches(
        self,
        user: Annotated[str, Query(max_length=200, description="Only this user's.")] = "",
        limit: Annotated[int, Query(ge=1, le=_MOST, description="At most so many, the newest.")] = 100,
    ) -> Response:
        """Batches, the newest first."""

        def look() -> list[dict[str, Any]]:
            with batch_log(self._context.settings.database) as log:
                return [_summary(head) for head in log.heads(user, limit)]

        return reply({"batches": await asyncio.to_thread(look)})

    @Route("GET /batches/{batch}", "getBatch", "Look at a batch, or wait for it", "Batches", _STANDING, NO_JOB)
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
        context, end = self._context, time.monotonic() + wait
        while True:
            head = await asyncio.to_thread(self._head, batch)
            left = end - time.monotonic()
            if head.ended is not None or _over(head) != over or left <= 0 or context.watch.over:
                return reply(await asyncio.to_thread(self._standing, batch, since))
            await context.watch.wait(left)
            await asyncio.sleep(_LOOK_SECONDS)

    @Route(
        "GET /batches/{batch}/report", "getBatchReport", "What a batch achieved", "Batches",
        ok("What.", batch_types.BatchReport, BATCH_REPORT), NO_JOB,
    )  # fmt: skip
    async def report(self, batch: str) -> Response:
        """What a batch achieved, beside running its rows one after another."""

        def look() -> dict[str, Any]:
            with batch_log(self._context.settings.database) as log:
                return report_json(_known(log, batch), log, time.time())

        return reply(await asyncio.to_thread(look))

    @Route(
        "POST /batches/{batch}/cancel", "cancelBatch", "Cancel what is left of a batch", "Batches",
        ok("How it stands then.", batch_types.BatchStanding, BATCH_STANDING), NOT_CHANGED, CANCELLATIONS,
        may=owner("cancel batch {job}"),
    )  # fmt: skip
    async def cancel(self, request: Request, batch: str, how: Cancellation | None = None) -> Response:
        """Give up all that is left of a batch."""
        context, grace = self._context, how.grace if how else None
        await asyncio.to_thread(self._head, batch)  # fails if there is no such batch
        caller = context.permissions.caller(request)
        ids = await asyncio.to_thread(self._open_ids, batch)
        if not ids:
            raise NotNow(f"batch {batch} is over")
        chosen = await asyncio.to_thread(lambda: Chosen.of(ids, context.daemon.store.open))
        await context.ask(lambda: context.daemon.bulk.change(CANCEL, chosen, grace=grace, by=caller.name))
        return reply(await asyncio.to_thread(self._standing, batch, 2e10))

    def _head(self, batch: str) -> BatchHead:
        with batch_log(self._context.settings.database) as log:
            return _known(log, batch)

    def _open_ids(self, batch: str) -> list[str]:
        """The last ones first, so that no row starts because an earlier one was cancelled."""
        with batch_log(self._context.settings.database) as log:
            return [view.id for view in reversed(log.rows(batch, "AND ended IS NULL"))]

    def _standing(self, batch: str, since: float) -> dict[str, Any]:
        with batch_log(self._context.settings.database) as log:
            head = _known(log, batch)
            running = log.rows(batch, "AND ended IS NULL AND state = 'running'")
            ended, refusals = log.ended(batch, since), log.refusals(batch)
        open_waves = [wave for wave, states in head.waves.items() if states.keys() - OVER]
        now = self._context.daemon.clock.now()
        return {
            **_summary(head),
            "wave": min(open_waves, default=None),
            "waves": max(head.waves, default=1),
            "running": [self._job(view, now) for view in running],
            "ended": [outcome(view) for view in ended],
            "refusals": [{"row": row, "reason": why} for row, why in refusals],
        }

    def _job(self, view: JobView, now: float) -> dict[str, Any]:
        daemon = self._context.daemon
        progress, used = self._context.progress.of(view, now), daemon.measures.live(view)
        expected = expected_end(view, progress, now)
        return job_json(view, None, progress, expected, daemon.machine.node, used, loans(daemon.state, view.id))


async def read_batch(given: Any) -> Batch:
    """A batch, validated some rows at a time."""
    rows = given.get("jobs") if isinstance(given, dict) else None
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        return checked(Batch, given)
    found = checked(Batch, {**given, "jobs": rows[:_ROWS_AT_ONCE]})
    for row in range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE):
        await asyncio.sleep(0)
        found.jobs += checked(Batch, {"jobs": rows[row : row + _ROWS_AT_ONCE]}, row).jobs
    return found


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
    work = view.work
    row = work.get("row") or (0, 1)
    return {
        "id": view.id, "row": row[0], "wave": row[1], "name": view.name, "state": view.state,
        "reason": state_text(view), "exit_code": view.exit_code, "attempt": view.attempt, "gpus": list(view.gpus),
        "started_at": iso(view.started), "ended_at": iso(view.ended),
        "seconds": view.ran,
        "gpu_memory": work["gpu_memory"], "peak": (view.measured or {}).get("peak"), "ooms": work.get("ooms", 0),
    }  # fmt: skip
