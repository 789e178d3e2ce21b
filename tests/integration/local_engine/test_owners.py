"""Which job a process of this machine is of."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.contract.engine import PATIENCE, Watch
from tests.localengine import folder_of

from gpuyard.engines.base import EngineError, Running
from gpuyard.engines.local import processes
from gpuyard.engines.local.local_engine import LocalEngine


def test_owners_by_environment_alone(watch: Watch) -> None:
    marked = subprocess.Popen(["sleep", "60"], env={"GPUYARD_RUN": str(folder_of(watch, "17_3"))})
    foreign = subprocess.Popen(["sleep", "60"], env={"GPUYARD_RUN": "/somewhere/else/17/1"})
    try:
        deadline = time.monotonic() + PATIENCE
        while processes.mark_of(foreign.pid) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert watch.engine.owner(marked.pid) == ("17_3", 1)
        assert watch.engine.owner(foreign.pid) is None
    finally:
        for process in (marked, foreign):
            process.kill()
            process.wait()


def test_the_wrapper_has_an_owner(watch: Watch) -> None:
    watch.launch("1", "sleep", "60")
    assert watch.engine.owner(int(watch.until(Running, "1").handle)) == ("1", 1)


def test_it_says_once_that_there_are_no_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Path) -> None:
        raise EngineError("no cgroup2 file system is mounted")

    monkeypatch.setattr("gpuyard.engines.local.cgroups.find_cgroups", fail)
    with caplog.at_level(logging.INFO):
        engine = LocalEngine(tmp_path, ())
    engine.close()
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no cgroup2 file system is mounted"]
    with pytest.raises(EngineError):
        LocalEngine(tmp_path, (), cgroups=True)


def test_a_name_with_parentheses_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    with contextlib.closing(process.stdin) if process.stdin else contextlib.nullcontext():
        found = processes.look(process.pid)
    process.kill()
    process.wait()
    assert found is not None
    assert found.parent == os.getpid()
