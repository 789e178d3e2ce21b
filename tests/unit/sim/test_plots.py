"""Plots show what the result says: positions of bars, heights of steps, distributions, files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from tests.ticks import least_gap

from gpuyard.core.model import Cluster
from gpuyard.sim import gantt as gantt_chart
from gpuyard.sim import schedule_plots, summary
from gpuyard.sim.result import Placements, Result, Segments, stack_bars
from gpuyard.sim.summary import Summary, summarise
from gpuyard.sim.trace import Trace

Slice = tuple[int, int, float, float]
"""Job, GPU, start, end."""


def result_of(trace: Trace, nodes: tuple[int, ...], slices: list[Slice], policy: str = "fcfs") -> Result:
    """A result in which exactly these slices ran; a job without any was rejected."""
    table = np.array(slices, dtype=np.float64).reshape(-1, 4)
    job_, gpu = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    start, end = np.full(len(trace), np.inf), np.full(len(trace), -np.inf)
    np.minimum.at(start, job_, table[:, 2])
    np.maximum.at(end, job_, table[:, 3])
    start[np.isinf(start)], end[np.isinf(end)] = np.nan, np.nan
    preemptions = np.zeros(len(trace), dtype=np.int64)
    rejected = {job: "too many GPUs" for job in range(len(trace)) if np.isnan(end[job])}
    segments = Segments(job_, gpu, table[:, 2].copy(), table[:, 3].copy())
    return Result(
        trace, Cluster(nodes), policy, start, end, preemptions, Placements.of([()] * len(trace)), rejected, segments
    )


@pytest.fixture
def small() -> Result:
    """Two jobs, of which the first is preempted by the second, and one that can never run."""
    trace = Trace.of([100, 110, 120], [30, 10, 5], [2, 2, 9], ids=["a", "$b_$", "c"])
    slices: list[Slice] = [(0, g, 100, 110) for g in (0, 1)]
    slices += [(1, g, 110, 120) for g in (0, 1)]
    slices += [(0, g, 125, 145) for g in (0, 1)]
    return result_of(trace, (1, 1), slices)


def many(count: int, gpus: int, users: int = 0) -> Result:
    """Jobs of ten seconds, back to back on every GPU."""
    slices: list[Slice] = [(i, i % gpus, i // gpus * 10.0, i // gpus * 10.0 + 10) for i in range(count)]
    names = [f"user{i % users}" for i in range(count)] if users else None
    trace = Trace.of(np.zeros(count), np.full(count, 10.0), np.ones(count, dtype=int), users=names)
    return result_of(trace, (gpus,), slices)


def bars(figure: Figure) -> list[tuple[float, float, float, float]]:
    """(left, right, top, bottom) of each bar of a Gantt chart."""
    (collection,) = (c for c in figure.axes[0].collections if isinstance(c, PolyCollection))
    corners = [np.asarray(path.vertices) for path in collection.get_paths()]
    return [(c[:, 0].min(), c[:, 0].max(), c[:, 1].min(), c[:, 1].max()) for c in corners]


def steps(axes: Axes, line: int = 0) -> list[tuple[float, float]]:
    x, y = (np.asarray(values, dtype=np.float64) for values in axes.lines[line].get_data())
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_gantt_has_a_bar_for_every_slice_counted_from_the_first_submit(small: Result) -> None:
    figure = schedule_plots.gantt(small)
    spans = sorted({(left, right) for left, right, _, _ in bars(figure)})
    assert spans == [(0, 10), (10, 20), (25, 45)]
    assert len(bars(figure)) == 6
    for _, _, top, bottom in bars(figure):
        assert int(top) == int(bottom), "a bar stays within the row of its GPU"


def test_gantt_labels_gpus_and_jobs_and_says_what_was_rejected(small: Result) -> None:
    axes = schedule_plots.gantt(small).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0:0", "1:0"]
    assert {text.get_text() for text in axes.texts} == {"a", "$b_$"}
    assert "1 rejected" in axes.get_title(loc="left")
    assert axes.get_xlabel().endswith("(s)")


def test_adjacent_jobs_have_different_colours() -> None:
    figure = schedule_plots.gantt(many(60, 2))
    (collection,) = (c for c in figure.axes[0].collections if isinstance(c, PolyCollection))
    colours = np.asarray(collection.get_facecolor()).tolist()
    boxes = [(box[2], box[0], colour) for box, colour in zip(bars(figure), colours, strict=True)]
    boxes.sort(key=lambda box: box[:2])
    for before, after in itertools.pairwise(boxes):
        assert before[0] != after[0] or before[2] != after[2]


def test_many_jobs_of_several_users_are_coloured_by_user() -> None:
    figure = schedule_plots.gantt(many(60, 2, users=3))
    assert sorted(legend_texts(figure)) == ["user0", "user1", "user2"]
    assert legend_texts(schedule_plots.gantt(many(60, 2, users=15)))[-1] == "6 other users"


def test_colours_may_stand_for_kinds_of_jobs() -> None:
    result = result_of(Trace.of([0, 0, 0], [9, 9, 9], [1, 1, 1]), (3,), [(0, 0, 0, 9), (1, 1, 0, 9), (2, 2, 0, 9)])
    figure = schedule_plots.gantt(result, kinds=["cnn", "trees", "cnn"])
    assert legend_texts(figure) == ["cnn", "trees"]
    (collection,) = (c for c in figure.axes[0].collections if isinstance(c, PolyCollection))
    first, second, third = np.asarray(collection.get_facecolor()).tolist()
    assert first == third != second


def test_gpus_of_one_machine_are_called_as_users_call_them() -> None:
    axes = schedule_plots.gantt(result_of(Trace.of([0], [9], [1]), (2,), [(0, 1, 0, 9)])).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["GPU 0", "GPU 1"]


def test_shares_of_a_gpu_are_stacked_without_overlap() -> None:
    trace = Trace.of([0, 0, 0, 10], [10, 30, 10, 20], [1, 1, 1, 1], compute=[30, 40, 30, 60])
    slices: list[Slice] = [(0, 0, 0, 10), (1, 0, 0, 30), (2, 0, 0, 10), (3, 0, 10, 30)]
    stacked = stack_bars(result_of(trace, (1,), slices).segments, trace.compute / 100, 0.0)
    heights = np.bincount(stacked.job, weights=stacked.height)
    assert heights == pytest.approx([0.3, 0.4, 0.3, 0.6])
    assert (stacked.low + stacked.height).max() == pytest.approx(1.0)
    for i in range(len(stacked)):
        for k in range(i):
            apart_in_time = stacked.end[k] <= stacked.start[i] or stacked.end[i] <= stacked.start[k]
            lower, upper = sorted((i, k), key=lambda n: stacked.low[n])
            gap = stacked.low[upper] - stacked.low[lower] - stacked.height[lower]
            assert apart_in_time or gap > -1e-9


def test_shares_that_add_up_to_more_than_a_gpu_stay_in_its_row() -> None:
    trace = Trace.of([0, 0], [10, 10], [1, 1], compute=[80, 0], memory=[0, 14 * 2**30])
    result = result_of(trace, (1,), [(0, 0, 0, 10), (1, 0, 0, 10)])
    assert all(0 <= top < bottom <= 1 for _, _, top, bottom in bars(schedule_plots.gantt(result)))


def test_many_segments_are_rasterized_without_text() -> None:
    axes = schedule_plots.gantt(many(5_000, 4)).axes[0]
    (collection,) = (c for c in axes.collections if isinstance(c, PolyCollection))
    assert collection.get_rasterized()
    assert not axes.texts
    assert len(collection.get_paths()) == 5_000
    assert "first" not in axes.get_title(loc="left")


def test_a_gantt_chart_that_is_cut_says_so() -> None:
    wide = schedule_plots.gantt(many(600, 200))
    assert "first 128 of 200 GPUs" in wide.axes[0].get_title(loc="left")
    assert max(bottom for *_, bottom in bars(wide)) < 128
    long = schedule_plots.gantt(many(30_000, 4))
    assert "busiest" in long.axes[0].get_title(loc="left")
    assert 0 < len(bars(long)) <= gantt_chart.MAX_SEGMENTS


def test_utilisation_steps(small: Result) -> None:
    figure = schedule_plots.utilisation([summarise(small)])
    assert steps(figure.axes[0]) == [(0, 1), (10, 1), (20, 0), (25, 1), (45, 0)]
    assert "fcfs" in figure.axes[0].get_title(loc="left")


def test_utilisation_counts_shares() -> None:
    trace = Trace.of([0, 5], [10, 10], [1, 1], compute=[20, 50])
    result = result_of(trace, (1, 1), [(0, 0, 0, 10), (1, 0, 5, 15)])
    values = [y for _, y in steps(schedule_plots.utilisation([summarise(result)]).axes[0])]
    assert values == pytest.approx([0.1, 0.35, 0.25, 0.0])


def test_a_preempted_job_waits_again_and_a_rejected_one_never_does(small: Result) -> None:
    waiting = dict(steps(schedule_plots.queue_length([summarise(small)]).axes[0]))
    assert waiting == {0: 0, 10: 1, 20: 1, 25: 0, 45: 0}


def test_long_curves_are_averaged_and_the_average_is_right() -> None:
    result = many(5_000, 1)
    axes = schedule_plots.queue_length([summarise(result)]).axes[0]
    times, waiting = (np.asarray(values, dtype=np.float64) for values in axes.lines[0].get_data())
    assert len(times) == summary.MAX_STEPS + 1
    assert "averaged over steps of" in axes.get_title(loc="left")
    # One job fewer every ten seconds, from 4999 down to 0: the mean over the run is 2499.5.
    assert waiting[:-1].mean() == pytest.approx(2499.5)


@pytest.mark.parametrize(("seconds", "unit"), [(60.0, "s"), (3600.0, "min"), (86400.0, "h"), (30 * 86400.0, "days")])
def test_time_axis_is_in_a_fitting_unit(seconds: float, unit: str) -> None:
    result = result_of(Trace.of([5], [seconds], [1]), (1,), [(0, 0, 5, 5 + seconds)])
    assert schedule_plots.utilisation([summarise(result)]).axes[0].get_xlabel().endswith(f"({unit})")
    assert schedule_plots.gantt(result).axes[0].get_xlabel().endswith(f"({unit})")


def test_cdfs_rise_to_one_over_the_completed_jobs(small: Result) -> None:
    left, right, slow = schedule_plots.cdfs([summarise(small)]).axes
    assert steps(left) == [(10, 0), (10, 0.5), (45, 1.0)]
    assert steps(right) == [(0, 0), (0, 0.5), (15, 1.0)]
    assert steps(slow) == [(1, 0), (1, 0.5), (1.5, 1.0)]


def test_cdf_axis_is_logarithmic_over_more_than_two_decades() -> None:
    trace = Trace.of([0, 0], [1, 1000], [1, 1])
    left, right, _ = schedule_plots.cdfs([summarise(result_of(trace, (1,), [(0, 0, 0, 1), (1, 0, 1, 1001)]))]).axes
    assert left.get_xscale() == "log"
    assert right.get_xscale() == "linear"
    late = result_of(
        Trace.of([0, 0, 0], [1, 1000, 1], [1, 1, 1]),
        (1,),
        [(0, 0, 0, 1), (1, 0, 1, 1001), (2, 0, 1001, 1002)],
    )
    assert schedule_plots.cdfs([summarise(late)]).axes[1].get_xscale() == "symlog"


@pytest.mark.parametrize("longest", [1e3, 1e5, 1e7, 5e8])
@pytest.mark.parametrize("names", [["fcfs"], ["a", "b"], ["a", "x" * 44]])
def test_labels_of_a_cdf_do_not_touch(longest: float, names: list[str]) -> None:
    results = []
    for k, name in enumerate(names):
        trace = Trace.of([0, 0, 0], [1, longest - k, 1], [1, 1, 1])
        slices: list[Slice] = [(0, 0, 0, 1), (1, 0, 1, 1 + longest - k), (2, 0, 1 + longest - k, 2 + longest - k)]
        results.append(_named(result_of(trace, (1,), slices), name))
    figure = schedule_plots.cdfs(results)
    for axes in figure.axes:
        assert len(axes.get_xticks()) > 2
        assert least_gap(figure, axes) > 3


def test_slowdowns_are_labelled_in_even_steps() -> None:
    def labels(run: float, wait: float) -> list[str]:
        trace = Trace.of([0, 0], [run, run], [1, 1], users=["a", "b"])
        late = result_of(trace, (2,), [(0, 0, 0, run), (1, 1, wait, wait + run)])
        axes = schedule_plots.by_group([summarise(late)]).axes[0]
        return [text.get_text() for text in axes.get_xticklabels()]

    assert labels(10, 99_980) == [
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
        "100",
        "200",
        "500",
        "1,000",
        "2,000",
        "5,000",
        "10,000",
    ]
    assert labels(10, 99_999_980) == ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000", "10,000,000"]
    assert labels(10, 10) == ["1", "1.2", "1.5", "2"]


def test_jobs_waiting_are_whole_round_numbers() -> None:
    axes = schedule_plots.queue_length([summarise(many(1070, 2))]).axes[0]
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    assert ticks[:4] == ["0", "200", "400", "600"]
    assert "1,000" in ticks


def test_large_cdf_still_ends_at_one() -> None:
    axes = schedule_plots.cdfs([summarise(many(20_000, 4))]).axes[0]
    assert steps(axes)[-1] == (50_000.0, 1.0)
    assert len(steps(axes)) <= summary.MAX_POINTS + 1


def test_nothing_completed_still_gives_every_plot(tmp_path: Path) -> None:
    result = result_of(Trace.of([3], [5], [9]), (2,), [])
    empty = result_of(Trace.of([], [], []), (2,), [])
    for case in (result, empty):
        for draw in (schedule_plots.utilisation, schedule_plots.queue_length, schedule_plots.cdfs):
            schedule_plots.save(draw([summarise(case)]), tmp_path, "empty")
        schedule_plots.save(schedule_plots.gantt(case), tmp_path, "empty")
    assert [text.get_text() for text in schedule_plots.gantt(result).axes[0].texts] == ["no job ran"]


def test_legend_is_in_the_order_given() -> None:
    figure = schedule_plots.cdfs([_named(many(20, 4), "_fast$1"), _named(many(20, 1), "slow")])
    assert legend_texts(figure) == [r" _fast\$1", "slow"]


def test_of_many_policies_the_best_are_in_colour_and_so_is_the_baseline() -> None:
    crowd = [_named(many(20 + i, 1), f"p{i}") for i in range(15)] + [_named(many(50, 1), "fcfs@skip")]
    for figure in (schedule_plots.cdfs(crowd), schedule_plots.queue_length(crowd)):
        assert legend_texts(figure) == ["p0", "p1", "p2", "p3", "p4", "p5", "fcfs@skip", "9 others"]
        lines = figure.axes[0].lines
        assert len(lines) == 16
        assert len({line.get_color() for line in lines}) == 8


def test_utilisation_of_several_policies_has_panels_for_the_best_and_the_baseline() -> None:
    crowd = [_named(many(20 + i, 1), f"p{i}") for i in range(15)] + [_named(many(50, 1), "fcfs")]
    panels = [axes for axes in schedule_plots.utilisation(crowd).axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["p0", "p1", "p2", "p3", "p4", "fcfs"]
    three = [axes for axes in schedule_plots.utilisation(crowd[:3]).axes if axes.get_visible()]
    assert len(three) == 3
    times, values = (np.asarray(v, dtype=np.float64) for v in three[2].lines[-1].get_data())
    assert (np.diff(times) * values[:-1]).sum() == pytest.approx(220.0), "all the time that the GPU was busy"


def test_plain_fcfs_is_the_baseline_before_its_variants() -> None:
    crowd = [_named(many(20 + i, 1), f"p{i}") for i in range(12)]
    crowd += [_named(many(50, 1), "fcfs@easy"), _named(many(60, 1), "fcfs")]
    assert legend_texts(schedule_plots.cdfs(crowd))[-2:] == ["fcfs", "7 others"]


def test_policies_with_the_same_schedule_share_a_line() -> None:
    same = [_named(many(20, 1), name) for name in "abcde"]
    figure = schedule_plots.cdfs([_named(many(20, 2), "x"), *same])
    assert legend_texts(figure) == ["x", "a = b = c and 2 more"]
    assert len(figure.axes[0].lines) == 2


def _named(result: Result, policy: str) -> Summary:
    return summarise(replace(result, policy=policy))


def test_users_are_dots_in_the_row_of_their_policy() -> None:
    figure = schedule_plots.by_group([_named(many(60, 2, users=3), "a"), _named(many(60, 1, users=3), "b")])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [len(np.asarray(dots.get_offsets())) for dots in axes.collections] == [3, 3]
    assert axes.get_title(loc="left").startswith("Slowdown of users")


def test_ranking_shows_how_sure_it_is() -> None:
    rows = [{"policy": "a", "jct_mean": 30.0, "jct_mean_ci": [25.0, 35.0]}, {"policy": "b", "jct_mean": 31.0}]
    axes = schedule_plots.ranking(rows).axes[0]
    assert "95% confidence" in axes.get_title(loc="left")
    assert len(axes.containers) == 2, "the bars, and one whisker"
    assert "confidence" not in schedule_plots.ranking([{"policy": "b", "jct_mean": 31.0}]).axes[0].get_title(loc="left")


@pytest.mark.parametrize(
    ("metric", "order"), [("jct_mean", ["b", "c", "a", "none"]), ("utilization", ["a", "c", "b", "none"])]
)
def test_ranking_puts_the_best_at_the_top(metric: str, order: list[str]) -> None:
    values: dict[str, Any] = {"a": 30.0, "b": 10.0, "c": 20.0, "none": float("nan")}
    axes = schedule_plots.ranking([{"policy": name, metric: value} for name, value in values.items()], metric).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == order
    bottom, top = axes.get_ylim()
    assert bottom > top, "row 0 is at the top"


def test_save_writes_png_and_svg_without_leftovers(small: Result, tmp_path: Path) -> None:
    png, svg = schedule_plots.save(schedule_plots.gantt(small), tmp_path / "deep" / "er", "gantt")
    assert (png.name, svg.name) == ("gantt.png", "gantt.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in svg.read_bytes()
    assert sorted(png.parent.iterdir()) == [png, svg]


@pytest.mark.parametrize("draw", [schedule_plots.utilisation, schedule_plots.queue_length, schedule_plots.cdfs])
def test_same_results_give_the_same_files(draw: Any, small: Result, tmp_path: Path) -> None:
    once = [path.read_bytes() for path in schedule_plots.save(draw([summarise(small)]), tmp_path / "1", "x")]
    again = [path.read_bytes() for path in schedule_plots.save(draw([summarise(small)]), tmp_path / "2", "x")]
    assert once == again
    assert b"date" not in once[1]


def test_same_gantt_chart_gives_the_same_files(tmp_path: Path) -> None:
    once, again = (
        [path.read_bytes() for path in schedule_plots.save(schedule_plots.gantt(many(5_000, 8)), tmp_path / name, "x")]
        for name in "ab"
    )
    assert once == again


def test_names_in_any_script_do_not_break_a_figure(tmp_path: Path) -> None:
    trace = Trace.of([0], [9], [1], ids=["任务 $\\frac$"])
    schedule_plots.save(schedule_plots.gantt(result_of(trace, (1,), [(0, 0, 0, 9)], policy="政策_$x$")), tmp_path, "x")
