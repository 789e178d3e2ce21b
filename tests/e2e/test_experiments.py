"""Experiments: schedulers compared on real jobs, on simulated GPUs; interrupted, killed, and gone on with."""

from __future__ import annotations

import csv
import itertools
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.engine import alive
from tests.yard import Yard, finish, until

from gpuyard.recordings.textform import read_recording

TWO = """
name: two
gpus: 1x16G
period: 0.2s
metrics: [memory_used]
schedulers:
  - {name: exclusive, sharing: exclusive}
  - {name: requests, sharing: requests}
workloads:
  - name: short
    replicas: 3
    gpu_memory: 4G
    command: "sleep 0.6; echo GPUYARD_RESULT p90=0.13 p99=$LATENCY"
    environment: {LATENCY: 0.25}
    behaviour: {seconds: 0.5, ramp: 0, memory: 3G, utilization: 30}
  - {name: bad, command: "echo oh dear; exit 3", gpu_memory: 1G}
"""
HOLDING = """
gpus: 1x16G
period: 0.2s
schedulers: [{name: first}, {name: second}]
workloads:
  - name: job
    command: "if test -e %s && test -e hold; then echo $$ >pid; exec sleep 600; fi"
"""
"""Jobs that stay if there is a file."""


@pytest.fixture
def here(tmp_path: Path) -> Yard:
    """Commands in a folder, and no daemon: an experiment has its own."""
    for name in ("data", "here"):
        (tmp_path / name).mkdir()
    return Yard(tmp_path / "data", tmp_path / "here")


def write(here: Yard, text: str, name: str = "e.yaml") -> str:
    (here.cwd / name).write_text(text)
    return name


def overlap(jobs: list[dict[str, str]]) -> bool:
    """Whether two of some jobs ran at the same time."""
    spans = sorted((float(job["started"]), float(job["ended"])) for job in jobs)
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


def test_two_schedulers_are_compared_on_real_jobs(here: Yard) -> None:
    done = here("experiment", "run", write(here, TWO), "--out", "out", "--json")
    assert done.code == 0, done
    alone, together = json.loads(done.out)
    assert (alone["scheduler"], together["scheduler"]) == ("exclusive", "requests")
    assert alone["duration"] >= 1.5
    assert alone["wait_max"] > 0.5
    assert (together["p99"], together["p90"]) == (0.25, 0.13)
    assert together["energy"] > 0
    assert (together["jobs"], together["succeeded"], together["restarts"]) == (4, 3, 0)
    out = here.cwd / "out"
    with (out / "jobs.csv").open() as file:
        jobs = list(csv.DictReader(file))
    assert [job["state"] for job in jobs] == ["succeeded", "succeeded", "succeeded", "failed"] * 2
    assert f"job bad-1 ended as failed; its output is in {Path('out/logs/requests-0-1/bad-1.log')}" in done.err
    assert (out / "logs" / "requests-0-1" / "bad-1.log").read_text() == "oh dear\n"
    assert not overlap([job for job in jobs if job["scheduler"] == "exclusive"])
    assert overlap([job for job in jobs if job["scheduler"] == "requests"])
    recording = read_recording(out / "recordings" / "exclusive-0-1.json.gz")
    assert {mark.label for mark in recording.marks} == {"short-1", "short-2", "short-3", "bad-1"}
    assert 3 * 2**30 in recording.of("memory_used")[0].mean  # `bad` seems to take all, if it is seen at all
    recording = read_recording(out / "recordings" / "requests-0-1.json.gz")
    most = max(recording.of("memory_used")[0].mean)
    assert most / 2**30 in (6, 7, 9, 10)  # two or three at once, and `bad` if it is seen
    assert (out / "plots" / "overlay-0" / "memory_used.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "plots" / "stacked-0" / "memory_used.png").is_file()
    page = (out / "report.html").read_text()
    assert "exclusive" in page
    assert 'href="plots/stacked-0/memory_used.png"' in page
    assert not (out / "yard").exists()
    _is_not_done_again(here, done.out)


def _is_not_done_again(here: Yard, former: str) -> None:
    again = here("experiment", "run", "e.yaml", "--out", "out", "--json", "--no-plots")
    assert (again.code, again.out) == (0, former)
    assert "2 runs had been done before" in again.err
    table = here("experiment", "show", "out").out
    assert [line.split()[1] for line in table.splitlines()[2:]] == ["exclusive", "requests"]
    write(here, TWO.replace("sleep 0.6", "sleep 0.7"))
    changed = here("experiment", "run", "e.yaml", "--out", "out")
    assert changed.code == 2
    assert "--fresh throws them away and starts over" in changed.err


def test_the_same_on_a_virtual_clock_turn_by_turn(here: Yard) -> None:
    text = TWO.replace("seconds: 0.5", "seconds: 500")
    name = write(here, text.replace(", gpu_memory: 1G}", ", gpu_memory: 1G, behaviour: {seconds: 1}}"))
    (alone,) = here.json("experiment", "run", name, "--simulate", "--no-plots", "--only", "exclusive", "--out", "out")
    assert alone["duration"] == pytest.approx(1501)
    assert alone["wait_max"] == pytest.approx(1500)
    rows = here.json("experiment", "run", name, "--simulate", "--no-plots", "--repeat", "2", "--out", "out")
    assert [(row["turns"], row["duration_std"], row["simulated"]) for row in rows] == [(2, 0.0, True)] * 2
    assert rows[0]["duration"] == alone["duration"] > rows[1]["duration"]
    refused = here("experiment", "run", name, "--out", "out")
    assert "--fresh throws them away" in refused.err


def begin(here: Yard, when: str) -> tuple[subprocess.Popen[str], int]:
    """An experiment that holds on where a file is there, and the process of the job that does."""
    (here.cwd / "hold").touch()
    pid = here.cwd / "pid"
    process = here.popen("experiment", "run", write(here, HOLDING % when), "--out", "out", "--no-plots")

    def held() -> Any:
        assert process.poll() is None, finish(process)
        return pid.exists() and pid.read_text().strip()

    return process, int(until(held, "the job that holds on"))


def test_an_experiment_that_is_killed_goes_on_with_what_is_missing(here: Yard) -> None:
    process, job = begin(here, "out/runs/first-0-1.json")
    process.kill()
    finish(process)
    until(lambda: not alive(job), "the end of its job, which nobody else could end")
    first = here.cwd / "out" / "runs" / "first-0-1.json"
    before = first.stat().st_mtime_ns
    (here.cwd / "hold").unlink()
    done = here("experiment", "run", "e.yaml", "--out", "out", "--no-plots")
    assert done.code == 0, done
    assert "run 1 of 1: second at 0 %" in done.err
    assert first.stat().st_mtime_ns == before
    assert not (here.cwd / "out" / "yard").exists()


def test_an_experiment_that_is_interrupted_leaves_nothing_behind(here: Yard) -> None:
    process, job = begin(here, "e.yaml")
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130, done
    assert "the same command goes on with what is missing" in done.err
    assert not alive(job)
    assert not (here.cwd / "out" / "yard").exists()
    assert "no run is done yet" in here("experiment", "show", "out").err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('command: "echo oh dear; exit 3"', "behaviour: {seconds: 1}"), "has no command"),
        (lambda text: text.replace("sharing: requests", "options: {gpu_bufer: 1G}"), "did you mean 'gpu_buffer'?"),
        (lambda text: text.replace("gpu_memory: 1G", "gpu_memory: 17G"), "workloads[2].gpu_memory: no GPU has as much"),
        (lambda text: text.replace("replicas", "replica"), "did you mean 'replicas'?"),
    ],
)
def test_what_cannot_run_is_told_before_anything_runs(here: Yard, change: Callable[[str], str], said: str) -> None:
    done = here("experiment", "run", write(here, change(TWO)), "--out", "out")
    assert done.code == 2
    assert said in done.err
    assert not (here.cwd / "out").exists()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has NVIDIA's driver")
def test_a_machine_without_gpus_is_told_how_to_go_on(here: Yard) -> None:
    done = here("experiment", "run", write(here, TWO.replace("gpus: 1x16G", "")), "--out", "out")
    assert done.code == 2
    assert "write gpus: 4x16G in the file to have simulated ones, or add --simulate" in done.err


def test_a_choice_of_runs_is_checked(here: Yard) -> None:
    name = write(here, TWO)
    assert "did you mean 'requests'?" in here("experiment", "run", name, "--only", "request").err
    assert "no over-provisioning of 50 %" in here("experiment", "run", name, "--percent", "50%").err
    assert "--percent: a number is expected" in here("experiment", "run", name, "--percent", "many").err


def test_a_file_can_be_checked_alone(here: Yard) -> None:
    assert here("experiment", "check", write(here, TWO)).out == "e.yaml: 2 runs of 4 jobs, which come within 0s\n"
    assert here.json("experiment", "check", "e.yaml")["workloads"][0]["gpu_memory"] == 4 * 2**30
