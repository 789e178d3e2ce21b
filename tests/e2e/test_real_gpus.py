"""The daemon on GPUs that NVML tells of: a made-up driver, but the real calls, and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.yard import Yard, until

import gpuyard

GIB = 2**30
UUIDS = [f"GPU-aaaa0000-0000-0000-0000-00000000000{n}" for n in range(3)]


@pytest.fixture
def nvml(fake_nvml: FakeNvml) -> FakeNvml:
    """Three GPUs that nobody uses."""
    for uuid in UUIDS:
        fake_nvml.add(name="NVIDIA A100", uuid=uuid, mem_total=16 * GIB)
    return fake_nvml


@pytest.fixture
def yard(nvml: FakeNvml, tmp_path: Path) -> Iterator[Yard]:
    """A yard on these GPUs."""
    (tmp_path / "data").mkdir()
    found = Yard(tmp_path / "data", tmp_path)
    found.use(nvml)
    found.serve()
    yield found
    found.clear()
    found.end()


def gpu(yard: Yard, index: int) -> Any:
    return yard.client.gpus()["gpus"][index]


def await_state(yard: Yard, index: int, state: str) -> Any:
    return until(lambda: (found := gpu(yard, index))["state"] == state and found, f"GPU {index} being {state}")


def test_a_job_gets_its_gpus_by_uuid_in_the_order_of_the_bus(yard: Yard) -> None:
    job = yard.submit("--gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GPUYARD_GPUS")
    assert yard.wait(job)["exit_code"] == 0
    assert yard.client.log(job).data.decode().split() == [",".join(UUIDS[:2]), "PCI_BUS_ID", "0,1"]
    listed = yard.json("gpus")
    assert [found["uuid"] for found in listed] == UUIDS
    assert {found["memory_total"] for found in listed} == {16 * GIB}
    assert "simulated" not in yard("gpus").out


def test_nothing_is_started_where_somebody_else_computes(yard: Yard, nvml: FakeNvml) -> None:
    nvml.set(1, mem_used=9 * GIB, util=97, procs={1: 9 * GIB})
    found = await_state(yard, 1, "foreign")
    assert "process 1 " in found["why"]
    held = yard.submit("--gpus", "3", "--", "true")
    assert "in use by others" in yard("explain", held).out
    yard.client.cancel(held)
    busy = [yard.submit("--", "sleep", "60") for _ in range(2)]
    third = yard.submit("--", "true")
    assert [gpus for job in busy for gpus in yard.client.job(job, wait=5, until="start")["gpus"]] == [0, 2]
    assert yard.client.job(third)["state"] == "queued"
    nvml.set(1, mem_used=0, util=0, procs={})
    assert yard.wait(third)["gpus"] == [1]  # free again
    assert gpu(yard, 1)["state"] == "free"


def test_a_process_of_ours_is_not_foreign(yard: Yard, nvml: FakeNvml) -> None:
    job = yard.submit("--", "sh", "-c", "echo $$; exec sleep 60")
    yard.await_output(job, b"\n")
    pid = int(yard.client.log(job).data)
    nvml.set(0, mem_used=GIB, util=50, procs={pid: GIB})
    found = await_state(yard, 0, "ours")
    assert found["jobs"] == [job]
    nvml.set(0, procs={pid: GIB, os.getpid(): GIB})  # and one that is not
    assert "process" in await_state(yard, 0, "foreign")["why"]
    assert yard.client.job(job)["state"] == "running"


def test_a_lost_gpu_is_unknown_and_its_job_goes_on(yard: Yard, nvml: FakeNvml) -> None:
    job = yard.submit("--from", "2", "--", "sleep", "60")
    yard.client.job(job, wait=10, until="start")
    nvml.set(2, lost=1)
    assert "lost" in await_state(yard, 2, "unknown")["why"].lower()
    assert yard.client.job(job)["state"] == "running"
    waiting = yard.submit("--from", "2", "--", "true")
    yard.client.cancel(job, grace=0)
    yard.wait(job)
    assert "not answering" in (yard.client.job(waiting)["reason"] or "")
    nvml.unset(2, "lost")
    assert yard.wait(waiting)["state"] == "succeeded"


def test_a_driver_that_goes_away_stops_all_starts(yard: Yard, nvml: FakeNvml) -> None:
    nvml.driver(loaded=0)
    for index in range(3):
        await_state(yard, index, "unknown")
    job = yard.submit("--", "true")
    assert "3 not answering" in (yard.client.job(job)["reason"] or "")
    nvml.driver(loaded=1)
    assert yard.wait(job)["state"] == "succeeded"


def test_a_restart_finds_gpus_and_jobs_again(yard: Yard, nvml: FakeNvml) -> None:
    nvml.set(0, procs={1: GIB})
    await_state(yard, 0, "foreign")
    job = yard.submit("--", "sh", "-c", "sleep 2; exit 7")
    yard.client.job(job, wait=10, until="start")
    yard.end(signal.SIGKILL)
    yard.serve()
    assert await_state(yard, 0, "foreign")
    assert yard.wait(job)["exit_code"] == 7


def test_no_gpus_at_all(tmp_path: Path, fake_nvml: FakeNvml) -> None:
    fake_nvml.driver(loaded=0)
    done = subprocess.run(
        [sys.executable, "-m", "gpuyard", "serve", "--data-dir", tmp_path / "data"],
        env=fake_nvml.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "--simulate-gpus 4x16G" in done.stderr
    assert "Traceback" not in done.stderr


def test_processes_are_told_and_whose_they_are(yard: Yard, nvml: FakeNvml) -> None:
    job = yard.submit("--from", "1", "--", "sh", "-c", "echo $$; exec sleep 60")
    yard.await_output(job, b"\n")
    pid = int(yard.client.log(job).data)
    nvml.set(1, mem_used=3 * GIB, util=50, procs={pid: GIB, os.getpid(): 2 * GIB, 2**22 + 1: 0})
    found = await_state(yard, 1, "foreign")["processes"]
    foreign, ours, gone = found  # the largest first
    user = yard.client.job(job)["user"]
    assert ours == {"pid": pid, "user": user, "name": "sleep", "memory": GIB, "job": job, "graphics": False}
    assert (foreign["pid"], foreign["job"], foreign["memory"]) == (os.getpid(), None, 2 * GIB)
    assert foreign["name"] == Path("/proc/self/comm").read_text().strip()  # never its arguments
    assert gone == {"pid": 2**22 + 1, "user": None, "name": None, "memory": 0, "job": None, "graphics": False}
    assert f"process {os.getpid()} " in yard("gpus").out


def test_samples_follow_what_the_driver_says(yard: Yard, nvml: FakeNvml) -> None:
    nvml.set(0, mem_used=2 * GIB, util=37, temp=51, power_mw=123400)
    after = yard.client.samples()["at"][-1]

    def seen() -> Any:
        nonlocal after
        found = yard.client.samples(after=after, wait=10, gpus=[0, 2])
        after = found["at"][-1]
        return [(one["utilization"][-1], one["memory_used"][-1]) for one in found["gpus"]]

    until(lambda: seen() == [(37, 2 * GIB), (0, 0)], "a sample of a busy GPU")
    assert (gpu(yard, 0)["temperature"], gpu(yard, 0)["power"]) == (51, 123.4)
    nvml.set(2, lost=1)
    until(lambda: seen() == [(37, 2 * GIB), (None, None)], "a sample of a lost GPU")
    assert gpu(yard, 2)["state"] == "unknown"  # whoever sees the sample sees that, too
    nvml.unset(2, "lost")
    until(lambda: seen() == [(37, 2 * GIB), (0, 0)], "a sample of a GPU that is back")


_TREE = "sh -c 'sleep 60 & echo $!; wait' & echo $!; wait"  # a wrapper, a program in it, and a worker of that


def measured(yard: Yard, job: str) -> Any:
    return yard.client.job(job)["measured"] or {}


def test_all_processes_of_a_job_are_measured(yard: Yard, nvml: FakeNvml) -> None:
    job = yard.submit("--gpu-memory", "6G", "--from", "1", "--", "sh", "-c", _TREE)
    until(lambda: yard.client.log(job).data.count(b"\n") == 2, "both telling who they are")
    program, worker = map(int, yard.client.log(job).data.split())
    nvml.set(1, mem_used=7 * GIB, util=60, procs={program: 3 * GIB, worker: 2 * GIB})
    until(lambda: measured(yard, job).get("current") == 5 * GIB, "all of it being seen")
    nvml.set(1, mem_used=2 * GIB, procs={program: GIB})
    until(lambda: measured(yard, job)["current"] == GIB, "less of it being seen")
    assert 0 < measured(yard, job)["period"] < 1  # it shares a GPU, so that is looked at often
    yard.client.cancel(job, grace=0)
    nvml.unset(1, "procs", "mem_used")
    end = yard.wait(job)["measured"]
    assert end is not None
    assert (end["peak"], end["alone"], end["utilization"] is not None) == (5 * GIB, True, True)
    assert end["mean"] is not None
    assert 0 < end["mean"] < 5 * GIB


def test_memory_that_the_driver_does_not_tell_is_not_nothing(yard: Yard, nvml: FakeNvml) -> None:
    job = yard.submit("--from", "2", "--", "sh", "-c", "echo $$; exec sleep 60")
    yard.await_output(job, b"\n")
    pid = int(yard.client.log(job).data)
    nvml.set(2, mem_used=GIB, util=50, fail="nvmlDeviceGetProcessUtilization:3", procs={pid: GIB})
    until(lambda: measured(yard, job).get("peak") == GIB, "its use being seen")
    nvml.set(2, procs={pid: None})
    looks = [yard.client.samples(after=yard.client.samples()["at"][-1], wait=20) for _ in range(2)]
    before = measured(yard, job)
    looks += [yard.client.samples(after=yard.client.samples()["at"][-1], wait=20) for _ in range(2)]
    assert all(look["at"] for look in looks)
    after = measured(yard, job)
    assert (after["samples"], after["mean"], after["peak"]) == (before["samples"], before["mean"], GIB)
    assert after["utilization"] > 0  # of the GPU, since it is alone there


def test_a_lease_is_measured(yard: Yard, nvml: FakeNvml) -> None:
    with gpuyard.acquire(1, from_=[0], say=lambda message: None, client=yard.client):
        nvml.set(0, mem_used=2 * GIB, procs={os.getpid(): 2 * GIB})
        [lease] = yard.client.jobs()
        until(lambda: measured(yard, lease["id"]).get("peak") == 2 * GIB, "its use being seen")
        nvml.unset(0, "mem_used", "procs")
    yard.wait(lease["id"])
    assert measured(yard, lease["id"])["peak"] == 2 * GIB


def test_what_is_said_of_simulated_gpus_is_ignored_with_a_warning(yard: Yard) -> None:
    done = yard("submit", "--simulate-use", "2G", "--", "true")
    assert (done.code, "warning: --simulate-use is for simulated GPUs" in done.err) == (0, True)
    job = yard.wait(done.out.strip())
    assert (job["state"], job["simulate_use"]) == ("succeeded", None)
    assert yard("submit", "--simulate-use", "lots", "--", "true").code == 2


def pid_of(yard: Yard, job: str) -> int:
    yard.await_output(job, b"\n")
    return int(yard.client.log(job).data.split()[0])


def test_who_takes_more_of_a_gpu_than_it_was_promised_is_stopped_and_its_neighbour_is_not(
    yard: Yard, nvml: FakeNvml
) -> None:
    telling = ("--from", "0", "--gpu-memory", "5G", "--", "sh", "-c", "echo $$; exec sleep 60")
    honest, liar = yard.submit(*telling), yard.submit(*telling)
    kept, taken = pid_of(yard, honest), pid_of(yard, liar)
    nvml.set(0, mem_used=11 * GIB, util=50, procs={kept: 5 * GIB, taken: 6 * GIB})
    until(lambda: yard.client.job(liar)["reason"] == "uses 6G of GPU 0, but 5G were promised", "a warning")
    nvml.set(0, mem_used=int(15.9 * GIB), procs={kept: 5 * GIB, taken: int(10.9 * GIB)})
    until(lambda: yard.client.job(liar)["ooms"], "the liar being stopped")
    nvml.set(0, mem_used=5 * GIB, procs={kept: 5 * GIB})
    again = yard.client.job(liar)
    assert (again["gpu_memory"], again["gpu_memory_asked"], measured(yard, liar)["peak"]) == (
        13.625 * GIB, 5 * GIB, int(10.9 * GIB),
    )  # fmt: skip
    assert "was stopped for using more GPU memory than promised" in (again["reason"] or "")
    assert (yard.client.job(honest)["state"], yard.client.job(honest)["attempt"]) == ("running", 1)


def test_who_kept_its_word_and_died_on_a_full_gpu_gets_the_same_again(yard: Yard, nvml: FakeNvml) -> None:
    said = "CUDA out of memory. Tried to allocate 512.00 MiB. This process has 4.00 GiB memory in use"
    script = (
        f'[ $GPUYARD_ATTEMPT = 1 ] || exit 0; echo $$; until [ -e full ]; do sleep 0.05; done; echo "{said}"; exit 1'
    )
    job = yard.submit("--from", "0", "--gpu-memory", "5G", "--", "sh", "-c", script)
    nvml.set(0, mem_used=16 * GIB, util=50, procs={pid_of(yard, job): 4 * GIB})
    until(lambda: gpu(yard, 0)["memory_used"] == 16 * GIB, "a look at the full GPU")
    (yard.cwd / "full").touch()
    until(lambda: yard.client.job(job)["state"] != "running", "its end")
    nvml.set(0, mem_used=0, util=0, procs={})
    ended = yard.wait(job)
    assert (ended["state"], ended["attempt"], ended["ooms"], ended["gpu_memory"]) == ("succeeded", 2, 0, 5 * GIB)
    (waits,) = [event for event in yard.client.events(job=job)["events"] if event["kind"] == "Requeued"]
    told = "ran out of GPU memory, though it kept to the 5G that were promised; retried as it was"
    assert waits["message"] == told


def test_a_gpu_on_loan_may_be_used_by_its_borrower_and_by_nobody_else(yard: Yard, nvml: FakeNvml) -> None:
    job = yard.submit("--adaptive", "--grace", "1s", "--", "sh", "-c", "echo $$; exec sleep 60")
    yard.await_output(job, b"\n")
    pid = int(yard.client.log(job).data)
    yard.client.report(job, gain_per_second=1e-4)
    [lent] = until(lambda: yard.client.job(job)["granted"], "a loan")
    assert lent == 2
    [up] = yard.client.grant(job)["events"]
    assert (up["gpus"], up["indices"]) == ([UUIDS[0], UUIDS[2]], [0, 2])
    nvml.set(2, mem_used=GIB, util=50, procs={pid: GIB})
    until(lambda: gpu(yard, 2)["processes"], "a look at it")
    found = gpu(yard, 2)
    assert (found["state"], found["granted"], found["processes"][0]["job"]) == ("ours", job, job)
    nvml.set(2, mem_used=2 * GIB, util=90, procs={pid: GIB, 1: GIB})  # somebody else comes
    until(lambda: not yard.client.job(job)["granted"], "its return")
    assert yard.client.adaptation(job)["grants"][0].get("ended", "").startswith("the GPU is drained, reserved")
