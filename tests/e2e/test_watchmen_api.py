"""watchmen's requests one by one: what they answer, right and wrong, and who may send them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.watchmen import GIB, Box, boxed, me
from tests.web import ask
from tests.yard import until

FAR = {"X_Forwarded_For": "10.1.2.3"}


@contextmanager
def four_gpus(library: Path, folder: Path) -> Iterator[Box]:
    """Four GPUs, of which somebody else uses the third."""
    with boxed(folder, FakeNvml(library, folder), 4) as found:
        found.nvml.set(2, mem_used=9 * GIB, util=97, procs={1: 9 * GIB})
        found.serve()
        yield found


@pytest.fixture(scope="module")
def one_box(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with four_gpus(nvml_library, tmp_path_factory.mktemp("box")) as found:
        yield found


@pytest.fixture
def new_box(nvml_library: Path, tmp_path: Path) -> Iterator[Box]:
    """One that nobody has used."""
    with four_gpus(nvml_library, tmp_path) as found:
        yield found


@pytest.fixture
def box(one_box: Box) -> Iterator[Box]:
    yield one_box
    one_box.yard.clear()


def register(box: Box, id: str, gpus: Any, mode: Any = "queue", number: Any = 0, **headers: str) -> tuple[int, Any]:
    return box.ask("/client/register", {"id": id, "gpus": gpus, "mode": mode, "req_gpu_num": number}, **headers)


REAL = """
import json
from watchmen import server
client = server.app.test_client()
client.post("/client/register", json={"id": "u@a", "gpus": [0], "mode": "queue", "req_gpu_num": 0})
server.check_work(300)
client.post("/client/register", json={"id": "u@b", "gpus": [2], "mode": "schedule", "req_gpu_num": 1})
server.check_work(300)
client.post("/client/register", json={"id": "u@c", "gpus": [0], "mode": "queue", "req_gpu_num": 0})
client.post("/client/cancel", json={"id": "u@c"})
paths = ("/api", "/show/work", "/show/finished", "/show/gpus", "/gpu/1", "/gpu/2")
answers = {path: client.get(path).json for path in paths}
answers["ping"] = client.post("/client/ping", json={"id": "u@a"}).json
answers["waiting"] = client.post("/client/ping", json={"id": "u@b"}).json
answers["finished"] = client.post("/client/ping", json={"id": "u@c"}).json
print(json.dumps(answers))
"""
"""What watchmen's own server answers to the same requests on the same GPUs."""


def test_answers_have_the_shape_that_watchmens_server_gives_them(new_box: Box) -> None:
    box = new_box
    done = subprocess.run(
        [sys.executable, "-c", REAL], env=box.nvml.env, cwd=box.folder, capture_output=True, text=True, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    for id, gpus, mode, number in (("u@a", [0], "queue", 0), ("u@b", [2], "schedule", 1), ("u@c", [0], "queue", 0)):
        assert register(box, id, gpus, mode, number) == (200, {"status": "ok", "msg": ""})
    assert box.ask("/client/cancel", {"id": "u@c"})[1]["status"] == "ok"
    ours = {path: box.ask(path)[1] for path in theirs if path.startswith("/")}
    for name, id in (("ping", "u@a"), ("waiting", "u@b"), ("finished", "u@c")):
        ours[name] = box.ask("/client/ping", {"id": id})[1]
    for name in ("ping", "waiting", "finished", "/gpu/1", "/gpu/2"):
        assert ours[name] == theirs[name], name
    for name in ("/show/work", "/show/finished"):
        assert ours[name]["status"] == theirs[name]["status"] == "ok"
        _check_clients(ours[name]["msg"], theirs[name]["msg"])
    _check_gpus(ours["/show/gpus"]["msg"], theirs["/show/gpus"]["msg"])
    assert ours["/api"].keys() == theirs["/api"].keys()
    _check_clients(ours["/api"]["work_queue"], theirs["/api"]["work_queue"])
    _check_gpus(ours["/api"]["gpu"], theirs["/api"]["gpu"])


def _check_clients(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [client["id"] for client in ours] == [client["id"] for client in theirs]
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.keys() == their.keys()
        same = mine.keys() - {"register_time", "last_request_time", "msg", "queue_num"}
        assert {name: mine[name] for name in same} == {name: their[name] for name in same}
        for name in ("register_time", "last_request_time"):
            there, here = (parsedate_to_datetime(client[name]).timestamp() for client in (their, mine))
            assert abs(here - time.time()) < 600
            assert len(mine[name]) == len(their[name])
            assert there


def _check_gpus(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    assert (ours["hostname"], ours["driver_version"]) == (theirs["hostname"], theirs["driver_version"])
    assert len(ours["query_time"]) == len(theirs["query_time"])
    unknown = {"fan.speed", "utilization.enc", "utilization.dec", "enforced.power.limit"}
    for mine, their in zip(ours["gpus"], theirs["gpus"], strict=True):
        assert mine.keys() == their.keys()
        same = mine.keys() - unknown - {"processes"}
        assert {name: mine[name] for name in same} == {name: their[name] for name in same}
        for one, other in zip(mine["processes"], their["processes"], strict=True):
            assert one.keys() == other.keys()
            told = ("pid", "username", "gpu_memory_usage")
            assert [one[name] for name in told] == [other[name] for name in told]
            assert len(one["full_command"]) == 1  # arguments may hold secrets


def test_bad_requests_are_refused_with_a_reason(box: Box) -> None:
    for gpus, mode, number, status, said in (
        ([], "queue", 0, 422, "gpus must not be empty"),
        (None, "queue", 0, 422, "gpus must not be empty"),
        ([4], "queue", 0, 422, "check the gpus existence: there is no GPU 4; they are called 0 to 3"),
        ([-1], "queue", 0, 422, "there is no GPU -1"),
        ([0, 0], "queue", 0, 422, "twice"),
        ([0], "Queue", 0, 422, "mode Queue is not supported"),
        ([0], None, 0, 422, "mode None is not supported"),
        ([0], "schedule", 0, 422, "`req_gpu_num` is not valid: it must be from 1 to 1"),
        ([0], "schedule", -1, 422, "`req_gpu_num` is not valid"),
        ([0], "schedule", 3, 422, "`req_gpu_num` is not valid"),
        (["0"], "queue", 0, 422, "gpus.0: must be a whole number, as in 2, not"),
        ([True], "queue", 0, 422, "gpus.0"),
        ([1.5], "queue", 0, 422, "gpus.0"),
        ([10**30], "queue", 0, 422, "there is no GPU 1000000"),
        ([0], "queue", 10**30, 422, "req_gpu_num: must be a number of at most"),
        ("0", "queue", 0, 422, "gpus: must be a list"),
        ([0], "schedule", "1", 422, "req_gpu_num"),
    ):
        found, answer = register(box, "u@x", gpus, mode, number)
        assert (found, answer["status"], said in answer["msg"]) == (status, "err", True), (gpus, mode, number, answer)
    for body in ("", "{", "[]", "null", "3", '{"id": 3}', '{"id": ""}', '{"id": "a\\u0000b"}', '{"id": "\\ud800"}',
                 json.dumps({"id": "x" * 201}), "[" * 100_000, '{"gpus": [0]}'):  # fmt: skip
        for path in ("/client/register", "/client/ping", "/client/cancel"):
            found, answer = box.ask(path, body)
            assert (found, answer["status"], bool(answer["msg"])) == (422, "err", True), (path, body[:50], answer)
    for path in ("/client/ping", "/client/cancel"):
        found, answer = box.ask(path, {"id": "u@nobody"})
        assert (found, answer["status"]) == (404, "err"), answer
        assert "client not registered or has been cancelled" in answer["msg"]
    for path, status in (
        ("/gpu/4", 404), ("/gpu/-1", 404), ("/gpu/x", 404), ("/gpu/" + "9" * 5000, 404), ("/gpu/%C2%B2", 404),
        ("/gpus/0,9", 404), ("/gpus/0,x", 404), ("/gpus/,", 404), ("/gpus/", 404), ("/show/else", 404),
    ):  # fmt: skip
        found, answer = box.ask(path)
        assert (found, answer["status"], bool(answer["msg"])) == (status, "err", True), (path, answer)
    assert box.ask("/client/ping", method="GET")[0] == 405
    assert not box.work()


def test_whether_gpus_are_free(box: Box) -> None:
    register(box, "u@a", [0])
    until(lambda: box.ask("/client/ping", {"id": "u@a"})[1]["msg"] == "ready", "it being ready")
    assert [box.ask(f"/gpu/{gpu}")[1]["msg"] for gpu in range(4)] == [False, True, False, True]
    assert box.ask("/gpus/3,1")[1] == {
        "status": "ok", "msg": True, "detail": [{"gpu": 1, "status": True}, {"gpu": 3, "status": True}],
    }  # fmt: skip
    answer = box.ask("/gpus/1,2")[1]
    assert (answer["msg"], answer["detail"][1]) == (False, {"gpu": 2, "status": False})


def test_an_id_is_taken_while_its_client_is_open(box: Box) -> None:
    odd = "u@<img src=x onerror=alert(1)>'\"&\u00e9"
    assert register(box, odd, [0])[0] == 200
    assert [client["id"] for client in box.ask("/show/work")[1]["msg"]] == [odd]
    status, answer = register(box, odd, [1])
    assert (status, answer["status"]) == (409, "err")
    assert f"client_id: {odd} has been registered!" in answer["msg"]
    job = box.yard.submit("--hold", "--name", "u@job", "--", "true")
    assert box.ask("/client/cancel", {"id": "u@job"})[0] == 404  # a job is no client, whatever its name
    box.yard.client.cancel(job)
    assert box.ask("/client/cancel", {"id": odd})[1]["msg"] == f"Client {odd} cancelled successfully"
    until(lambda: odd.partition("@")[2] in box.finished(), "its end")
    status, answer = box.ask("/client/cancel", {"id": odd})
    assert (status, "has finished (cancelled)" in answer["msg"]) == (409, True)
    assert register(box, odd, [1])[0] == 200  # and then it can be used again
    assert until(lambda: box.ask("/client/ping", {"id": odd})[1]["available_gpus"], "its GPU") == [1]


def test_the_audit_trail_tells_which_lease_a_client_is(box: Box) -> None:
    assert register(box, "audited", [0])[0] == 200
    [job] = [job["id"] for job in box.yard.client.jobs() if job["name"] == "audited"]
    assert box.ask("/client/cancel", {"id": "audited"})[0] == 200
    entries = box.yard.client.audit(limit=2)
    assert [(entry["path"], entry["job"]) for entry in entries] == [("/client/cancel", job), ("/client/register", job)]


def test_a_client_is_its_owners(box: Box) -> None:
    assert register(box, "u@mine", [0])[0] == 200
    assert register(box, "x@nobodys", [1], **FAR)[0] == 200
    for path in ("/client/ping", "/client/cancel"):
        status, answer = box.ask(path, {"id": "u@mine"}, **FAR)
        assert (status, answer["status"]) == (403, "err")
        assert f"client u@mine, since the job is {me('').removesuffix('@')}'s" in answer["msg"]
    assert box.ask("/client/ping", {"id": "x@nobodys"}, **FAR)[0] == 200  # anybody whom nobody knows
    assert box.ask("/client/cancel", {"id": "x@nobodys"}, **FAR)[0] == 200
    assert box.ask("/client/cancel", {"id": "u@mine"})[0] == 200


def test_who_only_waits_is_given_up_when_nothing_is_heard_of_it(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    with boxed(tmp_path, fake_nvml, 1) as box:
        box.yard.environment["GPUYARD_QUEUE_TIMEOUT"] = "2"
        box.serve()
        busy = box.yard.submit("--", "sleep", "60")
        for id in ("x@silent", "x@alive"):
            assert register(box, id, [0], **FAR)[0] == 200
        end = time.monotonic() + 4
        while time.monotonic() < end:
            assert box.ask("/client/ping", {"id": "x@alive"}, **FAR)[1]["msg"] == "waiting"
            time.sleep(0.2)
        assert box.finished()["silent"]["msg"] == "given up: no sign of life for 2s"
        assert box.ask("/client/ping", {"id": "x@silent"}, **FAR)[1]["msg"] == "timeout"
        box.yard.client.cancel(busy, grace=0)
        until(lambda: box.ask("/client/ping", {"id": "x@alive"}, **FAR)[1]["msg"] == "ready", "its turn")


def test_with_a_token(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    with boxed(tmp_path, fake_nvml, 1) as box:
        box.token = "required"
        box.serve()
        for path in ("/show/work", "/api", "/gpu/0"):
            status, answer = box.ask(path)
            assert (status, answer["status"], bool(answer["msg"])) == (401, "err", True)
        assert register(box, "u@x", [0])[0] == 401
        done = box.yard("token", "create", "--json")
        assert done.code == 0, done
        token = json.loads(done.out)["token"]
        assert box.ask("/show/work", X_Auth_Token=token)[0] == 200
        assert box.ask(f"/show/work?token={token}")[0] == 200
        assert box.ask("/show/work", Authorization=f"Bearer {token}")[0] == 200
        for wrong in ({}, {"X_Auth_Token": token + "x"}):
            status, refused = box.ask("/show/work", **wrong)
            assert status == 401
            assert "give it as token= of WatchClient, --token of watchmen.wait, or the header X-Auth" in refused["msg"]
        assert box.ask("/show/work", Cookie=_session(box, token))[0] == 200
        client = box.client("u", [0], token=token)
        assert client.gpus() == [0]
        [job] = box.yard.client.jobs()
        assert job["pid"] == client.process.pid  # the same user's, so its process is known
        client.end()
        assert token not in (box.yard.data_dir / "daemon.log").read_text()


def _session(box: Box, token: str) -> str:
    """Log in as watchmen's page does."""
    wrong = ask(f"http://127.0.0.1:{box.port}", "POST", "/auth", {"token": "wrong"})
    assert (wrong.status, wrong.json["status"]) == (401, "err")
    answer = ask(f"http://127.0.0.1:{box.port}", "POST", "/auth", {"token": token})
    assert (answer.status, answer.json["status"]) == (200, "ok")
    return answer.headers["set-cookie"].partition(";")[0]
