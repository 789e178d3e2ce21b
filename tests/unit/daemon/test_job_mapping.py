"""The files that tell dcgm-exporter of jobs: who may read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.daemon.background.dcgm import JobMapping
from gpuyard.gpus.simulated import SimulatedGpus


@pytest.fixture(autouse=True)
def masked() -> Iterator[None]:
    """The daemon's own umask."""
    former = os.umask(0o077)
    yield
    os.umask(former)


def mapping(folder: Path) -> JobMapping:
    yard: Any = SimpleNamespace(
        machine=SimpleNamespace(gpus=SimulatedGpus.parse("2x16G")), store=SimpleNamespace(open={}), listeners=[]
    )
    return JobMapping(yard, str(folder))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_folder_that_was_not_there_can_be_read_by_everybody_whatever_the_umask(tmp_path: Path) -> None:
    mapping(tmp_path / "run" / "map").write()
    assert [mode(path) for path in (tmp_path / "run", tmp_path / "run" / "map")] == [0o755, 0o755]
    assert {path.name: mode(path) for path in (tmp_path / "run" / "map").iterdir()} == {"0": 0o644, "1": 0o644}


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "map"
    folder.mkdir(mode=0o700)
    mapping(folder).write()
    assert mode(folder) == 0o700
    assert mode(folder / "0") == 0o644
