"""Output of jobs over HTTP: ranges of bytes, and following it."""

from __future__ import annotations

import http.client
import signal
import threading
from pathlib import Path

import pytest
from tests.sse import asked, get
from tests.yard import Yard, until

from gpuyard.engines.local.output import trim


@pytest.fixture(scope="module")
def printed(daemon: Yard) -> str:
    """A job that printed ten bytes."""
    id = daemon.submit("printf", "0123456789")
    daemon.wait(id)
    return id


@pytest.mark.parametrize(
    ("wanted", "body", "content"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=4-", b"456789", "bytes 4-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-30", b"0123456789", "bytes 0-9/10"),
        ("bytes=9-99", b"9", "bytes 9-9/10"),
    ],
)
def test_a_range_of_bytes(yard: Yard, printed: str, wanted: str, body: bytes, content: str) -> None:
    status, headers, found = get(yard, f"/api/v1/jobs/{printed}/log", {"Range": wanted})
    assert (status, found, headers["content-range"]) == (206, body, content)
    assert (headers["accept-ranges"], headers["x-job-state"]) == ("bytes", "succeeded")
    assert headers["content-length"] == str(len(body))


@pytest.mark.parametrize("wanted", ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=5-4", "bytes=-", "bytes=0-1,4-5"])
def test_a_range_that_there_is_not(yard: Yard, printed: str, wanted: str) -> None:
    status, headers, body = get(yard, f"/api/v1/jobs/{printed}/log", {"Range": wanted})
    assert (status, headers["content-range"]) == (416, "bytes */10")
    assert b"has printed 10 bytes" in body


def test_the_end_of_no_output_is_empty_and_no_error(yard: Yard) -> None:
    id = yard.submit("true")
    yard.wait(id)
    status, headers, body = get(yard, f"/api/v1/jobs/{id}/log", {"Range": "bytes=-100"})
    assert (status, body, headers["x-log-size"]) == (200, b"", "0")
    assert get(yard, f"/api/v1/jobs/{id}/log", {"Range": "bytes=0-9"})[0] == 416


def test_what_is_no_range_of_bytes_is_passed_over(yard: Yard, printed: str) -> None:
    for headers in ({"Range": "lines=1-2"}, {"Range": "bytes=0-1", "If-Range": '"x"'}):
        status, answered, body = get(yard, f"/api/v1/jobs/{printed}/log", headers)
        assert (status, body, answered["x-next-offset"]) == (200, b"0123456789", "10")


def test_a_large_range_and_one_over_what_was_left_out(yard: Yard) -> None:
    id = yard.submit("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x")
    yard.wait(id)
    assert get(yard, f"/api/v1/jobs/{id}/log", {"Range": "bytes=0-"})[2] == b"x" * 3_000_000
    [file] = Path(yard.data_dir / "jobs").glob(f"**/{id}/**/output.log")
    trim(file, 1_000_000)
    found = get(yard, f"/api/v1/jobs/{id}/log", {"Range": "bytes=0-"})[2]
    assert len(found) == 3_000_000  # every byte at its place
    assert found.strip(b"x").strip(b"\0") == b""
    assert b"\0" in found


def test_output_is_followed_to_its_end(yard: Yard, tmp_path: Path) -> None:
    go = tmp_path / "go"
    id = yard.submit("sh", "-c", f"echo one; until test -e {go}; do sleep 0.01; done; echo two; exit 3")
    with asked(yard, f"/api/v1/jobs/{id}/log?follow=true") as answer:
        assert answer.readline() == b"one\n"
        go.touch()
        assert answer.read() == b"two\n"
    assert get(yard, f"/api/v1/jobs/{id}/log?follow=true&offset=4")[2] == b"two\n"
    assert get(yard, f"/api/v1/jobs/{id}/log?follow=true&offset=-4")[2] == b"two\n"


def test_who_follows_a_waiting_job_gets_all_of_its_first_attempt(yard: Yard) -> None:
    id = yard.submit("--hold", "echo", "here")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(get(yard, f"/api/v1/jobs/{id}/log?follow=true")[2]))
    reader.start()
    yard("release", id)
    reader.join()
    assert found == [b"here\n"]
    given_up = yard.submit("--hold", "echo", "here")
    yard("cancel", given_up)
    assert get(yard, f"/api/v1/jobs/{given_up}/log?follow=true")[2] == b""


def test_following_ends_with_the_attempt(yard: Yard) -> None:
    id = yard.submit("--retries", "1", "--retry-delay", "1h", "sh", "-c", "echo try $GPUYARD_ATTEMPT; exit 1")
    assert get(yard, f"/api/v1/jobs/{id}/log?follow=true")[2] == b"try 1\n"


def test_who_follows_output_notices_that_the_daemon_went(own_yard: Yard) -> None:
    own_yard.serve()
    id = own_yard.submit("sh", "-c", "echo one; sleep 600")
    for number in (signal.SIGTERM, signal.SIGKILL):
        with asked(own_yard, f"/api/v1/jobs/{id}/log?follow=true") as answer:
            assert answer.readline() == b"one\n"
            own_yard.end(number)
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                answer.read()
        own_yard.serve()


def test_who_hangs_up_is_forgotten(yard: Yard) -> None:
    def streams() -> int:
        lines = get(yard, "/metrics")[2].decode().splitlines()
        return int(float(next(line for line in lines if line.startswith("gpuyard_streams ")).split()[1]))

    id = yard.submit("sleep", "600")
    with asked(yard, f"/api/v1/jobs/{id}/log?follow=true"), asked(yard, f"/api/v1/jobs/{id}/log?follow=true"):
        until(lambda: streams() == 2, "two who follow")
    until(lambda: streams() == 0, "nobody who follows")
