"""What the application tells of its own mistakes, and how it describes itself where tokens are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.config import Settings
from gpuyard.engines.base import EngineError
from gpuyard.errors import Bug
from gpuyard.server.app import Server, make_app
from gpuyard.server.openapi import REFUSAL_TEXTS, openapi_document, security_requirements
from gpuyard.server.problems import problem
from gpuyard.server.sockets import Peer

HERE = Settings(Path("/x"), Path("/x/s"))


class Mistake(Exception):
    """Nobody thought of it."""


async def _ask(path: str, error: Exception) -> tuple[int, dict[str, Any]]:
    """What is answered by an application whose policies cannot be told."""
    failed: Future[Any] = Future()
    failed.set_exception(error)
    daemon = SimpleNamespace(
        listeners=[],
        engine=SimpleNamespace(owner=lambda pid: None),
        commands=None,
        context=None,
        bulk=SimpleNamespace(),
        ask=lambda command, changes: failed,
    )
    app, sent = make_app(Server(cast(Any, daemon), HERE, lambda: None)), list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
        "raw_path": path.encode(), "query_string": b"", "headers": [(b"host", b"gpuyard")], "scheme": "http",
        "client": None, "server": None, "root_path": "",
        "state": {"peer": Peer(os.getpid(), os.geteuid(), os.getegid())},
    }  # fmt: skip
    with contextlib.suppress(Mistake):  # which is for uvicorn to write down
        await app(scope, receive, send)
    assert [value for name, value in sent[0]["headers"] if name == b"content-type"] == [b"application/problem+json"]
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_mistake_of_ours_is_told_without_its_story() -> None:
    status, problem = asyncio.run(_ask("/api/v1/policy", Mistake("a secret of ours")))
    assert (status, problem["status"], problem["title"]) == (500, 500, "Our mistake")
    assert "secret" not in str(problem)
    assert "its log" in problem["detail"]


def test_a_broken_rule_is_written_down(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gpuyard"):
        status, problem = asyncio.run(_ask("/api/v1/policy", Bug("job 1 twice on GPU 0")))
    assert (status, "twice" in str(problem)) == (500, False)
    assert "job 1 twice on GPU 0" in caplog.text


def test_what_may_work_later_is_told_so() -> None:
    status, problem = asyncio.run(_ask("/api/v1/policy", EngineError("no process can be started")))
    assert (status, problem["detail"]) == (503, "no process can be started")


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, False),
        ({"tokens": "required"}, True),
        ({"bind": "192.0.2.1"}, True),
        ({"bind": "192.0.2.1", "tokens": "none"}, False),
        ({"allowed_hosts": ("gpus.example",)}, True),
    ],
)
def test_tokens_are_said_to_be_needed_where_they_are(settings: dict[str, Any], needed: bool) -> None:
    found = security_requirements(Settings(Path("/x"), Path("/x/s"), **settings))
    assert ({} not in found) is needed
    assert {"token": []} in found


def test_every_refusal_has_a_title() -> None:
    for status in (*REFUSAL_TEXTS, 405, 500):
        assert json.loads(bytes(problem(status, "no").body))["title"] != "Error", status


def test_every_route_is_in_the_contract() -> None:
    async def document() -> dict[str, Any]:
        server = Server(
            cast(
                Any,
                SimpleNamespace(
                    listeners=[],
                    engine=SimpleNamespace(owner=lambda pid: None),
                    commands=None,
                    bulk=SimpleNamespace(),
                    context=None,
                ),
            ),
            HERE,
            lambda: None,
        )
        return openapi_document(make_app(server), HERE)

    found = asyncio.run(document())
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            what = f"{method.upper()} {path.removeprefix('/api/v1')}"
            assert "_" not in operation["operationId"], f"{what} has no operation id"
