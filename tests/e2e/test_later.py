"""Begin times, deadlines and retries."""

from __future__ import annotations

import time
from datetime import datetime

from tests.yard import Yard, until


def test_a_job_does_not_start_before_its_time(yard: Yard) -> None:
    soon = time.time() + 1.5
    id = yard.submit("--begin", datetime.fromtimestamp(soon).isoformat(), "--", "true")
    late = yard.submit("--begin", "now+1hour", "--", "true")
    job = yard.client.job(id)
    assert job["state"] == "queued"
    assert job["begin_at"] is not None
    assert (job["reason"] or "").startswith("is not to start before ")
    assert yard.json("explain", id)["code"] == "BeginTime"
    ended = yard.wait(id)
    assert datetime.fromisoformat(ended["started_at"] or "").timestamp() >= soon - 0.002
    assert yard.client.job(late)["state"] == "queued"


def test_a_deadline_is_known_and_one_that_cannot_be_met_is_told(yard: Yard) -> None:
    done = yard("submit", "--hold", "--deadline", "now+1hour", "--time", "2h", "--", "true")
    assert done.code == 0
    assert "cannot be done by its deadline" in done.err
    assert yard.client.job(done.out.strip())["deadline_at"] is not None
    past = yard("submit", "--deadline", "2020-01-01", "--", "true")
    assert (past.code, past.out) == (2, "")
    assert "is in the past" in past.err
    assert yard("submit", "--begin", "soon", "--", "true").code == 2


def test_a_job_that_fails_is_run_again_later_and_later(yard: Yard) -> None:
    id = yard.submit("--retries", "2", "--retry-delay", "0.2", "--", "sh", "-c", "echo $GPUYARD_ATTEMPT; exit 3")
    job = yard.wait(id)
    assert (job["state"], job["exit_code"], job["attempt"], job["failures"]) == ("failed", 3, 3, 2)
    mine = yard.client.events(job=id)["events"]
    ends = [event["at"] for event in mine if event["kind"] in ("Requeued", "Exited")]
    starts = [event["at"] for event in mine if event["kind"] == "Placed"]
    times = [
        (datetime.fromisoformat(end), datetime.fromisoformat(start))
        for end, start in zip(ends, starts[1:], strict=False)
    ]
    pauses = [(start - end).total_seconds() for end, start in times]
    assert pauses[0] >= 0.199
    assert pauses[1] >= 0.399
    assert [yard("logs", id, "--attempt", str(n)).out for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    assert "has had 3 attempts, so there is no output of attempt 7" in yard("logs", id, "--attempt", "7").err


def test_a_job_that_waits_for_its_retry_says_so(yard: Yard) -> None:
    id = yard.submit("--retries", "2", "--retry-delay", "1h", "--", "sh", "-c", "exit 3")
    job = until(lambda: job if (job := yard.client.job(id))["failures"] else None)
    assert job["state"] == "queued"
    assert job["reason"].startswith("failed with exit code 3; retry 1 of 2 at ")
    found = yard.json("explain", id)
    assert (found["code"], found["reason"]) == ("BeginTime", job["reason"])
    assert f"Job {id} is queued: it failed with exit code 3; retry 1 of 2" in yard("explain", id).out


def test_retries_are_for_failures_only(yard: Yard) -> None:
    cancelled = yard.submit("--retries", "3", "--retry-delay", "0", "--", "sleep", "1000")
    until(lambda: yard.client.job(cancelled)["started_at"])
    yard("cancel", cancelled, "--grace", "0")
    assert yard.wait(cancelled)["state"] == "cancelled"
    slow = yard.submit("--retries", "3", "--retry-delay", "0", "--time", "0.2s", "--grace", "0", "--", "sleep", "1000")
    assert yard.wait(slow)["state"] == "timeout"
    good = yard.submit("--retries", "3", "--", "true")
    assert [yard.wait(id)["attempt"] for id in (cancelled, slow, good)] == [1, 1, 1]
    killed = yard.submit("--retries", "1", "--retry-delay", "0", "--", "sh", "-c", "kill -9 $$")
    job = yard.wait(killed)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("failed", 137, 2)
