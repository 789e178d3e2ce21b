"""Following events: every one, once, in order, whoever else follows, is slow, or dies."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.sse import Events, UnixConnection, asked, get
from tests.yard import Yard, until

Follow = Callable[..., Events]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Streams that do not outlive the test."""
    with contextlib.ExitStack() as stack:

        def begin(yard: Yard, query: str = "", last: str = "") -> Events:
            stream = Events(yard, query, last)
            stack.callback(stream.close)
            return stream

        yield begin


def test_what_happens_comes_as_events_with_their_numbers(yard: Yard, follow: Follow) -> None:
    stream = follow(yard)
    id = yard.submit("true")
    found = stream.until("Exited", id)
    assert [(e.kind, e.data["job"]) for e in found if e.data["job"] == id] == [
        ("Submitted", id), ("Placed", id), ("Started", id), ("Exited", id),
    ]  # fmt: skip
    assert [int(e.id) for e in found] == [e.data["seq"] for e in found]
    assert int(stream.retry) > 0
    assert [e.data for e in found] == yard.client.events(int(found[0].id) - 1, limit=len(found))["events"]
    assert "environment" not in json.dumps(found[0].data)


def test_a_stream_begins_where_it_is_told_to(yard: Yard, follow: Follow) -> None:
    yard.wait(yard.submit("true"))
    everything = yard.client.events(0, limit=10_000)["events"]
    first = follow(yard, "?after=0").take(len(everything))
    assert [e.data for e in first] == everything
    middle = len(everything) // 2
    again = follow(yard, "?after=0", last=first[middle].id).take(len(everything) - middle - 1)
    assert again == first[middle + 1 :]
    fresh = follow(yard)
    assert next(line for line in fresh.answer if line.startswith(b"id: ")) == f"id: {everything[-1]['seq']}\n".encode()


def test_filters_leave_out_the_rest_and_still_tell_how_far_they_are(yard: Yard, follow: Follow) -> None:
    begin = yard.client.events(0, limit=10_000)["last"]
    array = yard.submit("--array", "0-2", "true")
    yard.wait(array)
    other = yard.submit("true")
    yard.wait(other)
    of_array = follow(yard, f"?after={begin}&job={array}").until("Exited", f"{array}_2")
    assert {e.data["job"] for e in of_array} <= {f"{array}_{n}" for n in range(3)}
    kinds = follow(yard, f"?after={begin}&kind=Submitted,Exited").until("Exited", other)
    assert {e.kind for e in kinds} == {"Submitted", "Exited"}
    assert len(kinds) == 8
    me = yard.client.job(other)["user"]
    mine = follow(yard, f"?after={begin}&user={me}&job={other}").until("Exited", other)
    assert [e.kind for e in mine] == ["Submitted", "Placed", "Started", "Exited"]
    strangers = follow(yard, f"?after={begin}&user=nobody-of-this-name")
    held = yard.submit("--array", "0-1199", "--hold", "true")
    yard.client.cancel(held)
    far = next(int(line[4:]) for line in strangers.answer if line.startswith(b"id: ") and int(line[4:]) > begin)
    assert far >= begin + 1000  # nothing is for them, but they are told where to go on
    as_json = json.loads(get(yard, f"/api/v1/events?after={begin}&kind=Exited&job={array}")[2])
    assert [e["kind"] for e in as_json["events"]] == ["Exited"] * 3


@pytest.mark.parametrize(
    ("query", "last", "said"),
    [
        ("?kind=Nonsense", "", "there is no kind of event 'Nonsense'; the kinds are "),
        ("", "x17", "Last-Event-ID is the number of an event, such as 17, and 'x17' is none"),
        ("", "99999999999999999999", "Last-Event-ID is the number of an event"),
        ("", "9" * 5000, "Last-Event-ID is the number of an event"),
        ("?after=-1", "", "after: "),
        ("?after=99999999999999999999", "", "after: "),
    ],
)
def test_what_makes_no_sense_is_refused(yard: Yard, query: str, last: str, said: str) -> None:
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    status, _, body = get(yard, f"/api/v1/events{query}", headers)
    assert status == 422
    assert said in json.loads(body)["detail"]


def test_a_number_from_a_later_log_means_from_now_on(yard: Yard, follow: Follow) -> None:
    stream = follow(yard, last=str(2**62))
    id = yard.submit("true")
    assert stream.until("Exited", id)[0].kind == "Submitted"


def test_who_takes_nothing_delays_nobody_and_misses_nothing(yard: Yard, follow: Follow) -> None:
    begin = yard.client.events(0, limit=10_000)["last"]
    slow = follow(yard, f"?after={begin}")
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(yard.client.socket)
        stuck.send(b"GET /api/v1/events?after=0 HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
        quick = follow(yard)
        array = yard.submit("--array", "0-3999", "--hold", "true", "x" * 1000)
        count = 2 * 4000  # submitted, and held
        assert len(quick.take(count)) == count
        yard.client.cancel(array)
        found = slow.take(count)  # more than the ring holds, so this one reads the log
        assert [e.data["seq"] for e in found] == list(range(begin + 1, begin + 1 + count))


def test_who_hangs_up_is_forgotten(yard: Yard, follow: Follow) -> None:
    def followers() -> int:
        [line] = [n for n in get(yard, "/metrics")[2].decode().splitlines() if n.startswith("gpuyard_event_followers")]
        return int(float(line.split()[1]))

    streams = [follow(yard) for _ in range(5)]
    until(lambda: followers() >= 5, "five who follow")
    for stream in streams:
        stream.close()
    until(lambda: followers() == 0, "nobody who follows")


def test_nobody_has_more_streams_than_are_good_for_all(yard: Yard, follow: Follow) -> None:
    streams = [follow(yard) for _ in range(100)]
    status, _, body = get(yard, "/api/v1/events", {"Accept": "text/event-stream"})
    assert status == 429
    assert "follows by 100 connections already, which is the most; close some" in json.loads(body)["detail"]
    for stream in streams:
        stream.close()

    def is_room() -> bool:
        with asked(yard, "/api/v1/events", {"Accept": "text/event-stream"}) as answer:
            return answer.status == 200

    until(is_room, "room for another")


def test_a_stream_ends_when_the_daemon_does_and_goes_on_with_the_next(own_yard: Yard, follow: Follow) -> None:
    own_yard.serve()
    stream = follow(own_yard)
    first = own_yard.submit("true")
    found = stream.until("Exited", first)
    own_yard.end()
    found += list(stream)  # it ends as an answer should, and says so
    own_yard.serve()
    stream = follow(own_yard, last=stream.last)
    found += stream.until("Exited", own_yard.submit("true"))
    seqs = [e.data["seq"] for e in found]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def test_nothing_is_missed_or_told_twice_when_the_daemon_is_killed_under_load(own_yard: Yard) -> None:
    """Kills come at any time; what clients got is compared with the log, event by event."""
    own_yard.serve()
    begin = own_yard.client.events(0, limit=10_000)["last"]
    heard: list[list[Any]] = [[] for _ in range(3)]
    over = threading.Event()

    def listen(mine: list[Any], last: str) -> None:
        while not over.is_set():
            try:
                with contextlib.closing(Events(own_yard, last=last)) as stream:
                    for event in stream:
                        mine.append(event.data)
                        last = event.id
            except (OSError, http.client.HTTPException):
                time.sleep(0.01)

    def load() -> None:
        while not over.is_set():
            connection = UnixConnection(own_yard.client.socket)
            body = json.dumps({"command": ["true"], "directory": "/"})
            try:
                connection.request("POST", "/api/v1/jobs", body, {"Content-Type": "application/json"})
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                time.sleep(0.01)
            connection.close()

    def hear_more() -> None:
        reached = len(heard[0])
        until(lambda: len(heard[0]) > reached + 30, "more events")

    threads = [threading.Thread(target=listen, args=(mine, str(begin))) for mine in heard]
    threads += [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            hear_more()
            own_yard.end(signal.SIGKILL)
            own_yard.serve()
        hear_more()
    finally:
        over.set()
        own_yard.end()
        for thread in threads:
            thread.join()
    own_yard.serve()
    log = own_yard.client.events(begin, limit=10_000)["events"]
    assert [event["seq"] for event in log] == list(range(begin + 1, begin + 1 + len(log)))
    for mine in heard:
        assert mine == log[: len(mine)]
        assert len(mine) > 120
