"""The engine of this machine, in both of its ways to find what a job has left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.engine import Watch
from tests.localengine import Start

from gpuyard.engines.base import Ended, EngineError, Running
from gpuyard.engines.local.cgroups import find_cgroups
from gpuyard.engines.local.local_engine import LocalEngine


@pytest.fixture(params=[True, False], ids=["cgroups", "census"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """A function that starts an engine, once for each way to find what a job has left behind."""
    if request.param:
        try:
            find_cgroups(tmp_path).close()
        except EngineError as error:
            pytest.skip(str(error))
    (tmp_path / "cwd").mkdir()
    made: list[Watch] = []

    def make() -> Watch:
        engine = LocalEngine(tmp_path / "jobs", ("gpu-a", "gpu-b"), "here", cgroups=request.param)
        made.append(Watch(engine, tmp_path / "cwd"))
        return made[-1]

    yield make
    last = make()
    for claim in (tmp_path / "jobs").glob("*/*/pid"):
        job, attempt = claim.parts[-3], int(claim.parts[-2])
        if isinstance(last.engine.adopt(job, attempt), Running):
            last.engine.stop(job, attempt, 0)
            last.until(Ended, job, attempt)
    for watch in made:
        watch.engine.close()
    if request.param:
        cgroups = find_cgroups(tmp_path / "jobs")
        cgroups.close()  # goes only if no attempt is left in it
        assert not Path(cgroups.base).exists()


@pytest.fixture
def watch(start: Start) -> Watch:
    """One engine."""
    return start()
