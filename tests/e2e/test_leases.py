"""GPUs for processes that start themselves: real ones, which come, wait, end and are killed."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.yard import PATIENCE, Yard, until

import gpuyard
from gpuyard.api.types import Job

SCRIPT = """
import os, sys, gpuyard
with gpuyard.acquire({wants}) as gpus:
    print(*gpus, os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.readline()
"""
Holders = Callable[..., "Holder"]


class Holder:
    """A Python process that asks for GPUs, prints them, and has them until it is told to end."""

    def __init__(self, yard: Yard, wants: str) -> None:
        self.yard = yard
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(wants=wants)], env=yard.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.id: str = until(lambda: self._find(), f"a lease of process {self.process.pid}")["id"]

    def _find(self) -> Job | None:
        jobs = self.yard.client.jobs(all=True)
        return next((job for job in jobs if job.get("pid") == self.process.pid), None)

    @property
    def job(self) -> Job:
        return self.yard.client.job(self.id)

    def printed(self) -> list[str]:
        """What it printed: its GPUs, and what CUDA calls them. Waits for it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def end(self) -> None:
        """Let it go on to its end, as a script does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0, self.process.stderr and self.process.stderr.read()

    def kill(self) -> None:
        """End it as nobody can prevent."""
        self.process.kill()
        self.process.wait(PATIENCE)


@contextlib.contextmanager
def holders_of(yard: Yard) -> Iterator[Holders]:
    made: list[Holder] = []

    def make(wants: str) -> Holder:
        made.append(Holder(yard, wants))
        return made[-1]

    try:
        yield make
    finally:
        for holder in made:
            with holder.process:
                holder.kill()


@pytest.fixture
def holders(yard: Yard) -> Iterator[Holders]:
    with holders_of(yard) as make:
        yield make


def over(yard: Yard, id: str) -> Job:
    """A lease when it is over."""
    return yard.wait(id)


# -- seed 001's second scenario -------------------------------------------------------------------


def test_three_clients_on_four_gpus_of_which_one_is_somebody_elses(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    uuids = [f"GPU-aaaa0000-0000-0000-0000-00000000000{n}" for n in range(4)]
    for uuid in uuids:
        fake_nvml.add(name="NVIDIA A100", uuid=uuid, mem_total=16 * 2**30)
    fake_nvml.set(2, mem_used=9 * 2**30, util=97, procs={1: 9 * 2**30})
    (tmp_path / "data").mkdir()
    yard = Yard(tmp_path / "data", tmp_path)
    yard.use(fake_nvml)
    yard.serve()
    try:
        until(lambda: yard.client.gpus()["gpus"][2]["state"] == "foreign", "GPU 2 being foreign")
        with holders_of(yard) as holders:
            c0, c1 = holders("from_=[0]"), holders("from_=[1]")
            assert (c0.printed(), c1.printed()) == (["0", uuids[0]], ["1", uuids[1]])
            c2 = holders("2, from_=[0, 1, 3]")
            assert (c2.job["state"], c2.job["gpus"]) == ("queued", [])
            assert c2.job["reason"] == "needs 2 GPUs, 1 idle, 1 in use by others"
            fake_nvml.set(0, mem_used=2**30, util=50, procs={c0.process.pid: 2**30})
            child = subprocess.Popen(["sleep", "60"])  # of nobody who has a lease
            fake_nvml.set(1, mem_used=2**30, util=50, procs={child.pid: 2**30})
            until(lambda: yard.client.gpus()["gpus"][1]["state"] == "foreign", "GPU 1 being foreign")
            assert yard.client.gpus()["gpus"][0]["state"] == "ours"
            child.kill()
            child.wait()
            fake_nvml.set(1, mem_used=2**30, util=50, procs={c0.process.pid: 2**30})  # where it has no business
            until(
                lambda: f"process {c0.process.pid} " in (yard.client.gpus()["gpus"][1]["why"] or ""),
                "GPU 1 being foreign",
            )
            assert yard.client.gpus()["gpus"][1]["state"] == "foreign"
            fake_nvml.set(1, mem_used=0, util=0, procs={})
            fake_nvml.set(0, mem_used=0, util=0, procs={})
            c0.end()
            assert c2.printed() == ["0", "3", f"{uuids[0]},{uuids[3]}"]
            assert c1.job["state"] == "running"
            states = {job["id"]: (job["state"], job["gpus"]) for job in yard.client.jobs(all=True)}
            assert states == {c0.id: ("succeeded", [0]), c1.id: ("running", [1]), c2.id: ("running", [0, 3])}
    finally:
        yard.end()


# -- how leases end -------------------------------------------------------------------------------


def test_a_killed_holder_leaves_its_gpus_and_a_killed_waiter_its_place(yard: Yard, holders: Holders) -> None:
    first, second, third = holders("4"), holders("4"), holders("1")
    first.printed()
    assert [second.job["state"], third.job["state"]] == ["queued", "queued"]
    second.kill()
    given_up = over(yard, second.id)
    assert (given_up["state"], given_up["gpus"], given_up["started_at"]) == ("cancelled", [], None)
    assert "given up: whoever asked for it has gone" in (given_up["reason"] or "")
    first.kill()
    ended = over(yard, first.id)
    assert (ended["state"], ended["exit_code"], ended["reason"]) == ("succeeded", 0, "its process ended")
    assert third.printed() == ["0", "0"]


def test_leases_are_shown_and_ended_like_jobs(yard: Yard, holders: Holders) -> None:
    first = holders("4, name='mine', tags=['a'], priority=2")
    first.printed()
    waiting = holders("2")
    shown = yard.json("ps")[0]
    assert (shown["id"], shown["kind"], shown["pid"]) == (first.id, "lease", first.process.pid)
    assert (shown["name"], shown["tags"], shown["priority"], shown["command"]) == ("mine", ["a"], 2, [])
    assert f"a lease, held by process {first.process.pid}" in yard("ps").out
    assert [gpu["jobs"] for gpu in yard.json("gpus")] == [[first.id]] * 4
    assert yard("logs", first.id).code == 1
    assert f"job {first.id} is a lease" in yard("logs", first.id).err
    [blocker] = yard.client.explain(waiting.id)["must_end_first"]
    assert (blocker["id"], blocker["name"]) == (first.id, "mine")
    assert yard("hold", waiting.id).code == 0
    cancelled = yard("cancel", first.id)
    assert f"the lease ends; process {first.process.pid} is left alone" in cancelled.err
    assert over(yard, first.id)["state"] == "cancelled"
    assert first.process.poll() is None
    assert waiting.job["state"] == "held"
    assert yard("release", waiting.id).code == 0
    assert waiting.printed()[:2] == ["0", "1"]
    first.end()  # giving back what is over already is no mistake


def test_a_time_limit_ends_the_lease_and_leaves_the_process_alone(yard: Yard, holders: Holders) -> None:
    holder = holders("1, time_limit=0.2")
    assert over(yard, holder.id)["state"] == "timeout"
    assert holder.process.poll() is None


def test_shares_of_a_gpu_are_counted_with_those_of_jobs(yard: Yard, holders: Holders) -> None:
    job = yard.submit("--gpu-memory", "9G", "--from", "3", "--", "sleep", "1000")
    yard.client.job(job, wait=30, until="start")
    small, large = holders("1, from_=[3], memory='6G'"), holders("1, from_=[3], memory=7 * 2**30")
    assert small.printed() == ["3", "3"]
    assert large.job["state"] == "queued"
    yard.client.cancel(job, grace=0)
    assert large.printed() == ["3", "3"]


# -- restarts -------------------------------------------------------------------------------------


def test_leases_outlive_the_daemon(own_yard: Yard) -> None:
    own_yard.serve()
    with holders_of(own_yard) as holders:
        held, gone = holders("3"), holders("1")
        assert (held.printed(), gone.printed()) == (["0", "1", "2", "0,1,2"], ["3", "3"])
        waiting = [holders("4"), holders("1, from_=[3]"), holders("2")]
        given_up = holders("3")
        own_yard.end(signal.SIGKILL)
        gone.kill()
        given_up.kill()
        own_yard.serve()
        assert over(own_yard, gone.id)["reason"] == "its process ended"
        assert over(own_yard, given_up.id)["state"] == "cancelled"
        assert (held.job["state"], held.job["gpus"]) == ("running", [0, 1, 2])
        assert [job["id"] for job in own_yard.client.jobs(state="queued")] == [holder.id for holder in waiting]
        own_yard.end(signal.SIGKILL)
        own_yard.serve()
        assert [holder.job["state"] for holder in (held, *waiting)] == ["running"] + 3 * ["queued"]
        held.end()
        assert waiting[0].printed()[:4] == ["0", "1", "2", "3"]
        waiting[0].end()
        assert waiting[1].printed()[:1] == ["3"]
        assert waiting[2].printed()[:2] == ["0", "1"]


# -- Python ---------------------------------------------------------------------------------------


@pytest.fixture
def here(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Yard:
    """The shared yard, which also this process talks to."""
    monkeypatch.setenv("GPUYARD_DATA_DIR", str(yard.data_dir))
    monkeypatch.setenv("GPUYARD_CONFIG", yard.environment["GPUYARD_CONFIG"])
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    return yard


def test_a_lease_is_a_list_of_gpus_and_a_block_an_environment(here: Yard) -> None:
    with gpuyard.acquire(gpus=2, from_=[1, 3]) as gpus:
        assert (gpus, list(gpus), len(gpus), gpus[1], 3 in gpus) == ([1, 3], [1, 3], 2, 3, True)
        assert gpus.uuids == ("SIMULATED-1", "SIMULATED-3")
        assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")
        with gpuyard.acquire() as inner:
            assert (inner.indices, os.environ["CUDA_VISIBLE_DEVICES"]) == ((0,), "0")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    assert "CUDA_DEVICE_ORDER" not in os.environ
    assert here.client.job(gpus.id)["reason"] == "given back"
    assert here.client.jobs() == []
    lease = gpuyard.wait_for_gpus(from_=[2, 3])
    assert (lease, os.environ["CUDA_VISIBLE_DEVICES"]) == ([2, 3], "2,3")
    if (child := os.fork()) == 0:  # a copy of this process does not give back what is not its own
        lease.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert here.client.job(lease.id)["state"] == "running"
    lease.release()
    lease.release()
    assert here.client.job(lease.id)["state"] == "succeeded"


def test_what_cannot_be_had_is_told(here: Yard) -> None:
    said: list[str] = []
    with gpuyard.acquire(4):
        with pytest.raises(
            TimeoutError, match=r"no GPUs within 0.1s \(needs 1 GPU, 0 idle\); the request was given up"
        ):
            gpuyard.acquire(timeout=0.1, say=said.append)
        with pytest.raises(TimeoutError):
            gpuyard.acquire(timeout=0)
        waiter = threading.Thread(target=lambda: said.append(_error(gpuyard.acquire)))
        waiter.start()
        [waiting] = until(lambda: here.client.jobs(state="queued"))
        here("cancel", waiting["id"])
        waiter.join(PATIENCE)
        assert f"LeaseCancelled lease {waiting['id']} was cancelled: cancelled while it waited by" in said[-1]
    mistakes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"gpus": 5}, "this lease can never begin here: it wants 5 GPUs, this machine has 4"),
        ({"from_": [9]}, "wants GPU 9"),
        ({"from_": []}, "from: names no GPU"),
        ({"memory": "17G"}, "wants 17G"),
        ({"memory": "lots"}, "'lots' is not a size"),
        ({"timeout": -1}, "a timeout must be 0 or more"),
        ({"gpus": 0}, "gpus"),
    )
    for wants, told in mistakes:
        assert told in _error(functools.partial(gpuyard.acquire, **wants))
    assert here.client.jobs() == []


def _error(call: Callable[[], Any]) -> str:
    try:
        call()
    except gpuyard.GpuyardError as error:
        return f"{type(error).__name__} {error}"
    return "no error"


def test_within_a_job_the_gpus_are_the_jobs_own(yard: Yard) -> None:
    code = "import gpuyard; print(list(gpuyard.wait_for_gpus(1)), gpuyard.acquire(2).environment)"
    job = yard.submit("--gpus", "2", "--from", "1,2", "--", sys.executable, "-c", code)
    assert yard.wait(job)["state"] == "succeeded", yard.client.log(job).data
    assert yard.client.log(job).data.startswith(b"[1, 2] {'CUDA_VISIBLE_DEVICES': '1,2'")
    more = yard.submit("--", sys.executable, "-c", "import gpuyard; gpuyard.acquire(2)")
    assert yard.wait(more)["exit_code"] == 1
    assert b"which has GPUs [" in yard.client.log(more).data


def test_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_DATA_DIR", str(tmp_path))
    assert "start one with gpuyard up" in _error(gpuyard.acquire)


def test_two_hundred_leases_at_once_and_never_two_on_a_gpu(here: Yard) -> None:
    taken, clashes, had = [0] * 4, [], []
    lock = threading.Lock()

    def use(number: int) -> None:
        with gpuyard.acquire(1 + number % 3, say=lambda message: None, client=here.client) as gpus:
            with lock:
                had.append(gpus.id)
                for gpu in gpus:
                    taken[gpu] += 1
                    clashes.extend([gpu] * (taken[gpu] > 1))
            with lock:
                for gpu in gpus:
                    taken[gpu] -= 1

    def use_many(first: int) -> None:
        for number in range(first, 200, 20):
            use(number)

    workers = [threading.Thread(target=use_many, args=(first,)) for first in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(2 * PATIENCE)
    assert (clashes, len(had), len(set(had)), taken) == ([], 200, 200, [0] * 4)
    assert here.client.jobs() == []
