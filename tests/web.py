"""Requests over TCP, as any program sends them, right or wrong: nothing of gpuyard's own client is in the way."""

from __future__ import annotations

import http.client
import json
import ssl
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
    *,
    token: str = "",
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Reply:
    """One request for what is below a URL; a body that is not bytes goes as JSON."""
    base = urlsplit(url)
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    usual = {"Authorization": f"Bearer {token}"} if token else {}
    if sent is not None:
        usual["Content-Type"] = "application/json"
    connection = (
        http.client.HTTPSConnection(base.netloc, timeout=60, context=tls)
        if base.scheme == "https"
        else http.client.HTTPConnection(base.netloc, timeout=60)
    )
    try:
        connection.request(method, base.path + path, sent, {**usual, **(headers or {})})
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())
    finally:
        connection.close()
