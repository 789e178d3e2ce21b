"""The route of who was on which GPU when."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

from fastapi import Query, Response

from gpuyard.daemon.usage import usage
from gpuyard.server.answers import reply
from gpuyard.server.fields import Since
from gpuyard.server.stats import span_of

if TYPE_CHECKING:
    from gpuyard.server.api import Api

_USUAL, _MOST = 5_000, 20_000


class UsageRoute:
    """The handler; the API adds it to its routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._one_at_a_time = asyncio.Lock()

    async def usage(
        self,
        since: Annotated[Since, Query(description="From then on; a day before the end unless given.")] = None,
        until: Annotated[Since, Query(description="Until then; until now unless given.")] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST, description="At most so many, the latest of them.")] = _USUAL,
    ) -> Response:
        """Who was on which GPU when: every attempt of every job in a span of time, those that began last first."""
        begin, end = span_of(since, until, time.time())
        gpus = len(self._api.yard.machine.gpus.devices)

        def look() -> Response:
            columns, more = usage(self._api.settings.database, begin, end, limit)
            return reply({"since": begin, "until": end, "gpus": gpus, "more": more, "columns": columns})

        async with self._one_at_a_time:  # it may look at a hundred thousand jobs
            return await asyncio.to_thread(look)
