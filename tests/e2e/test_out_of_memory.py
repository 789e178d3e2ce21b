"""Jobs that need more of a GPU than they said: caught, told of, and run again with more."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest
from tests.yard import Yard, until

GIB, MIB = 2**30, 2**20
LONG = ("--", "sleep", "30")
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Including non-PyTorch memory, this "
    "process has 5.00 GiB memory in use."
)


def _events(yard: Yard, job: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in yard.client.events(job=job)["events"] if event["kind"] == kind]


def _attempt(yard: Yard, job: str, attempt: int) -> Any:
    """The job once that attempt of it runs."""
    return until(
        lambda: (found := yard.client.job(job))["attempt"] == attempt and found["started_at"] and found,
        f"attempt {attempt} of job {job}",
    )


def _fill(yard: Yard, *sizes: str) -> list[str]:
    """Honest jobs on GPU 0."""
    return [yard.submit("--from", "0", "--gpu-memory", size, "--simulate-use", size, *LONG) for size in sizes]


def test_who_takes_what_others_were_promised_is_stopped_and_gets_more(yard: Yard) -> None:
    _fill(yard, "5G", "5G")
    liar = yard.submit("--from", "0", "--gpu-memory", "4G", "--simulate-use", "6G", *LONG)
    job = until(lambda: (found := yard.client.job(liar))["ooms"] == 1 and found, "the liar being caught")
    assert (job["gpu_memory"], job["gpu_memory_asked"]) == (7.5 * GIB, 4 * GIB)
    assert job["state"] == "queued"
    (waits,) = _events(yard, liar, "Requeued")
    said = "was stopped for using more GPU memory than promised: used 6G, 4G were promised; retried with 7.5G (1 of 3)"
    assert waits["message"] == said
    assert said in job["reason"]
    assert said in yard("explain", liar).out
    warned, resized = _events(yard, liar, "Edited")
    assert warned["message"] == "uses 6G of GPU 0, but 4G were promised"
    assert resized["message"] == "asks for 7.5G of a GPU from now on"
    assert resized["seq"] == waits["seq"] + 1
    story = yard("show", liar).out
    assert "uses 6G of GPU 0, but 4G were promised" in story
    assert [job["attempt"] for job in yard.client.jobs() if job["state"] == "running"] == [1, 1]
    for other in yard.client.jobs():
        if other["id"] != liar:
            yard.client.cancel(other["id"], grace=0)
    again = _attempt(yard, liar, 2)
    until(lambda: yard.client.job(liar)["measured"], "a measurement")
    assert (again["reason"], again["gpu_memory"]) == (None, 7.5 * GIB)


def test_who_takes_too_much_of_a_gpu_with_room_is_only_told(yard: Yard) -> None:
    _fill(yard, "2G")
    liar = yard.submit("--from", "0", "--gpu-memory", "4G", "--simulate-use", "6G", *LONG)
    until(lambda: yard.client.job(liar)["reason"] == "uses 6G of GPU 0, but 4G were promised", "a warning")
    assert yard.client.job(liar)["attempt"] == 1
    _fill(yard, "9G")  # now there is not enough for all
    until(lambda: yard.client.job(liar)["ooms"] == 1, "the liar being caught")


def test_alone_on_a_gpu_nobody_is_stopped(yard: Yard) -> None:
    liar = yard.submit("--gpu-memory", "1G", "--simulate-use", "15G", *LONG)
    until(lambda: yard.client.job(liar)["reason"] == "uses 15G of GPU 0, but 1G were promised", "a warning")
    assert (yard.client.job(liar)["attempt"], yard.client.job(liar)["ooms"]) == (1, 0)


def test_a_job_that_grows_beyond_every_share_is_alone_in_the_end_and_then_over(yard: Yard) -> None:
    _fill(yard, "5G", "5G")
    job = yard.submit("--gpu-memory", "4G", "--simulate-use", "20G", *LONG)
    ended = yard.wait(job)
    assert (ended["state"], ended["ooms"]) == ("oom", 1)
    assert ended["reason"] == "ran out of GPU memory: wanted 20G of 16G; no GPU here is larger"
    (waits,) = _events(yard, job, "Requeued")
    # whether it was stopped or ran out first, both of which are due
    assert waits["message"].endswith(": wanted 20G, 4G were promised; retried alone on a GPU (1 of 3)")
    assert [found["id"] for found in yard.json("history", "--state", "oom", "--limit", "1")] == [job]
    assert "ran out of GPU memory" in yard("show", job).out
    assert "has run out of GPU memory" in yard("explain", job).out


def test_without_retries_it_is_over_at_once_and_other_retries_count_as_usual(yard: Yard) -> None:
    job = yard.submit("--gpu-memory", "4G", "--oom-retries", "0", "--simulate-use", "20G", *LONG)
    assert (yard.wait(job)["state"], yard.client.job(job)["attempt"]) == ("oom", 1)
    whole = yard.submit("--retries", "1", "--retry-delay", "0", "--simulate-use", "20G", *LONG)
    ended = yard.wait(whole)
    assert (ended["state"], ended["attempt"], ended["failures"]) == ("oom", 2, 1)
    assert ended["reason"] == "ran out of GPU memory: wanted 20G of 16G"


def test_what_a_framework_says_is_recognised(yard: Yard) -> None:
    script = f'[ "$GPUYARD_ATTEMPT" = 1 ] || exit 0; echo "{TORCH}" >&2; exit 1'
    job = yard.submit("--gpu-memory", "4G", "--", "sh", "-c", script)
    ended = yard.wait(job)
    assert (ended["state"], ended["attempt"], ended["ooms"], ended["failures"]) == ("succeeded", 2, 1, 0)
    assert ended["gpu_memory"] == 8.75 * GIB  # a quarter more than the 7 that it had or wanted, in steps
    (waits,) = _events(yard, job, "Requeued")
    assert waits["message"] == "ran out of GPU memory: wanted 7G, 4G were promised; retried with 8.75G (1 of 3)"
    assert TORCH.encode() in yard.client.log(job, attempt=1).data


@pytest.mark.parametrize("options", [["--output", "o-%j.txt"], ["--output", "o.txt", "--error", "e.txt"]])
def test_what_it_says_in_files_of_its_own_is_recognised(yard: Yard, options: list[str]) -> None:
    script = f'[ "$GPUYARD_ATTEMPT" = 1 ] || exit 0; echo "{TORCH}" >&2; exit 1'
    ended = yard.wait(yard.submit("--gpu-memory", "4G", *options, "--", "sh", "-c", script))
    assert (ended["state"], ended["attempt"], ended["ooms"]) == ("succeeded", 2, 1)
    (yard.cwd / "old.txt").write_text(TORCH)
    os.utime(yard.cwd / "old.txt", (0, 0))
    old = yard.submit("--output", "old.txt", "--open-mode", "append", "--", "sh", "-c", "sleep 0.3; exit 1")
    assert yard.wait(old)["state"] == "failed", "that was said before it began"


def test_an_amount_that_is_not_all_of_it_is_not_told_as_such(yard: Yard) -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
    job = yard.submit("--gpu-memory", "4G", "--oom-retries", "0", "--", "sh", "-c", f'echo "{said}"; exit 1')
    assert (yard.wait(job)["reason"] or "").startswith("ran out of GPU memory: 4G were promised")


def test_a_whole_gpu_that_is_too_small_makes_a_job_oom_and_another_error_does_not(yard: Yard) -> None:
    job = yard.submit("--", "sh", "-c", f'echo "{TORCH}"; exit 1')
    ended = yard.wait(job)
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("oom", 1, 1)
    handled = yard.submit("--gpu-memory", "4G", "--", "sh", "-c", f'echo "{TORCH}"; echo "KeyError: 3"; exit 1')
    assert yard.wait(handled)["state"] == "failed"
    fine = yard.submit("--gpu-memory", "4G", "--", "sh", "-c", f'echo "{TORCH}"')
    assert yard.wait(fine)["state"] == "succeeded"


def test_a_capped_job_dies_of_its_own_excess_at_once(yard: Yard) -> None:
    job = yard.submit("--gpu-memory", "4G", "--cap", "--simulate-use", "ramp/0.1:1G,5G", *LONG)
    assert until(lambda: (found := yard.client.job(job))["ooms"] == 1 and found)["gpu_memory"] == 6.25 * GIB
    listing = yard.submit("--gpu-memory", "4G", "--cap", "--", "sh", "-c", "env; sleep 0")
    yard.wait(listing)
    told = yard.client.log(listing).data.decode()
    assert f"GPUYARD_GPU_MEMORY={4 * GIB}" in told
    assert "PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.25" in told


def test_a_cancelled_job_is_not_tried_again(yard: Yard) -> None:
    _fill(yard, "5G", "5G")
    deaf = ("--", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    liar = yard.submit("--from", "0", "--gpu-memory", "4G", "--simulate-use", "6G", *deaf)
    until(lambda: _events(yard, liar, "Recalled"), "the liar being stopped")
    yard.client.cancel(liar, grace=0)
    assert yard.wait(liar)["state"] == "cancelled"


def test_what_was_decided_outlives_the_daemon(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve()
    yard.client.hold(job := yard.submit("--gpu-memory", "4G", "--hold", "--simulate-use", "20G", *LONG))
    _fill(yard, "5G", "5G")
    yard.client.release(job)
    yard.wait(job)
    before = yard.client.job(job)
    yard.end(signal.SIGKILL)
    yard.serve()
    assert yard.client.job(job) == before


def test_what_it_was_stopped_for_outlives_the_daemon(own_yard: Yard) -> None:
    own_yard.serve()
    _fill(own_yard, "10G")
    deaf = ("--", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    liar = own_yard.submit("--from", "0", "--gpu-memory", "4G", "--simulate-use", "ramp/0.3:3G,6G", *deaf)
    until(lambda: _events(own_yard, liar, "Recalled"), "its being told to end")
    own_yard.end(signal.SIGKILL)
    (own_yard.data_dir / "measures.json").unlink(missing_ok=True)  # it may be a moment older
    own_yard.serve()
    job = until(lambda: (found := own_yard.client.job(liar))["ooms"] == 1 and found, "its being given more")
    assert job["gpu_memory"] == 7.5 * GIB
    (waits,) = _events(own_yard, liar, "Requeued")
    assert waits["message"].startswith("was stopped for using more GPU memory than promised: used 6G")


def test_with_stop_it_is_stopped_at_once_and_with_warn_never(own_yard: Yard) -> None:
    yard = own_yard
    yard.environment["GPUYARD_OVER_MEMORY"] = "stop"
    yard.serve()
    _fill(yard, "1G")
    liar = yard.submit("--from", "0", "--gpu-memory", "1G", "--simulate-use", "2G", *LONG)
    until(lambda: yard.client.job(liar)["ooms"] == 1, "the liar being caught")
    yard.clear()
    yard.end()
    yard.environment["GPUYARD_OVER_MEMORY"] = "warn"
    yard.serve()
    honest = _fill(yard, "5G", "5G")
    liar = yard.submit("--from", "0", "--gpu-memory", "4G", "--simulate-use", "ramp/1:5.5G,7G", *LONG)
    until(lambda: yard.client.job(liar)["ooms"] == 1, "the liar running out")
    (waits,) = _events(yard, liar, "Requeued")
    assert waits["message"].startswith("ran out of GPU memory: wanted 7G, 4G were promised")
    assert all(yard.client.job(job)["attempt"] == 1 for job in honest)


def test_alone_it_gets_a_gpu_that_is_large_enough(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve("--simulate-gpus", "1x16G,1x40G")
    job = yard.submit(
        "--from", "0,1", "--gpus", "1", "--gpu-memory", "4G", "--simulate-use", "38G", "--", "sleep", "0.3"
    )
    ended = yard.wait(job)
    assert (ended["state"], ended["attempt"], ended["ooms"], ended["gpus"]) == ("succeeded", 2, 1, [1])
    assert (ended["alone"], ended["gpu_memory_asked"]) == (True, 4 * GIB)
    (waits,) = _events(yard, job, "Requeued")
    assert waits["message"].endswith("wanted 38G, 4G were promised; retried alone on a GPU larger than 16G (1 of 3)")
    told = yard("show", job).out
    assert re.search(r"Asked at first: +4G\n", told)
    assert re.search(r"Out of memory: +1 of 3 retries with more\n", told)
    copy = yard.wait(yard.client.retry(job))
    assert (copy["state"], copy["attempt"], copy["ooms"], copy["gpus"]) == ("succeeded", 1, 0, [1])
