"""How much a job is given after it ran out of GPU memory, and what it is told of its share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.core.model import Request
from gpuyard.daemon.jobs.launch import share_variables
from gpuyard.daemon.jobs.oom import KernelKills
from gpuyard.predict.oom import BLAMELESS, Share, Shortage, end_text, next_share, retry_text, shortage_text
from gpuyard.spec.work import Work

GIB = 2.0**30
SIXTEEN = [16 * GIB] * 4
BUFFER = GIB / 2
WORK = Work(("true",), "/", oom_retries=3)


def shared(size: float) -> Request:
    return Request(memory=size * GIB, compute=0.0)


def died(needed: float, *, full: bool = True, on: float = 16, stopped: bool = False) -> Shortage:
    return Shortage(needed * GIB, full, on * GIB, stopped)


def test_a_share_grows_by_what_was_used_or_by_half() -> None:
    assert next_share(died(5.2), shared(4), WORK, SIXTEEN, BUFFER) == Share(6.5 * GIB, alone=False)
    assert next_share(died(4.5), shared(4), WORK, SIXTEEN, BUFFER) == Share(6 * GIB, alone=False)
    assert next_share(died(0), shared(4), WORK, SIXTEEN, BUFFER) == Share(6 * GIB, alone=False)


def test_what_does_not_fit_beside_the_buffer_and_the_last_retry_are_alone() -> None:
    assert next_share(died(13), shared(4), WORK, SIXTEEN, BUFFER) == Share(0, alone=True)
    assert next_share(died(12.4), shared(4), WORK, SIXTEEN, BUFFER) == Share(15.5 * GIB, alone=False)
    last = replace(WORK, ooms=2)
    assert next_share(died(5), shared(4), last, SIXTEEN, BUFFER) == Share(0, alone=True)
    assert next_share(died(5), shared(4), replace(WORK, ooms=3), SIXTEEN, BUFFER) is None
    assert next_share(died(5), shared(4), replace(WORK, oom_retries=0), SIXTEEN, BUFFER) is None


def test_alone_it_gets_a_gpu_that_is_large_enough_or_the_largest() -> None:
    mixed = [16 * GIB, 16 * GIB, 40 * GIB, 80 * GIB]
    assert next_share(died(70, on=16), shared(4), WORK, mixed, BUFFER) == Share(40 * GIB + 1, alone=True)
    was_alone = replace(WORK, ooms=1, asked_memory=4 * GIB)
    whole = Request()
    assert next_share(died(16), whole, was_alone, mixed, BUFFER) == Share(16 * GIB + 1, alone=True)
    assert next_share(died(40, on=40), whole, was_alone, mixed, BUFFER) == Share(40 * GIB + 1, alone=True)
    assert next_share(died(80, on=80), whole, was_alone, mixed, BUFFER) is None
    assert next_share(died(80, on=40), replace(whole, gpus=2), was_alone, mixed, BUFFER) is None


def test_who_asked_for_whole_gpus_is_not_resized() -> None:
    assert next_share(died(16), Request(), WORK, [16 * GIB, 80 * GIB], BUFFER) is None
    assert end_text(Request(), WORK) == ""


def test_who_kept_to_its_share_gets_the_same_again_but_not_for_ever() -> None:
    assert next_share(died(4), shared(4), WORK, SIXTEEN, BUFFER) == Share(4 * GIB, alone=False, counted=False)
    often = replace(WORK, blameless=BLAMELESS)
    assert next_share(died(4), shared(4), often, SIXTEEN, BUFFER) == Share(6 * GIB, alone=False)
    capped = died(4, full=False)  # its framework had enough, not the GPU
    assert next_share(capped, shared(4), WORK, SIXTEEN, BUFFER) == Share(6 * GIB, alone=False)


@pytest.mark.parametrize(
    ("shortage", "request_", "sentence"),
    [
        (died(5.2), shared(4), "ran out of GPU memory: wanted 5.2G, 4G were promised"),
        (died(0), shared(4), "ran out of GPU memory: 4G were promised"),
        (died(4), shared(4), "ran out of GPU memory, though it kept to the 4G that were promised"),
        (
            died(5.2, stopped=True),
            shared(4),
            "was stopped for using more GPU memory than promised: used 5.2G, 4G were promised",
        ),
        (died(15.9), Request(), "ran out of GPU memory: wanted 15.9G of 16G"),
        (died(0), Request(), "ran out of GPU memory"),
    ],
)
def test_it_is_told_in_words(shortage: Shortage, request_: Request, sentence: str) -> None:
    assert shortage_text(shortage, request_) == sentence


def test_so_is_what_is_done_about_it() -> None:
    assert retry_text(Share(6.5 * GIB, alone=False), WORK) == "retried with 6.5G (1 of 3)"
    assert retry_text(Share(0, alone=True), replace(WORK, ooms=2)) == "retried alone on a GPU (3 of 3)"
    assert retry_text(Share(GIB, alone=False, counted=False), WORK) == "retried as it was"
    assert end_text(shared(4), replace(WORK, ooms=3)) == "all 3 retries with more are used up"
    assert end_text(Request(), replace(WORK, ooms=1, asked_memory=GIB)) == "no GPU here is larger"


# What a job is told of its share


def test_frameworks_are_told_to_take_memory_as_they_need_it() -> None:
    found = share_variables({"gpu_memory": 4 * GIB}, {}, 16 * GIB)
    assert found == {
        "GPUYARD_GPU_MEMORY": str(4 * 2**30),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    assert share_variables({"gpu_memory": None}, {}, 16 * GIB) == {}
    assert share_variables({"gpu_memory": 17 * GIB, "alone": True}, {}, 80 * GIB) == {}


def test_a_cap_is_a_part_of_the_gpu_and_what_the_user_said_stays() -> None:
    work = {"gpu_memory": 4 * GIB, "cap": True}
    found = share_variables(work, {}, 16 * GIB)
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == found["PYTORCH_ALLOC_CONF"] == "per_process_memory_fraction:0.25"
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.25"
    said = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "XLA_CLIENT_MEM_FRACTION": "0.1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
    }
    assert share_variables(work, said, 16 * GIB) == {
        "GPUYARD_GPU_MEMORY": str(4 * 2**30),
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.25",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True,per_process_memory_fraction:0.25",
    }
    own = {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.1"}
    assert not any(name.startswith("PYTORCH") for name in share_variables(work, own, 16 * GIB))


# The machine's own memory


def test_a_kill_by_the_kernel_is_told_of_only_if_it_counted_one_meanwhile(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 7\noom_kill 3\n")
    kills = KernelKills(counters)
    for job in ("1", "2", "3"):
        kills.began(job, 1)
    assert kills.ended("1", 1, 137) == ""
    counters.write_text("oom_kill 4\n")
    assert kills.ended("2", 1, 1) == ""
    assert "the machine ran out of memory" in kills.ended("3", 1, 137)
    assert kills.ended("4", 1, 137) == ""  # nobody saw it begin
    counters.unlink()
    kills.began("5", 1)
    assert kills.ended("5", 1, 137) == ""
