"""Filling Alibaba's cluster, through the command line: the numbers that the authors of FGD published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.yard import call

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "published"),
    [
        (("--placement", "random"), 87.5),
        (("--placement", "clustering"), 91.9),
        (("--policy", "fcfs@skip@packing"), 92.0),
        (("--placement", "pack"), 93.1),
        (("--policy", "fcfs@skip@fgd"), 95.4),
    ],
)
def test_published_allocation(traces: Path, arguments: tuple[str, ...], published: float) -> None:
    """Two seeds instead of ten; the mean of ten is in docs/reference/simulating.md."""
    openb = traces / "openb"
    if not openb.is_dir():
        pytest.skip(f"no openb traces in {traces}")
    nodes = ("--nodes", openb / "openb_node_list_gpu_node.csv", "--inflate", "1.3")
    allocation = 0.0
    for seed in "01":
        done = call(
            "simulate", openb / "openb_pod_list_default.csv", *nodes, *arguments, "--seed", seed, "--json", cwd=traces
        )
        assert done.code == 0, done.err
        found = json.loads(done.out)
        assert (found["jobs"], found["gpus"], found["placed"] + found["failed"]) == (8152, 6212, found["arrived"])
        assert found["demand"] == pytest.approx(130, abs=0.1)
        assert found["allocation"] + found["fragmentation"] < 100
        allocation += found["allocation"] / 2
    assert allocation == pytest.approx(published, abs=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nodes", "2x4", "--inflate", "0"), "--inflate takes a number above 0"),
        (("--nodes", "2x4", "--inflate", "1.3", "--placement", "fdg"), "fgd"),
        (("--nodes", "nowhere.csv"), "no file of that name"),
    ],
)
def test_mistakes_end_in_a_sentence(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    trace = tmp_path / "four.csv"
    trace.write_text("job,submit,run,gpus\n1,2,6,1\n2,0,8,1\n")
    done = call("simulate", trace, *arguments, cwd=tmp_path)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_filling_for_people(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job,submit,run,gpus,cpus\n1,2,6,1,2\n2,0,8,2,3\n")
    (tmp_path / "nodes.csv").write_text("node,gpus,cpus\na,2,8\nb,4,16\n")
    arguments = ("--nodes", tmp_path / "nodes.csv", "--inflate", "1.5", "--placement", "fgd", "--out", tmp_path / "out")
    done = call("simulate", tmp_path / "jobs.csv", *arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "filling 6 simulated GPUs on 2 nodes, placement fgd" in done.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "curve.csv",
        "curve.png",
        "curve.svg",
        "metrics.json",
    }
