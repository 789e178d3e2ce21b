"""Jobs that share a GPU are given no more of it than is left beside the buffer and beside others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.yard import Yard, opened, until

MIB = 2**20
GIB = 2**30
ENDLESS = ("--", "sleep", "1000")


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A yard with one GPU of 8 GiB."""
    with opened(tmp_path_factory.mktemp("packing")) as found:
        found.serve("--simulate-gpus", "1x8G")
        yield found


@pytest.fixture
def small(one_gpu: Yard) -> Iterator[Yard]:
    """The same, without any job of an earlier test."""
    yield one_gpu
    one_gpu.clear()


def states(yard: Yard, *ids: str) -> list[str]:
    return [yard.client.job(id)["state"] for id in ids]


def test_jobs_of_known_peaks_fill_a_gpu_and_never_overfill_it(small: Yard) -> None:
    begun = small.client.events(limit=10_000)["last"]
    given = [(1819, 1947)[n % 2] for n in range(12)]
    sizes = dict(zip(small.client.submit_all(list(map(_job, given))), given, strict=True))
    ended = {id: small.wait(id) for id in sizes}
    assert {(job["state"], job["attempt"], job["ooms"]) for job in ended.values()} == {("succeeded", 1, 0)}
    most, promised, there, waiting, former = 0, 0, 0, sorted(given), ""
    for event in small.client.events(after=begun, limit=10_000)["events"]:
        if event["kind"] not in ("Placed", "Exited"):
            continue
        if event["kind"] == "Placed":
            waiting.remove(sizes[event["job"]])
            promised, there = promised + sizes[event["job"]], there + 1
            assert (promised + 512) * MIB <= 8 * GIB
        else:
            if waiting and former == "Placed":  # it was full until then
                assert (promised + 512 + waiting[0]) * MIB > 8 * GIB
            promised, there = promised - sizes[event["job"]], there - 1
        most, former = max(most, there), event["kind"]
    assert most >= 3


def _job(promised: int) -> dict[str, Any]:
    """The larger one takes 3 % more than it was measured to take, and the other grows to what it says."""
    use = "ramp/0.1:391M,713M,1045M,1399M,1819M" if promised == 1819 else "2005M"
    return {
        "gpu_memory": promised * MIB, "simulate_use": use, "command": ["sleep", "0.8"], "directory": "/",
        "environment": {"PATH": os.defpath},
    }  # fmt: skip


def test_growing_and_spiky_jobs_count_at_their_promise_from_their_start(small: Yard) -> None:
    uses = ("ramp:1M,1M,1M,1M,1M,4G", "spikes:1M,3G,60s,1s")
    jobs = [
        small.submit("--gpu-memory", size, "--simulate-use", use, *ENDLESS)
        for size, use in zip(("4G", "3G"), uses, strict=True)
    ]
    more = small.submit("--gpu-memory", "1G", *ENDLESS)
    until(lambda: states(small, *jobs) == ["running", "running"])
    reason = small.client.job(more)["reason"]
    assert reason == "needs 1G on 1 GPU; GPU 0 has 512M left of 8G (512M kept free)"
    (gpu,) = small.client.gpus()["gpus"]
    told = [gpu[name] for name in ("memory_promised", "memory_buffer", "memory_others", "memory_left")]
    assert told == [7 * GIB, GIB // 2, 0, GIB // 2]
    assert "7G" in small("gpus").out
    small.client.cancel(jobs[1], grace=0)
    until(lambda: states(small, more) == ["running"])


def test_who_leaves_no_room_for_others_is_alone(small: Yard) -> None:
    large = small.submit("--gpu-memory", "7.8G", *ENDLESS)
    other = small.submit("--gpu-memory", "1M", *ENDLESS)
    until(lambda: states(small, large) == ["running"])
    assert states(small, other) == ["queued"]
    job = small.client.job(large)
    assert job["alone"]
    assert job["gpu_memory"] == pytest.approx(7.8 * GIB, rel=1e-6)
    assert "1 x 7.8G, alone on it" in small("show", large).out
    refused = small("submit", "--gpu-memory", "20G", *ENDLESS)
    assert refused.code == 2
    assert "it wants 20G on each GPU, a GPU has 8G, 7.5G of it for jobs that share it" in refused.err
    assert states(small, large) == ["running"]  # others go on
    # The same where a job is changed, and back.
    small("hold", other)
    assert small("edit", other, "--gpu-memory", "7.6G").code == 0
    assert small.client.job(other)["alone"]
    assert small("edit", other, "--gpu-memory", "7.5G").code == 0
    assert not small.client.job(other)["alone"]
    assert "could never run here: it wants 9G" in small("edit", other, "--gpu-memory", "9G").err
    copy = small("clone", large).out.strip()
    assert small.client.job(copy)["alone"]


def test_a_larger_buffer_after_a_restart_is_kept_to(own_yard: Yard) -> None:
    own_yard.environment["GPUYARD_GPU_BUFFER"] = "0"
    own_yard.serve("--simulate-gpus", "1x8G")
    first = [own_yard.submit("--gpu-memory", "4G", *ENDLESS) for _ in range(2)]
    waiting = own_yard.submit("--gpu-memory", "8G", *ENDLESS)
    until(lambda: states(own_yard, *first) == ["running", "running"])
    assert not own_yard.client.job(waiting)["alone"]
    own_yard.end(signal.SIGKILL)
    own_yard.environment["GPUYARD_GPU_BUFFER"] = "1G"
    own_yard.serve("--simulate-gpus", "1x8G")
    more = own_yard.submit("--gpu-memory", "4G", *ENDLESS)
    assert states(own_yard, *first) == ["running", "running"]
    assert own_yard.client.job(waiting)["alone"]  # else it would wait for ever
    own_yard.client.cancel(waiting)
    own_yard.client.cancel(first[0], grace=0)
    own_yard.wait(first[0])
    assert "GPU 0 has 3G left of 8G (1G kept free)" in (own_yard.client.job(more)["reason"] or "")


# -- with a made-up driver ---------------------------------------------------------------------------------


@pytest.fixture
def real(fake_nvml: FakeNvml, tmp_path: Path) -> Iterator[tuple[Yard, FakeNvml]]:
    """A yard on one GPU of 16 GiB that others use, and jobs that share it may."""
    fake_nvml.add(name="NVIDIA A100", uuid="GPU-aaaa0000-0000-0000-0000-000000000000", mem_total=16 * GIB)
    with opened(tmp_path) as yard:
        yard.use(fake_nvml)
        yard.environment["GPUYARD_FOREIGN"] = "count"
        yard.serve()
        yield yard, fake_nvml


def told(yard: Yard) -> Any:
    return yard.client.gpus()["gpus"][0]


def test_shares_start_beside_others_as_far_as_memory_goes(real: tuple[Yard, FakeNvml]) -> None:
    yard, nvml = real
    nvml.set(0, mem_used=300 * MIB, graphics={1: 300 * MIB})  # a desktop, which is nobody to be avoided
    until(lambda: told(yard)["memory_others"] == 320 * MIB, "the desktop being counted")
    assert told(yard)["state"] == "free"
    alone = yard.submit("--gpu-memory", "15.4G", "--", "true")  # it would fit beside the buffer alone
    assert yard.client.job(alone)["alone"]
    assert yard.wait(alone)["state"] == "succeeded"
    nvml.set(0, graphics={})
    nvml.set(0, mem_used=6 * GIB, util=50, procs={os.getpid(): 6 * GIB})
    until(lambda: told(yard)["memory_others"] == 6 * GIB, "others being counted")
    whole = yard.submit(*ENDLESS)
    large = yard.submit("--gpu-memory", "10G", *ENDLESS)
    share = yard.submit("--gpu-memory", "9G", *ENDLESS)
    until(lambda: states(yard, share) == ["running"], "the share")
    assert states(yard, whole, large) == ["queued", "queued"]
    reason = yard.client.job(large)["reason"] or ""
    assert "GPU 0 has 512M left of 16G (512M kept free, 6G used by others)" in reason
    assert (told(yard)["state"], told(yard)["memory_left"]) == ("foreign", GIB // 2)
    yard.client.cancel(share, grace=0)
    nvml.set(0, mem_used=0, util=0, procs={})
    until(lambda: states(yard, whole) == ["running"], "the whole GPU being given away")
    kinds = [event["kind"] for event in yard.client.events(after=0, limit=10_000)["events"]]
    assert kinds.count("MemoryTaken") <= 6
