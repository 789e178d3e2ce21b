"""Unmodified clients of watchmen against gpuyard: they queue, get the right GPUs, and notice nothing.

They sleep ten seconds after every ping, so what they do is tested side by side.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.watchmen import GIB, Box, boxed, me
from tests.yard import until

FAR = {"X_Forwarded_For": "10.1.2.3"}
"""What a proxy adds: so the process at the other end is not the one that asks."""


@pytest.fixture
def box(tmp_path: Path, fake_nvml: FakeNvml) -> Iterator[Box]:
    with boxed(tmp_path, fake_nvml, 9) as found:
        found.yard.environment["GPUYARD_QUEUE_TIMEOUT"] = "12"
        yield found


@pytest.mark.slow
def test_clients_of_watchmen(box: Box) -> None:
    box.nvml.set(2, mem_used=9 * GIB, util=97, procs={1: 9 * GIB})
    box.serve()
    c0, c1 = box.client("c0", [0]), box.client("c1", [1])
    c2 = box.client("c2", [0, 1, 3], "schedule", 2)
    first, second = box.client("first", [4]), box.client("second", [4])
    had, cancelled, follower = (box.client(id, [5]) for id in ("had", "cancelled", "follower"))
    killed, doomed, heir = (box.client(id, [6]) for id in ("killed", "doomed", "heir"))
    far, unused = _from_afar(box)

    work = box.work()
    assert list(work) == [
        "c0", "c1", "c2", "first", "second", "had", "cancelled", "follower", "killed", "doomed", "heir", "far",
        "unused",
    ]  # fmt: skip
    assert {id: work[id]["queue_num"] for id in ("c0", "c1", "c2", "first", "second", "follower")} == {
        "c0": 0, "c1": 0, "c2": 2, "first": 0, "second": 1, "follower": 2,
    }  # fmt: skip
    _check_listed(box, work)
    doomed.kill()
    ended = until(lambda: box.finished().get("doomed"), "its end being noticed")
    assert (ended["status"], ended["msg"]) == ("timeout", "given up: whoever asked for it has gone")
    assert box.ask("/client/cancel", {"id": me("cancelled")})[0] == 200
    assert "client has been cancelled" in cancelled.error()
    assert box.finished()["cancelled"]["status"] == "cancelled"

    assert (c0.gpus(), c1.gpus(), first.gpus(), had.gpus(), killed.gpus()) == ([0], [1], [4], [5], [6])
    assert box.ask("/gpus/0,3")[1] == {
        "status": "ok", "msg": False, "detail": [{"gpu": 0, "status": False}, {"gpu": 3, "status": True}],
    }  # fmt: skip
    assert box.work()["c2"]["status"] == "waiting"
    gpus = box.yard.client.gpus()["gpus"]
    assert [gpu["state"] for gpu in gpus[:4]] == ["ours", "ours", "foreign", "free"]
    _check_that_it_is_used(box, unused)
    c0.end()
    first.end()
    [job] = [job for job in box.yard.client.jobs() if job["name"] == me("had")]
    assert (job["kind"], job["pid"]) == ("lease", had.process.pid)
    assert box.yard("cancel", job["id"]).code == 0
    killed.kill()
    until(lambda: box.work()["heir"]["status"] == "ready", "the GPU of the killed one being given on")
    assert box.ask("/client/ping", {"id": me("had")})[1]["msg"] == "cancelled"
    assert (c2.gpus(), second.gpus(), follower.gpus(), heir.gpus()) == ([0, 3], [4], [5], [6])
    finished = box.finished()
    assert {id: finished[id]["status"] for id in ("c0", "first", "had", "killed")} == {
        "c0": "ok", "first": "ok", "had": "cancelled", "killed": "ok",
    }  # fmt: skip
    assert (finished["c0"]["queue_num"], finished["c0"]["available_gpus"]) == (-1, [0])
    ended = until(lambda: box.finished().get("far"), "the end of its use being noticed")
    assert (ended["status"], ended["msg"]) == ("ok", "its GPUs were used, and free for 20s")
    assert box.ask("/client/ping", {"id": far}, **FAR)[1] == {"status": "ok", "available_gpus": [7], "msg": "ok"}


def _from_afar(box: Box) -> tuple[str, str]:
    """Two clients whose processes are not known."""
    for id, gpu in (("far", 7), ("unused", 8)):
        assert box.ask("/client/register", {"id": f"x@{id}", "gpus": [gpu]}, **FAR)[0] == 200
        ping = partial(box.ask, "/client/ping", {"id": f"x@{id}"}, **FAR)
        until(lambda ping=ping: ping()[1]["msg"] == "ready", f"{id} being ready")  # type: ignore[misc]
    box.nvml.set(7, mem_used=GIB, util=50, procs={os.getpid(): GIB})  # so its GPU is used, and by it
    return "x@far", "x@unused"


def _check_that_it_is_used(box: Box, unused: str) -> None:
    """Who uses its GPU has it long after its last ping; who does not has lost it. Then it is free again."""
    ended = until(lambda: box.finished().get("unused"), "who does not use its GPU losing it")
    assert (ended["status"], ended["msg"]) == ("timeout", "its GPUs were not used within 12s")
    assert box.ask("/client/ping", {"id": unused}, **FAR)[1]["msg"] == "timeout"
    assert box.work()["far"]["status"] == "ready"
    gpu = box.yard.client.gpus()["gpus"][7]
    assert gpu["state"] == "ours", gpu
    box.nvml.set(7, mem_used=0, util=0, procs={})


def _check_listed(box: Box, work: dict[str, Any]) -> None:
    """Clients are leases, and everywhere that leases are."""
    jobs = {job["name"]: job for job in box.yard.json("ps")}
    assert jobs["x@far"]["user"] == jobs["x@unused"]["user"] == "anonymous"
    assert {me(id) for id in ("c0", "c1", "c2")} < jobs.keys()
    assert (jobs[me("c1")]["state"], jobs[me("c1")]["gpus"], jobs[me("c2")]["state"]) == ("running", [1], "queued")
    status, everything = box.ask("/api")
    assert (status, set(everything)) == (200, {"gpu", "work_queue", "finished_queue"})
    assert [client["id"] for client in everything["work_queue"]] == [client["id"] for client in work.values()]
    assert "GPU" in work["c2"]["msg"]


@pytest.mark.slow
def test_a_restart_in_between_is_not_noticed(box: Box) -> None:
    box.serve()
    holder = box.client("holder", [0])
    until(lambda: box.work()["holder"]["status"] == "ready", "the first one being ready")
    waiting = box.client("waiting", [0])
    before = box.work()
    time.sleep(1)  # by now it has pinged once, and sleeps for ten seconds
    box.yard.end(signal.SIGKILL)
    box.serve(box.port)
    after = box.work()
    assert [after[id]["status"] for id in ("holder", "waiting")] == ["ready", "waiting"]
    times = {id: client["register_time"] for id, client in before.items()}
    assert times == {id: client["register_time"] for id, client in after.items()}
    assert holder.gpus() == [0]
    holder.end()
    assert waiting.gpus() == [0]


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_wait_for_a_shell(box: Box) -> None:
    for again in (True, True, False):  # other tests may have it for a while
        try:
            until(lambda: not _listens(62333), "port 62333 being free")
        except AssertionError:
            pytest.skip("port 62333, which python -m watchmen.wait is bound to, is taken; end what listens there")
        try:
            box.serve(62333)
            break
        except AssertionError as error:  # one of them was quicker
            if not again or "Address already in use" not in str(error):
                raise
    wait = "-m watchmen.wait --task_name T --cuda 0,1 --req_gpu_num 1 --wait schedule"
    script = f"X=$({sys.executable} {wait}); echo $X; exec sleep 1000"
    with subprocess.Popen(
        ["sh", "-c", script], cwd=box.folder, env=box.yard.environment, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "0\n"
        [job] = box.yard.client.jobs()
        assert (job["state"], job["gpus"], job["pid"]) == ("running", [0], shell.pid)  # it goes on; the other has ended
        shell.kill()
    assert box.yard.wait(job["id"])["reason"] == "its process ended"
