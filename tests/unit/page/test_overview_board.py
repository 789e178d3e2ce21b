"""What the overview makes of the API's answers, and what of it is sent to whom."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.page.feed import Drain, Samples, VersionedParts
from gpuyard.page.views.overview import EncodedSamples, day, finished, kind, midnight, tile, waiting

GIB = 2**30
NOW = datetime.fromisoformat("2026-11-20T12:00:00+00:00").timestamp()
GPU: dict[str, Any] = {
    "index": 3, "name": "A100", "state": "free", "memory_total": 80 * GIB, "jobs": [], "why": "nobody is on it",
    "simulated": False, "drained": False, "reservation": None, "reserved_from": None, "reserved_until": None,
    "processes": [], "memory_promised": 0, "memory_buffer": GIB // 2, "memory_others": 0, "memory_left": 0,
}  # fmt: skip
JOB: dict[str, Any] = {
    "id": "17", "name": "train", "user": "ann", "kind": "job", "state": "running", "reason": None, "gpus": [3, 4],
    "gpu_count": 2, "gpu_memory": None, "progress": None, "expected_end_at": None, "expected_by": None,
    "exit_code": None, "adaptive": False,
    "submitted_at": "2026-11-20T11:00:00+00:00", "started_at": "2026-11-20T11:30:00+00:00", "ended_at": None,
    "ran_before": 0.0,
}  # fmt: skip


def process(job: str | None, memory: int = GIB, **more: Any) -> dict[str, Any]:
    return {"pid": 4711, "user": "bob", "name": "python", "memory": memory, "job": job, "graphics": False, **more}


def gpu(**more: Any) -> dict[str, Any]:
    return {**GPU, **more}


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({}, "free"),
        ({"state": "ours"}, "busy"),
        ({"state": "foreign", "drained": True}, "foreign"),
        ({"state": "unknown", "drained": True}, "lost"),
        ({"state": "drained", "drained": True}, "drained"),
        ({"state": "ours", "drained": True}, "busy"),
        ({"reserved_from": "2026-11-20T11:00:00+00:00"}, "reserved"),
        ({"reserved_from": "2026-11-20T13:00:00+00:00"}, "free"),
    ],
)
def test_a_gpu_stands_as_what_matters_most(facts: dict[str, Any], word: str) -> None:
    assert kind(gpu(**facts), NOW) == word


def test_each_job_has_its_share_and_others_are_told_apart() -> None:
    there = [process("17", 4 * GIB), process("17", 2 * GIB), process(None, 3 * GIB), process(None, 0, graphics=True)]
    found = tile(gpu(state="ours", jobs=["17", "18"], processes=there), {"17": JOB, "18": {**JOB, "id": "18"}}, NOW)
    assert [(job["id"], job["memory"] // GIB) for job in found["jobs"]] == [("17", 6), ("18", 0)]
    assert [(other["pid"], other["memory"] // GIB, other["draws"]) for other in found["others"]] == [
        (4711, 3, False), (4711, 0, True),
    ]  # fmt: skip
    assert found["jobs"][0]["wide"] == 2
    assert NOW - found["jobs"][0]["started"] == 1800


@pytest.mark.parametrize(
    ("promises", "left", "shares"),
    [
        ([6 * GIB], 73 * GIB, {"promised": 6 * GIB, "left": 73 * GIB}),
        ([6 * GIB, 70 * GIB], 5000, {"promised": 76 * GIB, "left": 0}),
        ([80 * GIB], 0, None),  # a share by name: it fits no other beside it
        ([None], 0, None),
        ([], 79 * GIB, None),
    ],
)
def test_what_is_promised_and_left_is_told_of_a_gpu_that_is_shared(
    promises: list[int | None], left: int, shares: dict[str, int] | None
) -> None:
    jobs = {str(id): {**JOB, "id": str(id), "gpu_memory": memory} for id, memory in enumerate(promises)}
    promised = sum(memory or 0 for memory in promises)
    facts = gpu(state="ours" if jobs else "free", jobs=list(jobs), memory_promised=promised, memory_left=left)
    assert tile(facts, jobs, NOW)["shares"] == shares


def test_a_job_that_uses_more_than_was_promised_is_told_of() -> None:
    job = {**JOB, "gpu_memory": GIB}
    for memory, over in ((GIB, False), (GIB + 2**25, False), (GIB + 2**28, True)):
        [shown] = tile(gpu(state="ours", jobs=["17"], processes=[process("17", memory)]), {"17": job}, NOW)["jobs"]
        assert shown["over"] is over


def test_a_job_that_is_over_but_still_there_is_shown() -> None:
    [job] = tile(gpu(state="ours", processes=[process("9")]), {}, NOW)["jobs"]
    assert (job["id"], job["user"], job["started"]) == ("9", "bob", None)


def test_memory_that_changes_a_little_and_an_end_that_comes_nearer_are_nothing_new() -> None:
    def seen(memory: int, remaining: float, now: float) -> dict[str, Any]:
        end = datetime.fromtimestamp(now + remaining, UTC).isoformat()
        far = {"progress": {"done": 1, "total": 2, "fraction": 0.5, "remaining": remaining}, "expected_end_at": end}
        facts = gpu(state="ours", jobs=["17"], processes=[process("17", memory)])
        return tile(facts, {"17": {**JOB, **far, "expected_by": "progress"}}, now)

    assert seen(8 * GIB, 3000.0, NOW) == seen(8 * GIB + 100_000, 2995.0, NOW + 4.0)
    assert seen(8 * GIB, 3000.0, NOW) != seen(8 * GIB, 9000.0, NOW)


def test_why_a_gpu_is_drained_is_told_while_it_is() -> None:
    drain = Drain("fan broken.", "root")
    assert tile(gpu(state="drained", drained=True), {}, NOW, drain)["reason"] == "fan broken (root)"
    assert tile(gpu(state="drained", drained=True), {}, NOW, Drain("", "root"))["reason"] == ""
    assert tile(gpu(state="drained", drained=True), {}, NOW)["reason"] == ""
    assert tile(gpu(), {}, NOW, drain)["reason"] == "", "it was resumed since"


def test_a_reservation_is_told_before_it_begins() -> None:
    later = {"reserved_from": "2026-11-20T13:00:00+00:00", "reserved_until": "2026-11-20T14:00:00+00:00"}
    booked = tile(gpu(reservation="class", **later), {}, NOW)["booked"]
    assert booked == {"name": "class", "begin": NOW + 3600, "end": NOW + 7200, "now": False}


def test_lines_of_the_lists() -> None:
    queued = {**JOB, "state": "queued", "reason": "needs 2 GPUs", "tasks": {"queued": 7, "running": 1}}
    assert waiting(queued)["tasks"] == 7
    assert waiting(queued)["reason"] == "needs 2 GPUs"
    over = {**JOB, "state": "failed", "exit_code": 3, "ended_at": "2026-11-20T11:31:00+00:00"}
    assert (finished(over)["ran"], finished(over)["code"]) == (60.0, 3)
    assert finished({**over, "started_at": None})["ran"] is None


def test_a_day_counts_all_that_went_wrong() -> None:
    outcomes = {"succeeded": 5, "failed": 1, "oom": 2, "timeout": 1, "cancelled": 4}
    found = day({"gpu_hours": 3.456, "wait_seconds": {"mean": None}, "outcomes": outcomes})
    assert found == {"hours": 3.46, "wait": None, "done": 5, "failed": 4, "cancelled": 4}


def test_everybody_in_a_zone_asks_for_the_same_day() -> None:
    zone = ZoneInfo("Europe/Berlin")
    asked = {midnight(datetime(2026, 10, 25, hour, 3, 17, tzinfo=zone)) for hour in (0, 5, 23)}
    assert asked == {"2026-10-25T00:00:00+02:00"}  # summer ends in that night


def test_a_ledger_tells_what_is_new_since_when() -> None:
    ledger = VersionedParts()
    ledger.take({"a": 1, "b": [1]})
    first = ledger.version
    assert json.loads(ledger.after(0)) == {"a": 1, "b": [1]}
    assert ledger.after(first) == ""
    ledger.take({"a": 1, "b": [2]})
    ledger.take({"a": 1, "b": [2]})
    assert ledger.version == first + 1
    assert json.loads(ledger.after(first)) == {"b": [2]}
    ledger.take({"a": 3})
    assert json.loads(ledger.after(first + 1)) == {"a": 3, "b": None}
    assert json.loads(ledger.after(first)) == {"a": 3, "b": None}
    assert json.loads(ledger.after(0)) == {"a": 3, "b": None}


def samples(at: list[float], load: list[float | None]) -> dict[str, Any]:
    same = {"memory_used": [GIB] * len(at), "temperature": [40.4] * len(at), "power": [99.6] * len(at)}
    return {"at": at, "gpus": [{"index": 0, "utilization": load, **same}]}


def test_samples_are_sent_once_and_gaps_stay_gaps() -> None:
    heard = Samples()
    curves = EncodedSamples(heard)
    assert curves.after(0.0, [0]) == (0.0, "")
    heard.add(samples([1.0, 2.0], [10.0, None]))
    last, text = curves.after(0.0, [0])
    told = json.loads(text)
    assert told["at"] == [1.0, 2.0]
    assert (told["utilization"], told["temperature"], told["power"]) == ([[10, None]], [[40, 40]], [[100, 100]])
    assert told["memory_used"] == [[1024, 1024]]
    assert curves.after(last, [0]) == (last, "")
    heard.add(samples([3.0], [30.0]))
    assert json.loads(curves.after(last, [0])[1])["utilization"] == [[30]]
    assert json.loads(curves.after(0.0, [0])[1])["at"] == [1.0, 2.0, 3.0]


def test_a_gpu_without_samples_has_unknown_ones() -> None:
    heard = Samples()
    heard.add(samples([1.0], [10.0]))
    assert json.loads(EncodedSamples(heard).after(0.0, [0, 1])[1])["utilization"] == [[10], [None]]
