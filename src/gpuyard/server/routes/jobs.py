"""Routes of jobs: submit, show, edit, cancel, hold, release, explain, clone, retry and report progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from gpuyard.api import replies, types
from gpuyard.api.types import OVER
from gpuyard.core.limits.loans import loans
from gpuyard.core.reasons import Reason
from gpuyard.daemon.commands import NotNow
from gpuyard.daemon.jobs.bulk import CANCEL, EDIT, HOLD, RELEASE, REQUEUE, Chosen
from gpuyard.daemon.jobs.fingerprints import digest_of
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.progress_reader import Expected, expected_end
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.context import Context
from gpuyard.server.requests import Body, Command, JobIntake, checked, read_json, with_login_defaults
from gpuyard.server.responses import ReasonTexts, explain_json, job_json, reply, stored_fields
from gpuyard.server.routes.notifications import Notifications
from gpuyard.server.routes.submissions import Cancellation, Changes, Copy, Submission
from gpuyard.server.routing import AT, LATER, LOCATION, NO_JOB, NOT_CHANGED, Route, created, links_to, ok, owner
from gpuyard.server.stream.streams import Wait
from gpuyard.spec.notation import ranges

_ARRAY_LOOK = 0.05  # seconds between looks at an array that a client waits for

JOB: dict[str, Any] = {
    **stored_fields({}), "id": "17", "name": "train", "user": "ann", "state": "queued",
    "reason": "waits for 2 GPUs: 1 is free", "attempt": 0, "gpus": [], "exit_code": None, "submitted_at": AT,
    "started_at": None, "ended_at": None, "ran_before": 0.0, "expected_end_at": None, "expected_by": None,
    "gpu_count": 2, "gpu_memory": None, "priority": 0.0,
    "command": ["python", "train.py"], "directory": "/home/ann/project", "tags": ["paper"], "estimate": 7200.0,
    "time_limit": 14400.0, "message": None, "array": None, "task": None, "begin_at": None, "deadline_at": None,
    "dependency": None, "failures": 0, "output": None, "error": None, "among": None, "preemptible": False,
    "preemptions": 0, "granted": [], "notify": [], "gpu_memory_asked": None, "measured": None, "energy_wh": None,
    "gpu_hours": 0.0, "prediction": None, "admission": None, "ooms": 0, "oom_retries": 3, "alone": True,
    "batch": None, "row": None, "kind": "job", "progress": None,
}  # fmt: skip
SUBMISSIONS: dict[str, Any] = {
    "one GPU": {"command": ["python", "train.py"], "directory": "/home/ann/project"},
    "two of three GPUs, with a limit": {
        "command": ["python", "train.py", "--epochs", "90"], "directory": "/home/ann/project",
        "environment": {"PATH": "/usr/bin:/bin", "HOME": "/home/ann"}, "name": "train", "tags": ["paper"],
        "gpus": 2, "from": [0, 1, 3], "time_limit": 14400, "estimate": 7200, "retries": 1,
    },
    "a share of a GPU": {"command": ["python", "eval.py"], "directory": "/home/ann", "gpu_memory": 6442450944},
    "as much as it used before": {"command": ["python", "eval.py"], "directory": "/home/ann", "gpu_memory": "auto"},
    "an array": {"command": ["python", "sweep.py"], "directory": "/home/ann", "array": "0-9%2", "preemptible": True},
}  # fmt: skip
CHANGES: dict[str, Any] = {"more urgent": {"priority": 5}, "no time limit": {"time_limit": None}}
CANCELLATIONS: dict[str, Any] = {"at once": {"grace": 0}, "as it wants": {}}
COPIES: dict[str, Any] = {"as it was": {}, "with more time": {"time_limit": 28800, "name": "again"}}
REPORTS: dict[str, Any] = {"a third": {"done": 30, "total": 90}}
EXPLANATION: dict[str, Any] = {
    "id": "17", "state": "queued", "reason": "waits for 2 GPUs: 1 is free", "code": "Resources",
    "details": {"gpus": 2, "idle": 1}, "expected_at": LATER, "expected_by": "estimate", "place": 1,
    "needs": "any 2 GPUs", "ahead": [],
    "must_end_first": [{"id": "12", "name": "eval", "user": "bob", "gpus": [0], "expected_at": LATER,
                        "expected_by": "estimate"}], "gpus": [],
}  # fmt: skip
_ONE = ok("The job as it stands.", types.Job, JOB)
_OPERATIONS = ("getJob", "explainJob", "cancelJob", "holdJob", "releaseJob", "getLog", "getEnvironment", "editJob",
               "cloneJob", "retryJob")  # fmt: skip
_COPIED = created(replies.Id, {"id": "18"}, links_to(_OPERATIONS[:3], "id"), LOCATION)


class Report(Body):
    """How far a job is."""

    done: Annotated[float, Field(ge=0, allow_inf_nan=False, description="How much is done.")]
    total: Annotated[float, Field(gt=0, allow_inf_nan=False, description="How much there is to do.")]


class JobLookup:
    """Finds jobs by their ids."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def open_ids(self, job: str) -> list[str]:
        """The ids of the job or tasks that an id names: those that are not over, if there are any."""
        ids = tasks.ids(self._context.reader, job)
        return [id for id in ids if id in self._context.daemon.store.open] or ids

    async def chosen(self, job: str) -> list[JobView]:
        return await asyncio.to_thread(lambda: tasks.chosen(self._context.reader, job))

    async def progress(self, job: str, array: str) -> tuple[bool, bool, str]:
        if not array:
            return tasks.progress(self._context.reader, job)
        return await asyncio.to_thread(lambda: tasks.progress(self._context.reader, job))

    async def one(self, job: str) -> Response:
        """A job, or an array as if it were one, with its reason, progress and usage."""
        context, daemon = self._context, self._context.daemon
        alone = context.reader.job(job)
        views = [alone] if alone else await self.chosen(job)
        view = views[0] if alone else await asyncio.to_thread(tasks.together, job, views)
        reasons: Mapping[str, Reason] = {}
        if view.state == "queued" and len(views) == 1:
            recent = context.commands.recent_reasons() or {}
            reasons = recent if job in recent else await context.look(context.commands.reasons)
        say, progress, now = ReasonTexts(await context.due(reasons)), None, daemon.clock.now()
        if view.state == "running" and len(views) == 1:
            progress = await asyncio.to_thread(context.progress.of, view, now)
        expected = expected_end(view, progress, now) if len(views) == 1 else Expected()
        used = daemon.measures.live(view)
        granted = loans(daemon.state, view.id)
        found = job_json(view, say(reasons.get(view.id), view), progress, expected, daemon.machine.node, used, granted)
        return reply({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)


class JobRoutes:
    def __init__(self, context: Context, lookup: JobLookup, intake: JobIntake, notifications: Notifications) -> None:
        self._context, self._lookup, self._intake, self._notifications = context, lookup, intake, notifications

    @Route(
        "POST /jobs", "submitJob", "Submit a job", "Jobs",
        created(replies.Id, {"id": "17"}, links_to(_OPERATIONS, "id"), LOCATION), (422, 503), SUBMISSIONS,
        model=Submission, once=True,
    )  # fmt: skip
    async def submit(self, request: Request) -> Response:
        """Take a job in. It is on disk when this answers."""
        body = await request.body()
        context, intake = self._context, self._intake

        async def take() -> Command:
            resolved = await self._notifications.resolved(request, checked(Submission, read_json(body)))
            given = with_login_defaults(resolved, context.permissions.caller(request), context.settings)
            wanted = await intake.complete(request, given)
            return lambda: context.commands.submitting([wanted], lambda ids: {"id": ids[0], **intake.warnings()})

        return await intake.once(request, take)

    @Route("GET /jobs/{job}", "getJob", "Look at a job, or wait for it", "Jobs", _ONE, NO_JOB)
    async def job(
        self, job: str, wait: Wait = 0.0, for_: Annotated[Literal["over", "start"], Query(alias="for")] = "over"
    ) -> Response:
        """One job, or an array as one; with `wait`, when it is over or has started, or the seconds are."""
        end, watch = time.monotonic() + wait, self._context.watch
        array = ""
        while True:
            over, started, array = await self._lookup.progress(job, array)
            left = end - time.monotonic()
            if over or (for_ == "start" and started) or left <= 0 or watch.over:
                return await self._lookup.one(job)
            await watch.wait(left, array or job)
            if array:  # thousands of tasks may end at once
                await asyncio.sleep(_ARRAY_LOOK)

    @Route(
        "PATCH /jobs/{job}", "editJob", "Change a job", "Jobs", _ONE, NOT_CHANGED, CHANGES,
        may=owner("change job {job}"),
    )  # fmt: skip
    async def edit(self, request: Request, job: str, given: Changes) -> Response:
        """Change what a job, or the open tasks of an array, ask for; null takes something back."""
        permissions = self._context.permissions
        if "priority" in given.given:
            permissions.check_priority(permissions.caller(request), given.priority)
        if not given.given:
            raise UserError("there is nothing to change; say for example priority or time_limit")
        if given.notify and tasks.owner(self._context.reader, job) != permissions.name(request):
            raise UserError("only the owner of a job can say where to be told of it")
        given = await self._notifications.resolved(request, given)
        return await self._change(EDIT, job, changes=given.plain)

    async def _change(self, kind: str, job: str, **how: Any) -> Response:
        """Change a job, or the open tasks of an array; those that cannot be changed now are left out."""
        open = self._context.daemon.store.open
        chosen = await asyncio.to_thread(lambda: Chosen.of(self._lookup.open_ids(job), open))
        await self._context.ask(lambda: self._context.daemon.bulk.change(kind, chosen, **how))
        return await self._lookup.one(job)

    @Route(
        "POST /jobs/{job}/cancel", "cancelJob", "Cancel a job", "Jobs", _ONE, NOT_CHANGED, CANCELLATIONS,
        may=owner("cancel job {job}"),
    )  # fmt: skip
    async def cancel(self, request: Request, job: str, how: Cancellation | None = None) -> Response:
        """Give a job up: it is asked to end, and made to when its grace is over."""
        return await self._change(
            CANCEL, job, grace=how.grace if how else None, by=self._context.permissions.name(request)
        )

    @Route(
        "POST /jobs/{job}/hold", "holdJob", "Hold a job", "Jobs", _ONE, NOT_CHANGED, may=owner("hold job {job}"),
    )  # fmt: skip
    async def hold(self, job: str) -> Response:
        """Keep a waiting job from being chosen."""
        return await self._change(HOLD, job)

    @Route(
        "POST /jobs/{job}/release", "releaseJob", "Release a held job", "Jobs", _ONE, NOT_CHANGED,
        may=owner("release job {job}"),
    )  # fmt: skip
    async def release(self, job: str) -> Response:
        """Let a held job be chosen again."""
        return await self._change(RELEASE, job)

    @Route(
        "POST /jobs/{job}/requeue", "requeueJob", "Let a running job wait again", "Jobs", _ONE, NOT_CHANGED,
        may=owner("requeue job {job}"),
    )  # fmt: skip
    async def requeue(self, job: str) -> Response:
        """Ask a running job to end; it waits again then, and its next attempt has the same id."""
        return await self._change(REQUEUE, job)

    @Route(
        "GET /jobs/{job}/environment", "getEnvironment", "Read a job's environment", "Jobs",
        ok("Its variables.", replies.Variables, {"environment": {"HOME": "/home/ann"}}), NO_JOB,
        may=owner("read the environment of job {job}"),
    )  # fmt: skip
    async def environment(self, job: str) -> Response:
        """The environment that a job was submitted with."""
        reader = self._context.reader
        return reply({"environment": reader.environment(tasks.first(reader, job).work.get("environment", ""))})

    @Route(
        "GET /jobs/{job}/explain", "explainJob", "Why does it wait?", "Jobs",
        ok("Why.", types.Explanation, EXPLANATION), NO_JOB,
    )  # fmt: skip
    async def explain(self, job: str) -> Response:
        """Why a job waits, and what would have to end first; of an array, the task that is next."""
        context, commands = self._context, self._context.commands
        views = await self._lookup.chosen(job)
        reasons = await context.look(commands.reasons) if len(views) > 1 else {}

        def next_of() -> JobView:
            place = {id: n for n, id in enumerate(reasons)}
            return min(views, key=lambda v: (place.get(v.id, len(place)), v.over, v.number))

        view = await asyncio.to_thread(next_of)
        ends = await asyncio.to_thread(context.ends)
        why = None if view.over else await context.look(lambda: commands.explain(view.id, ends))
        found = explain_json(view, why, dict(context.daemon.store.open), ends)
        return reply({**found, "tasks": tasks.counts_of(views)} if len(views) > 1 else found)

    @Route(
        "POST /jobs/{job}/progress", "reportProgress", "Tell how far a job is", "Jobs", _ONE, (*NO_JOB, 409), REPORTS,
        may=owner("tell how far job {job} is"),
    )  # fmt: skip
    async def progress(self, job: str, given: Report) -> Response:
        """Take down how far a running job is."""
        view, context = tasks.running(self._context.reader, job), self._context
        context.progress.report(view, given.done, given.total, context.daemon.clock.now())
        return await self._lookup.one(view.id)

    @Route(
        "POST /jobs/{job}/clone", "cloneJob", "Queue the same once more", "Jobs", _COPIED, NOT_CHANGED, COPIES,
        may=owner("copy job {job}"), once=True,
    )  # fmt: skip
    async def clone(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job, or an array, once more, with changes."""

        async def copied() -> Command:
            return await self._copy(request, await self._lookup.chosen(job), given or Copy())

        return await self._intake.once(request, copied)

    @Route(
        "POST /jobs/{job}/retry", "retryJob", "Run it again", "Jobs", _COPIED, NOT_CHANGED, COPIES,
        may=owner("run job {job} again"), once=True,
    )  # fmt: skip
    async def retry(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job that is over once more; of an array, the tasks that did not succeed."""

        async def again() -> Command:
            views = await self._lookup.chosen(job)
            if going := [view for view in views if view.state not in OVER]:
                raise NotNow(f"job {going[0].id} is not over; gpuyard clone makes a second one of it")
            failed = [view for view in views if view.state != "succeeded"]
            return await self._copy(request, failed or (views if len(views) == 1 else []), given or Copy())

        return await self._intake.once(request, again)

    async def _copy(self, request: Request, views: list[JobView], given: Copy) -> Command:
        context, intake = self._context, self._intake
        copy = await self.copied(request, views, await self._notifications.resolved(request, given))
        return lambda: context.commands.submitting([copy()], lambda ids: {"id": ids[0], **intake.warnings()})

    async def copied(self, request: Request, views: list[JobView], given: Copy) -> Callable[[], JobRequest]:
        """A job, or tasks of an array, once more; what is returned is for the daemon's thread."""
        context, intake = self._context, self._intake
        if any(view.kind == "lease" for view in views):
            raise NotNow(f"job {views[0].id} is a lease, which only its own process can ask for again")
        if not views:
            raise NotNow("all tasks have succeeded, so there is nothing to run again")
        if views[0].kind != "job":
            raise UserError(f"{views[0].id} is a {views[0].kind}, which has no command to run again")
        if views[0].array and not given.array:
            given = given.model_copy(update={"array": await asyncio.to_thread(_array, views)})
        content = await self._content(request, views[0], given)

        def copy() -> JobRequest:
            work, asked = context.commands.description(views[0].id)
            wanted = intake.owned(request, given.copied(work, asked, context.settings))
            return intake.signatures.signed(wanted, content)

        return copy

    async def _content(self, request: Request, view: JobView, given: Copy) -> str:
        if given.command is None and view.work.get("script"):
            return digest_of(self._context.reader.script(view.work["script"]))
        command, directory = given.command or view.work["command"], given.directory or view.work["directory"]
        caller = self._context.permissions.caller(request)
        return await asyncio.to_thread(self._intake.signatures.read, command, directory, caller)


def _array(views: list[JobView]) -> str:
    at_most: Any = views[0].work.get("at_most")
    return ranges(view.work["task"] for view in views) + (f"%{at_most}" if at_most else "")
