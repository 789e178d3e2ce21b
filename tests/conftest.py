"""What tests share: where the real traces are, GPUs that are made up, and hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fake_nvml import FakeNvml, build

REPOSITORY = Path(__file__).resolve().parent.parent

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

_NEEDS = {"browser": "browser", "kube": "kube", "chaos": "slow", "fuzzing": "slow"}
"""Markers of all tests in a folder; others stand at the tests."""
_ROOT_FIXTURES = {"groups", "ann", "disk", "systemd"}
"""Fixtures that make users, mount file systems or start systemd."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parts = item.path.relative_to(REPOSITORY).parts
        if len(parts) > 1 and parts[1] in _NEEDS:
            item.add_marker(_NEEDS[parts[1]])
        if _ROOT_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("root")


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real traces; without it the test is skipped."""
    folder = Path(os.environ.get("GPUYARD_TRACES") or REPOSITORY.parent / "shared" / "traces")
    if not folder.is_dir():
        pytest.skip(f"no traces in {folder}; set GPUYARD_TRACES to a folder laid out as docs/reference/traces.md says")
    return folder


@pytest.fixture
def trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write a file into a fresh working directory, so that messages show its bare name."""
    monkeypatch.chdir(tmp_path)

    def make(content: str | bytes, name: str = "a") -> str:
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
        return name

    return make


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a made-up NVML; without a compiler the test is skipped."""
    folder = build(tmp_path_factory.mktemp("nvml"))
    if folder is None:
        pytest.skip("no C compiler to build the made-up NVML with; apt-get install gcc libc6-dev")
    return folder


@pytest.fixture
def fake_nvml(nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """A machine without GPUs, but with a driver; add some."""
    return FakeNvml(nvml_library, tmp_path)
