"""The routes of lists: jobs, leases and the history, a page at a time.

A page says where the next one is, twice: as `next` in its body, and as a `Link` in its head. Jobs that are not over
move while somebody turns pages; the history is read by a cursor, so that none of it is missed or told twice.
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request, Response

from gpuyard.client import OVER
from gpuyard.daemon.reader import Cursor
from gpuyard.daemon.views import JobView
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.answers import job_json, reply
from gpuyard.server.fields import Since
from gpuyard.server.queries import check_states
from gpuyard.server.selection import Choice, Listed

if TYPE_CHECKING:
    from gpuyard.server.api import Api

PAGE = 1000
"""Jobs on a page, if nobody says how many."""
MOST = 10_000
"""Jobs on a page at most, but for those of a table."""
MOST_ROWS = 1_000_000
_FARTHEST = 2**53
_LONGEST = 1000  # characters to look for; SQLite refuses far longer ones
_CURSOR = re.compile(r"(0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,3})_([0-9]{1,18})")

Limit = Annotated[int, Query(ge=1, le=MOST, description="At most so many.")]
Offset = Annotated[int, Query(ge=0, le=_FARTHEST, description="Leave out so many of the first.")]
States = Annotated[str, Query(description="Only those in this state, or in one of several: `queued,held`.")]
Of = Annotated[str, Query(description="Only those of this user.")]
Name = Annotated[str, Query(description="Only those of this name.")]
Tag = Annotated[str, Query(description="Only those with this tag.")]


class Lists:
    """Handlers; the API adds them to its routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._searching = asyncio.Lock()

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
        states = frozenset(state.split(",")) if state else frozenset()
        check_states(states)
        wanted = {key: value for key, value in (("user", user), ("name", name), ("array", array)) if value}
        if len(states) == 1:
            wanted["state"] = state
        over = None if all or states & OVER else False
        page = slice(offset, offset + (limit or (MOST_ROWS if columns else PAGE)))
        return await self._page(request, Choice(over, wanted, states, text.casefold(), tag, page, fold), columns)

    async def leases(self, request: Request, user: Of = "", offset: Offset = 0, limit: Limit = PAGE) -> Response:
        """Leases that are not over, those that have their GPUs first."""
        wanted = {"kind": "lease", **({"user": user} if user else {})}
        choice = Choice(False, wanted, frozenset(), "", "", slice(offset, offset + limit), False)
        return await self._page(request, choice, columns=False)

    async def lease(self, job: str) -> Response:
        """One lease, also if it is over."""
        api = self._api
        view = api.reader.job(job)
        if view is None or view.kind != "lease":
            raise tasks.unknown(job, "lease")
        return await api.one(job)

    async def _page(self, request: Request, choice: Choice, columns: bool) -> Response:
        listed = await self._listed(choice, columns)
        following = {"offset": choice.page.stop} if listed.more else None
        return await asyncio.to_thread(lambda: paged(request, listed.answer, following))

    async def _listed(self, choice: Choice, columns: bool) -> Listed:
        """The page, with the latest reasons if they will do: to rank a long queue for everybody who asks takes long."""
        api = self._api
        if (recent := api.desk.recent_reasons()) is not None:
            found = await asyncio.to_thread(lambda: api.listing.of(choice, api.reader, recent, columns))
            if found.known:
                return found
        reasons = await api.look(api.desk.reasons)
        return await asyncio.to_thread(lambda: api.listing.of(choice, api.reader, reasons, columns))

    async def history(
        self,
        request: Request,
        limit: Limit = PAGE,
        user: Of = "",
        state: Annotated[str, Query(description="Only those in this state.")] = "",
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
        wanted = {key: value for key, value in (("state", state), ("user", user), ("name", name)) if value}
        check_states({state} - {""})
        after, before, where = _instant(since), _instant(until), _cursor(cursor)

        def found() -> Response:
            api = self._api
            views = api.reader.jobs(
                over=True, wanted=wanted, limit=limit + 1, ended_after=after, ended_before=before, tag=tag, text=text,
                behind=where,
            )  # fmt: skip
            jobs = [job_json(view, node=api.yard.machine.node) for view in views[:limit]]
            there_is_more = len(views) > limit
            return paged(request, {"jobs": jobs}, {"cursor": _behind(views[limit - 1])} if there_is_more else None)

        if not text:
            return await asyncio.to_thread(found)
        async with self._searching:  # it may have to look at everything
            return await asyncio.to_thread(found)


def paged(request: Request, answer: dict[str, Any], further: dict[str, Any] | None) -> Response:
    """A page, and where the next one is: at the same address, but for what is said."""
    if further is None:
        return reply({**answer, "next": None})
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in further]
    address = f"{request.url.path}?{urlencode([*kept, *further.items()])}"
    response = reply({**answer, "next": address})
    response.headers["Link"] = f'<{address}>; rel="next"'
    return response


def _behind(view: JobView) -> str:
    """A cursor behind a job that is over: when it ended, exactly, and its number."""
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
