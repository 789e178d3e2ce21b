"""Requests over TCP as others send them: with any method, header and body, right or wrong."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    """An answer; the headers' names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """What a refusal says; it must have its proper form."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["detail"])


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
    """Send one request, and read the answer."""
    place = urlsplit(url)
    assert place.hostname
    if place.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            place.hostname, place.port, timeout=60, context=tls
        )
    else:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    sent = {"Authorization": f"Bearer {token}"} if token else {}
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent["Content-Type"] = "application/json"
    try:
        connection.request(method, path, data, {**sent, **(headers or {})})
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()
