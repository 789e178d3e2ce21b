"""`--profile`, whose value may be left out or begin with a dash."""

from __future__ import annotations

import pytest

from gpuyard.cli.parser import completed

KNOWN = {"--profile", "--gpus", "-g", "--gpu-memory"}


@pytest.mark.parametrize(("line", "found"), [
    ("--profile -- x", "--profile=30s -- x"),
    ("--profile", "--profile=30s"),
    ("--profile 2m -- x --profile", "--profile=2m -- x --profile"),
    ("--profile --gpus 2 x", "--profile=30s --gpus 2 x"),
    ("--profile -g2 -- x", "--profile=-g2 -- x"),
    ("--profile --epochs=2 -- x", "--profile=--epochs=2 -- x"),
    ("--profile=5s train.sh", "--profile=5s train.sh"),
    ("--profile train.sh", "--profile=30s train.sh"),
    ("--profile soon -- x", "--profile=soon -- x"),
    ("--profile --gpus -- x", "--profile=30s --gpus -- x"),
    ("--profile none", "--profile=none"),
    ("x y", "x y"),
])  # fmt: skip
def test_a_value_is_beside_its_option(line: str, found: str) -> None:
    assert completed(line.split(), KNOWN) == found.split()


def test_arguments_with_a_blank_are_one_value() -> None:
    assert completed(["--profile", "--epochs 2", "--", "x"], KNOWN) == ["--profile=--epochs 2", "--", "x"]


def test_where_it_is_usual_anyway_it_says_nothing() -> None:
    assert completed(["f.csv", "--profile", "--gpus", "1"], KNOWN, "") == ["f.csv", "--gpus", "1"]
    assert completed(["--profile", "3s"], {"--gpus"}) == ["--profile", "3s"]
