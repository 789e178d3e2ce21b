"""What tests share: where the real traces are, and hypothesis profiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parent.parent

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


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
