"""What experiments show: numbers of runs, tables, lines that jobs report, and folders that know what is done."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.experiments.design import Behaviour, Experiment, JobResult, RunResult, Scheduler, Workload
from gpuyard.experiments.measures import (
    WIDTH,
    deviation,
    jobs_csv,
    lines,
    mean,
    measure,
    reported,
    speedups,
    summaries,
    summary_csv,
    waited,
)
from gpuyard.experiments.results_folder import Results, Run, meaning, planned
from gpuyard.recordings.series import Recording, Series, Subject

ALONE = Scheduler("exclusive", "exclusive")
EXPERIMENT = Experiment(
    "e", (Workload("a", 2, ("true",), behaviour=Behaviour(10.0)),), (ALONE, Scheduler("requests")),
    over_provisioning=(50.0, 0.0),
)  # fmt: skip


def job(arrived: float, started: float | None, ended: float | None, **more: object) -> JobResult:
    ran = 0.0 if started is None or ended is None else ended - started
    return JobResult("a-1", "a", arrived, started, ended, ran, **more)  # type: ignore[arg-type]


def result(scheduler: str = "exclusive", percent: float = 0.0, turn: int = 1, duration: float = 30.0) -> RunResult:
    jobs = [job(0, 1, 11, reported={"p99": 0.2}), job(5, 11, 30, restarts=2, ooms=1, admitted_by="cbp")]
    return RunResult(scheduler, percent, turn, duration, jobs, 50.0, 2.0**30, 100.0, 5.0)


def test_means_of_a_recording_count_time_and_leave_gaps_out() -> None:
    at = np.array([0.0, 1.0, 2.0, 6.0])
    gpu, of_job = Subject(0), Subject(0, job="7")
    values = np.array([10.0, np.nan, 20.0, 40.0])
    recording = Recording(0, 7, [Series(gpu, "utilization", at, values), Series(of_job, "utilization", at, values * 9)])
    recording.series.append(Series(gpu, "power", at, np.array([100.0, 100.0, 100.0, 100.0])))
    found = measure(RunResult("x", 0.0, 1, 7.0, []), recording)
    assert found.utilization == pytest.approx((10 + 4 * 20 + 40) / 6)
    assert found.energy == pytest.approx(700 / 3600)  # the last value stands to the end
    assert found.memory_used is None


def test_a_recording_without_power_has_no_energy() -> None:
    assert measure(RunResult("x", 0.0, 1, 7.0, []), Recording(0, 7)).energy is None


def test_summaries_are_of_all_turns_and_in_order() -> None:
    runs = [
        result("b", 50.0),
        result("a", 50.0),
        result("b", 0.0, 1, 30.0),
        result("b", 0.0, 2, 34.0),
        result("a", 0.0),
    ]
    rows = summaries(runs)
    assert [(row["percent"], row["scheduler"]) for row in rows] == [(0, "b"), (0, "a"), (50, "b"), (50, "a")]
    first = rows[0]
    assert (first["turns"], first["duration"]) == (2, 32.0)
    assert first["duration_std"] == pytest.approx(2 * 2**0.5)
    assert (first["wait"], first["wait_max"]) == (3.5, 6.0)
    assert (first["job"], first["run"]) == (18.0, 14.5)
    assert (first["restarts"], first["ooms"], first["by_cbp"], first["jobs"]) == (4, 2, 2, 4)
    assert (first["p99"], first["p90"]) == (0.2, None)
    assert rows[1]["duration_std"] is None
    assert [row["speedup"] for row in rows] == [1.0, pytest.approx(32 / 30), 1.0, 1.0]
    assert [" ".join(line.split()) for line in speedups(rows)] == [
        "TIMES AS FAST AS b 0 % 50 %", "b 1.00 1.00", "a 1.07 1.00",
    ]  # fmt: skip
    assert speedups(summaries(runs[:1])) == []


def test_a_job_that_never_began_waited_for_nobody_knows_how_long() -> None:
    assert waited(job(3, None, 4)) is None
    assert mean([None, None]) is None
    assert deviation([3.0]) is None


def test_the_table_fits_a_hundred_columns() -> None:
    run = result("a-scheduler-with-a-very-long-name", 250.0, 1, 48920.0)
    run.memory_used, run.energy, run.power = 80 * 2.0**30, 1234.5, 700.0
    run.jobs[0] = replace(run.jobs[0], arrived=0.0, started=39157.0, ended=48920.0)
    found = lines(summaries([run, replace(run, turn=2, duration=48000.0), result("x", 0.0)]))
    assert max(map(len, found)) <= WIDTH
    heads = "OVER SCHEDULER DURATION WAIT (MAX) JOB RUN RESTARTS UTIL MEM POWER ENERGY P99"
    assert " ".join(found[0].split()) == heads
    assert " ".join(found[1].split()) == "% s s s s % MiB W Wh s"
    assert found[3] == ""
    assert found[4].split()[:6] == ["250", "a-scheduler…", "48,460", "±651", "19,582", "(39,157)"]


def test_csv_has_a_line_for_each_job_and_each_scheduler() -> None:
    runs = [result(), result("requests")]
    found = list(csv.DictReader(io.StringIO(jobs_csv(runs))))
    assert len(found) == 4
    assert (found[1]["wait"], found[1]["run"], found[1]["admitted_by"], found[0]["p99"]) == ("6", "19", "cbp", "0.2")
    assert (found[1]["p90"], found[1]["p99"]) == ("", "")
    assert [row["duration"] for row in csv.DictReader(io.StringIO(summary_csv(summaries(runs))))] == ["30", "30"]


@pytest.mark.parametrize(
    ("output", "numbers", "warnings"),
    [
        (b"GPUYARD_RESULT p90=0.1312 p99=0.1417\n", {"p90": 0.1312, "p99": 0.1417}, 0),
        (b"x\nGPUYARD_RESULT p90=1\nGPUYARD_RESULT p99=2e-1\r\nbye", {"p99": 0.2}, 0),
        (b"GPUYARD_RESULT p90=fast p99=3 =4 p50 x=nan\n", {"p99": 3.0}, 4),
        (b"GPUYARD_RESULTS p90=1\necho GPUYARD_RESULT p90=1\n\xff\n", {}, 0),
        (b"", {}, 0),
    ],
)
def test_what_jobs_report(output: bytes, numbers: dict[str, float], warnings: int) -> None:
    found, sentences = reported(output, "job a-1")
    assert found == numbers
    assert len(sentences) == warnings
    assert all(sentence.startswith("job a-1 reported '") for sentence in sentences)


def test_runs_are_planned_turn_by_turn() -> None:
    assert [run.name for run in planned(EXPERIMENT, 2)] == [
        "exclusive-0-1", "requests-0-1", "exclusive-50-1", "requests-50-1",
        "exclusive-0-2", "requests-0-2", "exclusive-50-2", "requests-50-2",
    ]  # fmt: skip


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    results, run = Results(tmp_path / "out"), Run(ALONE, 0.0, 1)
    key = meaning(EXPERIMENT, run, True)
    with results.opened(fresh=False):
        results.claim(EXPERIMENT, True)
        assert results.find(run, key) is None
        results.save(run, key, result(), Recording(0, 30, simulated=True))
    assert results.find(run, key) == result()
    assert results.done(EXPERIMENT, True) == [(run, result())]
    assert results.stored() == [result()]
    assert results.recording(run).simulated


def test_a_run_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    results, run = Results(tmp_path / "out"), Run(ALONE, 0.0, 1)
    with results.opened(fresh=False):
        results.save(run, "k", result(), Recording(0, 30))
    path = tmp_path / "out" / "runs" / "exclusive-0-1.json"
    path.write_bytes(path.read_bytes()[:40])
    assert results.find(run, "k") is None


@pytest.mark.parametrize(
    "told", [{}, {"result": 3}, {"result": {"jobs": [3]}}, {"result": {**asdict(result()), "duration": "x"}}]
)  # fmt: skip
def test_a_result_that_somebody_else_wrote_is_told(tmp_path: Path, told: dict[str, Any]) -> None:
    results, run = Results(tmp_path / "out"), Run(ALONE, 0.0, 1)
    with results.opened(fresh=False):
        results.claim(EXPERIMENT, True)
        results.save(run, "k", result(), Recording(0, 30))
    path = tmp_path / "out" / "runs" / "exclusive-0-1.json"
    path.write_text(json.dumps({"version": 1, "meaning": "k", **told}))
    with pytest.raises(UserError, match="remove it, and its run is done again"):
        results.find(run, "k")
    with pytest.raises(UserError, match="remove it, and its run is done again"):
        results.stored()


def test_results_of_another_experiment_are_not_taken(tmp_path: Path) -> None:
    results, run = Results(tmp_path / "out"), Run(ALONE, 0.0, 1)
    with results.opened(fresh=False):
        results.claim(EXPERIMENT, False)
        results.save(run, meaning(EXPERIMENT, run, False), result(), Recording(0, 30))
        assert results.done(replace(EXPERIMENT, name="other", repeat=3, schedulers=(ALONE,)), False)
        with pytest.raises(UserError, match="--fresh throws them away"):
            results.done(replace(EXPERIMENT, period=2.0), False)
        with pytest.raises(UserError, match="--fresh throws them away"):
            results.done(EXPERIMENT, True)
        with pytest.raises(UserError, match="another gpuyard experiment works in"), results.opened(fresh=False):
            pass
    with results.opened(fresh=True):
        assert results.done(EXPERIMENT, True) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="holds something else already"), Results(tmp_path).opened(fresh=True):
        pass
    with pytest.raises(UserError, match="is a file"), Results(tmp_path / "letter.txt").opened(fresh=False):
        pass
    with pytest.raises(UserError, match="is no folder of an experiment"):
        Results(tmp_path).stored()
    assert (tmp_path / "letter.txt").read_text() == "dear"
