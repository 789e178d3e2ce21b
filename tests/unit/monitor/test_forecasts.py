"""How well usage is foreseen: errors by hand, and `gpuyard forecast` over files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.yard import Done, Yard

from gpuyard.monitor.forecasts import capacity_of, errors_of, evaluate, runs
from gpuyard.monitor.sources.csv_files import read_plain
from gpuyard.recordings.series import Series, Subject

GPU = Subject(0, "GPU-1", "Tesla")


def series(values: list[float], period: float = 1.0, metric: str = "memory_free") -> Series:
    return Series(GPU, metric, np.arange(len(values), dtype=np.float64) * period, np.array(values), period=period)


def test_errors_are_those_worked_out_by_hand() -> None:
    # missed by 2, -1, 0 and 4; of the real values 10, 20, 40 and 0
    found = errors_of(np.array([10.0, 20.0, 40.0, 0.0]), np.array([8.0, 21.0, 40.0, -4.0]))
    assert found.mae == 7 / 4
    assert found.mse == 21 / 4
    assert found.rmse == pytest.approx(math.sqrt(21 / 4))
    assert found.mape == pytest.approx((20 + 5 + 0) / 3)
    assert found.mpe == pytest.approx((20 - 5 + 0) / 3)
    assert found.zeros == 1


def test_of_zeros_there_are_no_percentages() -> None:
    found = errors_of(np.zeros(3), np.ones(3))
    assert (found.mape, found.mpe, found.zeros, found.mae) == (None, None, 3, 1.0)


def test_a_series_that_obeys_the_model_is_foreseen_exactly() -> None:
    values = [100.0, 160.0, 130.0]
    for n in range(3, 60):
        values.append(20 + 0.9 * values[n - 3])
    found = evaluate(series(values), lag=3, window=12, capacity=1000.0)
    assert found is not None
    assert len(found.at) == 60 - 12 - 3 + 1
    assert (found.at[0], found.real[0]) == (14.0, values[14])
    assert found.errors.mae == pytest.approx(0.0, abs=1e-9)


def test_what_is_too_short_is_not_foreseen_and_a_gap_is_not_bridged() -> None:
    assert evaluate(series([1.0] * 14), lag=3, window=12) is None
    assert evaluate(series([1.0] * 15), lag=3, window=12) is not None
    split = series([1.0] * 14 + [math.nan] + [1.0] * 14)
    assert [len(values) for _, values in runs(split)] == [14, 14]
    assert evaluate(split, lag=3, window=12) is None
    assert evaluate(series([math.nan] * 20), lag=3, window=12) is None


def test_rules_that_promise_what_then_is_not_there_are_wrong() -> None:
    """Steady for thirty samples, and then all is taken: the last ten decisions before that were wrong."""
    free = [900.0] * 30 + [100.0] * 10
    found = evaluate(series(free), lag=10, window=20, capacity=1000.0, decides=True)
    assert found is not None
    [cbp, pp] = found.verdicts
    assert (found.decisions, cbp.admitted, cbp.wrong) == (11, 11, 10)
    assert cbp.share == pytest.approx(10 / 11)
    assert (pp.admitted, pp.share) == (0, None)
    small = evaluate(series(free), lag=10, window=20, capacity=1000.0, decides=True, request=100.0)
    assert small is not None
    assert [(one.admitted, one.wrong) for one in small.verdicts] == [(11, 0), (0, 0)]


def test_a_gpu_has_what_is_free_and_what_is_used_together() -> None:
    free, used = series([900.0, 400.0]), series([100.0, 600.0], metric="memory_used")
    assert capacity_of(free, [used]) == 1000.0
    assert capacity_of(free, []) == 900.0
    assert capacity_of(series([math.nan]), []) == 0.0


@pytest.mark.parametrize(
    ("text", "times", "values"),
    [
        ("1\n2.5\n", [0, 1], [1, 2.5]),
        ("5,1\n10,2\n", [5, 10], [1, 2]),
        ("second,value\n0,1\n1,\n2,3\n", [0, 1, 2], [1, math.nan, 3]),
        ("0;1\n1;2\n", [0, 1], [1, 2]),
    ],
)
def test_files_of_numbers(tmp_path: Path, text: str, times: list[float], values: list[float]) -> None:
    path = tmp_path / "values.csv"
    path.write_text(text)
    found = read_plain(path, "memory_free")
    assert found is not None
    assert found.at.tolist() == times
    assert np.array_equal(found.mean, values, equal_nan=True)


@pytest.mark.parametrize("text", ["", "index, name\n0, x\n", "1,2,3\n4,5,6\n", "1\n2,3\n"])
def test_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "values.csv"
    path.write_text(text)
    assert read_plain(path, "memory_free") is None


# -- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path, tmp_path)


def told(done: Done) -> Any:
    assert done.code == 0, done
    return json.loads(done.out)


def test_a_file_of_values_is_evaluated_and_drawn(yard: Yard) -> None:
    values = [7000 + 500 * math.sin(n / 7) for n in range(150)]
    (yard.cwd / "free.csv").write_text("".join(f"{n},{value}\n" for n, value in enumerate(values)))
    done = yard("forecast", "free.csv", "--capacity", "32510", "--out", "plots", "--json")
    [found] = told(done)
    assert (found["forecasts"], found["metric"], found["decisions"]) == (150 - 60 - 10 + 1, "memory_free", 81)
    assert found["rmse"] == pytest.approx(math.sqrt(found["mse"]))
    assert 0 < found["mae"] < 500
    assert found["cbp"]["admitted"] == 81
    for name in ("forecast-gpu0-line.png", "forecast-gpu0-scatter.png"):
        assert (yard.cwd / "plots" / name).read_bytes().startswith(b"\x89PNG")
        assert name in done.err


def test_a_csv_of_nvidia_smi_is_evaluated_gpu_by_gpu(yard: Yard) -> None:
    lines = ["timestamp, index, name, memory.used [MiB], memory.free [MiB]"]
    for n in range(80):
        at = f"2026/11/16 18:{45 + n // 60:02}:{n % 60:02}.000"
        lines += [f"{at}, {gpu}, Tesla, {100 * gpu + n % 7} MiB, {1000 - 100 * gpu - n % 7} MiB" for gpu in (0, 1)]
    (yard.cwd / "gpu_usage.csv").write_text("\n".join(lines) + "\n")
    found = told(yard("forecast", "gpu_usage.csv", "--window", "20", "--json"))
    assert [one["gpu"] for one in found] == [0, 1]
    assert {one["forecasts"] for one in found} == {80 - 20 - 10 + 1}
    table = yard("forecast", "gpu_usage.csv", "--window", "20", "--gpus", "1").out
    assert "GPU 1" in table
    assert "GPU 0" not in table
    assert "MAE MiB" in table


def test_what_cannot_be_evaluated_is_told(yard: Yard) -> None:
    (yard.cwd / "few.txt").write_text("1\n2\n3\n")
    done = yard("forecast", "few.txt")
    assert done.code == 2
    assert "70 values on end" in done.err
    assert (
        "there is no 'memory_fre'; did you mean 'memory_free'?"
        in yard("forecast", "few.txt", "--metric", "memory_fre").err
    )
    assert "is no source" in yard("forecast", "nowhere").err
    done = yard("forecast", "few.txt", "--window", "11")
    assert (done.code, "at least --window 12" in done.err) == (2, True)


def test_zeros_are_left_out_of_percentages_and_told(yard: Yard) -> None:
    (yard.cwd / "zeros.txt").write_text("0\n5\n" * 20)
    done = yard("forecast", "zeros.txt", "--lag", "2", "--window", "10", "--metric", "power")
    assert done.code == 0
    assert "values of 0 do not count in MAPE and MPE" in done.err
