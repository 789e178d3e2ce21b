"""Compiling the kernel: finished parts are kept, no two processes compile the same, and replay may be done sooner."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard.core.model import Cluster
from gpuyard.policies.resolver import make_planner
from gpuyard.sim import simulate as simulation
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.workload import generate_poisson

driver = pytest.importorskip("gpuyard.sim.kernel.driver", reason="numba is not installed, so there is no kernel")

COMPILE = """
import sys
from gpuyard.policies.resolver import make_planner
from gpuyard.sim.kernel import driver, references
driver.compile_for(make_planner("fcfs"), lambda compilation: print(len(compilation.done()), flush=True))
print("loaded", *sorted(name for _, name in references.LOADED))
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"GPUYARD_CACHE_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", COMPILE], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_an_interrupted_compilation_goes_on_where_it_was(tmp_path: Path) -> None:
    first = _start(tmp_path)
    assert first.stdout is not None
    for line in first.stdout:  # until some functions are finished, however long that takes
        if int(line) >= 6:
            break
    first.send_signal(signal.SIGINT)
    first.stdout.close()
    assert first.wait() != 0
    parts = {re.sub(r"-.*", "", path.name) for path in tmp_path.glob("kernel/*/__pycache__/*.nbc")}
    assert len(parts) >= 3  # the last ones may have been on their way to the disk
    assert "run_in_order.run_in_order" not in parts
    second = _start(tmp_path)
    said, _ = second.communicate()
    assert second.returncode == 0
    loaded = said.splitlines()[-1].split()[1:]
    assert loaded
    assert {f"run_in_order.{name}" for name in loaded} <= parts
    # Nothing is left but the entry.
    assert {re.sub(r"-.*", "", path.name) for path in tmp_path.glob("kernel/*/__pycache__/*.nbc")} == {
        "run_in_order.run_in_order"
    }


def test_processes_compile_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_CACHE_DIR", str(tmp_path))
    waiting = "from gpuyard.sim.kernel.compiler import alone\nwith alone('it', '1') as other: print(other)"
    with driver.compiler.alone("it", "1") as other:
        assert not other
        process = subprocess.Popen(
            [sys.executable, "-c", waiting], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert process.stderr.readline() == "another process compiles the same code (it); waiting for it ...\n"
        assert process.poll() is None
    said, _ = process.communicate()
    assert said == "True\n"


class _Expected:
    def __init__(self, seconds: float) -> None:
        self.expected = seconds


@pytest.mark.parametrize(("seconds", "engine"), [(1e9, "replay"), (0.0, "kernel")])
def test_replay_runs_where_it_is_done_sooner(
    seconds: float, engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "is_compiled", lambda planner: False)
    monkeypatch.setattr(driver, "compile_for", lambda planner, show: None)
    monkeypatch.setattr(driver, "compilation", lambda planner: _Expected(seconds))
    monkeypatch.setattr(simulation, "_LOOK_AFTER", 0.0)
    monkeypatch.setattr(simulation, "MANY", 100)
    trace, cluster = generate_poisson(1, jobs=300, gpus=8, load=0.9), Cluster.parse("2x4")
    found, metrics = simulate(trace, cluster, "fcfs")
    assert metrics["engine"] == engine
    told = capsys.readouterr().err
    assert "not compiled on this machine yet" in told
    assert ("replay would take another" in told) == (engine == "kernel")
    same, _ = simulate(trace, cluster, "fcfs", Options(engine="replay"))
    assert found.start.tolist() == same.start.tolist()


def test_a_compilation_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    compilation: Any = driver.compilation(make_planner("fcfs"))
    assert compilation.done() == set()
    assert compilation.total > 20
    assert compilation.expected > 0
    assert compilation.left() > 0
    simulation._show_compilation("fcfs@strict@first")(compilation)
    told = capsys.readouterr().err
    assert re.search(r"fcfs@strict@first: 0 of \d+ functions, 0 s, about \d+ s left \(now the policy\)", told)
