"""Windows of time, rows of what is over, and the file of it."""

from __future__ import annotations

import csv
import io
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.files import csv_text, without_formula
from gpuyard.page.table import Filters
from gpuyard.page.views.history import spread_text
from gpuyard.page.views.history_tables import (
    EXPORT_COLUMNS,
    csv_cells,
    cursor_of,
    initial_preset,
    instant,
    job_row,
    local_text,
    summary,
    typed_instant,
    usage_columns,
    usage_rows,
    window_of,
)

NOW = 1_800_000_030.0
KATHMANDU = ZoneInfo("Asia/Kathmandu")
JOB: dict[str, Any] = {
    "id": "17", "name": "train", "user": "ann", "state": "failed", "exit_code": 1, "attempt": 2, "gpus": [0, 3],
    "gpu_count": 2, "gpu_memory": None, "priority": -1.5, "tags": ["nlp", "thesis"], "command": ["echo", "a b"],
    "directory": "/home/ann", "reason": "exit code 1", "submitted_at": "2027-01-15T08:00:00+00:00",
    "started_at": "2027-01-15T08:01:00+00:00", "ended_at": "2027-01-15T09:01:00+00:00", "ran_before": 0.0,
}  # fmt: skip


def test_a_preset_goes_back_from_now_and_begins_at_a_full_minute() -> None:
    window = window_of("1h", "", "", NOW)
    assert (window.since, window.until, window.back) == (NOW - 30.0 - 3600.0, None, 3600.0)
    assert "until" not in window.query


@pytest.mark.parametrize(
    ("older", "latest", "preset"),
    [
        (None, None, "1h"),
        (None, 0.1, "1h"),
        (2.0, 0.1, "24h"),
        (30.0, 2.0, "24h"),
        (30.0, 30.0, "7d"),
        (2e4, 2e4, "24h"),
    ],
)
def test_the_history_begins_with_what_has_something(older: float | None, latest: float | None, preset: str) -> None:
    before, last = (None if hours is None else NOW - 3600.0 * hours for hours in (older, latest))
    assert initial_preset(before, last, NOW) == preset


def test_instants_are_taken_as_they_are() -> None:
    window = window_of("", "2027-01-15T07:00:00Z", "2027-01-15T07:30:00Z", NOW)
    assert window.until == window.since + 1800.0
    assert window.query == {"since": "2027-01-15T07:00:00Z", "until": "2027-01-15T07:30:00Z"}


@pytest.mark.parametrize(
    ("since", "until"), [("nonsense", ""), ("2027-01-15T07:00", ""), ("2027-01-15T07:00:00Z", "2027-01-15T06:00:00Z")]
)
def test_what_makes_no_sense_is_the_last_day(since: str, until: str) -> None:
    assert window_of("", since, until, NOW).back == 86400.0


def test_fields_of_time_are_in_the_viewers_zone() -> None:
    assert typed_instant("2027-01-15T12:45", KATHMANDU) == "2027-01-15T07:00:00Z"
    assert local_text(instant("2027-01-15T07:00:00Z"), KATHMANDU) == "2027-01-15T12:45"
    assert typed_instant("", KATHMANDU) == ""


def test_a_job_that_is_over_tells_how_long_it_waited_and_ran() -> None:
    row = job_row(JOB)
    assert row.cells[5:7] == (60.0, 3600.0)
    assert row.cells[-1]["text"] == "Exit code 1"


def test_who_used_most_comes_first() -> None:
    ann = {"user": "ann", "gpu_hours": 1.0, "submitted": 3, "ended": 2, "energy_wh": None}
    bob = {"user": "bob & co", "gpu_hours": 4.0, "submitted": 1, "ended": 1, "energy_wh": 1e4}
    rows = usage_rows("user", [ann, bob])
    assert [row.key for row in rows] == ["bob & co", "ann"]
    assert rows[0].cells[0]["href"] == "/history?user=bob+%26+co"
    assert rows[1].cells[1] == {"fraction": 0.25, "text": "1.0"}
    assert [row.cells[2] for row in rows] == ["10.0 kWh", "–"]
    assert len(rows[0].cells) == len(usage_columns("User")) == len(usage_columns("Tag")) + 1


def test_little_use_is_not_called_none() -> None:
    stats = {"ended": 0, "outcomes": {}, "gpu_hours": 0.0, "utilization": 0.001, "users": []}
    assert ("< 1 %", "of the GPUs in use") in summary(stats)


@pytest.mark.parametrize("text", ["=1+1", "+a1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_no_text_is_a_formula(text: str) -> None:
    assert without_formula(text) == f"'{text}"


@pytest.mark.parametrize("value", ["train", "a=b", "", None, -1.5, 3, "-1.5", "+3e7"])
def test_other_cells_stay_as_they_are(value: Any) -> None:
    assert without_formula(value) == value


def test_a_row_of_the_file_has_all_columns_and_iso_times() -> None:
    text = csv_text(EXPORT_COLUMNS, [csv_cells({**JOB, "name": '=HYPERLINK("http://x")'})])
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["name"] == '\'=HYPERLINK("http://x")'
    assert (row["wait_seconds"], row["run_seconds"], row["gpu_hours"]) == ("60.0", "3600.0", "2.0")
    assert (row["ended_at"], row["command"], row["gpus"]) == ("2027-01-15T09:01:00+00:00", "echo 'a b'", "0 3")
    assert row["priority"] == "-1.5"


def test_the_next_piece_is_where_the_last_one_says() -> None:
    assert cursor_of("/api/v1/history?limit=1&cursor=0x1.abcp%2B30_17") == "0x1.abcp+30_17"
    assert cursor_of(None) == ""


def test_filters_are_kept_in_the_address() -> None:
    filters = Filters("/queue", {"text": " a&b ", "strange": "x"}, ("text", "user"))
    assert filters.address == "/queue?text=a%26b"
    assert filters.set(text="", user="ann")
    assert not filters.set(user="ann ")
    assert filters.address == "/queue?user=ann"


def test_how_long_jobs_took_is_told_by_how_many_there_were() -> None:
    took = {"count": 1, "median": 5.0, "p90": 5.0, "p99": 5.0, "mean": 5.0}
    assert spread_text({"count": 0}, "ran") == "No job ran in this time."
    assert spread_text(took, "ran") == "The only job ran 5s."
    assert spread_text({**took, "count": 1200}, "ran").startswith("Half of 1,200 jobs ran at most 5s, 90 % at most 5s")
    short = {"count": 2, "median": 0.0062, "p90": 0.0994, "p99": 0.1, "mean": 0.05}
    assert spread_text(short, "waited") == (
        "Half of 2 jobs waited less than 0.1s, 90 % less than 0.1s, 99 % at most 0.1s; less than 0.1s in the mean."
    )
    assert spread_text({**short, "count": 1}, "waited") == "The only job waited less than 0.1s."
