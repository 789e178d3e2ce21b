"""`gpuyard adapt run` and `record` as people use them: what they leave, refuse, and go on with after a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from tests.yard import call

from gpuyard.adapt.training.networks import make_network
from gpuyard.cli.learning.adapt import app
from gpuyard.errors import UserError

pytestmark = pytest.mark.slow

DATA = """
import time
import torch
def data():
    inputs = torch.randn(600, 6, generator=torch.Generator().manual_seed(1))
    labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] * inputs[:, 2] > 0).long()
    return tuple((inputs[k : k + 200], labels[k : k + 200]) for k in (0, 200, 400))
class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.002)
        return x
def slow():
    return torch.nn.Sequential(Slow(), torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
"""
JOB = """
budget = 400
clock = "virtual"
decider = "early:times=2"
decide_at = [0.2, 0.5]
network = { name = "data.py:slow" }
data = { name = "data.py:data" }
training = { batch_size = 16, learning_rate = 0.02 }
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def begun(place: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpuyard", "adapt", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD")}
    return subprocess.Popen(
        command, cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def gpuyard(place: Path, *words: str, code: int = 0) -> tuple[str, str]:
    done = call("adapt", *words, cwd=place)
    assert done.code == code, done.err
    return done.out, done.err


def weights(folder: Path) -> Any:
    return torch.load(folder / "network.pt", weights_only=True)


@pytest.mark.slow
def test_a_run_that_is_told_to_end_goes_on_to_the_same_bits(place: Path) -> None:
    whole = json.loads(gpuyard(place, "run", "job.toml", "--out", "whole", "--json")[0])
    assert whole["parameters_before"] < whole["parameters"]
    assert len(whole["decisions"]) == 2
    process = begun(place, "run", "job.toml", "--out", "broken", "--json")
    log = place / "broken" / "log.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (log.exists() and '"decision"' in log.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert not (place / "broken" / "result.json").exists()
    broken = json.loads(gpuyard(place, "run", "job.toml", "--out", "broken", "--json")[0])
    assert {**broken, "folder": ""} == {**whole, "folder": ""}
    one, other = weights(place / "whole"), weights(place / "broken")
    assert one["growth"] == other["growth"]
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("decision") == 2


def test_what_is_finished_is_not_written_over(place: Path) -> None:
    gpuyard(place, "run", "job.toml", "--budget", "20", "--out", "a")
    said = gpuyard(place, "run", "job.toml", "--budget", "20", "--out", "a", code=2)[1]
    assert "holds a finished run; name another --out, or replace it with --force" in said
    gpuyard(place, "run", "job.toml", "--budget", "20", "--out", "a", "--force")
    (place / "b").mkdir()
    (place / "b" / "thesis.tex").write_text("mine")
    said = gpuyard(place, "run", "job.toml", "--out", "b", "--force", code=2)[1]
    assert "holds something else" in said
    assert (place / "b" / "thesis.tex").read_text() == "mine"


def test_a_job_that_cannot_be_made_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for table in ('{ name = "mlp", width = "abc" }', '{ name = "mlp", width = -3 }', '{ name = "mlpx" }'):
        (place / "job.toml").write_text(JOB.replace('{ name = "data.py:slow" }', table))
        with pytest.raises(UserError, match="mlp"):
            typer.main.get_command(app).main(["run", "job.toml", "--out", "a"], standalone_mode=False)
    assert not (place / "a").exists()


def test_a_file_may_import_what_lies_beside_it(place: Path) -> None:
    (place / "beside.py").write_text("from data import slow\ndef network(): return slow()\n")
    assert make_network("beside.py:network", {}, place)(torch.zeros(1, 6)).shape == (1, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "none.toml"), "cannot be read"),
        (("run", "job.toml", "--decider", "erly"), "did you mean 'early'"),
        (("run", "job.toml", "--decider", "reinforce:none.json"), "none.json"),
        (("run", "job.toml", "--budget", "soon"), "soon"),
        (("record", "job.toml", "--here", "--out", "data.py"), "this is no JSON; record into another file"),
        (("visit", ".", "root"), "no recording that was begun"),
    ],
)
def test_mistakes_are_told(place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(UserError, match=re.escape(said)):
        typer.main.get_command(app).main(list(words), standalone_mode=False)


@pytest.mark.slow
def test_recording_by_two_processes_is_the_same_as_by_one(place: Path) -> None:
    text = JOB.replace("400", "24") + "environments = { decisions = 2 }\n"
    (place / "job.toml").write_text(text)
    rows = []
    for jobs in ("1", "2"):
        told = json.loads(
            gpuyard(place, "record", "job.toml", "--here", "--jobs", jobs, "--seeds", "2", "--out", f"{jobs}.jsonl",
                    "--json")[0]
        )  # fmt: skip
        assert (told["environments"], told["seeds"], told["rows"]) == (1, 2, 8)
        lines = (place / f"{jobs}.jsonl").read_text().splitlines()[1:]
        found = [json.loads(line) for line in lines]
        rows.append(sorted((row["seed"], row["actions"], row["accuracy"]) for row in found))
    assert rows[0] == rows[1]
