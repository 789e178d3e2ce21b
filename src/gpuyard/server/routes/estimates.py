"""Routes of estimates: what is known of each job signature, and what to expect of a job."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.core.model import Request as Wish
from gpuyard.daemon.jobs.estimates import KnownSignature, all_known, expected_of, title
from gpuyard.daemon.jobs.intake import JobRequest
from gpuyard.daemon.jobs.profiles import epochs_in
from gpuyard.daemon.store.log import NoSuchJob
from gpuyard.daemon.store.views import work_of
from gpuyard.predict.similar_runs import Errors
from gpuyard.server import tasks
from gpuyard.server.auth.permissions import Permission
from gpuyard.server.request_fields import Command, Directory, Gpus, Tags
from gpuyard.server.responses import iso, reply
from gpuyard.spec.work import Work

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_USUAL, _MOST = 200, 2_000


class Guess(BaseModel):
    """A job of which somebody wants to know what would be expected of it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    command: Command
    directory: Annotated[Directory | None, Field(description="Where it would run: an absolute path.")] = None
    tags: Tags = []
    gpus: Gpus = None


class EstimateRoutes:
    """Handlers; `add_to` makes them known."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._one_at_a_time = asyncio.Lock()

    def add_to(self, add: Any) -> None:
        """Make the routes known."""
        add("/estimates", self.estimates, "GET", Permission.EVERYBODY)
        add("/estimates", self.guess, "POST", Permission.EVERYBODY)
        add("/estimates/{signature}", self.forget, "DELETE", Permission.EVERYBODY)
        add("/jobs/{job}/estimate", self.of_job, "GET", Permission.EVERYBODY)

    async def estimates(
        self,
        user: Annotated[str, Query(description="Only of this user's jobs.")] = "",
        limit: Annotated[int, Query(ge=1, le=_MOST, description="At most so many.")] = _USUAL,
    ) -> Response:
        """What is known of jobs by their signature: what the next one is expected to need, and how right that was."""
        api = self._api

        def look() -> Response:
            known = all_known(api.reader, user, limit, api.settings.memory_margin, api.yard.estimates.part)
            return reply({"estimates": [_known_json(one) for one in known]})

        async with self._one_at_a_time:  # it may look at a hundred thousand runs
            return await asyncio.to_thread(look)

    async def of_job(self, job: str) -> Response:
        """What is expected of a job by now, and by which runs."""
        view = tasks.chosen(self._api.reader, job)[0]
        return await asyncio.to_thread(self._expected, work_of(view))

    async def guess(self, request: Request, given: Guess) -> Response:
        """What would be expected of a job that whoever asks might submit."""
        work = Work(tuple(given.command), given.directory or "/", tags=tuple(given.tags))
        wish = Wish(gpus=given.gpus or 1, user=self._api.permissions.name(request))
        [signed] = await self._api.signed(request, [JobRequest(work, wish)])
        return await asyncio.to_thread(self._expected, signed.work)

    async def forget(self, request: Request, signature: str) -> Response:
        """Forget the runs of a signature, as after a change of what its script uses."""
        api, caller = self._api, self._api.permissions.caller(request)
        if (owner := api.reader.owner_of(signature)) is None:
            raise NoSuchJob(f"nothing is known of a signature {signature} (gpuyard estimates lists them)")
        api.permissions.check(Permission.OWNER, caller, f"forget runs of {signature}", lambda: owner)
        return reply({"runs": await api.ask(lambda: api.yard.estimates.drop(signature))})

    def _expected(self, work: Work) -> Response:
        api, few = self._api, self._api.settings.memory_margin
        epochs = epochs_in(work.command)
        found, runs = expected_of(api.reader, work.signature, work.likeness, epochs, few, api.yard.estimates.part)
        told = [{"ended_at": iso(run.pop("at")), **run, "alone": bool(run["alone"])} for run in runs]
        return reply(
            {
                "signature": work.signature, "command": title(work.command), "memory": found.memory or None,
                "seconds": found.seconds or None, "evidence": found.evidence or None, "runs": told,
            }
        )  # fmt: skip


def _known_json(one: KnownSignature) -> dict[str, Any]:
    return {
        "signature": one.signature, "command": one.command, "name": one.name, "user": one.user, "runs": one.runs,
        "memory": one.expected.memory or None, "seconds": one.seconds or None, "per_epoch": one.per_epoch,
        "evidence": one.expected.evidence or None, "memory_error": _error_json(one.memory_error),
        "time_error": _error_json(one.time_error), "last_at": iso(one.last),
    }  # fmt: skip


def _error_json(errors: Errors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    rounded = {name: round(value, 6) for name, value in errors._asdict().items()}
    return {"count": rounded.pop("number"), **rounded}
