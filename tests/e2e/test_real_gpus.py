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
    found.environment |= {name: nvml.env[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
    serve(found)
    yield found
    found.clear()
    found.end()


def serve(yard: Yard) -> None:
    with (yard.data_dir / "daemon.log").open("ab") as log:
        yard.daemon = subprocess.Popen(
            [sys.executable, "-m", "gpuyard", "serve"], env=yard.environment, stderr=log, stdin=subprocess.DEVNULL
        )
    until(yard._answers, "an answer of the daemon")


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
    serve(yard)
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
