"""What tests share: where the real traces are, GPUs that are made up, and hypothesis profiles."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.fake_nvml import FakeNvml, build

# Several tests run at a time: more threads in each only get in the way of the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# `nohup` and background jobs of a script ignore these, and so would all commands of the tests.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

REPOSITORY = Path(__file__).resolve().parent.parent

settings.register_profile("default", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

_OF_FOLDERS = {"browser": "browser", "kube": "kube", "chaos": "slow"}
"""Markers of all tests in a folder; others stand at the tests."""
_OF_FIXTURES = {
    **dict.fromkeys(("groups", "ann", "disk", "systemd"), "root"),
    "scene": "prometheus",
    "terminal": "program",
}
"""Markers of all tests with a fixture that makes users, mounts file systems, or starts systemd, Prometheus or tmux."""
_SYSTEM = ("browser", "kube", "root", "prometheus", "program")
"""Who has one of these markers is `system` as well, and runs by `make test-system`: it needs more than Python."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        folder = item.path.relative_to(REPOSITORY).parts[1]
        fixtures = getattr(item, "fixturenames", ())
        needs = {_OF_FOLDERS.get(folder), *(_OF_FIXTURES.get(name) for name in fixtures)}
        for marker in sorted(needs - {None}, key=str):
            item.add_marker(str(marker))
        if any(item.get_closest_marker(name) for name in _SYSTEM):
            item.add_marker("system")
    yield  # tests that are not wanted are left out
    items[:] = _slow_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def pytest_configure() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected and imported stays: to search it again and again for what is left takes seconds."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _slow_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each worker is given a stretch of the tests, and takes over from others when it is done: so none must be long
    at the end. Slow tests are dealt out one by one; those of a slow module stay together, for what they share."""
    alone, slow, rest = list[pytest.Item](), list[pytest.Item](), list[pytest.Item]()
    for item in items:
        own = any(mark.name == "slow" for mark in item.own_markers)
        (alone if own else slow if item.get_closest_marker("slow") else rest).append(item)
    return [
        item
        for number in range(workers)
        for some in (alone[number::workers], _stretch(slow, number, workers), _stretch(rest, number, workers))
        for item in some
    ]


def _stretch(items: list[pytest.Item], number: int, workers: int) -> list[pytest.Item]:
    return items[number * len(items) // workers : (number + 1) * len(items) // workers]


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
