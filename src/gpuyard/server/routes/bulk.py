"""One route that cancels, holds, releases, edits or retries all jobs that match: all of them, or none."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import Field

from gpuyard.api import replies
from gpuyard.api.types import OVER
from gpuyard.daemon.context import Steps
from gpuyard.daemon.jobs.bulk import CANCEL, EDIT, Chosen
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Forbidden
from gpuyard.server.context import Context
from gpuyard.server.request_fields import Grace, Word
from gpuyard.server.requests import Command, JobIntake, StrictBody, check_states
from gpuyard.server.routes.job_lists import JobFilter
from gpuyard.server.routes.jobs import JobRoutes
from gpuyard.server.routes.notifications import Notifications
from gpuyard.server.routes.submissions import Changes, Copy
from gpuyard.server.routing import Route, ok

RETRY = "retry"
EVERYBODY = "*"
_STATES = {"hold": "queued", "release": "held", RETRY: "failed,oom,timeout,interrupted"}  # if no state is asked for
_LONGEST = 1000
BULK: dict[str, Any] = {
    "everything of a name": {"action": "cancel", "name": "sweep"},
    "more urgent": {"action": "edit", "tag": "paper", "changes": {"priority": 5}},
    "what failed of an array": {"action": "retry", "array": "12"},
}
_DONE: dict[str, Any] = {
    "action": "cancel", "matched": 100, "changed": 100, "states": {"held": 100}, "jobs": ["12_[0-99]"], "ids": [],
}  # fmt: skip


class BulkChange(StrictBody):
    """Which jobs, and what happens to them. A job must match all that is said."""

    action: Annotated[Literal["cancel", "hold", "release", "edit", "retry"], Field(description="What happens to them.")]
    name: Annotated[Word, Field(max_length=_LONGEST, description="Only those of this name.")] = ""
    tag: Annotated[Word, Field(max_length=_LONGEST, description="Only those with this tag.")] = ""
    user: Annotated[
        Word,
        Field(max_length=_LONGEST, description="Of this user, or of all (*), as an admin; yours if not said."),
    ] = ""
    state: Annotated[Word, Field(max_length=_LONGEST, description="Only those in one of these states.")] = ""
    array: Annotated[Word, Field(max_length=_LONGEST, description="Only the tasks of this array.")] = ""
    text: Annotated[
        Word,
        Field(max_length=_LONGEST, description="Only those with this in their id, name, user, state, command or tags."),
    ] = ""
    jobs: Annotated[list[Word] | None, Field(max_length=10_000, description="Only these, and tasks of these.")] = None
    all: Annotated[bool, Field(description="All of the user's jobs; needed where nothing else is said.")] = False
    grace: Grace = None
    changes: Annotated[Changes | None, Field(description="Of `edit`: what they are to ask for instead.")] = None


class BulkRoutes:
    def __init__(self, context: Context, jobs: JobRoutes, intake: JobIntake, notifications: Notifications) -> None:
        self._context, self._jobs, self._intake, self._notifications = context, jobs, intake, notifications
        read = Changes.model_validate
        context.daemon.bulk.read_edit = lambda plain: read(plain).edit(context.settings)

    @Route(
        "POST /jobs/bulk", "changeJobs", "Change all jobs that match", "Jobs",
        ok("What was done.", replies.BulkChange, _DONE), (403, 409, 422, 503), BULK, once=True,
    )  # fmt: skip
    async def change(self, request: Request, given: BulkChange) -> Response:
        """Cancel, hold, release, edit or retry jobs: all that match, or none. Others are served meanwhile."""
        caller = self._context.permissions.caller(request)
        user = given.user or caller.name
        if user != caller.name and (not caller.admin or given.action == RETRY):
            what = "run jobs of others again" if given.action == RETRY else "change jobs of others"
            raise Forbidden(f"only {'their owner' if given.action == RETRY else 'an admin'} may {what}")
        if not (given.all or given.name or given.tag or given.state or given.array or given.text or given.jobs):
            raise UserError("which jobs? say name, tag, state, array or jobs, or all: true")
        if (given.action == EDIT) != bool(given.changes and given.changes.given):
            raise UserError("say what is to change (changes), for the action edit alone")
        if given.grace is not None and given.action != CANCEL:
            raise UserError("grace is for the action cancel alone")
        views = await asyncio.to_thread(self._matching, given, user)
        return await self._intake.once(request, lambda: self._prepared(request, given, views), status=200)

    def _matching(self, given: BulkChange, user: str) -> list[JobView]:
        """The jobs that match; those that are not over, but for a retry."""
        states = frozenset(filter(None, (given.state or _STATES.get(given.action, "")).split(",")))
        check_states(states)
        wanted = {"user": "" if user == EVERYBODY else user, "name": given.name, "array": given.array}
        over = None if given.action == RETRY else False
        plain = {key: value for key, value in wanted.items() if value}
        choice = JobFilter(over, plain, states, given.text.casefold(), given.tag, slice(0, None), fold=False)
        found = choice.found(list(self._context.daemon.store.open.values()), self._context.reader)
        if given.jobs is not None:
            named = {id for word in given.jobs for id in tasks.named(word)}
            found = [view for view in found if view.id in named or view.array in named]
        if given.action == RETRY:
            return [view for view in found if view.state in OVER and view.state in states and view.kind == "job"]
        return [view for view in found if not states or view.state in states]

    async def _prepared(self, request: Request, given: BulkChange, views: list[JobView]) -> Command:
        answer: dict[str, Any] = {"action": given.action, "matched": len(views), "changed": 0}
        answer |= {"states": tasks.counts_of(views), "jobs": [], "ids": []}
        if not views:
            return lambda: answer
        if given.action == RETRY:
            return await self._again(request, views, answer)
        how: dict[str, Any] = {}
        if given.action == CANCEL:
            how = {"grace": given.grace, "by": self._context.permissions.name(request)}
        elif given.changes is not None:
            permissions = self._context.permissions
            permissions.check_priority(permissions.caller(request), given.changes.priority)
            if given.changes.notify and any(view.user != permissions.name(request) for view in views):
                raise UserError("only the owner of a job can say where to be told of it")
            how = {"changes": (await self._notifications.resolved(request, given.changes)).plain}
        # The last ones first, so that no job starts because another that it follows is cancelled.
        chosen = await asyncio.to_thread(lambda: Chosen.of(view.id for view in sorted(views, key=_latest)))
        answer["jobs"] = list(chosen.words)

        return lambda: self._context.daemon.bulk.change(given.action, chosen, answer, **how)

    async def _again(self, request: Request, views: list[JobView], answer: dict[str, Any]) -> Command:
        """Queue jobs that are over once more; tasks of an array as one."""
        groups: dict[str, list[JobView]] = {}
        for view in views:
            groups.setdefault(view.array or view.id, []).append(view)
        copies = [await self._jobs.copied(request, group, Copy()) for group in groups.values()]
        answer["jobs"] = list((await asyncio.to_thread(lambda: Chosen.of(view.id for view in views))).words)
        commands, slices = self._context.commands, self._context.daemon.context

        def again() -> Steps[dict[str, Any]]:
            wanted = list[JobRequest]()
            for copy in copies:
                if wanted and slices.slice_is_over:
                    yield
                wanted.append(copy())
            made = commands.submitting(wanted, lambda ids: {**answer, "changed": len(views), "ids": ids})
            return (yield from made)

        return again


def _latest(view: JobView) -> tuple[int, int]:
    """Orders jobs from the last to the first, tasks of an array in their order."""
    return (-int(view.array), view.number) if view.array.isdecimal() else (-int(view.id), 0)
