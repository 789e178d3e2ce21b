"""Lists and watches that end, are cut, or are told to begin anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpuyard.kubernetes.api_client import (
    ApiError,
    Change,
    Changed,
    Gone,
    Listed,
    Object,
    Reflector,
    Relisted,
    Unreachable,
)


def thing(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Stream:
    """What a watch brings, and how it ends."""

    def __init__(self, *lines: Change | Exception) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[Change]:
        for line in self._lines:
            if isinstance(line, Exception):
                raise line
            yield line

    def close(self) -> None:
        """There is nothing to close."""


class Server:
    """Answers that were made up before."""

    def __init__(self, lists: list[Any], watches: list[Any]) -> None:
        self._lists, self._watches = lists, watches
        self.asked: list[str] = []
        self.reflector: Reflector | None = None

    def watch(self, path: str, version: str, seconds: int) -> Any:
        self.asked.append(f"watch {version}")
        return self._given(self._watches, Stream())

    def list(self, path: str) -> Any:
        self.asked.append("list")
        return self._given(self._lists, Listed([], ""))

    def _given(self, answers: Any, last: Any) -> Any:
        if not answers:
            assert self.reflector is not None
            self.reflector.stop()
            return last
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.kubernetes.api_client._FIRST", 0.001)


def follow(lists: list[Any], watches: list[Any], resync: float = 300.0) -> tuple[list[str], list[Any]]:
    """Follow until the answers are at an end; what was asked for, and what was told."""
    server, told = Server(lists, watches), list[Any]()
    api: Any = server
    found = Reflector(api, "things", "/things", lambda one: str(one["metadata"]["name"]), told.append, resync)
    server.reflector = found
    found.run()
    return server.asked, told


def test_all_there_is_and_then_what_changes() -> None:
    asked, told = follow(
        [Listed([thing("a", 1)], "5")],
        [Stream(Change("ADDED", thing("b", 6)), Change("MODIFIED", thing("a", 7)), Change("DELETED", thing("b", 8)))],
    )
    assert told == [Relisted("things", ["a"]), Changed("things", "b"), Changed("things", "a"), Gone("things", "b")]
    assert asked == ["list", "watch 5", "watch 8"]  # it goes on where the stream ended


def test_bookmarks_are_told_to_nobody() -> None:
    asked, told = follow([Listed([], "5")], [Stream(Change("BOOKMARK", thing("", 50)))])
    assert told == [Relisted("things", [])]
    assert asked == ["list", "watch 5", "watch 50"]


@pytest.mark.parametrize("where", ["answer", "stream"])
def test_a_version_that_is_forgotten(where: str) -> None:
    gone = ApiError(410, "Expired", "too old resource version")
    first = gone if where == "answer" else Stream(Change("ADDED", thing("b", 6)), gone)
    asked, told = follow([Listed([], "5"), Listed([thing("c", 70)], "80")], [first])
    assert asked == ["list", "watch 5", "list", "watch 80"]
    assert told[-1] == Relisted("things", ["c"])


def test_a_stream_that_is_cut_goes_on() -> None:
    asked, told = follow(
        [Listed([], "5")],
        [Stream(Change("ADDED", thing("b", 6)), Unreachable("cut")), Unreachable("away"), ApiError(500, "", "oops"),
         Stream(Change("ADDED", thing("c", 7)))],
    )  # fmt: skip
    assert asked == ["list", "watch 5", "watch 6", "watch 6", "watch 6", "watch 7"]
    assert told == [Relisted("things", []), Changed("things", "b"), Changed("things", "c")]


def test_a_list_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    asked, told = follow([Unreachable("away"), ApiError(503, "", "later"), Listed([], "5")], [Stream()])
    assert asked[:4] == ["list", "list", "list", "watch 5"]
    assert told == [Relisted("things", [])]
    assert [record.getMessage() for record in caplog.records] == [
        "things are not heard of: away; trying again", "things are heard of again"
    ]  # fmt: skip


def test_everything_is_listed_again_from_time_to_time() -> None:
    asked, _ = follow([Listed([], "5"), Listed([], "9")], [Stream(), Stream()], resync=0.0)
    assert asked[:4] == ["list", "watch 5", "list", "watch 9"]
