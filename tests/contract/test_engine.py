"""Every engine, held to the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.engines.base import Engine, EngineError
from gpuyard.engines.local.local_engine import LocalEngine
from gpuyard.engines.mps_engine import MpsEngine
from tests.contract.engine import EngineContract

DEVICES = ("gpu-a", "gpu-b")


class TestLocalWithCgroups(EngineContract):
    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> Callable[[], Engine]:
        try:
            LocalEngine(tmp_path / "jobs", DEVICES, cgroups=True).close()
        except EngineError as error:
            pytest.skip(str(error))
        return lambda: LocalEngine(tmp_path / "jobs", DEVICES, cgroups=True)


class TestLocalWithoutCgroups(EngineContract):
    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> Callable[[], Engine]:
        return lambda: LocalEngine(tmp_path / "jobs", DEVICES, cgroups=False)


class TestWithinMps(EngineContract):
    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> Callable[[], Engine]:
        return lambda: MpsEngine(LocalEngine(tmp_path / "jobs", DEVICES, cgroups=False), tmp_path / "mps", DEVICES)
