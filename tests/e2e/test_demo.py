"""`gpuyard demo` and the examples, with a real daemon on simulated GPUs."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.yard import until

from gpuyard.api.types import Job
from gpuyard.cli.simulator.demo import CROWD, PEOPLE, stream
from gpuyard.cli.simulator.demo_view import PLAN

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHARE = 5 * 2**30


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the demo keeps its yard; in the end nothing is left there, and no process that knows it."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("GPUYARD_CONFIG", str(tmp_path / "none.toml"))
    yield folder
    assert list(folder.iterdir()) == []
    assert processes_that_know(folder) == []


def processes_that_know(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, place = path.read_bytes().decode(errors="replace"), os.readlink(path.parent / "cwd")
        except OSError:
            continue
        if str(folder) in words or place.startswith(str(folder)):
            found.append(words)
    return found


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_demo_runs_jobs_on_gpus_and_ends_by_itself(temporary: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "gpuyard", "demo", "--exit", "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The page is at http://127.0.0.1:")
    assert "8 simulated GPUs of 16G each: no real GPU is used" in done.stdout
    assert "ran out of time" in done.stdout
    for planned in PLAN:
        assert done.stdout.count(f"{planned.name} ") >= 2
        assert "epoch 1/" in (out / "logs" / f"{planned.name}.txt").read_text()
    assert "│ priority@easy " in done.stdout
    assert (out / "gantt.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "gantt.svg").read_text()
    assert (out / "what-if" / "report.html").stat().st_size > 10_000
    assert_sound(rows(out / "segments.csv"))
    states = {row["job"]: row["label_state"] for row in rows(out / "history.csv")}
    assert states == {planned.name: planned.expected for planned in PLAN}
    simulated = {row["policy"]: row for row in json.loads((out / "what-if" / "results.json").read_text())}
    measured = json.loads((out / "metrics.json").read_text())
    assert simulated["priority@easy"]["jct_mean"] == pytest.approx(measured["jct_mean"], rel=0.5)


def assert_sound(held: list[dict[str, str]]) -> None:
    """Every job had the GPUs that it asked for, and no GPU more than it has."""
    wishes = {planned.name: planned.wishes for planned in PLAN}
    for name, wish in wishes.items():
        gpus = [row["gpu"] for row in held if row["job"] == name]
        assert len(set(gpus)) == len(gpus) == wish.get("gpus", 1)
    assert {row["gpu"] for row in held} == {f"0:{index}" for index in range(8)}
    for one, other in itertools.combinations(held, 2):
        apart = float(one["end"]) <= float(other["start"]) or float(other["end"]) <= float(one["start"])
        both_share = all(wishes[row["job"]].get("gpu_memory") == SHARE for row in (one, other))
        assert apart or one["gpu"] != other["gpu"] or both_share, (one, other)


def test_the_demo_lives_with_its_page_until_it_is_interrupted(temporary: Path) -> None:
    command = [sys.executable, "-m", "gpuyard", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        address = demo.stdout.readline().split()[1]
        assert any("running" in line for line in demo.stdout)
        until(lambda: opens(address), "the page")
        jobs = until(lambda: crowded(address), "a full queue")
        assert len(processes_that_know(temporary)) > 1
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate(timeout=60)
    assert (demo.returncode, said) == (130, "interrupted: the jobs and the daemon are ended\n")
    assert {job["user"] for job in jobs} == set(PEOPLE)
    assert {"queued", "held", "running"} <= {job["state"] for job in jobs}
    assert any(job["dependency"] for job in jobs)
    assert any(job["gpu_memory"] for job in jobs)
    assert any(job["task"] for job in jobs)


def opens(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return b"gpuyard" in answer.read()
    except urllib.error.HTTPError as error:
        if error.code != 503:  # it is being started
            raise
        return False


def crowded(address: str) -> list[Job]:
    with urllib.request.urlopen(f"{address}api/v1/jobs", timeout=30) as answer:
        jobs: list[Job] = json.loads(answer.read())["jobs"]
    return jobs if len(jobs) >= CROWD else []


def test_jobs_of_the_living_demo_keep_coming_and_are_the_same_each_time() -> None:
    one, other = (list(itertools.islice(stream(7), 300)) for _ in range(2))
    assert one == other
    assert {new.user for new in one} == set(PEOPLE)
    assert any("--fail-at" in new.arguments for new in one[20:])
    assert sum(bool(new.wishes.get("hold")) for new in one) == 1  # or they would fill the queue


def test_a_script_waits_for_its_turn_in_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_DATA_DIR", str(tmp_path / "yard"))
    monkeypatch.setenv("GPUYARD_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.delenv("GPUYARD_JOB_ID", raising=False)

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout

    run("-m", "gpuyard", "up", "--simulate-gpus", "1x16G")
    try:
        script = ("mnist_like.py", "--epochs", "2", "--size", "200", "--id", "digits", "--wait")
        printed = run(str(EXAMPLES / script[0]), *script[1:])
        (job,) = json.loads(run("-m", "gpuyard", "history", "--json"))
    finally:
        run("-m", "gpuyard", "down")
    assert [line.split(" loss")[0] for line in printed.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert (job["name"], job["state"], job["gpus"]) == ("digits", "succeeded", [0])
    assert (tmp_path / "digits.npz").exists()
