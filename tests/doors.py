"""A daemon on TCP, with whatever it asks of those who come in."""

from __future__ import annotations

from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any

import pytest

from tests.web import Reply, ask
from tests.yard import Yard, opened

JOB = {"command": ["true"], "directory": "/", "environment": {}}


class Door:
    """A yard's API on TCP."""

    def __init__(self, yard: Yard) -> None:
        self.yard, self.url = yard, yard.client.status()["url"]

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        return ask(self.url, method, path if not path.startswith("/v1") else f"/api{path}", body, **more)

    def token(self, user: str = "ann", role: str = "user", **more: Any) -> str:
        return str(self.yard.client.make_token(user, role=role, **more)["token"])

    def login(self, token: str, **more: Any) -> dict[str, str]:
        """Headers of a page that has logged in: cookie, token against forgery, and origin."""
        reply = self("POST", "/v1/session", {"token": token}, **more)
        assert reply.status == 201, reply
        cookie = SimpleCookie(reply.headers["set-cookie"])["gpuyard_session"].value
        return {"Cookie": f"gpuyard_session={cookie}", "X-CSRF-Token": reply.json["csrf"], "Origin": self.url}


def door_with(tmp_path_factory: pytest.TempPathFactory, *flags: str, **settings: str) -> Iterator[Door]:
    """A daemon of one user, whoever runs the tests."""
    with opened(tmp_path_factory.mktemp("doors")) as yard:
        yard.environment |= {"GPUYARD_SINGLE_USER": "true", **settings}
        yard.serve("--port", "0", *flags)
        yield Door(yard)
