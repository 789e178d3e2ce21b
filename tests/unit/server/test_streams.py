"""Answers that go on: when they end, and what that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.server.auth.permissions import Caller
from gpuyard.server.stream import streams as streaming
from gpuyard.server.stream.streams import Disconnected, Stream, Streams, StreamWriter, TooManyStreams


async def _answer(
    feed: Callable[[StreamWriter], Any],
    *,
    allowed: Callable[[], bool] | None = None,
    hangs_up: bool = False,
    stuck: bool = False,
) -> tuple[list[Any], list[str]]:
    """What a stream sends, and whether it had to break the connection off."""
    sent: list[Any] = []
    aborted: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if stuck and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Any:
        if not hangs_up:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    state = SimpleNamespace(**({"still_allowed": allowed} if allowed else {}))
    stream = Stream(cast(Any, SimpleNamespace(state=state)), feed)
    await stream({"type": "http", "state": {"abort": lambda: aborted.append("aborted")}}, receive, cast(Any, send))
    return [message.get("body") for message in sent[1:]], aborted


async def _two(line: StreamWriter) -> None:
    await line.send(b"one")
    await line.wait(0.01)
    await line.send(b"two")


def test_a_stream_ends_as_an_answer_should() -> None:
    assert asyncio.run(_answer(_two)) == ([b"one", b"two", b""], [])


def test_who_may_not_hear_more_hears_no_more() -> None:
    left = iter([True, False])
    assert asyncio.run(_answer(_two, allowed=lambda: next(left))) == ([b"one"], ["aborted"])


def test_who_has_gone_is_sent_nothing() -> None:
    async def feed(line: StreamWriter) -> None:
        while True:
            await line.wait()

    assert asyncio.run(_answer(feed, hangs_up=True)) == ([], ["aborted"])


def test_who_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_STUCK", 0.01)
    assert asyncio.run(_answer(_two, stuck=True)) == ([b"one"], ["aborted"])


def test_streams_are_counted_by_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_MOST_EACH", 2)
    streams, ann, bob = Streams(), Caller(1, "ann", False), Caller(2, "bob", False)
    with streams.one(ann), streams.one(ann):
        with pytest.raises(TooManyStreams, match="ann follows by 2 connections already"):
            streams.check(ann)
        streams.check(bob)
        streams.check(replace(ann, by_page=True))  # which many may be
        assert len(streams) == 2
    streams.check(ann)
    with pytest.raises(Disconnected), streams.one(ann):
        raise Disconnected
    assert len(streams) == 0
