"""What `gpuyard trace info` counts and draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.ticks import least_gap

from gpuyard.sim.trace import Trace
from gpuyard.sim.trace_plots import _wanted, arrivals, demand_over_time, gpu_sizes, run_times, write_plots
from gpuyard.sim.traces import describe
from gpuyard.sim.traces.times import parse_time

DAY = parse_time("2017-10-01")
DATED = Trace.of(
    [DAY, DAY + 3600, DAY + 3700, DAY + 86400],
    [10, 60, 61, 8 * 86400],
    [1, 2, 8, 8],
    users=["ann", "bob", "ann", ""],
    labels={"vc": ["x", "y", "y", "y"]},
)


def test_facts() -> None:
    facts = describe(DATED)
    assert (facts["first_date"], facts["last_date"]) == ("2017-10-01T00:00:00Z", "2017-10-02T00:00:00Z")
    assert facts["arrivals_by_hour"] == [2, 2, *([0] * 22)]
    assert sum(facts["arrivals"]["counts"]) == 4
    assert facts["arrivals"]["step_seconds"] == 1440
    assert facts["labels"] == {"vc": {"values": 2, "top": {"y": 3, "x": 1}}}
    assert (facts["users"], facts["top_users"]) == (2, {"ann": 2, "bob": 1})
    lengths = {name: count for name, count in facts["run_lengths"].items() if count}
    assert lengths == {"up to 10 s": 1, "1 min": 1, "10 min": 1, "longer": 1}
    assert facts["capacity"] is None
    assert "load" not in facts


def test_load_for_a_given_size() -> None:
    facts = describe(Trace.of([0, 0], [10, 10], [1, 2], capacity=3), 6)
    assert (facts["load"], facts["capacity"]) == (0.5, 6)
    assert describe(Trace.of([0, 0], [10, 10], [1, 2], capacity=3))["load"] == 1.0


def test_times_from_zero_have_no_dates() -> None:
    facts = describe(Trace.of([0, 7200], [1, 1], [1, 1]))
    assert "first_date" not in facts
    assert "arrivals_by_hour" not in facts
    assert describe(Trace.of([5], [1], [1]))["arrivals"] == {"step_seconds": 0.0, "counts": [1]}


def test_wanted_gpus_add_up() -> None:
    trace = Trace.of([0, 5], [10, 10], [2, 1], compute=[100, 50])
    assert _wanted(trace, np.array([0.0, 5, 10, 15])) == pytest.approx([2, 2.5, 0.5])


@pytest.mark.parametrize(
    "trace",
    [
        DATED,
        Trace.of([5], [3], [1], source="one"),
        Trace.of([0, 0], [3, 3], [0, 1], source="$_at once"),
        Trace.of(np.arange(50), np.arange(1, 51) * 1e3, np.arange(50) * 7, capacity=40),
    ],
)
def test_every_trace_can_be_plotted(tmp_path: Path, trace: Trace) -> None:
    for name in write_plots(trace, tmp_path, trace.capacity):
        assert (tmp_path / f"{name}.png").stat().st_size > 4000
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")


def test_axes() -> None:
    assert arrivals(DATED).axes[0].get_xlabel() == "Time (UTC), 2017-10-01 to 2017-10-02"
    assert demand_over_time(DATED, 20).axes[0].get_ylim()[1] > 20
    assert [axis.get_ylabel() for axis in run_times(DATED).axes] == ["Jobs", "Share of jobs that run no longer"]
    assert [text.get_text() for text in gpu_sizes(DATED).axes[0].get_xticklabels()] == ["1", "2", "8"]


@pytest.mark.parametrize(
    ("shortest", "longest", "expected"),
    [
        (5, 20, ["5 s", "10 s", "15 s", "20 s"]),
        (100, 110, ["100 s", "102 s", "104 s", "106 s", "108 s", "110 s"]),
        (50, 500, ["2 min", "4 min", "6 min", "8 min"]),
        (1, 7200, ["1 s", "10 s", "1 min", "10 min", "1 h"]),
    ],
)
def test_run_times_are_labelled_with_round_numbers(shortest: float, longest: float, expected: list[str]) -> None:
    figure = run_times(Trace.of([0, 0], [shortest, longest], [1, 1]))
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == expected
    assert least_gap(figure, figure.axes[0]) > 3


def test_a_label_of_the_demand_says_where_it_stands() -> None:
    axes = demand_over_time(Trace.of(np.zeros(19), np.arange(1, 20), np.ones(19, dtype=int))).axes[0]
    for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        assert float(label.get_text()) == place
