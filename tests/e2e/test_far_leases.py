"""Leases over TCP: held by a process that the kernel names, or by signs of life."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests import web
from tests.yard import Yard, opened, until

ASKER = """
import http.client, json, sys
http = http.client.HTTPConnection(sys.argv[1])
http.request("POST", "/api/v1/leases", "{}", {"Content-Type": "application/json"})
print(json.load(http.getresponse())["id"], flush=True)
http.close()
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def reachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A yard of this file's that listens on TCP as well."""
    with opened(tmp_path_factory.mktemp("reachable")) as found:
        found.serve("--port", "0")
        yield found


@pytest.fixture
def yard(reachable: Yard) -> Iterator[Yard]:
    yield reachable
    reachable.clear()


def address(yard: Yard) -> str:
    return urlsplit(str(yard.client.status()["url"])).netloc


def ask(yard: Yard, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """POST something over TCP; the status, and what was answered."""
    answer = web.ask(yard.client.status()["url"], "POST", f"/api/v1{path}", body, headers=headers)
    return answer.status, answer.json


def test_over_loopback_the_process_that_asks_holds_the_lease(yard: Yard) -> None:
    command = [sys.executable, "-c", ASKER, address(yard)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        id = process.stdout.readline().strip()
        job = yard.client.job(id, wait=10, until="start")
        assert (job["state"], job["pid"]) == ("running", process.pid)
        process.kill()
    job = yard.wait(id)
    assert (job["state"], job["reason"]) == ("succeeded", "its process ended")


FORKER = """
import http.client, json, os, sys
http = http.client.HTTPConnection(sys.argv[1])
http.connect()
child = os.fork()
if not child:
    sys.stdin.read()  # it has the connection open as well
    os._exit(0)
http.request("POST", "/api/v1/leases", "{}", {"Content-Type": "application/json"})
print(json.load(http.getresponse())["id"], flush=True)
sys.stdin.read()
os.wait()
"""


def test_a_child_that_has_the_connection_as_well_is_not_the_holder(yard: Yard) -> None:
    command = [sys.executable, "-c", FORKER, address(yard)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        id = process.stdout.readline().strip()
        assert yard.client.job(id, wait=10, until="start")["pid"] == process.pid


def test_a_lease_by_heartbeats_ends_when_they_stop(yard: Yard) -> None:
    status, answer = ask(yard, "/leases", {"gpus": 4, "heartbeat": 5, "name": "far"})
    assert status == 201
    holder = answer["id"]
    job = yard.client.job(holder, wait=10, until="start")
    assert "pid" not in job
    assert job["reason"] == "a lease, held from afar by a sign of life every 5s"
    waiting = ask(yard, "/leases", {"heartbeat": 5})[1]["id"]
    silent = ask(yard, "/leases", {"heartbeat": 5})[1]["id"]
    began = time.monotonic()
    while time.monotonic() < began + 6:
        assert ask(yard, f"/leases/{holder}/heartbeat")[1]["gpus"] == [0, 1, 2, 3]
        _, standing = ask(yard, f"/leases/{waiting}/heartbeat")
        assert standing | {"reason": ""} == {"id": waiting, "state": "queued", "gpus": [], "reason": ""}
        assert "GPU" in standing["reason"]
        time.sleep(0.5)
    job = yard.wait(silent)
    assert (job["state"], job["reason"]) == ("cancelled", "given up: no sign of life for 5s")
    status, answer = ask(yard, f"/leases/{silent}/heartbeat")
    assert (status, answer["detail"]) == (409, f"lease {silent} is over: given up: no sign of life for 5s")
    yard.client.give_back_lease(waiting)
    job = yard.wait(holder)  # nobody keeps it up any more
    assert (job["state"], job["reason"]) == ("failed", "no sign of life for 5s")


def test_heartbeats_are_not_written_and_plan_nothing(yard: Yard) -> None:
    id = ask(yard, "/leases", {"heartbeat": 60})[1]["id"]
    yard.client.job(id, wait=10, until="start")
    until(lambda: yard.client.events(after=0)["events"][-1]["kind"] == "Started", "all being written")
    last = len(yard.client.events(after=0)["events"])
    plans = yard.client.status()["plan"]
    for _ in range(50):
        assert ask(yard, f"/leases/{id}/heartbeat")[0] == 200
    assert len(yard.client.events(after=0)["events"]) == last
    assert yard.client.status()["plan"] == plans


def test_a_restart_begins_to_count_anew(own_yard: Yard) -> None:
    own_yard.serve("--port", "0")
    held, waits = (ask(own_yard, "/leases", {"gpus": 4, "heartbeat": 5})[1]["id"] for _ in range(2))
    own_yard.client.job(held, wait=10, until="start")
    own_yard.end()
    time.sleep(5)  # as long as they may be silent
    own_yard.serve("--port", "0")
    assert ask(own_yard, f"/leases/{held}/heartbeat")[1]["gpus"] == [0, 1, 2, 3]
    assert ask(own_yard, f"/leases/{waits}/heartbeat")[1]["state"] == "queued"
    assert ask(own_yard, f"/leases/{held}/release")[0] == 200
    assert until(lambda: ask(own_yard, f"/leases/{waits}/heartbeat")[1]["gpus"], "the next one's turn") == [0, 1, 2, 3]


def test_what_cannot_be_asked_for(yard: Yard) -> None:
    job = yard.submit("--hold", "--", "true")
    for path, body, status, said in (
        ("/leases", {"heartbeat": 4}, 422, "heartbeat: must be a number of 5 or more, as in 5"),
        ("/leases", {"heartbeat": 1e9}, 422, "heartbeat: must be a number of at most 3600"),
        ("/leases", {"heartbeat": 60, "holder": 1}, 422, "has no process; leave holder and interactive out"),
        ("/leases/987654/heartbeat", None, 404, "there is no job 987654"),
        (f"/leases/{job}/heartbeat", None, 409, f"job {job} is no lease"),
    ):
        found, answer = ask(yard, path, body)
        assert (found, said in answer["detail"]) == (status, True), answer
