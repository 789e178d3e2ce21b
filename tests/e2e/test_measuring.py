"""What jobs use of GPUs, measured: on simulated ones that follow what jobs say, and run out as real ones do."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.sse import get
from tests.yard import Yard, opened, until

MIB, GIB = 2**20, 2**30


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A yard of two GPUs of 8 GiB."""
    with opened(tmp_path_factory.mktemp("small")) as found:
        found.serve("--simulate-gpus", "2x8G")
        yield found


@pytest.fixture
def yard(small: Yard) -> Iterator[Yard]:
    yield small
    small.clear()


def sleeping(yard: Yard, use: str, *options: str, seconds: str = "60") -> str:
    return yard.submit("--simulate-use", use, *options, "--", "sleep", seconds)


def memory(yard: Yard, job: str) -> list[int | None]:
    """What /gpus says that a job takes of each of its GPUs."""
    return [one["memory"] for gpu in yard.client.gpus()["gpus"] for one in gpu["processes"] if one["job"] == job]


def await_peak(yard: Yard, job: str, least: float) -> Any:
    def seen() -> Any:
        measured = yard.client.job(job)["measured"]
        return measured if measured and (measured["peak"] or 0) >= least else None

    return until(seen, f"job {job} using {least:.0f} bytes")


def test_a_ramp_is_measured_and_its_peak_kept(yard: Yard) -> None:
    job = sleeping(yard, "ramp/0.2:391M,713M,1045M,900M;util=40", "--gpu-memory", "2G", seconds="1")
    live = await_peak(yard, job, 1)
    assert live["current"] is not None
    done = yard.wait(job)
    measured = done["measured"]
    assert (done["state"], done["simulate_use"]) == ("succeeded", "ramp/0.2:391M,713M,1045M,900M;util=40")
    assert measured is not None
    assert measured["peak"] == 1045 * MIB
    assert measured["samples"] >= 3
    assert measured["mean"] is not None
    assert 391 * MIB < measured["mean"] < 1045 * MIB
    assert 0 < measured["period"] < measured["seconds"]
    began, ended = (datetime.fromisoformat(str(done[name])).timestamp() for name in ("started_at", "ended_at"))
    assert measured["seconds"] == pytest.approx(ended - began, abs=0.005)
    assert (measured["utilization"], measured["alone"]) == (40.0, True)
    assert "current" not in measured
    assert "1.021G of 2G at most" in yard("show", job).out


def test_a_short_job_is_measured_to_its_last_instant(yard: Yard) -> None:
    measured = yard.wait(yard.submit("--simulate-use", "3G", "--gpus", "2", "--", "true"))["measured"]
    assert measured is not None
    assert (measured["peak"], measured["mean"], measured["alone"]) == (3 * GIB, 3 * GIB, True)


def test_what_nobody_said_is_not_known(yard: Yard) -> None:
    job = yard.submit("--gpu-memory", "2G", "--", "sleep", "60")
    yard.client.job(job, wait=10, until="start")
    assert memory(yard, job) == [2 * GIB]  # what it asked for
    yard.client.cancel(job, grace=0)
    measured = yard.wait(job)["measured"]
    assert measured is not None
    assert (measured["peak"], measured["samples"], measured["utilization"]) == (None, 0, None)


def test_gpus_show_what_jobs_use_and_who_is_not_alone(yard: Yard) -> None:
    jobs = [sleeping(yard, f"{size}G;util=80", "--gpu-memory", "3G", "--from", "0") for size in (1, 2)]
    for job, size in zip(jobs, (1, 2), strict=True):
        await_peak(yard, job, size * GIB)
    until(lambda: yard.client.gpus()["gpus"][0]["memory_used"] == 3 * GIB, "both being seen")
    assert [memory(yard, job) for job in jobs] == [[GIB], [2 * GIB]]
    assert until(lambda: yard.client.gpus()["gpus"][0]["utilization"] == 100, "a busy GPU")
    assert (
        f'gpuyard_job_gpu_memory_bytes{{gpu="0",job="{jobs[0]}"}} 1.073741824e+09' in get(yard, "/metrics")[2].decode()
    )
    ends = []
    for job in jobs:
        yard.client.cancel(job, grace=0)
        ends.append(yard.wait(job)["measured"])
    assert [end and end["alone"] for end in ends] == [False, False]
    assert all(end and 40 <= (end["utilization"] or 0) < 80 for end in ends)  # each got half of what it wanted


def test_who_is_above_its_promise_dies_and_the_honest_live(yard: Yard) -> None:
    honest = [sleeping(yard, "2500M", "--gpu-memory", "2600M", "--from", "0") for _ in range(2)]
    for job in honest:
        await_peak(yard, job, 2500 * MIB)
    liar = sleeping(yard, "ramp/0.3:1G,2G,4G", "--gpu-memory", "1100M", "--from", "0", "--oom-retries", "0")
    done = yard.wait(liar)
    assert done["state"] == "oom"
    assert done["measured"] is not None
    assert done["measured"]["peak"] == 4 * GIB  # what it died of; at 2G all had what they wanted
    assert [yard.client.job(job)["state"] for job in honest] == ["running", "running"]


def test_alone_on_a_gpu_that_is_too_small(yard: Yard) -> None:
    done = yard.wait(sleeping(yard, "ramp/0.2:1G,20G", "--oom-retries", "0"))
    assert (done["state"], done["measured"] and done["measured"]["peak"]) == ("oom", 20 * GIB)


def test_a_capped_job_dies_as_soon_as_it_exceeds_its_share(yard: Yard) -> None:
    done = yard.wait(sleeping(yard, "ramp/0.2:1G,1200M", "--gpu-memory", "1100M", "--cap", "--oom-retries", "0"))
    assert (done["state"], done["measured"] and done["measured"]["peak"]) == ("oom", 1200 * MIB)


@pytest.mark.parametrize("use", ["much", "ramp:1G,", "spikes:1G,2G,1s", "1G;util=140", "1G;colour=red", "ramp/0:1G"])
def test_what_makes_no_sense_is_refused(yard: Yard, use: str) -> None:
    done = yard("submit", "--simulate-use", use, "--", "true")
    assert done.code == 2
    assert f"'{use}' does not say what a job uses" in done.err
    assert "ramp:391M,713M,1045M" in done.err


def test_the_environment_says_it_by_script(yard: Yard) -> None:
    said = "GPUYARD_SIMULATE_USE=a.py=1G;util=20\nb*=ramp:2G;3G"
    commands = [["echo", "/some/where/a.py"], ["echo", "b1.py"], ["echo", "c.py"]]
    jobs = [yard.submit("--env", said, "--", *command) for command in commands]
    found = [yard.wait(job) for job in jobs]
    assert [job["simulate_use"] for job in found] == ["1G;util=20", "ramp:2G", "3G"]
    assert [job["measured"] and job["measured"]["peak"] for job in found] == [GIB, 2 * GIB, 3 * GIB]
    flag = yard.wait(yard.submit("--env", said, "--simulate-use", "4G", "--", "echo", "a.py"))
    assert flag["measured"] is not None
    assert flag["measured"]["peak"] == 4 * GIB
    done = yard("submit", "--env", "GPUYARD_SIMULATE_USE=a.py=lots", "--", "true")
    assert (done.code, "GPUYARD_SIMULATE_USE: 'lots'" in done.err) == (2, True)


def test_a_wrapper_script_says_it_of_its_child(yard: Yard) -> None:
    script = "GPUYARD_SIMULATE_USE='*sleep*=1500M;nothing=1G' sh -c 'sleep 60; true'"
    job = yard.submit("--", "sh", "-c", f"{script}; true")
    assert await_peak(yard, job, 1500 * MIB)["peak"] == 1500 * MIB
    assert memory(yard, job) == [1500 * MIB]
    yard.client.cancel(job, grace=0)
    measured = yard.wait(job)["measured"]
    assert measured is not None
    assert measured["peak"] == 1500 * MIB


def test_every_attempt_is_measured(yard: Yard) -> None:
    job = yard.submit("--retries", "1", "--retry-delay", "0", "--simulate-use", "2G", "--", "false")
    yard.wait(job)
    ends = [event for event in yard.json("show", job)["events"] if event["kind"] in ("Requeued", "Exited")]
    assert [(end["kind"], end["measured"]["peak"]) for end in ends] == [("Requeued", 2 * GIB), ("Exited", 2 * GIB)]


def test_a_peak_outlives_a_daemon_that_is_killed(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve()
    job = sleeping(yard, "ramp/0.5:3G,1G", "--gpu-memory", "4G")
    await_peak(yard, job, 3 * GIB)
    file = yard.data_dir / "measures.json"
    until(lambda: _kept(file, job) == 3 * GIB, "the peak being written down")
    samples = yard.client.job(job)["measured"]["samples"]  # type: ignore[index]
    yard.end(signal.SIGKILL)
    yard.serve()
    until(lambda: memory(yard, job) == [GIB], "the job being seen again")
    yard.client.cancel(job, grace=0)
    measured = yard.wait(job)["measured"]
    assert measured is not None
    assert measured["peak"] == 3 * GIB
    assert measured["samples"] >= samples - 4  # the last second's may be lost


def _kept(file: Path, job: str) -> int | None:
    found = json.loads(file.read_text()) if file.exists() else {}
    return found[job]["peak"] if job in found else None
