"""A recording in a file: all of it comes back, and what is none is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.recordings.series import Mark, Recording, Series, Subject
from gpuyard.recordings.textform import from_json, read_recording, to_json, write_recording


def small() -> Recording:
    """Two metrics of one GPU, one of a job, with a gap, spans, a mark of each kind and a warning."""
    gpu = Subject(1, "GPU-ab", "A100", host="box")
    at = np.array([1e9, 1e9 + 1, 1e9 + 2.125])
    power = Series(gpu, "power", at, np.array([50.5, np.nan, 70.0]), np.array([50.0, np.nan, 60]), at * 0 + 80, 2.0)
    job = Series(Subject(1, job="7"), "process_memory", at[:1], np.array([2.0**33]))
    marks = [Mark(1e9, "job </script> starts", None, gpu), Mark(1e9 + 1, "a span", 1e9 + 2)]
    used = Series(gpu, "utilization", at, np.array([0.0, 1.0, 1 / 3]))
    return Recording(1e9, 1e9 + 3, [used, power, job], marks, ["half an hour is missing"], True)


def same(a: Recording, b: Recording) -> bool:
    def told(series: Series) -> tuple[object, ...]:
        return series.subject, series.metric, series.period, series.low is None, series.high is None

    def numbers(series: Series) -> list[float]:
        return [v for values in (series.at, series.mean, series.low, series.high) if values is not None for v in values]

    return (
        (a.start, a.end, a.marks, a.warnings, a.simulated) == (b.start, b.end, b.marks, b.warnings, b.simulated)
        and [told(one) for one in a.series] == [told(one) for one in b.series]
        and all(np.array_equal(numbers(x), numbers(y), equal_nan=True) for x, y in zip(a.series, b.series, strict=True))
    )


def test_a_recording_comes_back_from_json_as_it_was() -> None:
    told = json.loads(json.dumps(to_json(small()), allow_nan=False))
    assert same(from_json(told), small())
    assert len(told["times"]) == 2, "times that two series share are written once"


@pytest.mark.parametrize("name", ["recording.json", "recording.json.gz"])
def test_a_recording_comes_back_from_a_file(tmp_path: Path, name: str) -> None:
    path = write_recording(tmp_path / name, small())
    assert same(read_recording(path), small())
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no recording"),
        ('{"version": 99}', "is of version 99"),
        ("[]", "is no recording"),
        ('{"version": 1, "start": 0}', "is no recording"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=said) as caught:
        read_recording(tmp_path / "x.json")
    assert "x.json" in str(caught.value)


def test_a_file_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.json"):
        read_recording(tmp_path / "none.json")
