"""Routes that list jobs and the history (filter, order and pages), and one that changes all jobs that match."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import Field

from gpuyard.api import replies
from gpuyard.api.types import OVER
from gpuyard.core.limits.loans import loans
from gpuyard.core.reasons import Reason
from gpuyard.daemon.commands import Due
from gpuyard.daemon.context import Steps
from gpuyard.daemon.jobs.bulk import CANCEL, EDIT, Chosen
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.progress_reader import expected_end
from gpuyard.daemon.store.reader import Cursor, Reader
from gpuyard.daemon.store.views import JobView
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Forbidden
from gpuyard.server.context import Context
from gpuyard.server.request_fields import Grace, Since, Word
from gpuyard.server.requests import Command, JobIntake, StrictBody, states_in
from gpuyard.server.responses import ReasonTexts, columns_json, job_json, reply
from gpuyard.server.routes.jobs import JOB, JobRoutes
from gpuyard.server.routes.notifications import Notifications
from gpuyard.server.routes.submissions import Changes, Copy
from gpuyard.server.routing import AT, LATER, PAGED, Route, links_to, ok
from gpuyard.spec.notation import check_named, task_id


@dataclass(frozen=True, slots=True)
class JobFilter:
    over: bool | None  # those that are over (True), or not; None: both
    wanted: Mapping[str, str]  # values of columns
    states: frozenset[str]  # any of these; empty: all
    text: str  # searched, in lower case
    tag: str
    page: slice
    fold: bool  # whether waiting tasks of an array are one entry

    def found(self, opened: list[JobView], reader: Reader) -> list[JobView]:
        """The matching jobs; open jobs come from memory, so that a long queue is quick to list."""
        if self.over is None:
            found = reader.jobs(over=None, wanted=self.wanted, states=self.states, tag=self.tag)
        else:
            found = opened
            for name, value in self.wanted.items():
                found = [v for v in found if getattr(v, name) == value]
            found = [v for v in found if self.tag in v.work.get("tags", ())] if self.tag else found
            found = [v for v in found if v.state in self.states] if self.states else found
        if self.text:
            found = [v for v in found if self.text in _searched_text(v).casefold()]
        return found


def _searched_text(view: JobView) -> str:
    """The text that is searched, on several lines, so that no match spans two fields."""
    work = view.work
    command = " ".join(work.get("command", ()))
    return "\n".join((view.id, view.name, view.user, view.state, command, *work.get("tags", ())))


class JobPage(NamedTuple):
    answer: dict[str, Any]
    more: bool
    known: bool  # whether the reasons of all waiting jobs are known: recent reasons may lack new jobs


class JobListing:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def page(self, request: Request, choice: JobFilter, columns: bool = False) -> Response:
        listed = await self._listed(choice, columns)
        shown = len(listed.answer.get("jobs", ())) or choice.page.stop - choice.page.start
        following = {"offset": choice.page.start + shown} if listed.more else None
        return await asyncio.to_thread(lambda: paged(request, listed.answer, following))

    async def _listed(self, choice: JobFilter, columns: bool) -> JobPage:
        """The page with the latest reasons if they will do: to rank a long queue for each request takes long."""
        context = self._context
        if (recent := context.commands.recent_reasons()) is not None:
            found = await asyncio.to_thread(self._read, choice, recent, await context.due(recent), columns)
            if found.known:
                return found
        reasons = await context.look(context.commands.reasons)
        return await asyncio.to_thread(self._read, choice, reasons, await context.due(reasons), columns)

    def _read(self, choice: JobFilter, reasons: Mapping[str, Reason], due: Due, columns: bool) -> JobPage:
        """Running jobs first, then waiting jobs in the order of the policy; column by column, or job by job."""
        daemon, reader = self._context.daemon, self._context.reader
        opened = list(daemon.store.open.values())
        found = _in_order(choice.found(opened, reader), reasons)
        say = ReasonTexts(due)
        rows = tasks.fold(found) if choice.fold else found
        shown, now = rows[choice.page] if columns else fitting(rows[choice.page]), daemon.clock.now()
        whys = [reasons.get(_first_id(view)) if view.state == "queued" else None for view in shown]
        known = all(why or view.state != "queued" for view, why in zip(shown, whys, strict=True))
        texts = [say(why, view) for view, why in zip(shown, whys, strict=True)]
        progress = [self._context.progress.of(view, now) for view in shown]
        expected = [expected_end(view, far, now) for view, far in zip(shown, progress, strict=True)]
        more = len(rows) > choice.page.start + len(shown)
        counts: dict[str, Any] = {"total": len(found), "rows": len(rows), "states": tasks.counts_of(found)}
        if columns:
            table = columns_json(shown, texts, progress, expected, _since(shown, reader))
            return JobPage({"now": now, **counts, "last": daemon.store.last, "columns": table}, more, known)
        node, live, state = daemon.machine.node, daemon.measures.live, daemon.state
        jobs = [
            job_json(*one, node, live(one[0]), loans(state, one[0].id))
            for one in zip(shown, texts, progress, expected, strict=True)
        ]
        return JobPage({**counts, "jobs": jobs}, more, known)


def fitting(views: list[JobView]) -> list[JobView]:
    """As many as an answer may have by their length; the next page has the others."""
    size = 0
    for count, view in enumerate(views):
        size += sum(sum(map(len, view.work.get(name, ()))) for name in ("command", "tags", "after"))
        if size > _MOST_BYTES and count:
            return views[:count]
    return views


def _in_order(views: list[JobView], reasons: Mapping[str, Reason]) -> list[JobView]:
    """Running, waiting in the order of the policy, held, over; else in the order of submission."""
    views.sort(key=_NUMBER)
    groups: tuple[list[JobView], ...] = ([], [], [], [])
    for view in views:
        groups[3 if view.ended is not None else _GROUPS.get(view.state, 1)].append(view)
    waiting = groups[1]
    ids = {view.id: view for view in waiting}
    ranked = [ids.pop(job) for job in reasons if job in ids]
    return [*groups[0], *ranked, *ids.values(), *groups[2], *groups[3]]


_NUMBER = attrgetter("number")
_GROUPS = {"running": 0, "queued": 1, "held": 2}


def _since(views: list[JobView], reader: Reader) -> list[float]:
    again = [_first_id(view) for view in views if view.attempt > (view.state not in ("queued", "held"))]
    requeued = reader.requeued(again) if again else {}
    return [requeued.get(_first_id(view), view.submitted) for view in views]


def _first_id(view: JobView) -> str:
    return task_id(view.array, view.work["task"]) if view.array else view.id


PAGE = 1000  # jobs on a page by default
MOST = 10_000  # jobs on a page at most; a table may have more
MOST_ROWS = 1_000_000
_MOST_BYTES = 2**23  # of commands and such in an answer
_FARTHEST = 2**53
_LONGEST = 1000  # characters of a search; SQLite refuses much longer ones
_CURSOR = re.compile(r"(0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,3})_([0-9]{1,18})")

Limit = Annotated[int, Query(ge=1, le=MOST, description="At most so many.")]
Offset = Annotated[int, Query(ge=0, le=_FARTHEST, description="Leave out so many of the first.")]
States = Annotated[str, Query(description="Only those in this state, in one of several (`queued,held`), or `waiting`.")]
Of = Annotated[str, Query(description="Only those of this user.")]
Name = Annotated[str, Query(description="Only those of this name.")]
Tag = Annotated[str, Query(description="Only those with this tag.")]

_OVER = {**JOB, "state": "succeeded", "reason": None, "attempt": 1, "gpus": [0, 1], "exit_code": 0,
         "started_at": AT, "ended_at": LATER, "measured": {
             "peak": 2041577472, "mean": 1907359744.0, "samples": 5400, "period": 1.0, "seconds": 5400.0,
             "utilization": 87.5, "alone": True, "settled": 5310.0, "energy_wh": 712.4, "gpu_seconds": 10800.0},
         "energy_wh": 712.4, "gpu_hours": 3.0}  # fmt: skip
_COUNTS: dict[str, Any] = {"total": 1234, "rows": 1234, "states": {"running": 8, "queued": 1226}}
_JOBS_EXAMPLE: dict[str, Any] = {**_COUNTS, "jobs": [JOB], "next": "/api/v1/jobs?limit=1&offset=1"}
_ENDED_EXAMPLE: dict[str, Any] = {"jobs": [_OVER], "next": "/api/v1/history?limit=1&cursor=0x1.abcp%2B30_17"}
_JOBS = ok(
    "A page of jobs.", (replies.Jobs, replies.Table), _JOBS_EXAMPLE, headers=PAGED,
    links=links_to(("getJob",), "jobs/0/id"),
)  # fmt: skip
_ENDED = ok("A page.", replies.Ended, _ENDED_EXAMPLE, headers=PAGED, links=links_to(("getJob",), "jobs/0/id"))


class ListRoutes:
    def __init__(self, context: Context, listing: JobListing) -> None:
        self._context, self._listing = context, listing
        self._searching = asyncio.Lock()

    @Route("GET /jobs", "listJobs", "List jobs", "Jobs", _JOBS, (422,))
    async def jobs(
        self,
        request: Request,
        all: Annotated[bool, Query(description="Also those that are over.")] = False,
        state: States = "",
        user: Of = "",
        name: Name = "",
        tag: Tag = "",
        array: Annotated[str, Query(description="Only the tasks of this array.")] = "",
        text: Annotated[
            str, Query(description="Only those with this in their id, name, user, state, command or tags.")
        ] = "",
        offset: Offset = 0,
        limit: Annotated[
            int | None,
            Query(
                ge=1,
                le=MOST_ROWS,
                description=f"At most so many: {PAGE}, and up to {MOST}; of `columns` all, if not said.",
            ),
        ] = None,
        columns: Annotated[bool, Query(description="Column by column, as a table has them.")] = False,
        fold: Annotated[bool, Query(description="One entry for all waiting tasks of an array.")] = False,
    ) -> Response:
        """Jobs that are not over, or all: who runs first, then who waits, in the order of the policy."""
        if not columns and limit is not None and limit > MOST:
            raise UserError(f"limit is {MOST} at most: a page says where the next one is; or ask for columns=true")
        states = states_in(state)
        wanted = {key: value for key, value in (("user", user), ("name", name), ("array", array)) if value}
        over = None if all or states & OVER else False
        page = slice(offset, offset + (limit or (MOST_ROWS if columns else PAGE)))
        choice = JobFilter(over, wanted, states, text.casefold(), tag, page, fold)
        return await self._listing.page(request, choice, columns)

    @Route("GET /history", "listHistory", "List jobs that are over", "Jobs", _ENDED, (422,))
    async def history(
        self,
        request: Request,
        limit: Limit = PAGE,
        user: Of = "",
        state: Annotated[str, Query(description="Only those in this state, or in one of several (`failed,oom`).")] = "",
        name: Name = "",
        tag: Tag = "",
        since: Annotated[Since, Query(description="Only those that ended then or later.")] = None,
        until: Annotated[Since, Query(description="Only those that ended before then.")] = None,
        text: Annotated[
            str, Query(max_length=_LONGEST, description="Only those with this in their id, name, user or command.")
        ] = "",
        cursor: Annotated[str, Query(description="Where to go on, as the `next` of the page before has it.")] = "",
    ) -> Response:
        """Jobs that are over, the latest first."""
        wanted = {key: value for key, value in (("user", user), ("name", name)) if value}
        states = states_in(state)
        after, before, where = _instant(since), _instant(until), _cursor(cursor)

        node = self._context.daemon.machine.node

        def found() -> Response:
            views = self._context.reader.jobs(
                over=True, wanted=wanted, states=states, limit=limit + 1, ended_after=after, ended_before=before,
                tag=tag, text=text, behind=where,
            )  # fmt: skip
            shown = fitting(views[:limit])
            jobs = [job_json(view, node=node) for view in shown]
            there_is_more = len(views) > len(shown)
            return paged(request, {"jobs": jobs}, {"cursor": _behind(shown[-1])} if there_is_more else None)

        if not text:
            return await asyncio.to_thread(found)
        async with self._searching:  # it may read all jobs
            return await asyncio.to_thread(found)


def paged(request: Request, answer: dict[str, Any], further: dict[str, Any] | None) -> Response:
    """A page with the URL of the next one: the same query but for `further`."""
    if further is None:
        return reply({**answer, "next": None})
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in further]
    address = f"{request.url.path}?{urlencode([*kept, *further.items()])}"
    response = reply({**answer, "next": address})
    response.headers["Link"] = f'<{address}>; rel="next"'
    return response


def _behind(view: JobView) -> str:
    """The cursor after a job that is over: the exact time of its end, and its number."""
    return f"{float(view.ended or 0.0).hex()}_{view.number}"


def _cursor(text: str) -> Cursor | None:
    if not text:
        return None
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise UserError(f"'{text[:80]}' is no cursor; take the one in `next` of the page before")
    return Cursor(float.fromhex(found[1]), int(found[2]))


def _instant(when: datetime | None) -> float | None:
    return when.timestamp() if when else None


RETRY = "retry"
EVERYBODY = "*"
_STATES = {"hold": "queued", "release": "held", RETRY: "failed,oom,timeout,interrupted"}  # if no state is asked for
BULK: dict[str, Any] = {
    "everything of a name": {"action": "cancel", "name": "sweep"},
    "more urgent": {"action": "edit", "tag": "paper", "changes": {"priority": 5}},
    "what failed of an array": {"action": "retry", "array": "12"},
}
_DONE: dict[str, Any] = {
    "action": "cancel", "matched": 100, "changed": 100, "states": {"held": 100}, "jobs": ["12_[0-99]"], "ids": [],
}  # fmt: skip


class BulkRequest(StrictBody):
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
    async def change(self, request: Request, given: BulkRequest) -> Response:
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
        return await self._intake.once(request, lambda: self._prepared(request, given, user), status=200)

    def _matching(self, given: BulkRequest, user: str) -> list[JobView]:
        """The jobs that match; those that are not over, but for a retry."""
        states = states_in(given.state or _STATES.get(given.action, ""))
        wanted = {"user": "" if user == EVERYBODY else user, "name": given.name, "array": given.array}
        over = None if given.action == RETRY else False
        plain = {key: value for key, value in wanted.items() if value}
        choice = JobFilter(over, plain, states, given.text.casefold(), given.tag, slice(0, None), fold=False)
        found = choice.found(list(self._context.daemon.store.open.values()), self._context.reader)
        if given.jobs is not None:
            check_named(given.jobs)
            named = {id for word in given.jobs for id in tasks.named(word)}
            found = [view for view in found if view.id in named or view.array in named]
        if given.action == RETRY:
            return [view for view in found if view.state in OVER and view.state in states and view.kind == "job"]
        return [view for view in found if not states or view.state in states]

    async def _prepared(self, request: Request, given: BulkRequest, user: str) -> Command:
        """What is to be done. It keeps no views: to free those of thousands of jobs at once would hold others up."""
        views = await asyncio.to_thread(self._matching, given, user)
        states = await asyncio.to_thread(tasks.counts_of, views)
        answer: dict[str, Any] = {"action": given.action, "matched": len(views), "changed": 0}
        answer |= {"states": states, "jobs": [], "ids": []}
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
        open = self._context.daemon.store.open
        chosen = await asyncio.to_thread(lambda: Chosen.of((view.id for view in sorted(views, key=_latest)), open))
        answer["jobs"] = list(chosen.words)

        return lambda: self._context.daemon.bulk.change(given.action, chosen, answer, **how)

    async def _again(self, request: Request, views: list[JobView], answer: dict[str, Any]) -> Command:
        """Queue jobs that are over once more; tasks of an array as one."""
        groups: dict[str, list[JobView]] = {}
        for view in views:
            groups.setdefault(view.array or view.id, []).append(view)
        copies = [await self._jobs.copied(request, group, Copy()) for group in groups.values()]
        answer["jobs"] = list((await asyncio.to_thread(lambda: Chosen.of((view.id for view in views), {}))).words)
        commands, slices = self._context.commands, self._context.daemon.context

        def again() -> Steps[dict[str, Any]]:
            wanted = list[JobRequest]()
            for copy in copies:
                if wanted and slices.slice_is_over:
                    yield
                wanted.append(copy())
            made = commands.submitting(wanted, lambda ids: {**answer, "changed": answer["matched"], "ids": ids})
            return (yield from made)

        return again


def _latest(view: JobView) -> tuple[int, int]:
    """Orders jobs from the last to the first, tasks of an array in their order."""
    return (-int(view.array), view.number) if view.array.isdecimal() else (-int(view.id), 0)
