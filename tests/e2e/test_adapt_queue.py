"""A network that is trained in the queue, lent the GPU that another job leaves, grows, and ends within its time.

The same jobs recorded: each piece of a recording is a job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.yard import Yard

DATA = """
import time
import torch
class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.01)
        return x
def network():
    return torch.nn.Sequential(Slow(), torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
def data():
    inputs = torch.randn(1500, 6, generator=torch.Generator().manual_seed(1))
    labels = (inputs[:, 0] * inputs[:, 1] * inputs[:, 2] > 0).long() + 2 * (inputs[:, 3] * inputs[:, 4] > 0).long()
    return tuple((inputs[k : k + 500], labels[k : k + 500]) for k in (0, 500, 1000))
"""
JOB = """
budget = "1h"
clock = "wall"
decider = "cost-rule"
decisions = 1
network = { name = "mine.py:network" }
data = { name = "mine.py:data" }
training = { batch_size = 32, learning_rate = 0.01, evaluate_every = 0.02 }
"""
RECORD = """
budget = 24
clock = "virtual"
decide_at = [0.2]
network = { name = "mlp", features = 6, width = 5, classes = 4, layers = 1 }
data = { name = "mine.py:data" }
environments = { decisions = 1 }
"""


@pytest.fixture
def two(own_yard: Yard) -> Iterator[Yard]:
    """A yard of two GPUs, with files to train."""
    for name, text in (("mine.py", DATA), ("job.toml", JOB), ("record.toml", RECORD)):
        (own_yard.cwd / name).write_text(text)
    own_yard.serve("--simulate-gpus", "2x16G")
    yield own_yard
    own_yard.clear()


@pytest.mark.slow
def test_a_network_grows_with_the_gpu_that_another_job_leaves(two: Yard, tmp_path: Path) -> None:
    adapt = (sys.executable, "-m", "gpuyard", "adapt", "run", "job.toml", "--out", str(tmp_path / "run"))
    other = two.submit("--", "sleep", "1")
    grows = two.submit("--adaptive", "--time", "40s", "--", *adapt)
    ended = two.client.wait(grows, timeout=120)
    assert two.client.job(other)["state"] == "succeeded"
    assert ended["state"] == "succeeded", two.client.log(grows).data.decode()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (decision,) = result["decisions"]
    assert (decision["op"], decision["parameters_before"], decision["parameters"]) == ("deepen", 136, 292)
    assert result["used"] <= 40
    told = two("show", grows).out
    assert "was lent GPU 0: nobody waits for it, and it gains" in told
    assert "deepen 1 (136 to 292 parameters): growing at 1 makes a step" in told


@pytest.mark.slow
def test_each_piece_of_a_recording_is_a_job(two: Yard) -> None:
    done = two("adapt", "record", "record.toml", "--seeds", "1", "--out", "out.jsonl", "--json")
    assert json.loads(done.out)["rows"] == 2
    jobs = two.client.history()
    assert sorted(str(job["name"]) for job in jobs) == [f"record-24-up20-0/{node}" for node in ("0", "1", "root")]
    assert {job["state"] for job in jobs} == {"succeeded"}
