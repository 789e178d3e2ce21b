"""Signs of life: that they come, go on, and stop; and what is said when a lease is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standin import StandIn
from tests.yard import until

from gpuyard.client.client import Client
from gpuyard.client.leases import Heartbeat

BEAT: tuple[str, str, dict[str, str]] = ("POST", "/leases/7/heartbeat", {})
OFTEN = 0.03


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(tmp_path / "s") as server:
        yield server


@pytest.fixture
def client(yard: StandIn) -> Client:
    return Client(yard.path, timeout=5)


def beats(yard: StandIn) -> int:
    return yard.asked.count(BEAT)


def test_they_come_until_they_are_stopped(client: Client, yard: StandIn) -> None:
    heartbeat = Heartbeat(OFTEN)
    heartbeat.start(client, "7")
    until(lambda: beats(yard) >= 3)
    heartbeat.stop()
    assert not heartbeat.lost


def test_a_daemon_that_is_away_is_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heartbeat = Heartbeat(OFTEN)
    with StandIn(tmp_path / "s") as first:
        heartbeat.start(Client(first.path, timeout=5), "7")
        until(lambda: beats(first))
    (tmp_path / "s").unlink()
    with StandIn(tmp_path / "s") as second:
        until(lambda: beats(second))
        heartbeat.stop()
    assert not heartbeat.lost
    assert capsys.readouterr().err == ""


def test_a_loss_is_loud(client: Client, yard: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    called: list[bool] = []
    yard.answers["POST", "/leases/7/heartbeat"] = 409, {"detail": "lease 7 is over"}
    heartbeat = Heartbeat(OFTEN, lambda: called.append(True))
    heartbeat.start(client, "7")
    until(lambda: called)
    assert heartbeat.lost
    assert "LEASE 7 IS LOST, and its GPUs may be somebody else's: stop using them (lease 7 is over)" in (
        capsys.readouterr().err
    )


def test_a_refusal_that_is_no_loss_is_told_once(
    client: Client, yard: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    yard.answers["POST", "/leases/7/heartbeat"] = 403, {"detail": "no"}
    heartbeat = Heartbeat(OFTEN)
    heartbeat.start(client, "7")
    until(lambda: beats(yard) >= 3)
    heartbeat.stop()
    assert not heartbeat.lost
    assert capsys.readouterr().err == "gpuyard: warning: lease 7 cannot be kept up: no\n"


def test_nothing_is_said_of_a_lease_that_was_given_back_meanwhile(
    yard: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow(Client):
        def beat(self, id: str) -> None:
            heartbeat.stop()  # as another thread may, while the daemon is asked
            super().beat(id)

    for status in (403, 409):
        yard.answers["POST", "/leases/7/heartbeat"] = status, {"detail": "no"}
        heartbeat = Heartbeat(OFTEN)
        heartbeat._run(Slow(yard.path, timeout=5), "7")
        assert not heartbeat.lost
    assert capsys.readouterr().err == ""


FORKING = """
import os, sys, time
from gpuyard.client.client import Client
from gpuyard.client.leases import Heartbeat
heartbeat = Heartbeat(0.03)
heartbeat.start(Client(sys.argv[1]), "7")
child = os.fork()
if not child:
    os.close(1)
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
os._exit(0)
"""


def test_a_forked_child_gives_no_sign_of_its_parents_life(yard: StandIn) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(yard.path)]
    child = int(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
    try:
        os.kill(child, 0)  # it lives
        count = beats(yard)
        heartbeat = Heartbeat(OFTEN)
        heartbeat.start(Client(yard.path, timeout=5), "8")
        until(lambda: yard.asked.count(("POST", "/leases/8/heartbeat", {})) >= 5)  # as long as five beats take
        heartbeat.stop()
        assert beats(yard) <= count + 1  # one may have been on its way
    finally:
        os.kill(child, 9)


def test_whoever_is_afar_keeps_a_lease_by_signs_of_life(client: Client, yard: StandIn) -> None:
    gpu = {"index": 2, "uuid": "GPU-2", "simulated": True}
    yard.answers["POST", "/leases"] = 201, {"id": "7"}
    yard.answers["GET", "/gpus"] = 200, {"gpus": [gpu]}
    job = {"id": "7", "state": "running", "started_at": "now", "gpus": [2], "reason": None}
    yard.answers["GET", "/jobs/7?wait=1.000&for=start"] = 200, job
    with client.acquire(1, heartbeat=OFTEN, name="me") as lease:
        assert list(lease) == [2]
        assert not lease.lost
        until(lambda: beats(yard) >= 2)
    asked = [body for _, target, body in yard.asked if target == "/leases"]
    assert [body["heartbeat"] for body in asked] == [OFTEN]
    assert not {"holder", "interactive"} & asked[0].keys()
    assert ("POST", "/leases/7/release", {}) in yard.asked


def test_where_the_daemon_cannot_see_the_process_signs_of_life_do(client: Client, yard: StandIn) -> None:
    yard.answers["POST", "/leases"] = 422, {"detail": "there is no process 1"}
    with pytest.raises(Exception, match="there is no process 1"):
        client.acquire(1)
    asked = [body for _, target, body in yard.asked if target == "/leases"]
    assert [body.get("heartbeat") for body in asked] == [None, 60.0]
