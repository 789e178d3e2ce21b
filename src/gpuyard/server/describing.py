"""Routes for work that is described by something else: a file of several jobs, or a job that is there already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from fastapi import Request, Response

from gpuyard.arrays import ranges
from gpuyard.client import OVER
from gpuyard.config import Settings
from gpuyard.daemon.desk import Desk, NotNow
from gpuyard.daemon.intake import Wanted
from gpuyard.daemon.views import JobView
from gpuyard.errors import UserError
from gpuyard.server.models import Batch, Changes, Copy
from gpuyard.server.permissions import Permissions

Ask = Callable[[Callable[[], Any]], Awaitable[Any]]


class Describing:
    """Submitting several jobs at once, changing and copying them."""

    def __init__(
        self,
        desk: Desk,
        settings: Settings,
        permissions: Permissions,
        ask: Ask,
        limits: Callable[[Request], tuple[str, ...]],
        answer: Callable[..., Response],
        choose: Callable[[str], list[JobView]],
        one: Callable[[str], Awaitable[Response]],
    ) -> None:
        self._desk, self._settings, self._permissions = desk, settings, permissions
        self._ask, self._limits = ask, limits
        self._answer, self._choose, self._one = answer, choose, one

    async def batch(self, request: Request, given: Batch) -> Response:
        """Take several jobs in, all or none of them. They are on disk when this answers."""
        caller, limits = self._permissions.caller(request), self._limits(request)
        wanted = []
        for number, one in enumerate(given.jobs):
            try:
                self._permissions.check_priority(caller, one.priority)
                wanted.append(one.wanted(caller.name, self._settings, limits))
            except UserError as error:
                raise UserError(f"job {number + 1} of {len(given.jobs)}: {error}") from error
        ids = await self._ask(lambda: self._desk.submit_all(wanted))
        return self._answer({"ids": ids}, 201)

    async def edit(self, request: Request, job: str, given: Changes) -> Response:
        """Change what a job, or the open tasks of an array, ask for; null takes something back."""
        if not given.given:
            raise UserError("there is nothing to change; say for example priority or time_limit")
        self._permissions.check_priority(self._permissions.caller(request), given.priority)
        dependency = (given.dependency or "") if "dependency" in given.given else None
        views = self._choose(job)
        ids = [view.id for view in views if not view.over] or [view.id for view in views]

        def change() -> None:
            self._desk.edit(ids, given.given, lambda work, wish: given.applied(work, wish, self._settings), dependency)

        await self._ask(change)
        return await self._one(job)

    async def clone(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job, or an array, once more, with changes."""
        views = self._choose(job)
        return await self._copy(request, views, given or Copy())

    async def retry(self, request: Request, job: str, given: Copy | None = None) -> Response:
        """Queue a job that is over once more; of an array, the tasks that did not succeed."""
        views = self._choose(job)
        if going := [view for view in views if view.state not in OVER]:
            raise NotNow(f"job {going[0].id} is not over; gpuyard clone makes a second one of it")
        failed = [view for view in views if view.state != "succeeded"]
        return await self._copy(request, failed or (views if len(views) == 1 else []), given or Copy())

    async def _copy(self, request: Request, views: list[JobView], given: Copy) -> Response:
        caller, limits = self._permissions.caller(request), self._limits(request)
        self._permissions.check_priority(caller, given.priority)
        if not views:
            raise NotNow("all tasks have succeeded, so there is nothing to run again")
        if views[0].array and not given.array:
            given = given.model_copy(update={"array": _array(views)})

        def copy() -> str:
            work, wish = self._desk.description(views[0].id)
            wanted: Wanted = given.copied(work, wish, self._settings)
            return self._desk.submit_all([_wanted_by(caller.name, limits, wanted)])[0]

        return self._answer({"id": await self._ask(copy)}, 201)


def _wanted_by(user: str, limits: tuple[str, ...], wanted: Wanted) -> Wanted:
    """The same for whoever asks."""
    return replace(wanted, request=replace(wanted.request, user=user), work=replace(wanted.work, limits=limits))


def _array(views: list[JobView]) -> str:
    """The same tasks once more."""
    at_most: Any = views[0].work.get("at_most")
    return ranges(view.work["task"] for view in views) + (f"%{at_most}" if at_most else "")
