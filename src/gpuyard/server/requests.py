"""Reading a request: its query parameters, its JSON body, and its idempotency key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from gpuyard.daemon.idempotency import Idempotency, KeyedRequest, known_answer
from gpuyard.errors import UserError, suggest
from gpuyard.server.paths import API
from gpuyard.server.responses import reply
from gpuyard.server.tasks import STATES

if TYPE_CHECKING:
    from gpuyard.server.api import Api


class NotJson(UserError):
    """The request is not JSON."""


def read_json(body: bytes) -> Any:
    """The value in a body."""
    try:
        return json.loads(body)
    except RecursionError:
        raise NotJson("the request is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"the request is not JSON: {error}") from error


_LONGEST = 80  # characters of what is not known, told back


class StrictRoute(APIRoute):
    """A route that takes no parameters but its own."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, behind a look at the query."""
        handle = super().get_route_handler()
        known = sorted(field.alias for field in self.dependant.query_params)

        async def look(request: Request) -> Response:
            check_parameters(request.query_params, known)
            return await handle(request)

        return look


def check_parameters(given: Iterable[str], known: list[str]) -> None:
    """Refuse what a route knows nothing of."""
    for name in given:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none here"
            raise UserError(f"there is no parameter '{name[:_LONGEST]}'{suggest(name[:_LONGEST], known)} ({there})")


def check_states(given: Iterable[str]) -> None:
    """Refuse states that no job can be in."""
    for state in given:
        if state not in STATES:
            near = suggest(state[:_LONGEST], STATES)
            raise UserError(f"there is no state '{state[:_LONGEST]}'{near} (the states are {', '.join(STATES)})")


KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
_KEY = re.compile(r"[!-~]{1,255}")

Command = Callable[[], dict[str, Any]]
"""Something for the yard's thread to do, which gives the answer."""


class IdempotentRequests:
    """Answers requests that make something new."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._repeats = Idempotency(api.yard.context)

    async def __call__(self, request: Request, prepare: Callable[[], Awaitable[Command]], more: str = "") -> Response:
        """Do what is prepared, or answer as before. `prepare` refuses what makes no sense; `more` is asked for, too."""
        if KEY_HEADER not in request.headers:
            return _answer(request, await self._api.ask(await prepare()))
        sent = await self._sent(request, more)
        before = self._api.reader.answer(sent.user, sent.key)
        if before is not None:  # also where it could not be done now
            return _answer(request, known_answer(sent, before), replayed=True)
        act = await prepare()
        return _answer(request, *await self._api.ask(lambda: self._repeats.once(sent, act)))

    async def _sent(self, request: Request, more: str) -> KeyedRequest:
        key = request.headers[KEY_HEADER]
        if len(request.headers.getlist(KEY_HEADER)) > 1 or not _KEY.fullmatch(key):
            raise UserError(
                f"{KEY_HEADER} must be one word of 1 to 255 visible characters of ASCII, a UUID for example"
            )
        asked = [request.method, request.url.path, read_json(await request.body() or b"{}"), more]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return KeyedRequest(self._api.permissions.name(request), key, digest)


def _answer(request: Request, answer: Any, replayed: bool = False) -> Response:
    response = reply(answer, 201)
    if "id" in answer:  # several jobs have no place in common
        kind = "leases" if request.url.path == f"{API}/leases" else "jobs"
        response.headers["Location"] = f"{API}/{kind}/{answer['id']}"
    if replayed:
        response.headers[REPLAYED_HEADER] = "true"
    return response
