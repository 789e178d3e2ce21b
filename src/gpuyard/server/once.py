"""Requests that are done once, however often they are sent: those that come with an `Idempotency-Key`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from gpuyard.daemon.repeats import Repeats, Sent, told
from gpuyard.errors import UserError
from gpuyard.server.answers import reply
from gpuyard.server.bodies import read_json
from gpuyard.server.paths import API

if TYPE_CHECKING:
    from gpuyard.server.api import Api

KEY = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
_KEY = re.compile(r"[!-~]{1,255}")

Act = Callable[[], dict[str, Any]]
"""Something for the yard's thread to do, which gives the answer."""


class Once:
    """Answers requests that make something new."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._repeats = Repeats(api.yard)

    async def __call__(self, request: Request, prepare: Callable[[], Awaitable[Act]], more: str = "") -> Response:
        """Do what is prepared, or answer as before. `prepare` refuses what makes no sense; `more` is asked for, too."""
        if KEY not in request.headers:
            return _answer(request, await self._api.ask(await prepare()))
        sent = await self._sent(request, more)
        before = self._api.reader.answer(sent.user, sent.key)
        if before is not None:  # also where it could not be done now
            return _answer(request, told(sent, before), replayed=True)
        act = await prepare()
        return _answer(request, *await self._api.ask(lambda: self._repeats.once(sent, act)))

    async def _sent(self, request: Request, more: str) -> Sent:
        key = request.headers[KEY]
        if len(request.headers.getlist(KEY)) > 1 or not _KEY.fullmatch(key):
            raise UserError(f"{KEY} must be one word of 1 to 255 visible characters of ASCII, a UUID for example")
        asked = [request.method, request.url.path, read_json(await request.body() or b"{}"), more]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return Sent(self._api.permissions.name(request), key, digest)


def _answer(request: Request, answer: Any, replayed: bool = False) -> Response:
    response = reply(answer, 201)
    if "id" in answer:  # several jobs have no place in common
        kind = "leases" if request.url.path == f"{API}/leases" else "jobs"
        response.headers["Location"] = f"{API}/{kind}/{answer['id']}"
    if replayed:
        response.headers[REPLAYED] = "true"
    return response
