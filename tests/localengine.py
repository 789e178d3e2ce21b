"""What the tests of the engine of this machine share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuyard.engines.base import Placement
from tests.contract.engine import Watch

Start = Callable[[], Watch]
PLACE = Placement("here", ())


def folder_of(watch: Watch, job: str = "1") -> Path:
    """Where the first attempt of a job is."""
    return watch.directory.parent / "jobs" / job / "1"
