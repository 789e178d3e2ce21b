"""Reading a request: its query parameters, its JSON body, and its idempotency key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict

from gpuyard.daemon.idempotency import Idempotency, KeyedRequest, known_answer
from gpuyard.errors import UserError, suggest
from gpuyard.server.context import Context
from gpuyard.server.paths import API
from gpuyard.server.responses import reply
from gpuyard.server.tasks import STATES


class Body(BaseModel):
    """A request body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class StrictBody(BaseModel):
    """The same, without conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NotJson(UserError):
    """The request is not JSON."""


def read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise NotJson("the request is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"the request is not JSON: {error}") from error


_LONGEST = 80  # characters of an unknown name in a message


def check_parameters(given: Iterable[str], known: list[str]) -> None:
    for name in given:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise UserError(f"there is no parameter '{name[:_LONGEST]}'{suggest(name[:_LONGEST], known)} ({there})")


def check_states(given: Iterable[str]) -> None:
    for state in given:
        if state not in STATES:
            near = suggest(state[:_LONGEST], STATES)
            raise UserError(f"there is no state '{state[:_LONGEST]}'{near} (the states are {', '.join(STATES)})")


KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
_KEY = re.compile(r"[!-~]{1,255}")

Command = Callable[[], dict[str, Any]]
"""Run by the daemon's thread; returns the answer."""


class IdempotentRequests:
    """Runs commands that create something; a repeated request with the same key gets the first answer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._repeats = Idempotency(context.daemon.context)

    async def __call__(self, request: Request, prepare: Callable[[], Awaitable[Command]], more: str = "") -> Response:
        """Run the prepared command, or answer as before. `more` is compared like the body."""
        if KEY_HEADER not in request.headers:
            return _answer(request, await self._context.ask(await prepare()))
        sent = await self._sent(request, more)
        before = self._context.reader.answer(sent.user, sent.key)
        if before is not None:  # also where the command would fail now
            return _answer(request, known_answer(sent, before), replayed=True)
        act = await prepare()
        return _answer(request, *await self._context.ask(lambda: self._repeats.once(sent, act)))

    async def _sent(self, request: Request, more: str) -> KeyedRequest:
        key = request.headers[KEY_HEADER]
        if len(request.headers.getlist(KEY_HEADER)) > 1 or not _KEY.fullmatch(key):
            raise UserError(
                f"{KEY_HEADER} must be one word of 1 to 255 visible characters of ASCII, a UUID for example"
            )
        asked = [request.method, request.url.path, read_json(await request.body() or b"{}"), more]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return KeyedRequest(self._context.permissions.name(request), key, digest)


def _answer(request: Request, answer: Any, replayed: bool = False) -> Response:
    response = reply(answer, 201)
    if "id" in answer:  # several jobs have no common URL
        kind = "leases" if request.url.path == f"{API}/leases" else "jobs"
        response.headers["Location"] = f"{API}/{kind}/{answer['id']}"
    if replayed:
        response.headers[REPLAYED_HEADER] = "true"
    return response
