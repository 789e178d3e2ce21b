"""A daemon that is killed while a client waits, follows, holds or submits: the client goes on with the next one."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.bareserver import Listener
from tests.yard import PATIENCE, Yard, until

from gpuyard.api.types import Event
from gpuyard.client.client import Client


class Doing:
    """Something that a thread does, and what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self._found = work, list[Any]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except Exception as error:
            self._found.append(error)

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert self._found, "it is not over"
        if isinstance(self._found[0], Exception):
            raise self._found[0]
        return self._found[0]


class Reached:
    """A daemon that can be killed and started again, where it was before."""

    def __init__(self, yard: Yard, over_tcp: bool) -> None:
        self.yard = yard
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._where: dict[str, Any] = {"socket": yard.client.socket}
        if over_tcp:
            self._where = {"host": f"http://127.0.0.1:{self._port}"}
        self.start()

    def client(self) -> tuple[Client, list[str]]:
        """A client, and what it says meanwhile."""
        said: list[str] = []
        return Client(**self._where, say=said.append), said

    def start(self) -> None:
        self.yard.serve("--port", str(self._port))

    def kill(self) -> None:
        self.yard.end(signal.SIGKILL)


@pytest.fixture(params=["socket", "tcp"])
def reached(own_yard: Yard, request: pytest.FixtureRequest) -> Reached:
    return Reached(own_yard, request.param == "tcp")


def has_said(*all_said: list[str]) -> Callable[[], bool]:
    return lambda: all(said and "the daemon went away; this waits" in said[-1] for said in all_said)


def through(events: Iterator[Event], kind: str, job: str) -> list[Event]:
    found: list[Event] = []
    for event in events:
        found.append(event)
        if (event["kind"], event["job"]) == (kind, job):
            break
    return found


def test_whoever_waits_or_follows_goes_on(reached: Reached) -> None:
    clients = [reached.client() for _ in range(3)]
    said = [spoken for _, spoken in clients]
    waiter, reader, watcher = (client for client, _ in clients)
    script = "echo on; until [ -e go ]; do sleep 0.02; done; echo off; exit 3"
    id = waiter.submit(["sh", "-c", script], directory=reached.yard.cwd)
    reached.yard.await_output(id, b"on\n")
    first = reader.follow(id)
    assert next(first) == b"on\n"
    doing = [
        Doing(lambda: waiter.wait(id)),
        Doing(lambda: b"".join(first)),
        Doing(lambda: through(watcher.follow_events(0), "Exited", id)),
    ]
    watcher.status()
    reached.kill()
    until(has_said(*said), "a word on the daemon")
    reached.start()
    other = waiter.submit(["true"])
    waiter.wait(other)
    reached.kill()
    (reached.yard.cwd / "go").touch()  # it ends while no daemon is there to see it
    reached.start()
    ended, text, events = (work.result() for work in doing)
    assert (ended["state"], ended["exit_code"]) == ("failed", 3)
    assert text == b"off\n"
    last = events[-1]["seq"]
    assert events == [event for event in waiter.events(0, limit=10_000)["events"] if event["seq"] <= last]
    assert all(1 <= len(spoken) <= 2 for spoken in said)  # once each time, if it was noticed at all


def test_events_from_now_on_are_those_after_now(yard: Yard) -> None:
    yard.wait(yard.submit("--", "true"))
    last = yard.client.page(limit=1).last
    events = yard.client.follow_events()
    id = yard.submit("--", "true")
    found = through(events, "Submitted", id)
    assert all(event["seq"] > last for event in found)


def test_events_of_a_job_that_is_over_begin_with_its_first(yard: Yard) -> None:
    yard.wait(yard.submit("--", "true"))
    id = yard.submit("--", "true")
    yard.wait(id)
    found = Doing(lambda: through(yard.client.follow_events(job=id), "Exited", id)).result()
    assert found[0]["kind"] == "Submitted"
    assert {event["job"] for event in found} == {id}


def test_a_submit_waits_for_the_next_daemon(reached: Reached) -> None:
    client, said = reached.client()
    client.status()
    reached.kill()
    submitted = Doing(lambda: client.submit(["true"], name="once"))
    until(has_said(said), "a word on the daemon")
    reached.start()
    id = submitted.result()
    assert client.wait(id)["name"] == "once"
    assert len(client.jobs(all=True)) == 1


def test_a_lease_is_waited_for_and_held_over_restarts(reached: Reached) -> None:
    client, said = reached.client()
    blocker = client.submit(["sleep", "1000"], gpus=4)
    until(lambda: client.job(blocker)["started_at"], "its start")
    leased = Doing(lambda: client.acquire(1))
    until(lambda: len(client.jobs()) == 2, "the request")
    reached.kill()
    until(lambda: any("the daemon went away" in word for word in said), "a word on the daemon")
    reached.start()
    client.cancel(blocker, 0)
    lease = leased.result()
    assert len(lease) == 1
    reached.kill()
    reached.start()
    assert client.job(lease.id)["state"] == "running"
    lease.release()
    assert client.wait(lease.id)["state"] == "succeeded"


class Lossy(Listener):
    """Stands before a daemon; the first answer to a submit never arrives, since the daemon is killed before."""

    def __init__(self, port: int, kill: Callable[[], None]) -> None:
        self._daemon, self._kill = port, kill
        self.lost = 0
        super().__init__()

    def answer(self, connection: socket.socket) -> None:
        request = connection.recv(2**20).replace(b"127.0.0.1:%d" % self.port, b"127.0.0.1:%d" % self._daemon)
        with socket.create_connection(("127.0.0.1", self._daemon)) as daemon, daemon.makefile("rb") as answer:
            daemon.sendall(request)
            data = answer.read()
        if request.startswith(b"POST") and not self.lost:
            self.lost += 1
            self._kill()
            return
        connection.sendall(data)


def test_a_submit_whose_answer_is_lost_is_queued_once(own_yard: Yard) -> None:
    own_yard.serve("--port", "0")
    port = int(str(own_yard.client.status()["url"]).rpartition(":")[2])
    lossy = Lossy(port, lambda: own_yard.end(signal.SIGKILL))
    said: list[str] = []
    client = Client(host=f"http://127.0.0.1:{lossy.port}", say=said.append)
    try:
        submitted = Doing(lambda: client.submit(["true"], environment={}))
        until(has_said(said), "a word on the daemon")
        own_yard.serve("--port", str(port))
        id = submitted.result()
        assert lossy.lost == 1
        assert [job["id"] for job in own_yard.client.jobs(all=True)] == [id]
        one = client.submit(["true"], key="mine-1")
        assert client.submit(["true"], key="mine-1") == one != id
    finally:
        lossy.close()
