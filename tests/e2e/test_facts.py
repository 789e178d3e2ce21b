"""What a page shows of a yard: who is on the GPUs, what they did lately, who was there when, and what would change."""

from __future__ import annotations

import secrets
import time

import pytest
from tests.yard import Yard, until

from gpuyard.client.transport import Invalid, Refused

GIB = 2**30


def test_jobs_stand_for_processes_on_simulated_gpus(yard: Yard) -> None:
    whole = yard.submit("--gpus", "1", "--name", "train", "--", "sleep", "60")
    shares = [yard.submit("--gpu-memory", size, "--", "sleep", "60") for size in ("4G", "6G")]
    for job in (whole, *shares):
        yard.client.job(job, wait=10, until="start")
    found = {one["job"]: one for gpu in yard.client.gpus()["gpus"] for one in gpu["processes"]}
    me = yard.client.job(whole)["user"]
    assert found[whole] == {
        "pid": None, "user": me, "name": "train", "memory": 16 * GIB, "job": whole, "graphics": False,
    }  # fmt: skip
    assert [found[job]["memory"] for job in shares] == [4 * GIB, 6 * GIB]
    assert found.keys() == {whole, *shares}


def test_simulated_gpus_live(yard: Yard) -> None:
    gpu = yard.client.job(yard.submit("--", "sleep", "60"), wait=10, until="start")["gpus"][0]
    after, seen = 0.0, list[float]()

    def busy() -> int | None:
        nonlocal after
        found = yard.client.samples(after=after, wait=10, gpus=[gpu])
        [one] = found["gpus"]
        seen.extend(found["at"])
        after = seen[-1]
        return one["utilization"][-1] if len(seen) > 3 else None

    assert 40 <= until(busy, "a busy GPU") <= 100
    assert seen == sorted(set(seen))
    assert abs(seen[-1] - time.time()) < 60
    now = until(lambda: (found := yard.client.gpus()["gpus"][gpu])["utilization"] and found, "the same of the GPU")
    assert now["power"] is not None
    assert 25 < now["power"] <= 300


def test_samples_wait_for_the_next_and_wake_nobody(yard: Yard) -> None:
    planned = yard.client.status()["plan"]
    newest = yard.client.samples()["at"][-1]
    found = [yard.client.samples(after=newest, wait=20) for _ in range(2)]
    assert all(one["at"][0] > newest for one in found)
    assert {len(gpu["power"]) for gpu in found[0]["gpus"]} == {len(found[0]["at"])}
    nothing = yard.client.samples(after=newest + 1e6, wait=0.1)
    assert (nothing["at"], [gpu["index"] for gpu in nothing["gpus"]]) == ([], [0, 1, 2, 3])
    assert yard.client.status()["plan"] == planned
    assert yard.client.samples(span="coarse")["period"] == 60.0


def test_samples_of_gpus_that_are_not_there(yard: Yard) -> None:
    with pytest.raises(Refused, match="there is no GPU 4 here"):
        yard.client.samples(gpus=[0, 4])
    with pytest.raises(Invalid, match="names no GPUs"):
        yard.client._get("/gpus/samples", gpus="all")
    with pytest.raises(Refused, match="span"):
        yard.client._get("/gpus/samples", span="week")


def test_usage_tells_every_attempt(yard: Yard) -> None:
    began = time.time()
    done = yard.submit("--gpus", "2", "--name", "<b>done</b>", "--tag", "usage", "--", "true")
    yard.wait(done)
    tried = yard.submit("--retries", "1", "--retry-delay", "0", "--", "false")
    yard.wait(tried)
    runs = yard.submit("--", "sleep", "60")
    start = yard.client.job(runs, wait=10, until="start")
    found = yard.client.usage(since=began)
    columns = found["columns"]
    spans = dict(zip(zip(columns["job"], columns["attempt"], strict=True), range(1000), strict=False))
    assert spans.keys() == {(runs, 1), (tried, 2), (tried, 1), (done, 1)}
    assert columns["begin"] == sorted(columns["begin"], reverse=True)
    first, last = spans[done, 1], spans[runs, 1]
    assert (columns["name"][first], columns["gpu"][first]) == ("<b>done</b>", yard.client.job(done)["gpus"])
    assert (columns["end"][last], columns["state"][last], columns["gpu"][last]) == (None, "running", start["gpus"])
    assert [columns["state"][spans[tried, n]] for n in (1, 2)] == ["failed", "failed"]
    assert (found["gpus"], found["more"]) == (4, False)
    cut = yard.client.usage(since=began, limit=1)
    assert (cut["columns"]["job"], cut["more"]) == ([runs], True)
    assert yard.client.usage(since=began - 2e7, until=began - 1e7)["columns"]["job"] == []
    with pytest.raises(Invalid, match="the span is empty"):
        yard.client.usage(since=began, until=began - 1)


def test_stats_by_tag(yard: Yard) -> None:
    began = time.time()
    yard.wait(yard.submit("--tag", "stats-a", "--tag", "stats-b", "--", "true"))
    found = yard.client.stats(since=str(began))
    told = {one["tag"]: (one["submitted"], one["ended"]) for one in found["tags"]}
    assert told == {"stats-a": (1, 1), "stats-b": (1, 1)}
    histogram = found["run_seconds"]["histogram"]
    assert (len(histogram["edges"]), len(histogram["counts"]), sum(histogram["counts"])) == (25, 26, 1)


def test_texts_are_found_in_commands_and_tags(yard: Yard) -> None:
    own = secrets.token_hex(4)  # others, and an earlier try of this test, have run jobs in this yard too
    words = (f"{own}%_Done!", f"{own} x done")  # one after another, since what ended last comes first
    odd, plain = (yard.wait(yard.submit("--tag", "Nightly", "--", "echo", word))["id"] for word in words)

    def found(text: str, **more: str) -> list[str]:
        return [job["id"] for job in yard.client.history(text=text, **more)]  # type: ignore[arg-type]

    assert found(f"ECHO {own}%_done!") == [odd]
    assert found(f"echo {own}") == [plain, odd]
    assert found(f"o {own} x d") == [plain]
    assert found(f"echo {own}", until="2026-01-01T00:00:00Z") == []
    assert found("x" * 1000) == []
    with pytest.raises(Refused, match="1000 characters"):
        found("x" * 1001)
    waiting = yard.submit("--hold", "--tag", f"Nightly-{own}", "--", "python", own, "--epochs", "90")
    assert yard.client.page(text=f"{own} --epochs")[3]["id"] == [waiting]
    assert yard.client.page(text=f"nightly-{own}")[3]["id"] == [waiting]
    assert yard.client.page(text=f"nightly-{own} python").total == 0


def test_a_policy_can_be_tried_out(yard: Yard) -> None:
    running = yard.submit("--gpus", "3", "--", "sleep", "60")
    yard.client.job(running, wait=10, until="start")
    long, short = (yard.submit("--gpus", "2", "--estimate", time, "--", "true") for time in ("2h", "1m"))
    small = yard.submit("--gpus", "1", "--estimate", "5h", "--hold", "--", "true")
    before, last = yard.client.policy(), yard.client.page().last
    found = yard.client.preview_policy("sjf", discipline="strict")
    assert found["policy"].startswith("sjf@strict@")
    assert [(one["id"], one["place"], one["was"]) for one in found["order"]] == [(short, 1, 2), (long, 2, 1)]
    assert (found["starts"], found["stops"], found["moved"], found["waiting"]) == ([], [], 2, 2)
    assert (yard.client.policy(), yard.client.page().last) == (before, last)  # nothing has happened
    done = yard("policy", "set", "sjf", "--dry-run")
    assert (done.code, "nothing is changed" in done.err, "2 of 2 waiting jobs" in done.err) == (0, True, True)
    assert done.out.splitlines()[1].split()[:3] == ["1", "2", short]
    assert yard.json("policy", "set", "lottery", "--dry-run")["note"]
    assert yard.client.policy() == before
    for policy, said in (("nonsense", "unknown policy"), ("sjf@nowhere", "nowhere"), ("/x/none.py:f", "no file")):
        with pytest.raises(Invalid, match=said):
            yard.client.preview_policy(policy)
    yard.client.cancel(small)
