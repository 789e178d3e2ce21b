"""Routes for work that is described by something else: a file of several jobs, or a job that is there already."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from gpuyard.arrays import ranges
from gpuyard.client import OVER
from gpuyard.daemon.desk import NotNow
from gpuyard.daemon.fingerprints import digest_of
from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.views import JobView
from gpuyard.errors import UserError
from gpuyard.server.batches import take_batch
from gpuyard.server.changes import Changes, Copy
from gpuyard.server.models import Batch
from gpuyard.server.once import Act
from gpuyard.server.surroundings import settled
from gpuyard.server.tasks import chosen, owner

if TYPE_CHECKING:
    from gpuyard.server.api import Api


class Describing:
    """Submitting several jobs at once, changing and copying them."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def batch(self, request: Request, given: Batch) -> Response:
        """Take several jobs in, all or none of them; or, as a batch, those that can run. They are on disk then."""
        api, caller = self._api, self._api.permissions.caller(request)

        async def take() -> Act:
            wanted, refused = list[Wanted](), list[tuple[int, str]]()
            for number, one in enumerate(await api.notifications.resolved_all(request, given.complete())):
                try:
                    whole = settled(one, caller, api.settings)
                    wanted.append(api.owned(request, whole.wanted(api.settings)))
                except UserError as error:
                    if not given.skip_refused:
                        raise UserError(f"job {number + 1} of {len(given.jobs)}: {error}") from error
                    refused.append((one.row.number if one.row else number + 1, str(error)))
            signed = await api.signed(request, wanted)
            if given.batch is None and not given.skip_refused:
                return lambda: {"ids": api.desk.submit_all(signed), **api.warned()}
            return lambda: take_batch(api, caller.name, given, signed, refused)

        return await api.once(request, take)

    async def edit(self, request: Request, job: str, given: Changes) -> Response:
        """Change what a job, or the open tasks of an array, ask for; null takes something back."""
        api = self._api
        api.permissions.check_priority(api.permissions.caller(request), given.priority)
        if not given.given:
            raise UserError("there is nothing to change; say for example priority or time_limit")
        dependency = (given.dependency or "") if "dependency" in given.given else None
        if given.notify and owner(api.reader, job) != api.permissions.name(request):
            raise UserError("only the owner of a job can say where to be told of it")
        given = await api.notifications.resolved(request, given)
        ids = api.open_ids(job)

        def change() -> None:
            api.desk.edit(ids, given.given, lambda work, wish: given.applied(work, wish, api.settings), dependency)

        await api.ask(change)
        return await api.one(job)

    async def clone(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job, or an array, once more, with changes."""

        async def copied() -> Act:
            return await self._copy(request, chosen(self._api.reader, job), given or Copy())

        return await self._api.once(request, copied)

    async def retry(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job that is over once more; of an array, the tasks that did not succeed."""

        async def again() -> Act:
            views = chosen(self._api.reader, job)
            if going := [view for view in views if view.state not in OVER]:
                raise NotNow(f"job {going[0].id} is not over; gpuyard clone makes a second one of it")
            failed = [view for view in views if view.state != "succeeded"]
            return await self._copy(request, failed or (views if len(views) == 1 else []), given or Copy())

        return await self._api.once(request, again)

    async def _copy(self, request: Request, views: list[JobView], given: Copy) -> Act:
        api = self._api
        given = await api.notifications.resolved(request, given)
        if any(view.kind == "lease" for view in views):
            raise NotNow(f"job {views[0].id} is a lease, which only its own process can ask for again")
        if not views:
            raise NotNow("all tasks have succeeded, so there is nothing to run again")
        if views[0].kind != "job":
            raise UserError(f"{views[0].id} is a {views[0].kind}, which has no command to run again")
        if views[0].array and not given.array:
            given = given.model_copy(update={"array": _array(views)})

        content = await self._content(request, views[0], given)

        def copy() -> dict[str, Any]:
            work, wish = api.desk.description(views[0].id)
            wanted = api.signing.signed(api.owned(request, given.copied(work, wish, api.settings)), content)
            return {"id": api.desk.submit_all([wanted])[0], **api.warned()}

        return copy

    async def _content(self, request: Request, view: JobView, given: Copy) -> str:
        """A hash of what the script of a copy holds by now."""
        if given.command is None and view.work.get("script"):
            return digest_of(self._api.reader.script(view.work["script"]))
        command, directory = given.command or view.work["command"], given.directory or view.work["directory"]
        caller = self._api.permissions.caller(request)
        return await asyncio.to_thread(self._api.signing.read, command, directory, caller)


def _array(views: list[JobView]) -> str:
    """The same tasks once more."""
    at_most: Any = views[0].work.get("at_most")
    return ranges(view.work["task"] for view in views) + (f"%{at_most}" if at_most else "")
