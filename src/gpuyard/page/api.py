"""Client of the daemon's API over its Unix socket, in the viewer's name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gpuyard.errors import GpuyardError

Facts = Mapping[str, Any]  # a JSON object of the API
_TIMEOUT = 30.0
_PREFIX = "/api/v1"


class Refused(GpuyardError):
    """The daemon refused the request; the message is its answer."""

    def __init__(self, status: int, detail: str, errors: list[dict[str, str]] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.errors = errors or []  # the invalid fields of the request


class Unavailable(GpuyardError):
    """The daemon does not answer at the moment; it may be restarting."""


class Api:
    """HTTP requests to the daemon. Without a ticket they have this process's rights, which are read-only."""

    def __init__(self, socket: str, ticket: str = "", client: httpx.AsyncClient | None = None) -> None:
        self._socket, self._ticket = socket, ticket
        self._client = client or httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket, limits=httpx.Limits(max_connections=200)),
            base_url="http://daemon",
            timeout=httpx.Timeout(_TIMEOUT, connect=5.0, pool=None),
        )

    def as_viewer(self, ticket: str) -> Api:
        return Api(self._socket, ticket, self._client)

    async def get(self, path: str, **query: Any) -> Any:
        return await self.ask("GET", path, query=query)

    async def post(self, path: str, body: Any = None, key: str = "") -> Any:
        """Post a body; with an idempotency key, repeated requests take effect once."""
        return await self.ask("POST", path, {} if body is None else body, key=key)

    async def ask(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None, key: str = ""
    ) -> Any:
        """The JSON answer to a request; raises `Refused` or `Unavailable`."""
        asked = {name: _text(value) for name, value in (query or {}).items() if value not in (None, "")}
        try:
            answer = await self._client.request(
                method, _PREFIX + path, params=asked or None,
                headers=self._headers() | ({"Idempotency-Key": key} if key else {}),
                json=body if body is not None else None,
            )  # fmt: skip
        except httpx.HTTPError as error:
            raise Unavailable from error
        if answer.is_success:
            return answer.json() if answer.content else None
        raise _refusal(answer)

    @asynccontextmanager
    async def stream(self, path: str, headers: Mapping[str, str], **query: Any) -> AsyncIterator[AsyncIterator[str]]:
        asked = {name: _text(value) for name, value in query.items() if value is not None}
        timeout = httpx.Timeout(5.0, read=60.0)  # the stream has heartbeats more often than that
        try:
            async with self._client.stream(
                "GET", _PREFIX + path, params=asked or None, headers={**self._headers(), **headers}, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise _refusal(answer)
                yield answer.aiter_lines()
        except httpx.HTTPError as error:
            raise Unavailable from error

    def _headers(self) -> dict[str, str]:
        plain = {"Prefer": "times=iso"}  # in messages, to be converted to the viewer's clock
        return {**plain, "Authorization": f"Bearer {self._ticket}"} if self._ticket else plain


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(answer: httpx.Response) -> GpuyardError:
    try:
        problem = answer.json()
        return Refused(answer.status_code, str(problem["detail"]), problem.get("errors"))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        return Refused(answer.status_code, f"the daemon answered with status {answer.status_code}")
