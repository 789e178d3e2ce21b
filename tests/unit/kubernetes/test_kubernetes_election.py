"""Who leads: by a lease, by each candidate's own clock, never two at once."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

from gpuyard.errors import GpuyardError
from gpuyard.kubernetes.api_client import ApiError, Object, Unreachable
from gpuyard.kubernetes.kubeconfig import Connection
from gpuyard.kubernetes.leader_election import Election


class Server:
    """A lease, as an API server has it; it may be away."""

    connection = Connection("http://nowhere")

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.version = 0
        self.away = False
        self.writes = 0

    def _here(self) -> None:
        if self.away:
            raise Unreachable("it does not answer")

    def get(self, path: str) -> Object:
        self._here()
        if self.lease is None:
            raise ApiError(404, "NotFound", "")
        return copy.deepcopy(self.lease)

    def post(self, path: str, body: Object) -> Object:
        self._here()
        if self.lease is not None:
            raise ApiError(409, "AlreadyExists", "")
        return self._written(body)

    def put(self, path: str, body: Object) -> Object:
        self._here()
        if self.lease is None:
            raise ApiError(404, "NotFound", "")
        if body["metadata"].get("resourceVersion") != str(self.version):
            raise ApiError(409, "Conflict", "")
        return self._written(body)

    def _written(self, body: Object) -> Object:
        self.version += 1
        self.writes += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def candidate(server: Server, clock: Clock, name: str) -> Election:
    api: Any = server
    return Election(
        api, name, "here", 8.0, annotations={"policy": "sjf"}, changed=lambda: None, clock=clock
    )  # fmt: skip


def attempt(one: Election) -> bool:
    """Try once, as its thread does, and whether it leads then."""
    with contextlib.suppress(GpuyardError):
        one._try()
    return one.holds


def test_the_first_leads_and_the_other_waits(server: Server, clock: Clock) -> None:
    a, b = candidate(server, clock, "a"), candidate(server, clock, "b")
    assert (attempt(a), attempt(b)) == (True, False)
    assert (a.leader, b.leader) == ("a", "a")
    for _ in range(20):
        clock.now += 2
        assert (attempt(a), attempt(b)) == (True, False)
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 1
    assert server.lease["metadata"]["annotations"] == {"policy": "sjf"}


def test_a_leader_that_is_silent_is_one_no_longer_before_another_is(server: Server, clock: Clock) -> None:
    a, b = candidate(server, clock, "a"), candidate(server, clock, "b")
    attempt(a)
    attempt(b)
    both, took = [], 0.0
    while not b.holds:
        clock.now += 0.5
        took += 0.5
        attempt(b)
        both.append(a.holds and b.holds)
        assert took < 20
    assert not any(both)
    assert 8 <= took <= 9
    assert not attempt(a)  # it sees who leads
    assert a.leader == "b"


def test_a_leader_without_a_server_gives_in(server: Server, clock: Clock) -> None:
    a = candidate(server, clock, "a")
    attempt(a)
    server.away = True
    clock.now += 5
    assert attempt(a)
    clock.now += 2
    assert not attempt(a)
    server.away = False
    assert attempt(a)


def test_who_is_slow_to_write_has_not_won(server: Server, clock: Clock) -> None:
    """Two see the same lease, and both take it: the server lets one."""
    a, b, c = (candidate(server, clock, name) for name in "abc")
    attempt(a)
    attempt(b)
    attempt(c)
    clock.now += 9
    original = server.get

    def raced(path: str) -> Object:
        found = original(path)
        server.get = original  # type: ignore[method-assign]
        attempt(c)
        return found

    server.get = raced  # type: ignore[method-assign]
    assert (attempt(b), c.holds) == (False, True)


def test_a_lease_that_is_gone_is_made_again(server: Server, clock: Clock) -> None:
    a = candidate(server, clock, "a")
    attempt(a)
    server.lease = None
    clock.now += 1
    assert attempt(a)
    assert server.lease is not None


def test_a_lease_is_given_back(server: Server, clock: Clock) -> None:
    a, b = candidate(server, clock, "a"), candidate(server, clock, "b")
    attempt(a)
    attempt(b)
    a.join = lambda timeout=None: None  # type: ignore[method-assign]
    a.stop()
    assert not a.holds
    assert attempt(b)
    before = server.writes
    b._until = -1.0
    b.join = lambda timeout=None: None  # type: ignore[method-assign]
    b.stop()  # who does not hold it has nothing to give back
    assert server.writes == before


def test_a_lease_of_nobody_is_taken(server: Server, clock: Clock) -> None:
    server.lease = {"metadata": {"resourceVersion": "0"}}
    assert attempt(candidate(server, clock, "a"))
