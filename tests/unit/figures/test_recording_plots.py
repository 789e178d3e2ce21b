"""Figures of recordings show what was recorded: units, gaps, marks, peaks, and the same bytes for the same values."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from xml.etree.ElementTree import parse

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpuyard.errors import UserError
from gpuyard.experiments.outputs import draw_beside
from gpuyard.figures.axes import label_time
from gpuyard.figures.panels import COLOURS, GREY, RED, Axis, decimate, smooth
from gpuyard.figures.panels import panels as panels_of
from gpuyard.monitor.plots import draw, write_plots
from gpuyard.recordings.series import Mark, Recording, Series, Subject
from gpuyard.recordings.throttling import errors, throttled

START = 1_794_850_000.0


def series(metric: str, values: list[float], gpu: int = 0, job: str = "", *, spans: bool = False) -> Series:
    """A value a second, from the start on; NaN is a gap."""
    mean = np.array(values)
    low, high = (mean - 1, mean + 2) if spans else (None, None)
    at = START + np.arange(len(values), dtype=float)
    return Series(Subject(gpu, f"GPU-{gpu}", "A100", job), metric, at, mean, low, high)


def recorded(*several: Series, marks: list[Mark] | None = None, seconds: float = 10.0) -> Recording:
    return Recording(START, START + seconds, list(several), marks or [])


def drawn(axes: Axes) -> list[tuple[list[float], list[float]]]:
    """The curves of a panel, without the dashed lines of marks."""
    found = [tuple(np.asarray(part, dtype=float).tolist() for part in line.get_data()) for line in axes.lines]
    return [(x, y) for x, y in found if not (len(x) == 2 and x[0] == x[1])]


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.axison]


def names(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize(
    ("metric", "value", "label", "shown"),
    [
        ("utilization", 45.0, "GPU utilization (%)", 45.0),
        ("power", 250.0, "Power (W)", 250.0),
        ("temperature", 71.0, "Temperature (°C)", 71.0),
        ("sm_clock", 1410.0, "SM clock (MHz)", 1410.0),
        ("memory_used", 3 * 2.0**30, "Memory in use (MiB)", 3072.0),
        ("memory_used", 24 * 2.0**30, "Memory in use (GiB)", 24.0),
    ],
)
def test_axes_have_units_and_values_are_in_them(metric: str, value: float, label: str, shown: float) -> None:
    figure = draw([("job 7", recorded(series(metric, [value, value])))], metric)
    (axes,) = panels(figure)
    assert axes.get_ylabel() == label
    assert drawn(axes)[0] == ([0.0, 1.0], [shown, shown])
    assert axes.get_ylim()[0] <= shown <= axes.get_ylim()[1]
    assert axes.get_xlabel().startswith("Time (20")
    assert axes.get_xlim() == (0.0, 10.0)


def test_the_first_sample_is_kept_gaps_stay_gaps_and_a_lone_value_is_a_dot() -> None:
    figure = draw([("job 7", recorded(series("power", [10.0, 20.0, np.nan, 40.0, np.nan, 60.0, 70.0])))], "power")
    (axes,) = panels(figure)
    curve, dots = drawn(axes)
    assert curve[0][0] == 0.0
    assert np.isnan(curve[1][2])
    assert np.isnan(curve[1][4])
    assert dots == ([3.0], [40.0])


def test_values_of_spans_have_a_band_from_least_to_most_and_stand_in_the_middle() -> None:
    figure = draw([("job 7", recorded(series("power", [10.0, 20.0, 30.0], spans=True)))], "power")
    (axes,) = panels(figure)
    assert drawn(axes)[0][0] == [0.5, 1.5, 2.5]
    (band,) = axes.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    assert (corners[:, 1].min(), corners[:, 1].max()) == (9.0, 32.0)


def test_jobs_are_marked_and_named_from_start_to_end() -> None:
    marks = [Mark(START + 2, "job 7 (train)", START + 6), Mark(START + 8, "XID 79")]
    figure = draw([("box", recorded(series("power", [1.0] * 10), marks=marks))], "power")
    assert texts(figure) == ["job 7 (train)", "XID 79"]
    (axes,) = panels(figure)
    lines = [np.asarray(line.get_xdata(), dtype=float) for line in axes.lines]
    assert [line[0] for line in lines if len(line) == 2 and line[0] == line[1]] == [2.0, 6.0, 8.0]


def test_names_of_jobs_can_be_anything(tmp_path: Path) -> None:
    odd = "job \x1b[31m\x00\x0b\ud800 $\\frac{ </script>"
    one = recorded(series("power", [1.0] * 10), marks=[Mark(START + 2, odd, START + 6)])
    for path in write_plots([("box", one)], ["power"], tmp_path, title=odd):
        if path.suffix == ".svg":
            parse(path)
        elif path.suffix == ".html":
            assert "frac{ </script>" not in path.read_text()


def test_a_job_on_several_gpus_is_named_once_and_times_that_are_rounded_do_not_hide_it() -> None:
    marks = [Mark(START - 0.0004, "job 7", None, Subject(gpu, job="7")) for gpu in (0, 1)]
    figure = draw([("box", recorded(series("power", [1.0] * 10), marks=marks))], "power")
    assert texts(figure) == ["job 7"]


def test_an_axis_of_a_fifth_of_a_second_has_labels_too() -> None:
    axes = Figure().add_subplot()
    label_time(axes, Axis(clock=True, origin=1794857756.93, left=0.0, right=0.2), UTC)
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[0].startswith("19:35:5")
    assert "19:35:57.00" in labels or "19:35:57.0" in labels
    assert len(set(labels)) == len(labels) > 1


def test_several_recordings_share_an_axis_of_time_since_each_began() -> None:
    later = Series(Subject(0), "power", START + 1e6 + np.arange(3.0), np.array([5.0, 6.0, 7.0]))
    other = Recording(START + 1e6, START + 1e6 + 3, [later])
    figure = draw([("fcfs", recorded(series("power", [1.0, 2.0]))), ("sjf", other)], "power")
    (axes,) = panels(figure)
    assert [curve[0] for curve in drawn(axes)] == [[0.0, 1.0], [0.0, 1.0, 2.0]]
    assert axes.get_xlabel() == "Time since the start (s)"
    assert names(figure) == ["fcfs", "sjf"]


def test_of_recordings_with_several_gpus_the_mean_is_drawn_over_faint_lines() -> None:
    pair = recorded(series("power", [10.0, 20.0]), series("power", [30.0, np.nan], gpu=1))
    figure = draw([("fcfs", pair), ("sjf", recorded(series("power", [1.0, 2.0])))], "power")
    assert names(figure) == ["fcfs, mean of 2 GPUs", "sjf", "fcfs, each of 2 GPUs"]
    (axes,) = panels(figure)
    assert [20.0, 20.0] in [values for _, values in drawn(axes)]


def test_stacked_there_is_a_panel_for_each_recording_or_for_each_gpu_of_one() -> None:
    both = [("fcfs", recorded(series("power", [1.0, 2.0]))), ("sjf", recorded(series("power", [3.0, 4.0])))]
    figure = draw(both, "power", layout="stacked")
    assert [axes.get_title(loc="left") for axes in panels(figure)] == ["fcfs", "sjf"]
    one = recorded(*(series("power", [1.0 + gpu, 2.0], gpu=gpu) for gpu in range(20)))
    figure = draw([("box", one)], "power", layout="stacked")
    shown = [axes for axes in panels(figure) if axes.get_visible()]
    assert {axes.get_title(loc="left") for axes in shown} == {f"GPU {gpu}" for gpu in range(20)}
    assert len({axes.get_ylim() for axes in shown}) == 1


def test_a_crowd_is_a_mean_with_its_band_and_a_few_gpus_have_a_colour_each_in_all_figures() -> None:
    crowd = recorded(*(series("power", [float(gpu), 2.0], gpu=gpu) for gpu in range(12)))
    figure = draw([("", crowd)], "power")
    assert names(figure) == ["mean of 12 GPUs", "each of 12 GPUs"]
    few = recorded(
        series("power", [1.0, 2.0], gpu=0), series("power", [2.0, 2.0], gpu=3), series("utilization", [5.0, 6.0], gpu=3)
    )
    colours = {metric: [line.get_color() for line in panels(draw([("", few)], metric))[0].lines] for metric in
               ("power", "utilization")}  # fmt: skip
    assert colours == {"power": [COLOURS[0], COLOURS[1]], "utilization": [COLOURS[1]]}


def test_lines_that_lie_on_each_other_are_both_seen() -> None:
    figure = draw([("", recorded(series("power", [1.0, 2.0]), series("power", [1.0, 2.0], gpu=1)))], "power")
    below, above = panels(figure)[0].lines
    assert (below.get_linestyle(), above.get_linestyle()) == ("-", "--")


def test_fewer_points_keep_peaks_gaps_and_both_ends() -> None:
    at = np.arange(100_000.0)
    values = np.sin(at / 5000)
    values[31_234], values[77_001] = 55.0, -44.0
    values[50_000:50_010] = np.nan
    kept_at, kept, _, _ = decimate(at, values, None, None, 2000)
    assert len(kept) <= 2000
    assert (np.nanmax(kept), np.nanmin(kept)) == (55.0, -44.0)
    assert (kept_at[0], kept_at[-1]) == (0.0, 99_999.0)
    assert kept_at[np.isnan(kept)].tolist() == [50_000.0]
    assert np.all(np.diff(kept_at) > 0)
    _, mean, low, high = decimate(at, values * 0, values - 1, values + 1, 2000)
    assert low is not None
    assert high is not None
    assert (np.nanmin(low), np.nanmax(high)) == (-45.0, 56.0)
    assert len(mean) == len(low) == len(high)
    few_at, few = smooth(at, values, 100)
    assert len(few_at) == len(few) == 100
    assert np.nanmean(few) == pytest.approx(np.nanmean(values), abs=1e-3)


def test_throttling_has_a_row_for_each_reason_and_a_bar_while_it_held() -> None:
    bits = series("throttle", [0.0, 4.0, 4.0 + 32.0, 32.0, np.nan, 1.0])
    assert throttled(bits) == {
        "SW power cap": [(START + 1, START + 3)],
        "SW thermal slowdown": [(START + 2, START + 4)],
        "idle": [(START + 5, START + 6)],
    }
    (axes,) = draw([("", recorded(bits))], "throttle").axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["GPU 0: SW power cap", "GPU 0: SW thermal slowdown", "GPU 0: idle"]
    assert texts(draw([("", recorded(series("throttle", [0.0, 0.0])))], "throttle")) == ["No GPU was slowed down."]


def test_errors_are_marked_with_their_numbers_in_their_own_figure_and_in_the_others() -> None:
    seen = series("xid", [0.0, 79.0, 79.0, np.nan, 79.0, 31.0, 0.0])
    assert errors(seen) == [(START + 1, 79), (START + 5, 31)]
    recording = recorded(seen, series("power", [1.0] * 7))
    assert texts(draw([("", recording)], "xid")) == ["XID 79: fallen off the bus", "XID 31: GPU memory page fault"]
    assert texts(draw([("", recording)], "power")) == ["XID 79", "XID 31"]


def test_an_error_from_before_is_none_of_this_time() -> None:
    recording = recorded(series("xid", [79.0] * 5), series("power", [1.0] * 5))  # DCGM tells the latest for ever
    assert texts(draw([("", recording)], "xid")) == ["There was no error."]
    assert texts(draw([("", recording)], "power")) == []


def test_errors_are_red_among_the_jobs_and_marks_say_which_were_new() -> None:
    marks = [Mark(START, "XID 79", subject=Subject(1, "GPU-1")), Mark(START, "job 7 (XID 3)", START + 5)]
    quiet, failed = series("xid", [13.0] * 5), series("xid", [79.0, 0.0, 0.0], gpu=1)
    recording = recorded(quiet, failed, series("power", [1.0] * 5), marks=marks)
    [panel] = panels_of([("", recording)], "power", "overlay")
    assert {note.label: note.colour for note in panel.notes} == {"XID 79": RED, "job 7 (XID 3)": GREY}
    assert texts(draw([("", recording)], "xid")) == ["XID 79: fallen off the bus"]


def test_a_model_is_the_heading_only_if_all_gpus_are_known_to_be_of_it() -> None:
    known = [series("power", [1.0, 2.0], gpu) for gpu in (0, 1)]
    nameless = Series(Subject(0, "GPU-x", host="n2"), "power", known[0].at, known[0].mean)
    for several, heading in ((known, "A100"), ([*known, nameless], "")):
        [legend] = draw([("", recorded(*several))], "power").legends
        assert legend.get_title().get_text() == heading


def test_the_same_values_give_the_same_bytes(tmp_path: Path) -> None:
    recording = recorded(series("power", [1.0, 2.0, 3.0]), marks=[Mark(START, "job 7", START + 2)])
    first, second = (write_plots([("job 7", recording)], ["power"], tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["power.png", "power.svg", "plots.html"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_where_nothing_is_known_nothing_is_written_and_it_is_said_what_there_is(tmp_path: Path) -> None:
    recording = recorded(series("power", [np.nan, np.nan]), series("utilization", [5.0]))
    with pytest.raises(UserError, match="nothing was recorded of power; there is something of utilization"):
        write_plots([("job 7", recording)], ["power"], tmp_path / "out")
    with pytest.raises(UserError, match="there is nothing to draw"):
        write_plots([("job 7", recorded())], ["power"], tmp_path / "out")
    with pytest.raises(UserError, match="no layout 'sideways'"):
        write_plots([("job 7", recording)], ["utilization"], tmp_path / "out", layout="sideways")
    assert not (tmp_path / "out").exists()


def test_simulated_gpus_are_said_to_be_simulated() -> None:
    recording = recorded(series("power", [1.0, 2.0]))
    assert "simulated" not in draw([("job 7", recording)], "power").axes[0].get_title(loc="left")
    recording.simulated = True
    assert draw([("job 7", recording)], "power").axes[0].get_title(loc="left") == "Power: job 7 (simulated GPUs)"


def test_who_would_hide_another_recording_is_dashed() -> None:
    course = [100.0] * 40 + [0.0] + [100.0] * 40
    near, other = [*course[1:], 99.0], [10.0] * 81
    named = [(name, recorded(series("power", values))) for name, values in (("a", course), ("b", near), ("c", other))]
    (panel,) = panels_of(named, "power", "overlay")
    assert [line.beneath for line in panel.lines] == [0, 1, 0]
    short = [("a", named[0][1]), ("b", recorded(series("power", course[:30])))]
    assert [line.beneath for line in panels_of(short, "power", "overlay")[0].lines] == [0, 0]
    gpus = recorded(series("power", course), series("power", near, 1))
    assert [line.beneath for line in panels_of([("x", gpus)], "power", "overlay")[0].lines] == [0, 0]


def test_groups_stand_side_by_side_with_one_scale() -> None:
    few, many = recorded(series("power", [50.0] * 5)), recorded(series("power", [300.0] * 20), seconds=20.0)
    groups = [("0 %", [("a", few), ("b", recorded())]), ("150 %", [("a", few), ("b", many)])]
    figure = draw_beside(groups, "power", "knots")
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in panels(figure)] == ["0 %", "150 %"]
    assert len({axes.get_ylim() for axes in panels(figure)}) == len({axes.get_xlim() for axes in panels(figure)}) == 1
    assert [len(drawn(axes)) for axes in panels(figure)] == [1, 2]
    assert (names(figure), figure.get_suptitle()) == (["a", "b"], "Power: knots")
    assert panels(figure)[0].lines[0].get_color() == panels(figure)[1].lines[0].get_color() == COLOURS[0]
    assert draw_beside(groups, "temperature") is None
