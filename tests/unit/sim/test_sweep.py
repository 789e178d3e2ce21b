"""Sweeps: every point is the simulation that one would have run by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ticks import least_gap

from gpuyard.core.model import Cluster
from gpuyard.errors import UserError
from gpuyard.sim import sweep as module
from gpuyard.sim.parallel import Task, run_all
from gpuyard.sim.simulate import Options, simulate
from gpuyard.sim.sweep import Axis, check_metric, parse_axis, sweep
from gpuyard.sim.trace import Trace
from gpuyard.sim.trace_plots import trend, write_sweep
from gpuyard.sim.virtual_clusters import Pools
from gpuyard.sim.workload import generate_poisson


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate_poisson(seed=3, jobs=80, gpus=8, load=1.2)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("load=0.5:1.5:0.25", ("0.5", "0.75", "1", "1.25", "1.5")),
        ("load=0.1:0.7:0.1", ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7")),
        ("load = 1 , 2:4:1 , 2", ("1", "2", "3", "4")),
        ("gpus=64,128", ("64", "128")),
        ("las.queues=100/1000,3250", ("100/1000", "3250")),
        ("estimate=actual,noisy:0.5", ("actual", "noisy:0.5")),
    ],
)
def test_values_are_read(text: str, texts: tuple[str, ...]) -> None:
    assert parse_axis(text).texts == texts


def test_values_are_numbers_where_all_are() -> None:
    assert parse_axis("gpus=4,8").values == (4.0, 8.0)
    assert parse_axis("nodes=4x8,2").values == ("4x8", "2")


@pytest.mark.parametrize("text", ["load", "load=", "=1", "load=1:2:0", "load=2:1:1", "load=0:1:1e-9", "load=a:b:c"])
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--vary"):
        parse_axis(text)


def rows_of(trace: Trace, text: str, policies: list[str], options: Options | None = None) -> dict[object, float]:
    found = sweep(trace, Cluster((8,)), parse_axis(text), policies, options, jobs=1)
    assert found.failures == []
    return {(row["value"], row["policy"]): row["jct_mean"] for row in found.rows}


def alone(trace: Trace, policy: str, cluster: Cluster | None = None, options: Options | None = None) -> float:
    return float(simulate(trace, cluster or Cluster((8,)), policy, options)[1]["jct_mean"])


def test_load_is_relative_to_the_traces_own(trace: Trace) -> None:
    assert rows_of(trace, "load=0.5,1,2", ["sjf"]) == {
        (load, "sjf"): alone(trace.at_load(load), "sjf") for load in (0.5, 1.0, 2.0)
    }


def test_gpus_and_nodes_make_clusters(trace: Trace) -> None:
    assert rows_of(trace, "gpus=8,16", ["fcfs"]) == {
        (float(n), "fcfs"): alone(trace, "fcfs", Cluster((n,))) for n in (8, 16)
    }
    assert rows_of(trace, "nodes=2x8,2x8+1x4", ["fcfs"]) == {
        ("2x8", "fcfs"): alone(trace, "fcfs", Cluster((8, 8))),
        ("2x8+1x4", "fcfs"): alone(trace, "fcfs", Cluster((8, 8, 4))),
    }


def test_settings_concern_the_policies_that_have_them(trace: Trace) -> None:
    found = rows_of(trace, "las.queues=100/1000,3250", ["las", "wfp3@easy"])
    assert found["3250", "las"] == alone(trace, "las:queues=3250")
    assert found["100/1000", "las"] == alone(trace, "las:queues=100/1000")
    assert found["3250", "wfp3@easy"] == found["100/1000", "wfp3@easy"] == alone(trace, "wfp3@easy")
    assert rows_of(trace, "power=1,2", ["wfp3:power=9@easy"])[2.0, "wfp3:power=9@easy"] == alone(
        trace, "wfp3:power=2@easy"
    )
    assert rows_of(trace, "rr.quantum=300,900", ["rr", "srtf"])[900.0, "rr"] == alone(trace, "rr:quantum=900")


def test_options_of_the_simulation_can_be_varied(trace: Trace) -> None:
    assert rows_of(trace, "quantum=300,900", ["rr"])[900.0, "rr"] == alone(trace, "rr", options=Options(quantum=900))
    costs = rows_of(trace, "restart-cost=0,7/30/60", ["srtf", "fcfs"])
    assert costs["7/30/60", "srtf"] == alone(trace, "srtf", options=Options(restart_cost=(7.0, 30.0, 60.0)))
    rounds = rows_of(trace, "round=0,60", ["fcfs"])
    assert rounds[60.0, "fcfs"] == alone(trace, "fcfs", options=Options(round_length=60))
    known = rows_of(trace, "estimate=actual,requested", ["sjf"])
    assert known["actual", "sjf"] == alone(trace, "sjf", options=Options(estimate="actual"))


def test_what_an_axis_does_not_concern_is_simulated_once(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counting(trace: Trace, tasks: list[Task], *rest: Any, **options: Any) -> Any:
        counts.append(len(tasks))
        return run_all(trace, tasks, *rest, **options)

    monkeypatch.setattr(module, "run_all", counting)
    rows_of(trace, "quantum=300,600,900", ["rr", "fcfs", "sjf"])
    assert counts == [3 + 1 + 1]


def test_seeds_give_intervals_for_what_is_random(trace: Trace) -> None:
    found = sweep(trace, Cluster((8,)), Axis("load", ("1", "2")), ["lottery", "fcfs"], seeds=3, jobs=1)
    for row in found.rows:
        assert ("jct_mean_ci" in row) == (row["policy"] == "lottery")


@pytest.mark.parametrize(
    ("text", "policies", "told"),
    [
        ("power=1", ["fcfs"], "none of the policies has such a setting"),
        ("quantm=1", ["rr"], "did you mean 'quantum'"),
        ("wfp3.power=1", ["fcfs"], "wfp3 is not among the policies; add it to --policies"),
        ("quantum=5", ["fcfs"], "none of the policies preempts"),
        ("load=0", ["fcfs"], "above 0"),
        ("load=x", ["fcfs"], "takes numbers"),
        ("gpus=1.5", ["fcfs"], "whole numbers"),
        ("nodes=4y8", ["fcfs"], "4x8"),
        ("wfp3.power=x", ["wfp3"], "takes a number"),
        ("restart-cost=1/2", ["srtf"], "7/30/60"),
    ],
)
def test_an_axis_that_makes_no_sense_is_told_before_anything_runs(
    text: str, policies: list[str], told: str, trace: Trace
) -> None:
    with pytest.raises(UserError, match=told):
        sweep(trace, Cluster((8,)), parse_axis(text), policies, jobs=1)


def test_pools_have_gpus_of_their_own(trace: Trace) -> None:
    options = Options(pools=Pools.of([("a", 1, 8)]))
    with pytest.raises(UserError, match="needs one cluster"):
        sweep(trace, Cluster((8,)), parse_axis("gpus=8,16"), ["fcfs"], options)


def test_a_point_that_fails_leaves_the_others(trace: Trace) -> None:
    found = sweep(trace, Cluster((8,)), parse_axis("restart-cost=0,100"), ["fcfs", "rr"], jobs=1)
    assert [(row["value"], row["policy"]) for row in found.rows] == [(0, "fcfs"), (0, "rr"), (100, "fcfs")]
    assert found.failures[0][:2] == (100, "rr")


def test_metrics_are_checked_by_name() -> None:
    assert check_metric("jct_p99") == "jct_p99"
    with pytest.raises(UserError, match="did you mean 'jct_mean'"):
        check_metric("jct_men")


def test_the_curve_has_a_line_per_policy_and_a_point_per_value(trace: Trace) -> None:
    found = sweep(trace, Cluster((8,)), parse_axis("load=2,0.5,1"), ["fcfs", "srtf"], jobs=1)
    axes = trend(found, "utilization").axes[0]
    assert len(axes.lines) == 2
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [0.5, 1, 2]
    words = sweep(trace, Cluster((8,)), parse_axis("nodes=2x8,4x8"), ["fcfs"], jobs=1)
    assert [text.get_text() for text in trend(words, "jct_mean").axes[0].get_xticklabels()] == ["2x8", "4x8"]


def test_a_wide_range_is_drawn_on_a_logarithmic_axis() -> None:
    rows = [{"value": v, "policy": "p", "jct_mean": 10.0**v} for v in (1.0, 6.0)]
    axes = trend(module.Sweep(Axis("load", ("1", "6")), ["p"], rows, []), "jct_mean").axes[0]
    assert axes.get_yscale() == "log"
    assert "1 h" in [text.get_text() for text in axes.get_yticklabels()]


@pytest.mark.parametrize(
    ("axis", "scale"),
    [
        ("gpus=64,128,192,256", "linear"),
        ("gpus=2,4,8,16,32,64,128,256,512,1024", "log"),
        ("load=0.1:4:0.1", "linear"),
        ("las.queues=1000/2000/3000,3250/7200,3250/7200/18000,2000/4000/8000/16000,3250/7200/9000", "linear"),
    ],
)
def test_labels_of_the_values_do_not_touch(axis: str, scale: str) -> None:
    varied = parse_axis(axis)
    rows = [{"value": value, "policy": "p" * 30, "jct_max": 10.0} for value in varied.values]
    figure = trend(module.Sweep(varied, ["p" * 30], rows, []), "jct_max")
    axes = figure.axes[0]
    assert axes.get_xscale() == scale
    if axes.get_xticklabels()[0].get_rotation() == 0:
        assert least_gap(figure, axes) > 3
    assert axes.get_ylabel() == "Longest job completion time (s)"


def test_files_of_a_sweep(trace: Trace, tmp_path: Path) -> None:
    found = sweep(trace, Cluster((8,)), parse_axis("load=1,2"), ["lottery", "fcfs"], seeds=3, jobs=2)
    write_sweep(found, "jct_mean", {"results": found.rows}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.csv", "sweep.json", "sweep.png", "sweep.svg"}
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert [(row["policy"], row["load"]) for row in rows] == [
        ("lottery", "1"), ("fcfs", "1"), ("lottery", "2"), ("fcfs", "2"),
    ]  # fmt: skip
    assert float(rows[0]["jct_mean_ci_low"]) <= float(rows[0]["jct_mean"])
    assert json.loads((tmp_path / "sweep.json").read_text())["results"][0]["policy"] == "lottery"
