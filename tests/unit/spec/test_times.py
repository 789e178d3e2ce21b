"""Instants as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from gpuyard.errors import UserError
from gpuyard.spec.times import format_when, last_clock, parse_when

MONDAY = "2026-11-16 10:30:00"


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-16 10:30:00"),
        ("now+1hour", "2026-11-16 11:30:00"),
        ("now + 2 days", "2026-11-18 10:30:00"),
        ("now+90", "2026-11-16 10:31:30"),
        ("+90m", "2026-11-16 12:00:00"),
        ("now+30minutes", "2026-11-16 11:00:00"),
        ("16:00", "2026-11-16 16:00:00"),
        ("10:00", "2026-11-17 10:00:00"),
        ("10:30", "2026-11-17 10:30:00"),
        ("4pm", "2026-11-16 16:00:00"),
        ("4:15 PM", "2026-11-16 16:15:00"),
        ("12am", "2026-11-17 00:00:00"),
        ("noon", "2026-11-16 12:00:00"),
        ("midnight", "2026-11-17 00:00:00"),
        ("tomorrow", "2026-11-17 00:00:00"),
        ("tomorrow 8:00", "2026-11-17 08:00:00"),
        ("8:00 tomorrow", "2026-11-17 08:00:00"),
        ("today 9:00", "2026-11-16 09:00:00"),
        ("fri 14:00", "2026-11-20 14:00:00"),
        ("Friday", "2026-11-20 00:00:00"),
        ("mon 11:00", "2026-11-16 11:00:00"),
        ("mon 10:00", "2026-11-23 10:00:00"),
        ("2026-11-20", "2026-11-20 00:00:00"),
        ("2026-11-20T08:00", "2026-11-20 08:00:00"),
        ("2026-11-20 08:00:30", "2026-11-20 08:00:30"),
        ("2026-11-20T08:00:00Z", "2026-11-20 09:00:00"),
        ("2026-11-20T08:00+03:00", "2026-11-20 06:00:00"),
        ("12/24", "2026-12-24 00:00:00"),
        ("01/02", "2027-01-02 00:00:00"),
        ("12/24/27 18:00", "2027-12-24 18:00:00"),
    ],
)
def test_what_people_write(text: str, meant: str) -> None:
    assert parse_when(text, at(MONDAY)) == at(meant)


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "16:60", "fri fri", "13pm", "2026-13-01", "now+", "now+soon", "8"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UserError, match="is not a time"):
        parse_when(text, at(MONDAY))


def test_a_day_is_a_day_of_the_calendar_also_when_clocks_change() -> None:
    evening = at("2026-10-24 20:00:00")  # clocks go back in this night
    assert parse_when("tomorrow 20:00", evening) - evening == 25 * 3600
    assert parse_when("now+1day", evening) - evening == 24 * 3600
    evening = at("2026-03-28 20:00:00")  # and forward in this one
    assert parse_when("tomorrow 20:00", evening) - evening == 23 * 3600
    assert parse_when("tomorrow 02:30", evening) == at("2026-03-29 03:30:00")  # there is no half past two


def test_an_instant_is_told_with_its_date_unless_that_is_today() -> None:
    assert format_when(at("2026-11-16 14:03:20"), at(MONDAY)) == "14:03:20"
    assert format_when(at("2026-11-17 14:03:20"), at(MONDAY)) == "2026-11-17 14:03:20"


@pytest.mark.parametrize(
    ("text", "meant"),
    [("10:30", MONDAY), ("9:05", "2026-11-16 09:05:00"), ("14:00", "2026-11-15 14:00:00"),
     ("2pm", "2026-11-15 14:00:00"), (" 10:29:59 ", "2026-11-16 10:29:59")],
)  # fmt: skip
def test_a_time_of_day_in_the_past_is_the_last_such(text: str, meant: str) -> None:
    found = last_clock(text, datetime.fromisoformat(MONDAY))
    assert found is not None
    assert found.timestamp() == at(meant)


@pytest.mark.parametrize("text", ["1h", "90", "2026-11-16", "1-12:00:00", "", "noon:00"])
def test_what_is_no_time_of_day(text: str) -> None:
    assert last_clock(text, datetime.fromisoformat(MONDAY)) is None
