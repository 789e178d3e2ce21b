"""What the page makes of batches, of what is known of jobs, and of jobs beside each other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpuyard.page.views.sharing import (
    accuracy_text,
    considerate_policy,
    matching_estimates,
    need_rows,
    pair_rows,
    slowdown_text,
)
from gpuyard.page.views.sharing_batches import (
    CLOSED,
    OPEN,
    batch_results,
    card,
    counts_text,
    gpu_hours,
    remaining_text,
    shown_batches,
)

GIB = 2**30
AT = "2026-11-20T12:00:00+00:00"
NOW = datetime(2026, 11, 20, 12, 1, tzinfo=UTC).timestamp()
HEAD: dict[str, Any] = {
    "batch": "17", "name": "commands.csv", "user": "ann", "state": "open", "rows": 50, "refused": 1,
    "states": {"succeeded": 18, "oom": 2, "running": 8, "queued": 21}, "submitted_at": AT, "ended_at": None,
}  # fmt: skip
JOB: dict[str, Any] = {
    "id": "19", "name": "train.py", "row": {"number": 3, "wave": 2}, "gpus": [0, 1], "gpu_memory": 2 * GIB,
    "measured": {"peak": GIB}, "progress": {"fraction": 0.254}, "reason": None,
}  # fmt: skip
REPORT: dict[str, Any] = {
    "makespan": 600.0, "sequential": 1980.0, "speedup": 3.3, "gpu_hours": 0.17, "gpu_hours_sequential": 0.55,
    "gpu_hours_saved": 0.38, "most_at_once": 4, "ooms": 2,
}  # fmt: skip
KNOWN: dict[str, Any] = {
    "signature": "168f", "command": "python train.py epochs=#", "name": "train.py", "user": "ann", "runs": 14,
    "memory": 1.95 * GIB, "seconds": 22.4, "per_epoch": True, "evidence": "p95 of 14 runs: 1,947 MiB + 3 %",
    "memory_error": {"count": 13, "median": 0.021, "worst": -0.05, "bias": 0.0}, "time_error": None, "last_at": AT,
}  # fmt: skip


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def batch(id: int, state: str) -> dict[str, Any]:
    return {**HEAD, "batch": str(id), "state": state}


def test_all_that_are_on_come_first_and_only_the_latest_of_the_others() -> None:
    heads = [batch(id, "open" if id % 10 == 0 else "over") for id in range(40, 0, -1)]
    assert [head["batch"] for head in shown_batches(heads)] == ["40", "30", "20", "10", "39", "38", "37", "36", "35"]
    assert len(shown_batches([batch(id, "open") for id in range(30)] + heads)) == OPEN + CLOSED


def test_a_card_tells_how_a_batch_stands() -> None:
    shown = card(HEAD, {"wave": 2, "waves": 3, "running": [JOB] * 8}, None, NOW)
    assert shown["wave"] == "Wave 2 of 3"
    assert [(one["word"], one["count"]) for one in shown["counts"]] == [
        ("succeeded", 18), ("running", 8), ("waiting", 21), ("out of memory", 2), ("refused", 1),
    ]  # fmt: skip
    row = shown["running"][0]
    assert (row["row"], row["gpus"], row["memory"], row["share"]) == (3, "0, 1", "1 GiB of 2 GiB", 0.25)
    assert (len(shown["running"]), shown["more"], shown["achieved"]) == (6, 2, [])
    assert counts_text(HEAD) == "50 rows: 18 succeeded, 8 running, 21 waiting, 2 out of memory, 1 refused"


def test_a_batch_of_one_wave_does_not_count_them_and_a_row_may_say_little() -> None:
    silent = {**JOB, "name": "", "row": None, "measured": None, "progress": None, "gpu_memory": None}
    shown = card(HEAD, {"wave": 1, "waves": 1, "running": [silent]}, None, NOW)
    row = shown["running"][0]
    assert (shown["wave"], row["name"], row["row"], row["memory"], row["share"]) == ("", "job 19", None, "", None)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"succeeded": 20, "queued": 29}, "about 1m 30s left"),  # a minute for twenty
        ({"succeeded": 1, "queued": 100}, "about 1h 40m left"),
        ({"queued": 50}, ""),
        ({"succeeded": 50}, ""),
    ],
)
def test_what_is_left_follows_from_what_is_done(states: dict[str, int], expected: str) -> None:
    assert remaining_text({**HEAD, "states": states}, NOW) == expected


def test_what_a_batch_achieved_is_told_in_sentences() -> None:
    assert list(batch_results(REPORT)) == [
        "3.3 times as fast as one row after another: 10m 00s instead of 33m 00s.",
        "0.38 GPU-hours saved: 0.17 used, 0.55 one by one.",
        "At most 4 rows at once; ran out of memory 2 times.",
    ]
    assert list(batch_results({**REPORT, "gpu_hours_saved": -0.1}))[1] == "0.17 GPU-hours used, none saved."
    assert list(batch_results({**REPORT, "makespan": 0.0})) == []
    assert [gpu_hours(number) for number in (0.0, 1e-5, 0.0123, 1.5, 12.34, 1234.5)] == [
        "0", "under 0.001", "0.012", "1.5", "12.3", "1,234",
    ]  # fmt: skip
    assert next(batch_results({**REPORT, "speedup": 0.5})) == "Took 10m 00s; one row after another takes 33m 00s."


def test_what_is_known_is_told_with_its_evidence() -> None:
    [row] = need_rows([KNOWN])
    command, user, runs, memory, time, right, _ = row.cells
    assert (command, user, runs, time) == ("python train.py epochs=#", "ann", "14", "about 22s an epoch")
    assert plain(memory["text"]) == "1.95 GiB (p95 of 14 runs: 1,947 MiB + 3 %)"
    assert plain(right["text"]) == "Memory was usually 2 % off, at worst 5 % too little (13 runs)."
    unknown = need_rows([{**KNOWN, "memory": None, "seconds": None, "evidence": None}])[0].cells
    assert (unknown[3]["text"], unknown[4]) == ("not known yet", "")


@pytest.mark.parametrize(
    ("count", "median", "worst", "expected"),
    [
        (1, 0.2, 0.2, "Run time was 20 % too much the one time."),
        (5, 0.001, 0.4, "Run time was usually right, at worst 40 % too much (5 runs)."),
        (5, 0.0, -0.004, "Run time was right (5 runs)."),
        (2, 0.5, 12.0, "Run time was usually 50 % off, at worst 1,200 % too much (2 runs)."),
    ],
)
def test_how_right_it_was_is_told_to_newcomers(count: int, median: float, worst: float, expected: str) -> None:
    error = {"count": count, "median": median, "worst": worst, "bias": 0.0}
    assert plain(accuracy_text(None, error)) == expected


def test_nothing_predicted_is_told_as_well() -> None:
    assert accuracy_text(None, None) == "No prediction was put to the test yet."


def test_what_is_known_is_found_and_ordered() -> None:
    off = {"count": 2, "median": 0.1, "worst": -0.9, "bias": 0.0}
    other = {**KNOWN, "command": "sh eval.sh", "name": "", "user": "Bob", "memory": None, "seconds": 90.0, "runs": 2}
    other["time_error"] = off
    known = [KNOWN, other]
    assert matching_estimates(known, "TRAIN", "") == [KNOWN]
    assert matching_estimates(known, "bob", "") == [other]
    assert matching_estimates(known, "nothing", "") == []
    orders = {
        order: matching_estimates(known, "", order)[0] is other for order in ("", "memory", "time", "off", "runs")
    }
    assert orders == {"": False, "memory": False, "time": True, "off": True, "runs": False}


def test_a_slowdown_is_told_as_what_is_left_of_the_speed() -> None:
    assert slowdown_text(1.667) == "Runs at 60 % of its speed: takes 1.7 times as long as alone."
    assert slowdown_text(1.0) == slowdown_text(0.9) == "Runs as fast as alone."


def test_pairs_lead_to_the_jobs_that_they_were_seen_at() -> None:
    pair = {
        "sufferer": {"signature": "5b1f2c9e", "name": "train", "job": "17"},
        "beside": {"signature": "a90c44d1ff", "name": "", "job": ""},
        "slowdown": 2.0, "verdict": "apart", "evidence": "progress", "seconds": 184.0, "at": AT,
    }  # fmt: skip
    [row] = pair_rows([pair])
    assert row.label == "train beside a90c44d1"
    assert [row.cells[0]["href"], row.cells[1]["href"]] == ["/jobs/17", ""]
    assert row.cells[3:5] == ("by its own progress, for 3m 04s", "never together")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("sjf@easy@pack", "sjf@easy@considerate"),
        ("wfp3:power=2@conservative@spread", "wfp3:power=2@conservative@considerate"),
        ("fcfs", "fcfs@easy@considerate"),
    ],
)
def test_only_the_placement_is_to_be_another(policy: str, expected: str) -> None:
    assert considerate_policy(policy) == expected
