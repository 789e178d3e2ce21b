"""The route of what jobs print."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from fastapi import Query, Response

from gpuyard.daemon.desk import NoSuchJob, NotNow
from gpuyard.daemon.retention import check_kept
from gpuyard.errors import UserError
from gpuyard.server import tasks
from gpuyard.server.watch import Wait

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_LOOK = 0.1  # seconds between looks at a log that somebody follows
_MOST = 2**22


class Logs:
    """Output of jobs, piece by piece."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def log(
        self,
        job: str,
        offset: int = 0,
        size: Annotated[int, Query(ge=1, le=_MOST)] = 2**16,
        attempt: int = 0,
        wait: Wait = 0.0,
    ) -> Response:
        """A piece of a job's output."""
        api = self._api
        if len(views := tasks.chosen(api.reader, job)) > 1:
            raise UserError(f"{job} is an array of {len(views):,} tasks; say which, as in {views[0].id}")
        job = views[0].id
        end = time.monotonic() + wait
        while True:
            view = tasks.chosen(api.reader, job)[0]
            if view.kind == "lease":
                raise NotNow(f"job {job} is a lease: gpuyard did not start its process, and has no output of it")
            if attempt > view.attempt:
                raise NoSuchJob(
                    f"job {job} has had {_attempts(view.attempt)}, so there is no output of attempt {attempt}"
                )
            which = attempt or view.attempt
            check_kept(api.settings, view, which)
            after, data = api.yard.engine.read_log(job, which, offset, size) if which else (max(offset, 0), b"")
            if data or view.over or time.monotonic() >= end or api.watch.over:
                break
            await api.watch.wait(min(_LOOK, max(0.001, end - time.monotonic())), job)
        headers = {
            "X-Next-Offset": str(after),
            "X-Log-Size": str(api.yard.engine.log_size(job, which) if which else 0),
            "X-Job-State": view.state,
            "X-Attempt": str(which),
        }
        return Response(data, media_type="application/octet-stream", headers=headers)


def _attempts(count: int) -> str:
    return f"{count or 'no'} attempt{'' if count == 1 else 's'}"
