"""The client against a stand-in of the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.standin import StandIn, job, listen

import gpuyard
from gpuyard.client import Client, Invalid, NoDaemon, Refused, own_environment
from gpuyard.errors import GpuyardError, UserError


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(tmp_path / "s") as server:
        yield server


@pytest.fixture
def client(yard: StandIn) -> Client:
    return Client(yard.path, timeout=5)


def test_a_submit_sends_what_is_wanted_and_the_surroundings(
    client: Client, yard: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLOUR", "grün")
    monkeypatch.chdir(tmp_path)
    assert client.submit(["python", "train.py"], gpus=2, among=[0, 3], tags=["a"]) == "1"
    [sent] = yard.bodies("/jobs")
    assert sent["command"] == ["python", "train.py"]
    assert sent["directory"] == str(tmp_path)
    assert sent["environment"]["COLOUR"] == "grün"
    assert (sent["gpus"], sent["from"], sent["tags"]) == (2, [0, 3], ["a"])
    assert "among" not in sent


def test_a_command_is_a_list_of_words(client: Client) -> None:
    with pytest.raises(UserError, match="not one string"):
        client.submit("python train.py")


def test_what_is_not_utf8_is_left_out_of_the_environment(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "BROKEN", os.fsdecode(b"\xff"))
    kept, left_out = own_environment()
    assert left_out == ["BROKEN"]
    assert "BROKEN" not in kept
    with pytest.warns(UserWarning, match="BROKEN"):
        client.submit(["true"])


def test_a_word_that_is_not_utf8_is_told(client: Client) -> None:
    with pytest.raises(UserError, match=r"not valid UTF-8 near .*x\\udcff"):
        client.submit(["cat", os.fsdecode(b"x\xff")], environment={})


def test_a_number_that_is_none_is_told(client: Client) -> None:
    with pytest.raises(UserError, match="not finite"):
        client.submit(["true"], environment={}, priority=float("nan"))


def test_jobs_are_asked_for_by_what_is_given(client: Client, yard: StandIn) -> None:
    yard.jobs = {"1": job("1", "running"), "2": job("2", "succeeded")}
    assert [found["id"] for found in client.jobs()] == ["1"]
    assert [found["id"] for found in client.jobs(all=True, limit=5)] == ["1", "2"]
    assert yard.bodies("/jobs") == [{}, {"all": "true", "limit": "5"}]
    assert [found["id"] for found in client.history(user="ada", since="2026-01-01T00:00:00+00:00")] == ["2"]


def test_wait_returns_when_the_job_is_over(client: Client, yard: StandIn) -> None:
    yard.jobs["1"] = job("1", "running")
    threading.Timer(0.1, lambda: yard.jobs["1"].update(state="failed", exit_code=3)).start()
    assert client.wait("1")["exit_code"] == 3
    assert [body.get("for") for body in yard.bodies("/jobs/1")] == ["over"]


def test_wait_gives_up_in_time(client: Client, yard: StandIn) -> None:
    yard.jobs["1"] = job("1", "running")
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"not over after 0\.1 seconds"):
        client.wait("1", timeout=0.1)
    assert time.monotonic() - begin < 2


def test_output_comes_in_pieces_with_where_it_goes_on(client: Client, yard: StandIn) -> None:
    yard.jobs["1"] = job("1", "running", attempt=2)
    yard.logs["1"] = b"\x00\xffabc"
    assert client.log("1", size=2) == (b"\x00\xff", 2, 5, "running", 2)
    assert client.log("1", -3).data == b"abc"


def test_what_is_done_to_a_job(client: Client, yard: StandIn) -> None:
    yard.jobs["1"] = job("1")
    assert client.hold("1")["state"] == "held"
    assert client.release("1")["state"] == "queued"
    assert client.cancel("1", grace=2)["state"] == "cancelled"
    assert yard.bodies("/jobs/1/cancel") == [{"grace": 2}]


def test_the_rest_of_the_api(client: Client, yard: StandIn) -> None:
    assert client.gpus()["simulated"]
    assert client.policy()["policy"] == "priority@easy@pack"
    client.set_policy("sjf", placement="pack")
    assert yard.asked[-1] == ("PUT", "/policy", {"policy": "sjf", "discipline": None, "placement": "pack"})
    assert client.status()["version"] == "0.1.0"
    yard.answers["GET", "/events"] = 200, {"events": [], "last": 7}
    assert client.events(3, wait=1)["last"] == 7
    yard.answers["GET", "/jobs/1/explain"] = 200, {"id": "1", "reason": "Because."}
    assert client.explain("1")["reason"] == "Because."


def test_a_refusal_carries_the_daemons_sentence(client: Client, yard: StandIn) -> None:
    with pytest.raises(Refused, match="there is no job 9; gpuyard ps lists the jobs") as caught:
        client.job("9")
    assert caught.value.status == 404
    assert not isinstance(caught.value, UserError)
    yard.answers["POST", "/jobs"] = 422, {"title": "Invalid", "detail": "gpus must be 0 or more"}
    with pytest.raises(Invalid, match="0 or more"):
        client.submit(["true"], environment={}, gpus=-1)
    yard.answers["GET", "/policy"] = 502, ["no object"]
    with pytest.raises(Refused, match="answered 502"):
        client.policy()


@pytest.mark.parametrize("id", ["a/b", "x y", "ä?"])
def test_an_odd_id_stays_one_part_of_the_path(client: Client, yard: StandIn, id: str) -> None:
    with pytest.raises(Refused) as caught:
        client.job(id)
    assert caught.value.status == 404
    assert "/" not in yard.asked[-1][1].removeprefix("/jobs/")


def test_no_id_is_told(client: Client) -> None:
    with pytest.raises(UserError, match="not a job's id"):
        client.cancel("")


def test_no_daemon_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "stale").write_text("no socket")
    for path in (tmp_path / "none", tmp_path / "stale", tmp_path / "stale" / "below"):
        with pytest.raises(NoDaemon, match=r"no daemon answers at .*; start one with gpuyard up \(or gpuyard serve\)"):
            Client(path).status()


def _answer_once(directory: Path, answer: bytes) -> None:
    """Let something that may not be a daemon answer one request."""
    listening = listen(directory)

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()


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
    _answer_once(tmp_path, answer)
    with pytest.raises(GpuyardError, match=told):
        Client(data_dir=tmp_path, timeout=5).status()


def test_a_silent_daemon_is_told(tmp_path: Path) -> None:
    with listen(tmp_path), pytest.raises(NoDaemon, match=r"did not answer within 0\.05 seconds"):
        Client(tmp_path / "gpuyard.sock", timeout=0.05).status()


def test_a_socket_path_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    deep.mkdir(parents=True)
    _answer_once(deep, b"HTTP/1.0 200 OK\r\n\r\n{}")
    assert Client(deep / "gpuyard.sock", timeout=5).status() == {}
    with pytest.raises(UserError, match="the name of the socket .* is too long"):
        Client(deep / ("n" * 60)).status()


def test_the_settings_say_where_the_daemon_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Client(data_dir=tmp_path).socket == str(tmp_path / "gpuyard.sock")
    monkeypatch.setenv("GPUYARD_SOCKET", "/somewhere/s")
    assert gpuyard.Client().socket == "/somewhere/s"


def test_the_client_imports_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import gpuyard.client, gpuyard.config;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'gpuyard'}), 'http.client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[] False"
