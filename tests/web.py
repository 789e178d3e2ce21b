"""Requests over TCP, as any program sends them: nothing of gpuyard's own client is in the way."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """Why it was refused; fails if that is not told as it should be."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status, self
        assert problem["title"], self
        return str(problem["detail"])


def ask(
    url: str,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 60,
    root: str = "/api/v1",
) -> Reply:
    """One request to the API, or to what is at another root; a body that is not bytes goes as JSON."""
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    kind = {} if sent is None else {"Content-Type": "application/json"}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    try:
        connection.request(method, f"{root}{path}", sent, {**kind, **(headers or {})})
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())
    finally:
        connection.close()
