"""`gpuyard batch FILE --policy P --out DIR`: real jobs in a yard of their own, and what is written of it."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.yard import Yard, finish, opened, until

GIB = 2**30
JOBS = """
- {name: long, command: sleep 1.5, estimate: 9s, simulate-use: "3G;util=80"}
- {name: short, command: "echo hello; sleep 0.3", estimate: 3s, simulate-use: "1G;util=30"}
- {name: bad, command: "sleep 0.5; exit 3", estimate: 5s, simulate-use: "2G;util=60"}
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Yard]:
    """Commands in a directory of their own; no daemon is up, and none is left."""
    with opened(tmp_path) as found:
        (found.cwd / "jobs.yaml").write_text(JOBS)
        yield found
        assert left_in(tmp_path) == []


def left_in(folder: Path) -> list[str]:
    """Processes that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace")
            environment = (path / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"GPUYARD_DATA_DIR={folder}" in environment and str(os.getpid()) != path.name and words:
            found.append(words)
    return found


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), skipinitialspace=True))


def test_one_command_runs_a_list_under_a_policy_and_draws_it(here: Yard) -> None:
    done = here.process("batch", "jobs.yaml", "--policy", "fcfs", "--simulate-gpus", "2x16G", "--out", "out", "--json",
                        "--metrics", "utilization,power")  # fmt: skip
    assert done.code == 1, done
    told, out = json.loads(done.out), here.cwd / "out"
    assert (told["succeeded"], told["failed"], told["state"]) == (2, 1, "over")
    assert {path.name for path in out.iterdir()} == {
        "gpu_usage.csv", "recording.json", "summary.json", "jobs.csv", "task_allocation_log.csv", "gantt.png",
        "gantt.svg", "plots.html", "logs",
        "utilization.png", "utilization.svg", "power.png", "power.svg",
    }  # fmt: skip
    check_summary(json.loads((out / "summary.json").read_text()), rows(out / "jobs.csv"))
    usage = rows(out / "gpu_usage.csv")
    assert list(usage[0]) == [
        "index", "timestamp", "name", "utilization.gpu [%]", "utilization.memory [%]", "power.draw [W]",
    ]  # fmt: skip
    assert {row["index"] for row in usage} == {"0", "1"}
    assert {row["utilization.gpu [%]"] for row in usage} >= {"80 %"}
    assert (out / "logs" / "2-short.txt").read_text() == "hello\n"
    assert (out / "gantt.png").read_bytes().startswith(b"\x89PNG")
    assert "2 simulated GPUs: no real GPU is looked at" in done.err


def check_summary(summary: Any, jobs: list[dict[str, str]]) -> None:
    assert [(job["name"], job["state"], job["exit_code"]) for job in jobs] == [
        ("long", "succeeded", "0"), ("short", "succeeded", "0"), ("bad", "failed", "3"),
    ]  # fmt: skip
    runs, waits = [float(job["run"]) for job in jobs], [float(job["wait"]) for job in jobs]
    assert (summary["jobs"], summary["completed"], summary["succeeded"], summary["simulated"]) == (3, 3, 2, True)
    assert summary["wait_mean"] == pytest.approx(sum(waits) / 3, abs=0.002)
    assert summary["turnaround_mean"] == pytest.approx((sum(runs) + sum(waits)) / 3, abs=0.002)
    assert summary["makespan"] == pytest.approx(max(w + r for w, r in zip(waits, runs, strict=True)), abs=0.05)
    assert summary["throughput"] == pytest.approx(3 / summary["makespan"], rel=0.001)
    assert 0 < summary["utilization"] < 100
    assert summary["energy_wh"] > 0
    assert [job["peak_memory"] for job in jobs] == [str(3 * GIB), str(GIB), str(2 * GIB)]


def test_policies_are_compared_on_the_same_jobs(here: Yard) -> None:
    line = ("--policy", "fcfs", "--policy", "sjf", "--simulate-gpus", "1x16G", "--out", "out", "--no-plots")
    done = here.process("batch", "jobs.yaml", *line)
    out = here.cwd / "out"
    assert done.code == 1
    order = {
        policy: [row["task"] for row in rows(out / policy / "task_allocation_log.csv")] for policy in ("fcfs", "sjf")
    }
    assert order == {"fcfs": ["long", "short", "bad"], "sjf": ["short", "bad", "long"]}
    compared = {row["policy"]: row for row in rows(out / "comparison.csv")}
    assert float(compared["sjf"]["wait_mean"]) < float(compared["fcfs"]["wait_mean"])
    for name in ("comparison.png", "comparison.svg", "fcfs/gantt.png", "sjf/gantt.png"):
        assert (out / name).stat().st_size > 1000
    assert "MEAN TURNAROUND" in done.err


def test_ctrl_c_ends_the_jobs_and_writes_what_there_is(here: Yard) -> None:
    (here.cwd / "jobs.yaml").write_text(
        "- {name: done, command: 'true'}\n- {name: long, command: 'touch on; sleep 99'}\n"
    )
    process = here.popen(
        "batch", "jobs.yaml", "--policy", "fcfs", "--simulate-gpus", "1x16G", "--out", "out", "--no-plots"
    )
    until((here.cwd / "on").exists, "the second job")
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.code == 130
    assert "interrupted: the jobs and their yard are ended" in done.err
    assert [row["state"] for row in rows(here.cwd / "out" / "jobs.csv")] == ["succeeded", "cancelled"]
    assert (here.cwd / "out" / "gantt.png").exists()
    assert not (here.cwd / "out" / "yard").exists()


def test_a_batch_that_is_killed_leaves_no_yard_behind(here: Yard) -> None:
    (here.cwd / "jobs.yaml").write_text("- {name: long, command: 'echo $$ > on; exec sleep 99'}\n")
    process = here.popen("batch", "jobs.yaml", "--policy", "fcfs", "--simulate-gpus", "1x16G", "--out", "out")
    pid = until(lambda: (here.cwd / "on").exists() and (here.cwd / "on").read_text().strip(), "its job")
    process.kill()
    finish(process)
    until(lambda: not Path("/proc", str(pid)).exists(), "the end of its job")
    until(lambda: not (here.cwd / "out" / "yard").exists(), "the end of its yard")
    until(lambda: not left_in(here.cwd.parent), "the end of who ended it")


def test_a_folder_that_is_no_yard_is_left_alone(here: Yard) -> None:
    kept = here.cwd / "yard" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("precious")
    done = here("batch", "jobs.yaml", "--policy", "fcfs", "--simulate-gpus", "1x16G", "--out", ".")
    assert (done.code, kept.read_text()) == (2, "precious")
    assert "yard is in the way, and no yard of gpuyard's; move it away" in done.err


def test_a_batch_of_the_daemon_can_be_drawn_as_well(yard: Yard) -> None:
    (yard.cwd / "drawn.yaml").write_text(JOBS)
    done = yard("batch", "drawn.yaml", "--out", "drawn", "--no-plots")
    assert done.code == 1
    found = rows(yard.cwd / "drawn" / "jobs.csv")
    assert [row["name"] for row in found] == ["long", "short", "bad"]
    assert (yard.cwd / "drawn" / "gantt.svg").exists()
    summary = json.loads((yard.cwd / "drawn" / "summary.json").read_text())
    assert (summary["policy"], len(summary["gpus"])) == (yard.client.policy()["policy"], 4)
    again = yard("batch", "drawn.yaml", "--out", "drawn")
    assert (again.code, len(yard.client.jobs())) == (2, 0)
    assert "drawn has gpu_usage.csv in it, from an earlier run" in again.err


def test_without_a_gpu_it_says_so(here: Yard, fake_nvml: FakeNvml) -> None:
    fake_nvml.driver(loaded=0)
    more = {name: fake_nvml.env[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
    done = finish(here.popen("batch", "jobs.yaml", "--policy", "fcfs", "--out", "out", more=more))
    assert done.code == 2
    assert "there is no GPU to look at here: the NVIDIA driver is not loaded" in done.err
    assert "--simulate-gpus 1x16G" in done.err
    assert not (here.cwd / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--policy", "fcsf"], "unknown policy 'fcsf'; did you mean 'fcfs'?"),
        (["--simulate-gpus", "1"], "--simulate-gpus is for a yard of the batch's own: give --policy with it"),
        (["--policy", "fcfs", "--detach"], "runs to its end in a yard of its own; leave out --detach"),
        (["--policy", "fcfs", "--host", "http://x:1"], "leave out --host"),
        (["--metrics", "power"], "nothing is drawn without --out DIR"),
        (["--policy", "fcfs", "--metrics", "powr"], "did you mean 'power'?"),
        (["--out", "out", "--detach"], "is followed to its end, to be drawn; leave out --detach"),
    ],
)
def test_what_makes_no_sense_is_told(here: Yard, arguments: list[str], told: str) -> None:
    done = here("batch", "jobs.yaml", *arguments)
    assert done.code == 2
    assert told in done.err
    assert [path.name for path in here.cwd.iterdir()] == ["jobs.yaml"]
