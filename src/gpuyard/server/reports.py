"""The route of jobs that tell how far they are from where the daemon cannot read their file: a container, say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.daemon.desk import NotNow, over
from gpuyard.errors import UserError
from gpuyard.server import tasks

if TYPE_CHECKING:
    from gpuyard.server.api import Api


class Report(BaseModel):
    """How far a job is."""

    model_config = ConfigDict(extra="forbid")

    done: Annotated[float, Field(ge=0, allow_inf_nan=False, description="How much is done.")]
    total: Annotated[float, Field(gt=0, allow_inf_nan=False, description="How much there is to do.")]


class Reports:
    """What jobs tell of themselves."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def progress(self, job: str, given: Report) -> Response:
        """Take down how far a running job is."""
        api = self._api
        if len(views := tasks.chosen(api.reader, job)) > 1:
            raise UserError(f"{job} is an array of {len(views):,} tasks; say which, as in {views[0].id}")
        if (view := views[0]).state != "running":
            raise over(view.id, view.state) if view.over else NotNow(f"job {view.id} does not run: it is {view.state}")
        api.progress.report(view, given.done, given.total, api.yard.clock.now())
        return await api.one(view.id)
