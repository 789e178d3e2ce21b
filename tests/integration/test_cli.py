"""The command line as people use it: real processes, real files."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.yard import call

FOUR = "job,submit,run,gpus\n1,2,6,1\n2,0,8,1\n3,1,7,1\n4,3,3,1\n"


def metrics(*arguments: str | Path, cwd: Path) -> dict[str, Any]:
    done = call("simulate", *arguments, "--json", cwd=cwd)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.fixture
def four(tmp_path: Path) -> Path:
    path = tmp_path / "four.csv"
    path.write_text(FOUR)
    return path


def test_simulate_prints_the_promised_keys(four: Path, tmp_path: Path) -> None:
    found = metrics(four, "--gpus", "1", "--policy", "sjf", cwd=tmp_path)
    promised = (
        "jobs completed rejected jct_mean jct_p99 wait_mean wait_p99 wait_max slowdown_mean makespan utilization "
        "preemptions jobs_per_second"
    )
    assert set(promised.split()) <= set(found)
    assert (found["jct_mean"], found["wait_mean"], found["makespan"]) == (13.5, 7.5, 24)


def test_a_table_for_people_says_that_gpus_are_simulated(four: Path, tmp_path: Path) -> None:
    done = call("simulate", four, "--gpus", "1", cwd=tmp_path)
    assert done.code == 0
    assert "1 simulated GPU" in done.out
    assert "15.5s" in done.out


def test_gzip_and_stdin_are_read_as_they_are(four: Path, tmp_path: Path) -> None:
    packed = tmp_path / "four.csv.gz"
    packed.write_bytes(gzip.compress(FOUR.encode()))
    assert metrics(packed, "--gpus", "1", cwd=tmp_path)["jct_mean"] == 15.5
    done = call("simulate", "-", "--gpus", "1", "--json", cwd=tmp_path, stdin=FOUR)
    assert json.loads(done.out)["jct_mean"] == 15.5


def test_out_writes_every_job_every_slice_and_every_plot(four: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("simulate", four, "--gpus", "1", "--policy", "rr", "--quantum", "4", "--out", out, cwd=tmp_path)
    assert done.code == 0, done.err
    jobs = list(csv.DictReader((out / "jobs.csv").read_text().splitlines()))
    assert list(jobs[0])[:6] == ["job", "submit", "start", "end", "gpus", "preemptions"]
    assert {row["job"]: row["end"] for row in jobs} == {"1": "24", "2": "8", "3": "22", "4": "19"}
    assert all(row["gpus"] == "0:0" for row in jobs)
    slices = list(csv.DictReader((out / "segments.csv").read_text().splitlines()))
    assert sum(float(s["end"]) - float(s["start"]) for s in slices) == 24
    assert len(slices) == len(jobs) + sum(int(row["preemptions"]) for row in jobs)
    for plot in ("gantt", "utilisation", "cdf", "queue"):
        assert (out / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{plot}.svg").read_text()


def test_compare_ranks_and_reports(four: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    policies = "fcfs,rr:quantum=3,arrivals=first,sjf@easy,least-loaded"
    done = call("compare", four, "--gpus", "1", "--policies", policies, "--json", "--out", out, cwd=tmp_path)
    assert done.code == 0, done.err
    rows = json.loads(done.out)["results"]
    assert {row["policy"] for row in rows} == {"fcfs", "rr:quantum=3,arrivals=first", "sjf@easy", "least-loaded"}
    assert [row["jct_mean"] for row in rows] == sorted(row["jct_mean"] for row in rows)
    page = (out / "report.html").read_text()
    assert "sjf@" in page
    assert "gpuyard compare" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    made = call("workload", "generate", "--seed", "3", "--out", "w.csv", cwd=tmp_path)
    assert made.code == 0, made.err
    runs = [
        {k: v for k, v in metrics("w.csv", "--gpus", "4", "--policy", p, "--seed", s, cwd=tmp_path).items()
         if k != "jobs_per_second"}
        for p, s in (("lottery", "5"), ("lottery", "5"), ("lottery", "6"))
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_policy_of_ones_own_in_three_lines(four: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gpuyard import policy\n@policy\ndef shortest_wide(estimate, gpus): return estimate / gpus\n"
    )
    done = call("compare", four, "--gpus", "1", "--policies", "./mine.py:shortest_wide,fcfs", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["results"][0]["jct_mean"] == 13.5
    assert call("policies", "check", "./mine.py:shortest_wide", cwd=tmp_path).code == 0


def test_check_tells_what_is_wrong_with_a_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import numpy as np\ndef p(wait):\n    return 0 * np.log(wait)\n")
    done = call("policies", "check", "./mine.py:p", cwd=tmp_path)
    assert done.code == 1
    assert "not a number" in done.out


def test_policies_lists_all_with_their_sources(tmp_path: Path) -> None:
    done = call("policies", "--json", cwd=tmp_path)
    listed = json.loads(done.out)
    names = {p["name"] for p in listed["policies"]}
    assert {"fcfs", "sjf", "srtf", "rr", "priority", "lottery", "wfq", "fair", "las", "f1", "unicep", "random"} < names
    assert len(names) == 22
    assert all(p["doc"] for p in listed["policies"])
    assert {"least-loaded", "best-fit"} <= set(listed["aliases"])
    assert "Disciplines" in call("policies", cwd=tmp_path).out


def test_trace_info_and_convert(four: Path, tmp_path: Path) -> None:
    info = json.loads(call("trace", "info", four, "--json", cwd=tmp_path).out)
    assert info["jobs"] == 4
    assert "GPUs per job" in call("trace", "info", four, cwd=tmp_path).out
    assert call("trace", "convert", four, "four.swf", cwd=tmp_path).code == 0
    assert metrics("four.swf", "--gpus", "1", "--policy", "sjf", cwd=tmp_path)["jct_mean"] == 13.5


def test_what_can_never_fit_is_rejected_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "big.csv").write_text("job,submit,run,gpus\na,0,5,3\nb,0,4,1\n")
    done = call("simulate", "big.csv", "--gpus", "2", "--out", "out", "--json", cwd=tmp_path)
    found = json.loads(done.out)
    assert (found["jobs"], found["completed"], found["rejected"]) == (2, 1, 1)
    rows = list(csv.DictReader((tmp_path / "out" / "jobs.csv").read_text().splitlines()))
    assert rows[0]["rejected"] == "wants 3 GPUs, the cluster has 2"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gpus", "0"], "--gpus must be at least 1"),
        (["--gpus", "1", "--policy", "sfj"], "did you mean 'sjf'"),
        (["--gpus", "1", "--discipline", "esy"], "did you mean 'easy'"),
        (["--gpus", "1", "--placement", "pck"], "did you mean 'pack'"),
        (["--gpus", "1", "--policy", "wfp3:powr=2"], "did you mean 'power'"),
        (["--gpus", "1", "--policy", "srtf", "--discipline", "easy"], "skip or strict"),
        (["--gpus", "1", "--policy", "rr", "--quantum", "0"], "time slice"),
        (["--gpus", "1", "--policy", "rr", "--restart-cost", "20"], "make the quantum longer"),
        (["--gpus", "1", "--policy", "./no.py:p"], "no file"),
        (["--gpus", "1", "--estimate", "requested"], "no requested times"),
        (["--gpus", "1", "--slice", "3:9"], "more than there is"),
        (["--gpus", "1", "--nodes", "4x8"], "not both"),
        (["--nodes", "4y8"], "4x8"),
        ([], "--gpus 8 or --nodes 4x8"),
        (["--gpus", "one"], "--gpus"),
        (["--gpus", "999999999999"], "at most 1,000,000 GPUs"),
        (["--nodes", "99999999x8"], "more than 1,000,000 GPUs"),
        (["--gpus", "1", "--policy", "FCFS"], "did you mean 'fcfs'"),
        (["--gpus", "1", "--gpu-memory", "lots"], "--gpu-memory: 'lots' is not a size"),
        (["--gpus", "1", "--quantum", "long"], "--quantum: 'long' is not a duration"),
        (["--gpus", "1", "--restart-cost", "much"], "--restart-cost: 'much' is not a duration"),
        (["--gpus", "1", "--polcy", "sjf"], "--policy"),
        (["--gpus", "1", "--seed=-1"], "--seed is a whole number of 0 or more"),
        (["four.csv", "--gpus", "1"], "gpuyard simulate --help"),
        (["--gpus", "1", "--restart-cost", "7/30"], "7/30/60"),
        (["--gpus", "1", "--round", "60", "--discipline", "commit"], "leave out --round"),
        (["--gpus", "1", "--round=-1"], "--round must be 0 or more"),
        (["--gpus", "1", "--pools", "p.csv"], "not both"),
        (["--pools", "no-such.csv"], "no-such.csv"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_exit_2(arguments: list[str], told: str, four: Path, tmp_path: Path) -> None:
    done = call("simulate", four, *arguments, cwd=tmp_path)
    assert done.code == 2
    assert done.out == ""
    assert told in done.err
    assert done.err.startswith("gpuyard: error: ")
    assert done.err.count("\n") == 1


def test_without_a_command_there_is_help(tmp_path: Path) -> None:
    for arguments in ([], ["trace"]):
        done = call(*arguments, cwd=tmp_path)
        assert done.code == 2
        assert "Usage: gpuyard" in done.out + done.err
        assert "error" not in done.err
    wrong = call("simulat", cwd=tmp_path)
    assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)
    assert "simulate" in wrong.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("job,submit,run,gpus\n1,0,5,1\n2,0,-8,1\n", "bad.csv, line 3"),
        ("job,submit,run,gpus\n1,0,5,1\n2,x,8,1\n", "bad.csv, line 3"),
        ("job,submit,run,gpus\n1,0,5\n", "bad.csv, line 2"),
        ("", "bad.csv"),
    ],
)
def test_a_broken_trace_is_told_by_file_and_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(text)
    done = call("simulate", "bad.csv", "--gpus", "1", cwd=tmp_path)
    assert done.code == 2
    assert told in done.err
    assert "Traceback" not in done.err


def test_a_policy_that_fails_at_work_is_told_in_one_sentence(four: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def p(wait):\n    return wait.no_such_thing\n")
    done = call("simulate", four, "--gpus", "1", "--policy", "./mine.py:p", cwd=tmp_path)
    assert done.code == 2
    assert "policy p failed: AttributeError" in done.err
    assert "Traceback" not in done.err


def test_importing_gpuyard_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, gpuyard, gpuyard.cli.app; print([m for m in ('numpy', 'matplotlib', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_trace_info_groups_many_sizes(tmp_path: Path) -> None:
    rows = "".join(f"{n},0,1,{n}\n" for n in range(1, 21))
    (tmp_path / "wide.csv").write_text("job,submit,run,gpus\n" + rows)
    shown = call("trace", "info", "wide.csv", cwd=tmp_path).out
    bars = {line.split()[0]: int(line.split()[-1]) for line in shown.split("GPUs per job\n")[1].splitlines()}
    assert bars == {"1": 1, "2": 1, "3-4": 2, "5-8": 4, "9-16": 8, "17-32": 4}


def test_a_policy_file_that_exits_does_not_pass_for_success(tmp_path: Path) -> None:
    (tmp_path / "ex.py").write_text("raise SystemExit(0)\n")
    done = call("policies", "check", "./ex.py:f", cwd=tmp_path)
    assert done.code == 2
    assert "ex.py, line 1: SystemExit" in done.err


def test_jobs_are_selected_before_the_slice(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n * 10},5,{n % 4 + 1},{'xy'[n % 2]}\n" for n in range(12))
    (tmp_path / "a.csv").write_text("job,submit,run,gpus,label_vc\n" + rows)
    options = ("--where", "vc=y", "--where", "gpus>2", "--since", "20", "--until", "110", "--slice", "0:1")
    assert metrics("a.csv", *options, "--gpus", "4", cwd=tmp_path)["jobs"] == 1
    facts = json.loads(call("trace", "info", "a.csv", *options[:-2], "--json", cwd=tmp_path).out)
    assert (facts["jobs"], facts["first_submit"]) == (2, 30)
    shown = call("trace", "convert", "a.csv", "-", *options, cwd=tmp_path).out
    assert shown == "job,submit,run,gpus,label_vc\n3,30,5,4,y\n"
    compared = call(
        "compare", "a.csv", *options, "--gpus", "4", "--policies", "fcfs,sjf", "--json", cwd=tmp_path
    )  # fmt: skip
    assert [row["jobs"] for row in json.loads(compared.out)["results"]] == [1, 1]
    wrong = call("simulate", "a.csv", "--gpus", "4", "--where", "cv=y", cwd=tmp_path)
    assert wrong.code == 2
    assert "no column 'cv'" in wrong.err


def test_trace_info_draws(tmp_path: Path) -> None:
    rows = "".join(f"2017-10-{1 + n:02d} 07:01:55,{n * 90 + 5},1,0,vc{n % 2}\n" for n in range(20))
    (tmp_path / "p.csv").write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + rows)
    done = call("trace", "info", "p.csv", "--nodes", "2x4", "--out", "plots", cwd=tmp_path)
    assert done.code == 0
    for words in (
        "2017-10-01T07:01:55Z to 2017-10-20",
        "of 8 GPUs",
        "vc        2: vc0 (10), vc1 (10)",
        "hour of the day",
    ):
        assert words in done.out
    assert sorted(path.name for path in (tmp_path / "plots").glob("*.png")) == [
        "arrivals.png", "demand.png", "gpu_sizes.png", "run_times.png",
    ]  # fmt: skip
    assert call("trace", "info", "p.csv", "--nodes", "2x4", "--gpus", "4", cwd=tmp_path).code == 2
