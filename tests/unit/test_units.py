"""Units: what people write, and what they get to see."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.cli.monitoring.monitor_run import watt_hours
from gpuyard.errors import UserError
from gpuyard.figures.interactive_page import _energy
from gpuyard.recordings.series import Recording, Series, Subject
from gpuyard.units import (
    format_duration,
    format_number,
    format_plain,
    format_size,
    parse_duration,
    parse_signal,
    parse_size,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(11_801.2, "11,801"), (1000.4, "1,000"), (999.94, "999.9"), (0.75694, "0.7569"), (0.0, "0"), (2e-5, "0.000020")],
)
def test_no_number_is_a_power_of_ten(value: float, text: str) -> None:
    assert format_plain(value) == text


def test_large_energies_are_written_out() -> None:
    assert watt_hours(11_801.2) == "11,801 Wh"
    flat = Series(Subject(0), "power", np.array([0.0, 3600.0 * 40]), np.array([295.0, 295.0]), period=3600.0 * 40)
    assert "11,800 Wh" in _energy([("", Recording(0.0, 3600.0 * 40, [flat]))])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024), ("0", 0), ("6G", 6 * 2**30), ("6g", 6 * 2**30), ("6GB", 6 * 2**30),
        ("6GiB", 6 * 2**30), ("512 MiB", 512 * 2**20), ("1.5K", 1536), (".5T", 2**39),
        (" 1K ", 1024), ("3B", 3),
    ],
)  # fmt: skip
def test_sizes(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "6X", "6 G B", "nan", "1,5G", "6Gi6"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(UserError, match="is not a size; write for example 6G"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("1w", 604800), ("2 H", 7200),
        ("1e3", 1000), ("-5", -5), ("02:30", 150), ("02:30:00", 9000), ("1-12:00:00", 129600),
        ("1-12:00", 129600), ("00:00:01.5", 1.5),
        ("1h30m", 5400), ("1h 30m", 5400), ("2d4h", 187_200), ("2m48s", 168), ("1H 00M", 3600), ("1w 2 d 3s", 777_603),
        ("1d 2.5s", 86_402.5),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "1y", "1:2", "nan", "--5", "1h30", "30m1h", "1h1h", "1.5h30m", "-1h30m", "1h,30m"]
)
def test_not_durations(text: str) -> None:
    with pytest.raises(UserError, match="is not a duration; write for example 90"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(6 * 2**30, "6G"), (0, "0"), (1536, "1.5K"), (2**41, "2T"), (100, "100"), (2**20, "1M")],
)
def test_sizes_as_text(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (12.5, "12.5s"), (59.9, "59.9s"), (59.97, "1m 00s"), (60, "1m 00s"), (3599.7, "1h 00m"),
        (3723, "1h 02m"), (86_399, "1d 00h"), (183_000, "2d 03h"), (8e6, "92d 14h"),
        (-90, "-1m 30s"), (math.inf, "inf"),
    ],
)  # fmt: skip
def test_durations_as_text(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(60, 1e9))
def test_durations_as_text_can_be_typed_again(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize(("value", "text"), [(3335.0, "3335"), (200.82, "200.82"), (-2, "-2"), (1e20, "1e+20")])
def test_numbers_as_text(value: float, text: str) -> None:
    assert format_number(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back(value: float) -> None:
    assert float(format_number(value)) == value


@given(st.floats(min_value=0, max_value=1e12))
def test_durations_read_back(value: float) -> None:
    assert parse_duration(format_number(value)) == value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("USR1", ("USR1", None)), ("sigint@90", ("INT", 90.0)), ("10@2m", ("USR1", 120.0)), (" TERM ", ("TERM", None))],
)
def test_signals(text: str, wanted: tuple[str, float | None]) -> None:
    assert parse_signal(text) == wanted


@pytest.mark.parametrize("text", ["KILL", "", "9", "USR1@", "USR1@-1", "USR1@inf", "B:USR1@60", "99"])
def test_bad_signals(text: str) -> None:
    with pytest.raises(UserError):
        parse_signal(text)
