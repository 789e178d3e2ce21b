"""What other programs watch the daemon by: whether it lives, whether it can work, and its numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.openmetrics import exposition as openmetrics

from gpuyard.server.answers import reply
from gpuyard.server.metrics import Followers, registry_of
from gpuyard.server.permissions import May
from gpuyard.server.refusals import problem

if TYPE_CHECKING:
    from gpuyard.server.api import Api

Encoder = tuple[Callable[[Any], bytes], str]
_TEXT: Encoder = exposition.generate_latest, "text/plain; version=0.0.4; charset=utf-8"
_OPEN: Encoder = openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST
_SLOW = 30.0  # seconds by which the yard's thread may be late: a large array takes some


class Probes:
    """The routes outside the API's own prefix; the first two tell nothing, and ask for no name."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def add_to(self, app: FastAPI) -> None:
        """Make the routes known."""
        everybody = {"x-may": May.EVERYBODY.value}
        for path, handler in (("/healthz", self.healthz), ("/readyz", self.readyz), ("/metrics", self.metrics)):
            app.add_api_route(path, handler, methods=["GET"], openapi_extra=everybody)

    async def healthz(self) -> Response:
        """Whether the daemon lives: if not, start it again."""
        late = time.monotonic() - self._api.yard.due_back
        if late > _SLOW:
            return problem(503, f"the daemon plans nothing: its thread is {late:.0f} seconds late; start it again")
        return reply({"status": "ok"})

    async def readyz(self) -> Response:
        """Whether the daemon can do its work: if not, somebody has to look."""
        api = self._api
        if api.watch.over:
            return problem(503, "the daemon is about to end; ask the next one")
        if api.yard.failing:
            return problem(503, "the store cannot be written; gpuyard status tells why")
        if all(verdict.state == "unknown" for verdict in api.yard.machine.verdicts):
            return problem(503, "no GPU can be read; gpuyard gpus tells why")
        return reply({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """The daemon's numbers, for Prometheus."""
        accepted = request.headers.get("accept", "")
        encode, kind = _OPEN if "application/openmetrics-text" in accepted else _TEXT
        return Response(await asyncio.to_thread(encode, self._registry), media_type=kind)

    @cached_property
    def _registry(self) -> CollectorRegistry:
        api = self._api
        return registry_of(api.yard, api.since, lambda: Followers(len(api.hub), len(api.streams)))
