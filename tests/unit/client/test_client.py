"""The client: what it sends, and what it makes of answers that no daemon should give."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standin import StandIn, answer_once, listen

import gpuyard
from gpuyard.client.client import Client
from gpuyard.client.transport import Away, Invalid, NoDaemon, Refused
from gpuyard.errors import GpuyardError, UserError


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(tmp_path / "s") as server:
        server.answers["POST", "/jobs"] = 201, {"id": "1"}
        yield server


@pytest.fixture
def client(yard: StandIn) -> Client:
    return Client(yard.path, timeout=5)


def test_a_submit_sends_what_is_wanted_and_the_surroundings(
    client: Client, yard: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLOUR", "grün")
    monkeypatch.setitem(os.environ, "ODD", os.fsdecode(b"\xff"))
    monkeypatch.chdir(tmp_path)
    assert client.submit(["python", "train.py"], gpus=2, among=[0, 3], tags=["a"]) == "1"
    [(_, _, sent)] = yard.asked
    assert sent["command"] == ["python", "train.py"]
    assert sent["directory"] == str(tmp_path)
    assert (sent["environment"]["COLOUR"], sent["environment"]["ODD"]) == ("grün", os.fsdecode(b"\xff"))
    assert (sent["gpus"], sent["from"], sent["tags"]) == (2, [0, 3], ["a"])
    assert "among" not in sent


def test_each_submit_has_a_key_of_its_own_or_the_one_that_is_given(client: Client, yard: StandIn) -> None:
    client.submit(["true"], environment={})
    client.submit(["true"], environment={})
    client.submit(["true"], environment={}, key="mine")
    keys = [headers.get("Idempotency-Key") for headers in yard.headers]
    assert keys[2] == "mine"
    assert all(keys)
    assert len(set(keys)) == 3


def test_a_command_is_a_list_of_words(client: Client) -> None:
    with pytest.raises(UserError, match="not one string"):
        client.submit("python train.py")


def test_times_and_sizes_may_be_texts(client: Client, yard: StandIn) -> None:
    yard.answers["POST", "/jobs"] = 201, {"id": "1"}
    client.submit(["true"], time_limit="1h", estimate="30m", grace="1m", retry_delay=5, gpu_memory="6G")
    sent = yard.asked[-1][2]
    assert sent is not None
    told = {name: sent[name] for name in ("time_limit", "estimate", "grace", "retry_delay", "gpu_memory")}
    assert told == {"time_limit": 3600, "estimate": 1800, "grace": 60, "retry_delay": 5, "gpu_memory": 6 * 2**30}
    yard.answers["POST", "/jobs/1/clone"] = 201, {"id": "2"}
    client.clone("1", time_limit="2h", estimate=None)
    assert yard.asked[-1] == ("POST", "/jobs/1/clone", {"time_limit": 7200, "estimate": None})
    with pytest.raises(UserError, match="time_limit: 'soon' is not a duration; write for example"):
        client.submit(["true"], time_limit="soon")
    with pytest.raises(UserError, match="gpu_memory: 6 bytes of a GPU's memory are too few; write a unit"):
        client.submit(["true"], gpu_memory="6")


def test_a_number_that_is_none_is_told(client: Client) -> None:
    with pytest.raises(UserError, match="not finite"):
        client.submit(["true"], environment={}, priority=float("nan"))


def test_only_what_is_given_is_asked_for(client: Client, yard: StandIn) -> None:
    for query in ("limit=10000", "all=true&limit=5"):
        yard.answers["GET", f"/jobs?{query}"] = 200, {"jobs": [], "next": None}
    client.jobs()
    client.jobs(all=True, limit=5)
    client.cancel("1", grace=2)
    client.set_policy("sjf", placement="pack")
    client.events(3, wait=1)
    assert yard.asked == [
        ("GET", "/jobs?limit=10000", None),
        ("GET", "/jobs?all=true&limit=5", None),
        ("POST", "/jobs/1/cancel", {"grace": 2}),
        ("PUT", "/policy", {"policy": "sjf", "discipline": None, "placement": "pack"}),
        ("GET", "/events?after=3&wait=1.000", None),
    ]


def test_all_pages_are_turned_and_no_job_is_told_twice(client: Client, yard: StandIn) -> None:
    following = "/jobs?user=ann&limit=10000&offset=10000"
    first = {"jobs": [{"id": "1"}, {"id": "2"}], "next": f"/api/v1{following}"}
    yard.answers["GET", "/jobs?user=ann&limit=10000"] = 200, first
    yard.answers["GET", following] = 200, {"jobs": [{"id": "2"}, {"id": "3"}], "next": None}
    assert [job["id"] for job in client.jobs(user="ann")] == ["1", "2", "3"]


def test_wait_gives_up_in_time(client: Client, yard: StandIn) -> None:
    yard.answers["GET", "/jobs/1"] = 200, {"id": "1", "state": "running"}
    with pytest.raises(TimeoutError, match="not over after 0 seconds; it is running"):
        client.wait("1", timeout=0)


def test_a_refusal_carries_the_daemons_sentence(client: Client, yard: StandIn) -> None:
    yard.answers["GET", "/jobs/9"] = 404, {"title": "Not found", "detail": "there is no job 9"}
    with pytest.raises(Refused, match="there is no job 9") as caught:
        client.job("9")
    assert caught.value.status == 404
    assert not isinstance(caught.value, UserError)
    yard.answers["POST", "/jobs"] = 422, {"title": "Invalid", "detail": "gpus must be 1 or more"}
    with pytest.raises(Invalid, match="1 or more"):
        client.submit(["true"], environment={}, gpus=-1)
    yard.answers["GET", "/policy"] = 502, ["no object"]
    with pytest.raises(Refused, match="answered 502"):
        client.policy()


@pytest.mark.parametrize("id", ["a/b", "x y", "ä?"])
def test_an_odd_id_stays_one_part_of_the_path(client: Client, yard: StandIn, id: str) -> None:
    client.job(id)
    assert "/" not in yard.asked[-1][1].removeprefix("/jobs/")


def test_no_id_is_told(client: Client) -> None:
    with pytest.raises(UserError, match="not a job's id"):
        client.cancel("")


def test_no_daemon_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "stale").write_text("no socket")
    for path in (tmp_path / "none", tmp_path / "stale", tmp_path / "stale" / "below"):
        with pytest.raises(NoDaemon, match=r"no daemon answers at .*; start one with gpuyard up \(or gpuyard serve\)"):
            Client(path).status()


def test_a_submit_waits_for_a_daemon_that_restarts(tmp_path: Path) -> None:
    """The socket of a daemon that was killed, or ended to be started again, is still there; `down` removes it."""
    path, said, later = tmp_path / "s", list[str](), contextlib.ExitStack()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()

    def restart(message: str) -> None:
        said.append(message)
        path.unlink()
        server = later.enter_context(StandIn(path))
        server.answers["POST", "/jobs"] = 201, {"id": "7"}

    with pytest.raises(Away):
        Client(path, no_wait=True).submit(["true"], environment={})
    with pytest.raises(NoDaemon):
        Client(path).status()  # what changes nothing is told at once
    with later:
        assert Client(path, say=restart).submit(["true"], environment={}) == "7"
    assert said == ["the daemon went away; this waits 10m 00s for the next one; gpuyard up starts one"]
    path.unlink(missing_ok=True)
    with pytest.raises(NoDaemon):
        Client(path, say=said.append).submit(["true"], environment={})
    assert len(said) == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "hung up in the middle"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{}", "hung up in the middle"),
        (b"220 mail ready\r\n\r\n", "is not gpuyard's daemon"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "is not JSON"),
    ],
)
def test_a_broken_answer_is_told(tmp_path: Path, answer: bytes, told: str) -> None:
    answer_once(tmp_path, answer)
    with pytest.raises(GpuyardError, match=told):
        Client(data_dir=tmp_path, timeout=5).status()


def test_a_silent_daemon_is_told(tmp_path: Path) -> None:
    with listen(tmp_path), pytest.raises(NoDaemon, match=r"did not answer within 0\.05 seconds"):
        Client(tmp_path / "gpuyard.sock", timeout=0.05).status()


def test_a_socket_path_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    deep.mkdir(parents=True)
    answer_once(deep, b"HTTP/1.0 200 OK\r\n\r\n{}")
    assert Client(deep / "gpuyard.sock", timeout=5).status() == {}
    with pytest.raises(UserError, match=r"the name of the socket .* is too long"):
        Client(deep / ("n" * 60)).status()


def test_the_settings_say_where_the_daemon_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client(data_dir=tmp_path).socket == str(tmp_path / "gpuyard.sock")
    monkeypatch.setenv("GPUYARD_SOCKET", "/somewhere/s")
    assert gpuyard.Client().socket == "/somewhere/s"


def test_the_client_imports_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import gpuyard, gpuyard.config;"
        "gpuyard.Client, gpuyard.acquire, gpuyard.progress;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'gpuyard'}), 'http.client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] False"
