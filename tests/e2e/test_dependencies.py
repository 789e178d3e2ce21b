"""Jobs that follow others."""

from __future__ import annotations

import pytest
from tests.yard import Yard, until

ENDLESS = ("sleep", "1000")


def test_a_job_starts_when_those_that_it_follows_have_succeeded(yard: Yard) -> None:
    first = yard.submit("--hold", "--name", "first", "--", "true")
    second = yard.submit("--hold", "--", "true")
    last = yard.submit("-d", f"afterok:{first}:{second}", "--", "true")
    job = yard.client.job(last)
    assert (job["state"], job["dependency"]) == ("queued", f"afterok:{first},afterok:{second}")
    assert job["reason"] == f"waits for job {first} to succeed, job {second} to succeed"
    found = yard.json("explain", last)
    assert (found["code"], found["details"]) == ("Dependency", {"after": [f"ok:{first}", f"ok:{second}"]})
    yard("release", first)
    yard.wait(first)
    assert yard.client.job(last)["state"] == "queued"
    yard("release", second)
    ended = yard.wait(last)
    assert ended["state"] == "succeeded"
    assert ended["started_at"] is not None
    assert ended["started_at"] >= (yard.client.job(second)["ended_at"] or "")


def test_when_one_fails_all_that_follow_it_are_cancelled_at_once(yard: Yard) -> None:
    first = yard.submit("--hold", "--", "false")
    second = yard.submit("-d", f"afterok:{first}", "--", "true")
    third = yard.submit("-d", f"afterany:{second}", "--", "true")
    fourth = yard.submit("-d", f"afterok:{second}", "--hold", "--", "true")
    rescue = yard.submit("-d", f"afternotok:{first}", "--", "true")
    yard("release", first)
    yard.wait(first)
    assert (yard.wait(second)["state"], yard.wait(second)["reason"]) == (
        "cancelled", f"job {first}, which it was to follow (afterok), failed",
    )  # fmt: skip
    assert yard.wait(fourth)["reason"] == f"job {second}, which it was to follow (afterok), was cancelled"
    assert yard.wait(third)["state"] == "succeeded"
    assert yard.wait(rescue)["state"] == "succeeded"
    ends = [yard.client.events(job=id)["events"][-1] for id in (first, second, fourth)]
    assert [event["kind"] for event in ends] == ["Exited", "Cancelled", "Cancelled"]
    assert ends[1]["at"] == ends[2]["at"]  # in the same turn


def test_jobs_are_followed_by_name_the_newest_that_is_open(yard: Yard) -> None:
    yard.wait(yard.submit("--name", "prepare", "--", "false"))
    open_ = yard.submit("--name", "prepare", "--hold", "--", "true")
    assert yard.client.job(yard.submit("-d", "afterok:prepare", "--", "true"))["dependency"] == f"afterok:{open_}"
    yard("cancel", open_)
    done = yard("submit", "-d", "afterok:prepare", "--", "true")
    assert done.code == 2
    assert f"job {open_} was cancelled, so a job that is to follow it (afterok:prepare) could never start" in done.err


def test_what_is_over_as_wished_is_not_waited_for(yard: Yard) -> None:
    good, bad = yard.submit("--", "true"), yard.submit("--", "false")
    yard.wait(good)
    yard.wait(bad)
    job = yard.submit("-d", f"afterok:{good},afternotok:{bad},afterany:{bad}", "--", "true")
    assert yard.wait(job)["state"] == "succeeded"
    assert yard("submit", "-d", f"afterok:{bad}", "--", "true").code == 2


def test_a_job_may_follow_the_start_of_another(yard: Yard) -> None:
    first = yard.submit("--hold", "--", *ENDLESS)
    second = yard.submit("-d", f"after:{first}", "--", "true")
    assert yard.client.job(second)["dependency"] == f"after:{first}"
    assert yard.client.job(second)["reason"] == f"waits for job {first} to begin"
    yard("release", first)
    assert yard.wait(second)["state"] == "succeeded"
    assert yard.client.job(first)["state"] == "running"
    third = yard.submit("--hold", "--", "true")
    fourth = yard.submit("-d", f"after:{third}:{first}", "--", "true")
    yard("cancel", third)
    assert yard.wait(fourth)["state"] == "succeeded"


def test_a_singleton_follows_all_open_jobs_of_its_name(yard: Yard) -> None:
    others = [yard.submit("--name", "only", "--", *ENDLESS) for _ in range(2)]
    yard.submit("--name", "other", "--", *ENDLESS)
    job = yard.submit("--name", "only", "-d", "singleton", "--", "true")
    assert yard.client.job(job)["dependency"] == f"afterany:{others[0]},afterany:{others[1]}"
    yard("cancel", *others, "--grace", "0")
    assert yard.wait(job)["state"] == "succeeded"


def test_a_retried_job_counts_when_it_is_over_for_good(yard: Yard) -> None:
    flaky = yard.submit("--hold", "--retries", "1", "--retry-delay", "0", "--", "sh", "-c", "test $GPUYARD_ATTEMPT = 2")
    job = yard.submit("-d", f"afterok:{flaky}", "--", "true")
    yard("release", flaky)
    assert yard.wait(job)["state"] == "succeeded"
    assert yard.client.job(flaky)["attempt"] == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("afterok:999999", "there is no job 999999 to follow"),
        ("afterok:prepaer-it", "did you mean 'prepare-it'?"),
        ("after", "does not say which job; write for example after:12"),
        ("afterok:1?afterok:2", "? (any of these) is not supported"),
        ("afterok", "does not say which job; write for example afterok:12"),
        ("aftrok:1", "did you mean 'afterok'?"),
    ],
)
def test_a_dependency_that_makes_no_sense_is_refused(yard: Yard, text: str, told: str) -> None:
    yard.submit("--name", "prepare-it", "--hold", "--", "true")
    done = yard("submit", "-d", text, "--", "true")
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_dependencies_survive_the_daemon(own_yard: Yard) -> None:
    yard = own_yard
    yard.serve()
    first = yard.submit("--hold", "--", "false")
    last = yard.submit("-d", f"afterok:{first}", "--", "true")
    yard.end(9)
    yard.serve()
    assert yard.client.job(last)["reason"] == f"waits for job {first} to succeed"
    yard("release", first)
    assert until(lambda: yard.client.job(last)["state"] == "cancelled")


def test_explain_names_whom_it_waits_for_and_nobody_else(yard: Yard) -> None:
    first = yard.submit("--hold", "--", "true")
    other = yard.submit("--hold", "--", "true")
    id = yard.submit("-d", f"afterok:{first}", "--", "true")
    why = yard.json("explain", id)
    assert (why["code"], why["ahead"], [job["id"] for job in why["must_end_first"]]) == ("Dependency", [], [first])
    told = yard("explain", id).out
    assert f"waits for job {first} to succeed" in told
    assert f"job {first}  true" in told
    assert f"job {other}" not in told
