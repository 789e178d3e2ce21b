"""Following events and output: what is sent, and what is made of streams that are cut anywhere."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
from tests.bareserver import answering

from gpuyard.client.client import Client
from gpuyard.errors import GpuyardError

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunks(text: str, size: int) -> bytes:
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return STREAM + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def event(seq: int, **more: Any) -> str:
    return f"id: {seq}\nevent: Started\ndata: {json.dumps({'seq': seq, 'kind': 'Started', **more})}\n\n"


def answer(document: Any) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def client(port: int) -> Client:
    return Client(host=f"http://127.0.0.1:{port}", timeout=5, say=lambda _: None)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_none_is_missed_or_doubled_wherever_a_stream_is_cut(size: int) -> None:
    first = ": a comment\n\n" + event(4, name="grün") + ": another\n\n" + event(6)
    again = event(4) + event(6) + event(7) + "retry: 10\n\n" + event(9).replace("\n", "\r\n")
    with answering(chunks(first + event(7)[:25], size), chunks(again, size)) as server:
        found = list(islice(client(server.port).follow_events(3), 4))
        asked = [head.decode() for head in server.asked]
    assert [one["seq"] for one in found] == [4, 6, 7, 9]
    assert found[0].get("name") == "grün"
    assert "Accept: text/event-stream\r\n" in asked[0]
    assert "Last-Event-ID: 3\r\n" in asked[0]
    assert "Last-Event-ID: 6\r\n" in asked[1]


def test_only_one_jobs_events_may_be_wanted() -> None:
    with answering(answer({"state": "running"}), chunks(event(1), 100)) as server:
        next(client(server.port).follow_events(0, job="1_[0-3]"))
        assert b"GET /api/v1/jobs/1_%5B0-3%5D HTTP/1.1\r\n" in server.asked[0]
        assert b"GET /api/v1/events?after=0&job=1_%5B0-3%5D HTTP/1.1\r\n" in server.asked[1]


def test_a_jobs_events_end_with_the_job() -> None:
    ended = {"events": [{"seq": 4, "kind": "Exited"}, {"seq": 5, "kind": "Charged"}], "last": 5}
    answers = (
        answer({"state": "running"}), chunks(event(3) + event(4).replace("Started", "Exited"), 100),
        answer({"state": "succeeded"}), answer({"state": "succeeded"}), answer(ended), answer({"events": []}),
    )  # fmt: skip
    with answering(*answers) as server:
        assert [one["seq"] for one in client(server.port).follow_events(0, job="7")] == [3, 4, 5]


def test_a_daemon_without_streams_is_asked_again_and_again() -> None:
    with answering(answer({"events": [{"seq": 1}, {"seq": 2}], "last": 2})) as server:
        assert [one["seq"] for one in islice(client(server.port).follow_events(0), 2)] == [1, 2]


def test_what_is_no_event_is_told() -> None:
    with (
        answering(chunks("id: 1\ndata: no JSON\n\n", 100)) as server,
        pytest.raises(GpuyardError, match="is not to be understood"),
    ):
        next(client(server.port).follow_events(0))
