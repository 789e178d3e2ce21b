"""Comparisons: the numbers of single simulations, whichever process they come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim import parallel
from gpuyard.sim.compare import Comparison, compare, interval, is_random, split
from gpuyard.sim.parallel import Failure, Task, run_all
from gpuyard.sim.result import Result
from gpuyard.sim.result_files import write_comparison
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.summary import MAX_POINTS, Curve, Spread, summarise
from gpuyard.sim.trace import Trace
from gpuyard.sim.workload import generate_poisson

POLICIES = ["fcfs", "sjf@easy", "srtf", "lottery"]
CLUSTER = Cluster((4, 4))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate_poisson(seed=3, jobs=120, gpus=8, load=1.2)


@pytest.fixture(scope="module")
def plain(trace: Trace) -> Comparison:
    return compare(trace, CLUSTER, POLICIES, jobs=1)


def without_speed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if not key.startswith("jobs_per_second")} for row in rows]


def test_rows_are_those_of_single_simulations_ranked(trace: Trace, plain: Comparison) -> None:
    alone = [simulate(trace, CLUSTER, policy)[1] for policy in POLICIES]
    alone.sort(key=lambda row: row["jct_mean"])
    assert without_speed(plain.rows) == without_speed(alone)
    assert plain.failures == {}


def test_processes_give_the_same_answers(trace: Trace, plain: Comparison) -> None:
    several = compare(trace, CLUSTER, POLICIES, jobs=2)
    assert without_speed(several.rows) == without_speed(plain.rows)
    for one, other in zip(several.summaries, plain.summaries, strict=True):
        assert np.array_equal(one.queue.values, other.queue.values)
        assert np.array_equal(one.jct.values, other.jct.values)


def test_started_processes_give_the_same_answers_as_forked_ones(
    trace: Trace, plain: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "start_method", lambda: "spawn")
    several = compare(trace, CLUSTER, POLICIES[:2], jobs=2)
    assert {row["policy"]: row["jct_mean"] for row in several.rows}.items() <= {
        row["policy"]: row["jct_mean"] for row in plain.rows
    }.items()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_policy_that_fails_does_not_stop_the_others(jobs: int, trace: Trace, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def p(wait):\n    raise KeyError('no such thing')\n")
    found = compare(trace, CLUSTER, ["rr", f"{bad}:p", "fcfs"], Options(restart_cost=50.0), jobs=jobs)
    assert [row["policy"] for row in found.rows] == ["fcfs"]
    assert set(found.failures) == {"rr", f"{bad}:p"}
    assert "make the quantum longer" in found.failures["rr"]
    assert "no such thing" in found.failures[f"{bad}:p"]


def test_a_bug_in_a_simulation_is_an_answer_too(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(parallel, "simulate", broken)
    (answer,) = run_all(trace, [Task("fcfs", CLUSTER, Options())], _nothing, jobs=1)
    assert answer == Failure("ZeroDivisionError: oh")


def _nothing(task: Task, result: Result, metrics: dict[str, Any]) -> int:
    return len(result.trace)


def _die(task: Task, result: Result, metrics: dict[str, Any]) -> int:
    import os

    os._exit(9)


def test_a_killed_process_is_told_in_words(trace: Trace) -> None:
    tasks = [Task(policy, CLUSTER, Options()) for policy in POLICIES]
    with pytest.raises(UserError, match="try --jobs 1"):
        run_all(trace, tasks, _die, jobs=2)


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_ends_with_everything_done(jobs: int, trace: Trace) -> None:
    seen: list[tuple[float, int]] = []
    compare(trace, CLUSTER, POLICIES, jobs=jobs, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (4, 4)


@pytest.mark.parametrize(
    ("policy", "options", "random"),
    [
        ("fcfs", Options(), False),
        ("lottery", Options(), True),
        ("random@easy", Options(), True),
        ("fcfs@skip@random", Options(), True),
        ("fcfs", Options(placement="random"), True),
        ("sjf", Options(estimate="noisy:0.5"), True),
    ],
)
def test_what_the_seed_decides(policy: str, options: Options, random: bool) -> None:
    assert is_random(policy, options) is random


def test_seeds_repeat_what_is_random_and_nothing_else(trace: Trace) -> None:
    found = compare(trace, CLUSTER, ["fcfs", "lottery"], Options(seed=5), seeds=4, jobs=1)
    rows = {row["policy"]: row for row in found.rows}
    values = [simulate(trace, CLUSTER, "lottery", Options(seed=seed))[1]["jct_mean"] for seed in (5, 6, 7, 8)]
    expected = interval(values)
    assert rows["lottery"]["runs"] == 4
    assert rows["lottery"]["jct_mean"] == pytest.approx(expected.mean)
    assert rows["lottery"]["jct_mean_ci"] == pytest.approx([expected.low, expected.high])
    assert rows["lottery"]["jobs"] == rows["lottery"]["completed"] == 120
    assert not [key for key in rows["fcfs"] if key.endswith("_ci") and "diff" not in key]
    best, other = found.rows
    gaps = interval([abs(value - rows["fcfs"]["jct_mean"]) for value in values])
    assert "jct_mean_diff" not in best
    assert other["jct_mean_diff"] == pytest.approx(gaps.mean)
    summary = next(s for s in found.summaries if s.policy == "lottery")
    assert summary.jct.count == 480
    assert int(summary.groups.jobs.sum()) == 120


def test_windows_are_simulated_by_themselves(trace: Trace) -> None:
    found = compare(trace, CLUSTER, ["fcfs", "srtf"], windows=3, jobs=1)
    parts = split(trace, 3)
    values = [
        simulate(trace.take(np.flatnonzero((trace.submit >= w.since) & (trace.submit < w.until))), CLUSTER, "fcfs")[1]
        for w in parts
    ]
    row = next(row for row in found.rows if row["policy"] == "fcfs")
    assert row["wait_mean"] == pytest.approx(np.mean([v["wait_mean"] for v in values]))
    assert row["jobs"] == sum(v["jobs"] for v in values) == 120
    assert found.rows[1]["jct_mean_diff"] > 0
    assert len(found.rows[1]["jct_mean_diff_ci"]) == 2
    assert found.windows == parts
    assert found.summaries[0].chart is None


def test_windows_without_jobs_are_left_out() -> None:
    trace = Trace.of([0, 1, 100], [5, 5, 5], [1, 1, 1])
    parts = split(trace, 10)
    assert [(w.since, w.until) for w in parts] == [(0.0, 10.0), (90.0, np.inf)]
    with pytest.raises(UserError, match="too short"):
        split(Trace.of([3, 3], [5, 5], [1, 1]), 4)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seeds": 0}, "--seeds must be at least 1"),
        ({"windows": 0}, "--windows must be at least 1"),
        ({"jobs": 0}, "--jobs must be at least 1"),
        ({"seeds": 2, "windows": 2}, "not both"),
        ({"seeds": 2, "schedules": Path("x")}, "one schedule per policy"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], told: str, trace: Trace) -> None:
    with pytest.raises(UserError, match=told):
        compare(trace, CLUSTER, ["fcfs"], **options)


def test_a_window_and_a_load_make_the_jobs_of_a_task(trace: Trace) -> None:
    task = Task("fcfs", CLUSTER, Options(), since=float(trace.submit[10]), until=float(trace.submit[20]), load=2.0)
    part = task.trace(trace)
    assert part.ids == trace.ids[10:20]
    assert part.submit - part.submit[0] == pytest.approx((trace.submit[10:20] - trace.submit[10]) / 2)


def test_load_divides_the_gaps_and_keeps_the_time_to_a_deadline() -> None:
    trace = Trace.of([10, 20, 40], [1, 1, 1], [1, 1, 1], deadline=[15, np.inf, 50])
    faster = trace.at_load(2.0)
    assert faster.submit.tolist() == [10, 15, 25]
    assert faster.deadline.tolist() == [15, np.inf, 35]
    for bad in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(UserError, match="above 0"):
            trace.at_load(bad)


def test_pooled_distributions_are_those_of_all_values() -> None:
    rng = np.random.default_rng(1)
    samples = [rng.exponential(scale, count) for scale, count in ((1.0, 40), (3.0, 160))]
    pooled, whole = Spread.pooled([Spread.of(s) for s in samples]), Spread.of(np.concatenate(samples))
    assert pooled.values == pytest.approx(whole.values)
    assert pooled.shares == pytest.approx(whole.shares)
    large = [Spread.of(rng.exponential(2.0, 30_000)) for _ in range(2)]
    assert len(Spread.pooled(large).values) <= MAX_POINTS
    assert Spread.pooled(large).shares[-1] == pytest.approx(1.0)


def test_means_of_a_curve_keep_its_area() -> None:
    curve = Curve(np.array([0.0, 3.0, 7.0, 10.0]), np.array([2.0, 0.0, 5.0, 0.0]))
    for span, bins in ((10.0, 4), (20.0, 7)):
        means = curve.means(span, bins)
        assert (np.diff(means.times) * means.values[:-1]).sum() == pytest.approx(21.0)


def test_summaries_know_users_or_else_virtual_clusters() -> None:
    trace = Trace.of([0, 0, 0], [10, 10, 30], [1, 1, 1], users=["b", "", "a"], labels={"vc": ["x", "x", "y"]})
    groups = summarise(simulate(trace, Cluster((1,)))[0]).groups
    assert (groups.kind, groups.names, groups.jobs.tolist()) == ("user", ["a", "b"], [1, 1])
    assert groups.mean_wait.tolist() == [20, 0]
    nameless = Trace.of([0, 0, 0], [10, 10, 30], [1, 1, 1], labels={"vc": ["x", "x", "y"]})
    groups = summarise(simulate(nameless, Cluster((1,)))[0]).groups
    assert (groups.kind, groups.names, groups.jobs.tolist()) == ("vc", ["y", "x"], [1, 2])
    assert groups.gpu_seconds.tolist() == [30, 20]


def files(directory: Path) -> Iterator[str]:
    return (str(path.relative_to(directory)) for path in sorted(directory.rglob("*")) if path.is_file())


def test_a_comparison_on_disk(trace: Trace, tmp_path: Path) -> None:
    found = compare(trace, CLUSTER, ["fcfs", "sjf@easy"], jobs=2, schedules=tmp_path)
    report = write_comparison(found, trace, tmp_path, "gpuyard compare x")
    assert report == tmp_path / "report.html"
    names = set(files(tmp_path))
    assert {"results.json", "results.csv", "curves.json", "users.csv", "fcfs/jobs.csv", "sjf@easy/segments.csv"} < names
    assert {
        f"{plot}.{kind}"
        for plot in ("ranking", "cdf", "queue", "utilisation", "users", "gantt")
        for kind in ("png", "svg")
    } < names
    assert json.loads((tmp_path / "results.json").read_text()) == found.rows
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines[0].startswith("policy,discipline,placement,gpus")
    assert len(lines) == 3
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert set(curves[0]) == {"policy", "utilisation", "queue", "jct", "wait", "slowdown", "users"}
    assert len((tmp_path / "fcfs" / "jobs.csv").read_text().splitlines()) == 121
