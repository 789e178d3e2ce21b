"""Which jobs can be clients of MPS."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fake_mps import PROGRAM, FakeMps

from gpuyard.core.model import Request
from gpuyard.daemon.devices.gpu_shares import mps_refusal
from gpuyard.gpus.base import Device
from gpuyard.spec.work import Work

WORK = Work(("true",), "/", mps=True)
OLD, NEW, MUTE = (
    Device(0, "a", "Tesla K10", 1, capability=(3, 0)),
    Device(1, "b", "A100", 1, capability=(8, 0)),
    Device(2, "c", "?", 1),
)


@pytest.fixture(autouse=True)
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMps:
    found = FakeMps(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}:/bin")
    return found


def test_one_gpu_that_has_mps_will_do() -> None:
    assert mps_refusal(WORK, Request(gpus=1), [NEW, MUTE]) is None
    assert mps_refusal(WORK, Request(gpus=1, scope=(1,)), [OLD, NEW]) is None


@pytest.mark.parametrize(
    ("request_", "devices", "told"),
    [
        (Request(gpus=2), [NEW, MUTE], "asks for MPS on 2 GPUs, and a client of MPS has one"),
        (Request(gpus=1), [OLD, NEW, MUTE], "may get GPU 0 (Tesla K10), without MPS; say --from 1,2"),
        (Request(gpus=1), [OLD], "may get GPU 0 (Tesla K10), without MPS; do without --mps"),
    ],
)
def test_who_cannot_be_one_is_told_why(request_: Request, devices: list[Device], told: str) -> None:
    assert told in (mps_refusal(WORK, request_, devices) or "")


def test_a_program_that_is_not_there_or_may_not_be_executed_is_named(fake: FakeMps) -> None:
    (fake.folder / PROGRAM).chmod(0o644)
    assert f"--mps needs {fake.folder / PROGRAM}, which the daemon may not execute" in (
        mps_refusal(WORK, Request(gpus=1), [NEW]) or ""
    )
    (fake.folder / PROGRAM).unlink()
    assert f"--mps needs {PROGRAM}, which is not on the daemon's PATH" in (
        mps_refusal(WORK, Request(gpus=1), [NEW]) or ""
    )
