"""`compare`, `sweep` and pools on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.yard import call

pytestmark = pytest.mark.slow


@pytest.fixture
def four(tmp_path: Path) -> Path:
    path = tmp_path / "four.csv"
    path.write_text("job,submit,run,gpus\n1,2,6,1\n2,0,8,1\n3,1,7,1\n4,3,3,1\n")
    return path


def test_compare_with_windows_seeds_and_schedules(tmp_path: Path) -> None:
    rows = "".join(f"{n},{7 * n},{10 + 13 * n % 40},{1 + n % 3}\n" for n in range(50))
    (tmp_path / "w.csv").write_text("job,submit,run,gpus\n" + rows)
    common = ["compare", "w.csv", "--gpus", "4", "--policies", "fcfs,lottery", "--jobs", "2"]
    done = call(*common, "--seeds", "3", "--json", "--out", "r", cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert set(found) == {"trace", "gpus", "nodes", "results", "runs"}
    by_policy = {row["policy"]: row for row in found["results"]}
    low, high = by_policy["lottery"]["jct_mean_ci"]
    assert low <= by_policy["lottery"]["jct_mean"] <= high
    assert "jct_mean_ci" not in by_policy["fcfs"]
    assert "±" in (tmp_path / "r" / "report.html").read_text()
    shown = call(*common, "--windows", "2", cwd=tmp_path).out
    assert "means over 2 windows, too few for confidence intervals" in " ".join(shown.split())
    assert "±" not in shown.replace("± 95 % confidence", "")
    shown = call(*common, "--windows", "3", cwd=tmp_path).out
    assert "means over 3 windows, ± 95 % confidence" in " ".join(shown.split())
    assert " ± " in shown.replace("± 95 % confidence", "")
    done = call(*common, "--out", "s", "--schedules", cwd=tmp_path)
    assert done.code == 0, done.err
    assert len((tmp_path / "s" / "lottery" / "jobs.csv").read_text().splitlines()) > 40


def test_compare_goes_on_when_a_policy_fails_and_says_so(four: Path, tmp_path: Path) -> None:
    options = ["--gpus", "1", "--restart-cost", "30", "--json"]
    done = call("compare", four, "--policies", "fcfs,rr", *options, cwd=tmp_path)
    assert done.code == 1
    found = json.loads(done.out)
    assert [row["policy"] for row in found["results"]] == ["fcfs"]
    assert found["errors"][0]["policy"] == "rr"
    assert "error: rr: a restart costs 30 s" in done.err
    alone = call("compare", four, "--policies", "rr", *options, cwd=tmp_path)
    assert (alone.code, alone.out) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--schedules"], "give --out DIR"),
        (["--seeds", "2", "--windows", "2"], "not both"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--windows", "0"], "--windows must be at least 1"),
        (["--policies", ","], "names no policy"),
    ],
)
def test_a_mistake_in_a_comparison(arguments: list[str], told: str, four: Path, tmp_path: Path) -> None:
    done = call("compare", four, "--gpus", "1", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert told in done.err
    assert "Traceback" not in done.err


def test_pools_rounds_and_restart_costs(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(
        "job,submit,run,gpus,label_vc\n1,0,40,8,a\n2,5,10,8,a\n3,5,10,8,b\n4,5,10,1,c\n5,61,10,16,b\n"
    )
    (tmp_path / "pools.csv").write_text("vc,node num\na,1\nb,2\n")
    options = ["--pools", "pools.csv", "--round", "60", "--restart-cost", "7/30/60", "--policy", "srtf"]
    done = call("simulate", "w.csv", *options, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["gpus"], found["rejected"], found["round"], found["restart_cost"]) == (24, 1, 60, "7/30/60")
    assert (found["pools"]["a"]["jct_max"], found["pools"]["b"]["makespan"]) == (65, 125)


def test_sweep_prints_a_table_and_writes_the_curve(four: Path, tmp_path: Path) -> None:
    common = ["sweep", str(four), "--vary", "gpus=1:3:1", "--policies", "fcfs,sjf"]
    shown = call(*common, "--out", "s", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "15.5s" in shown.out
    assert {path.name for path in (tmp_path / "s").iterdir()} == {"sweep.csv", "sweep.json", "sweep.png", "sweep.svg"}
    found = json.loads(call(*common, "--json", cwd=tmp_path).out)
    assert (found["vary"], found["values"], found["metric"]) == ("gpus", [1, 2, 3], "jct_mean")
    assert [row["jct_mean"] for row in found["results"]][:2] == [15.5, 13.5]
    assert found["results"] == [
        row | {"jobs_per_second": found["results"][k]["jobs_per_second"]}
        for k, row in enumerate(json.loads((tmp_path / "s" / "sweep.json").read_text())["results"])
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--vary"),
        (["--vary", "gpus=8", "--gpus", "4"], "leave out --gpus"),
        (["--vary", "gpus=x"], "whole numbers"),
        (["--vary", "load=1", "--gpus", "1", "--metric", "jct"], "there is no metric 'jct'"),
        (["--vary", "lod=1", "--gpus", "1"], "did you mean 'load'"),
        (["--vary", "load=1"], "--gpus 8 or --nodes 4x8"),
    ],
)
def test_a_mistake_in_a_sweep(arguments: list[str], told: str, four: Path, tmp_path: Path) -> None:
    done = call("sweep", four, *arguments, cwd=tmp_path)
    assert done.code == 2
    assert told in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["simulate", "compare", "sweep"])
def test_it_is_an_error_where_every_job_is_rejected(command: str, tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("job,submit,run,gpus\nwide,0,5,9\nwider,1,5,10\n")
    where = ("--vary", "gpus=4,8") if command == "sweep" else ("--gpus", "8")
    done = call(command, "w.csv", *where, "--json", cwd=tmp_path)
    assert done.code == 1
    assert "gpuyard: error: every job was rejected" in done.err
    found = json.loads(done.out)  # what is known is still told
    assert [row["rejected"] for row in found.get("results", [found])][:1] == [2]
    if command != "sweep":
        assert "job wide wants 9 GPUs, the cluster has 8" in done.err


def test_one_job_that_runs_is_enough(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("job,submit,run,gpus,deadline\nwide,0,5,9,3\nb,0,5,1,3\n")
    done = call("simulate", "w.csv", "--gpus", "8", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "deadlines    2 missed; tardiness 2s on average, 2s at most" in done.out
    ranked = call("sweep", "w.csv", "--vary", "gpus=4,16", "--metric", "deadline_missed", cwd=tmp_path)
    assert ranked.code == 0, ranked.err


def test_nodes_need_both_numbers(four: Path, tmp_path: Path) -> None:
    for arguments in (("simulate", four, "--nodes", "4"), ("trace", "info", four, "--nodes", "4"),
                      ("sweep", four, "--vary", "nodes=4,8")):  # fmt: skip
        done = call(*arguments, cwd=tmp_path)
        assert done.code == 2
        assert "write 4x8 for 4 nodes of 8 GPUs, or 1x4 for one node of 4" in done.err
