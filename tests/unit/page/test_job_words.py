"""How the page tells of a job: its story, why it waits, what may be done to it, and what a dialog changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gpuyard.errors import UserError
from gpuyard.page.views import job_actions, job_facts

USUAL: dict[str, Any] = {
    "id": "17", "name": "train", "user": "ann", "state": "queued", "reason": None, "kind": "job", "gpu_count": 1,
    "gpu_memory": None, "gpu_memory_asked": None,
    "among": None, "priority": 0.0, "time_limit": None, "estimate": None, "begin_at": None,
    "deadline_at": None, "dependency": None, "retries": 0, "retry_delay": 30.0, "failures": 0, "requeue": False,
    "adaptive": False,
    "preemptible": False, "preemptions": 0, "signal": "TERM", "output": None, "error": None, "notify": [],
    "notify_on": [], "tags": [], "measured": None, "prediction": None, "ooms": 0, "mps": False, "cap": False,
    "thread_percentage": None, "simulate_use": None, "batch": None, "row": None,
}  # fmt: skip


def when(iso: str | None) -> str:
    return f"<{iso}>" if iso else ""


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"state": "succeeded"}, "Succeeded: exit code 0."),
        ({"state": "failed", "reason": "exit code 137 (signal 9)"}, "Failed: exit code 137 (signal 9)."),
        ({"state": "timeout", "reason": "ran out of time: its limit was 1m"}, "Ran out of time: its limit was 1m."),
        ({"state": "cancelled", "reason": "cancelled by bob"}, "Cancelled by bob."),
        ({"state": "cancelled"}, "Cancelled."),
        ({"state": "running"}, ""),
        ({"state": "running", "reason": "out of time, about to end"}, "Out of time, about to end."),
        ({"state": "queued", "reason": "needs 2 GPUs, 0 idle"}, ""),
        ({"state": "running", "tasks": {"queued": 98, "running": 2}}, "An array of 100 tasks: 2 running, 98 waiting."),
    ],
)  # fmt: skip
def test_how_it_ended_is_a_sentence(job: dict[str, Any], said: str) -> None:
    assert job_facts.outcome_text(USUAL | job) == said


def test_a_job_past_its_estimate_takes_longer_than_expected() -> None:
    end = "2026-11-20T12:00:00+00:00"
    at = datetime.fromisoformat(end).timestamp()
    job = USUAL | {"state": "running", "expected_end_at": end, "expected_by": "estimate", "progress": None}
    assert job_facts.end_text(job, when, at - 1) == f"expected to end about <{end}>"
    assert job_facts.end_text(job, when, at + 1) == "takes longer than expected"
    assert job_facts.end_text(job | {"expected_by": "limit"}, when, at - 1) == f"ends <{end}> at the latest"
    assert job_facts.end_text(job | {"expected_by": "progress"}, when, at - 1) == f"expected to end about <{end}>"
    nothing = job | {"expected_end_at": None, "expected_by": None}
    assert job_facts.end_text(nothing, when, at) == ""
    assert job_facts.end_text(nothing | {"expected_by": "overdue"}, when, at) == "takes longer than expected"


def test_how_it_shares_a_gpu_is_told() -> None:
    shares = USUAL | {
        "gpu_memory": 2 * 2**30, "gpu_memory_asked": "auto", "ooms": 1, "mps": True, "thread_percentage": 30.0,
        "prediction": {"memory": 2.0 * 2**30, "seconds": None, "evidence": "p95 of 14 runs: 1,947 MiB + 3 %"},
        "measured": {"peak": 2**30, "mean": 2.0**29, "samples": 9}, "batch": "7",
        "row": {"number": 3, "wave": 1, "epochs": 5.0, "priority": 1.0},
    }  # fmt: skip
    told = {label: value for label, value in job_facts.request_facts(shares, when) if value}
    assert told["Memory by"] == "p95 of 14 runs: 1,947 MiB + 3 %"
    assert told["Memory used"] == "1 GiB of 2 GiB at its peak, 512 MiB in the mean"
    assert (told["Ran out of memory"], told["MPS"]) == ("1 time", "yes, 30 % of the threads")
    assert told["Batch"] == "7, row 3, wave 1"
    grown = USUAL | {"gpu_memory": 3 * 2**30, "gpu_memory_asked": 2**30, "measured": {"peak": None}}
    told = {label: value for label, value in job_facts.request_facts(grown, when) if value}
    assert told["Memory asked for"] == "1 GiB"
    assert "Memory used" not in told
    unknown = {
        label: value for label, value in job_facts.request_facts(USUAL | {"gpu_memory_asked": "auto"}, when) if value
    }
    assert "alone on a GPU" in unknown["Memory by"]


def test_what_it_asks_for_is_told_where_it_is_not_the_usual() -> None:
    told = {label: value for label, value in job_facts.request_facts(USUAL, when) if value}
    assert told == {"GPUs": "1", "Time limit": "none", "Priority": "0"}
    much = USUAL | {
        "gpu_count": 2, "gpu_memory": 6 * 2**30, "gpu_memory_asked": 6 * 2**30, "among": [0, 3],
        "time_limit": 90.0, "estimate": 60.0, "retries": 2,
        "failures": 1, "begin_at": "soon", "preemptible": True, "preemptions": 2, "notify": ["phone"],
    }  # fmt: skip
    told = {label: value for label, value in job_facts.request_facts(much, when) if value}
    assert told["GPUs"] == "6 GiB on each of 2 GPUs, of GPUs 0, 3"
    assert (told["Time limit"], told["Estimate"], told["Not before"]) == ("1m 30s", "1m 00s", "<soon>")
    assert told["Retries"] == "2, the first after 30s; failed 1 time until now"
    assert told["Preemptible"] == "yes, by TERM; was stopped 2 times"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"code": "Resources", "reason": "needs 2 GPUs, 0 idle; expected to fit at 09:00", "expected_at": "t"},
         "It needs 2 GPUs, 0 idle."),
        ({"code": "BeginTime", "reason": "is not to start before 09:00", "details": {"at": "t"}},
         "It is not to start before <t>."),
        ({"code": "Reserved", "reason": "x", "details": {"behind": "3", "until": "t"}},
         "It would fit, but could delay job 3, due at <t>."),
        ({"code": "Reservation", "reason": "x", "details": {"gpus": [1, 2], "name": "talk", "begin": "a", "end": "b"}},
         "It would fit, but GPUs 1, 2 are reserved (talk) from <a> to <b>."),
        ({"code": "Held", "state": "held", "reason": "held until it is released"}, "It is held until it is released."),
        ({"code": "Starting", "reason": None}, "It is about to start."),
    ],
)  # fmt: skip
def test_why_it_waits_has_times_of_the_viewer(found: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = {"state": "queued", "details": {}, "expected_at": None}
    assert job_facts.waiting_text(usual | found, when) == said


@pytest.mark.parametrize(
    ("job", "able"),
    [
        ({"state": "queued"}, ["hold", "edit", "clone", "cancel"]),
        ({"state": "held"}, ["release", "edit", "clone", "cancel"]),
        ({"state": "running"}, ["edit", "clone", "cancel"]),
        ({"state": "failed"}, ["retry", "clone"]),
        ({"state": "running", "kind": "lease"}, ["give back", "cancel"]),
        ({"state": "failed", "kind": "lease"}, []),
        ({"state": "succeeded", "tasks": {"succeeded": 3}}, ["clone"]),
        ({"state": "running", "tasks": {"queued": 1, "running": 1}}, ["hold", "edit", "clone", "cancel"]),
    ],
)
def test_only_what_can_be_done_is_offered(job: dict[str, Any], able: list[str]) -> None:
    assert job_facts.allowed_actions(USUAL | job, owns=True) == able
    assert job_facts.allowed_actions(USUAL | job, owns=False) == []


EVENTS: list[dict[str, Any]] = [
    {"kind": "Submitted", "at": "1", "attempt": None},
    {"kind": "Placed", "at": "2", "attempt": 1, "gpus": [0, 1]},
    {"kind": "Started", "at": "3", "attempt": 1},
    {"kind": "Requeued", "at": "4", "attempt": 1, "message": "failed with exit code 3; retry 1 of 2 at 12:48:19"},
    {"kind": "Placed", "at": "5", "attempt": 2, "gpus": [2]},
    {"kind": "Started", "at": "6", "attempt": 2},
    {"kind": "Recalled", "at": "7", "attempt": 2, "cause": "cancelled", "by": "bob"},
    {"kind": "Exited", "at": "8", "attempt": 2, "code": 143, "cause": "cancelled"},
]


def test_events_are_sentences() -> None:
    assert [job_facts.event_text(event) for event in EVENTS] == [
        "Submitted",
        "Attempt 1 was given GPUs 0, 1",
        "Attempt 1 started",
        "Waits again: failed with exit code 3; retry 1 of 2",
        "Attempt 2 was given GPU 2",
        "Attempt 2 started",
        "Asked to end, since it was cancelled, by bob",
        "Attempt 2 was cancelled, exit code 143 (signal 15, SIGTERM)",
    ]


def test_a_lack_of_gpu_memory_is_told_once_and_in_words() -> None:
    warned = {"kind": "Edited", "attempt": None, "message": "uses 6G of GPU 0, but 4G were promised"}
    assert job_facts.event_text(warned) == "It uses 6G of GPU 0, but 4G were promised"
    assert job_facts.event_text({"kind": "Edited", "attempt": None}) == "Changed what it asks for"
    stopped = {"kind": "Recalled", "attempt": 1, "cause": "oom", "message": "uses 6G of GPU 0, 4G were promised"}
    said = "Asked to end, since there was no more GPU memory for it: uses 6G of GPU 0, 4G were promised"
    assert job_facts.event_text(stopped) == said
    over = {
        "kind": "Exited",
        "attempt": 1,
        "cause": "oom",
        "code": 1,
        "message": "ran out of GPU memory: wanted 15G of 16G",
    }
    assert job_facts.event_text(over) == "Attempt 1 ran out of GPU memory: wanted 15G of 16G"
    assert job_facts.event_text(over | {"message": ""}) == "Attempt 1 ran out of GPU memory, exit code 1"


def test_attempts_are_told_from_events() -> None:
    first, second = job_facts.attempts(EVENTS)
    assert (first.number, first.gpus, first.begin, first.end) == (1, (0, 1), "3", "4")
    assert first.how == "failed with exit code 3; retry 1 of 2"
    assert (second.begin, second.end, second.how) == ("6", "8", "was cancelled, exit code 143 (signal 15, SIGTERM)")
    assert job_facts.attempts(EVENTS[:6])[1].how == "runs"


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("WANDB_API_KEY", "abc", True), ("DB_URL", "postgres://me:pw@host/x", True), ("GITHUB_TOKEN", "x", True),
        ("PATH", "/bin", False), ("HOME_URL", "https://host/x", False), ("API_KEY", "", False),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_hidden(name: str, value: str, hidden: bool) -> None:
    assert job_actions.is_secret(name, value) is hidden


def as_it_is(text: str) -> str:
    return text


def test_a_dialog_changes_only_what_was_changed() -> None:
    given = {field.name: job_actions.current_text(field, USUAL) for field in job_actions.EDITED}
    assert job_actions.changes(USUAL, given, as_it_is) == {}
    wanted = given | {"priority": "5", "time_limit": "90m", "gpu_memory": "6G", "tags": "a, b", "begin": "16:00"}
    assert job_actions.changes(USUAL, wanted, str.upper) == {
        "priority": 5.0, "time_limit": 5400.0, "gpu_memory": 6 * 2**30, "begin": "16:00", "tags": ["a", "b"],
    }  # fmt: skip
    limited = USUAL | {"time_limit": 7200.0}
    assert job_actions.current_text(job_actions.EDITED[1], limited) == "2h"
    assert job_actions.changes(limited, {"time_limit": " "}, as_it_is) == {"time_limit": None}
    with pytest.raises(UserError, match="GPUs: it is a whole number of 1 or more, as in 1, not 'two'"):
        job_actions.changes(USUAL, {"gpus": "two"}, as_it_is)


def test_what_runs_cannot_be_given_other_gpus() -> None:
    names = {field.name for field in job_actions.editable_fields(USUAL | {"state": "running"})}
    assert "gpus" not in names
    assert {"priority", "time_limit", "name"} <= names
    assert "gpus" in {field.name for field in job_actions.editable_fields(USUAL)}


def test_a_time_is_read_on_the_viewers_clock() -> None:
    zone = timezone(timedelta(hours=5, minutes=45))
    at = datetime.fromisoformat(job_actions.instant_in(zone)("16:00"))
    assert (at.hour, at.minute) == (16, 0)
    assert at.utcoffset() == timedelta(hours=5, minutes=45)
    assert timedelta(0) < at - datetime.now(UTC) <= timedelta(days=1)
    soon = datetime.fromisoformat(job_actions.instant_in(zone)("+90m"))
    assert abs(soon - datetime.now(UTC) - timedelta(minutes=90)) < timedelta(minutes=1)


def test_what_a_job_took_is_told_as_far_as_it_is_known() -> None:
    job = {"gpu_hours": 0.004, "energy_wh": 1234.0, "measured": {"peak": 2**30}, "gpu_memory": 2**31}
    told = dict(job_facts.usage_facts(job))
    assert told == {"GPU-hours": "< 0.01", "Energy": "1.2 kWh", "Memory at its peak": "1 GiB of 2 GiB"}
    assert dict(job_facts.usage_facts({"gpu_hours": 12.0, "energy_wh": None, "measured": None})) == {
        "GPU-hours": "12.0"
    }
