"""The examples, with little to do: they train, and always the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(script: str, *arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        cwd=cwd, env={**environment, "OMP_NUM_THREADS": "1", **more}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def epochs(text: str) -> list[tuple[str, float]]:
    """`3/10` and the loss, of every line."""
    return [(epoch, float(loss)) for epoch, loss in re.findall(r"^epoch (\d+/\d+) loss (\S+)", text, re.M)]


@pytest.mark.parametrize(
    ("script", "size"), [("matmul.py", 60), ("cnn.py", 300), ("boosted_trees.py", 500), ("recurrent.py", 200)]
)
def test_the_loss_falls_and_is_the_same_each_time(script: str, size: int, tmp_path: Path) -> None:
    runs = [run(script, "--epochs", "5", "--size", str(size), "--seed", seed, cwd=tmp_path) for seed in "778"]
    assert [done.returncode for done in runs] == [0, 0, 0], runs[0].stderr
    found = epochs(runs[0].stdout)
    assert [epoch for epoch, _ in found] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    losses = [loss for _, loss in found]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    assert runs[0].stdout == runs[1].stdout != runs[2].stdout
    assert list(tmp_path.iterdir()) == []


def test_digits_are_learned_and_training_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = run("mnist_like.py", "--epochs", "6", "--id", "whole", "--size", "1000", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    lines = whole.stdout.splitlines()
    accuracies = [float(line.split()[-1]) for line in lines]
    assert accuracies[0] < 0.6 < 0.7 < accuracies[-1]

    first = run("mnist_like.py", "--epochs", "2", "--id", "parts", "--size", "1000", cwd=tmp_path)
    assert len(epochs(first.stdout)) == 2
    again = run("mnist_like.py", "--epochs", "6", "--id", "parts", "--size", "1000", cwd=tmp_path)
    assert again.stdout.splitlines() == ["parts.npz: 2 epochs are done", *lines[2:]]
    assert run("mnist_like.py", "--epochs", "6", "--id", "parts", cwd=tmp_path).stdout.count("loss") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.npz", "whole.npz"]


def test_waiting_needs_a_daemon_unless_it_is_a_job_already(tmp_path: Path) -> None:
    tiny = ("--epochs", "1", "--size", "100", "--wait")
    alone = run("mnist_like.py", *tiny, cwd=tmp_path, GPUYARD_DATA_DIR=str(tmp_path))
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "mnist waits for a GPU" in alone.stderr
    assert "no daemon answers" in alone.stderr
    assert "Traceback" not in alone.stderr
    job = run("mnist_like.py", *tiny, cwd=tmp_path, GPUYARD_JOB_ID="7", GPUYARD_GPUS="2")
    assert (job.returncode, len(epochs(job.stdout))) == (0, 1)
