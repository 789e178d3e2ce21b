"""Jobs that tell how far they are, and where that is shown."""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime
from pathlib import Path

import pytest
from tests.yard import Yard, until

import gpuyard

SOURCES = Path(gpuyard.__file__).parent.parent


def fraction(yard: Yard, id: str) -> float | None:
    far = yard.client.job(id)["progress"]
    return far and far["fraction"]


@pytest.mark.parametrize(
    "code",
    [
        "echo progress 1/4; sleep 1000",
        "printf '\\r 25%%|##5       | 1/4 [00:01<00:03,  1.00s/it]'; sleep 1000",
        'echo 25% >"$GPUYARD_PROGRESS"; sleep 1000',
        f"PYTHONPATH={SOURCES} {sys.executable} -m gpuyard progress 1/4 && sleep 1000",
        f"PYTHONPATH={SOURCES} {sys.executable} -c 'import gpuyard; gpuyard.progress(1, 4)' && sleep 1000",
    ],
    ids=["line", "tqdm", "file", "command", "library"],
)
def test_a_job_tells_how_far_it_is(yard: Yard, code: str) -> None:
    id = yard.submit("--", "sh", "-c", code)
    until(lambda: fraction(yard, id) == 0.25, "a quarter")
    [job] = yard.json("ps")
    assert job["progress"]["done"] / job["progress"]["total"] == 0.25
    assert (job["progress"]["remaining"] or 0) >= 0  # not known any more, since it began with a quarter
    assert " 25%" in yard("ps").out
    yard.client.cancel(id, grace=0)
    assert yard.wait(id)["progress"] is None
    assert yard.client.page().columns["progress"] == []


def test_who_says_nothing_and_who_waits_is_not_known(yard: Yard) -> None:
    silent = yard.submit("--gpus", "4", "--", "sleep", "1000")
    yard.client.job(silent, wait=30, until="start")
    waiting = yard.submit("--", "true")
    assert [job["progress"] for job in yard.json("ps")] == [None, None]
    assert (fraction(yard, silent), fraction(yard, waiting)) == (None, None)


def test_an_estimate_tells_when_who_says_nothing_should_end(yard: Yard) -> None:
    silent, waiting = (yard.submit("--gpus", "4", "--estimate", "1h", "--", "sleep", "1000") for _ in range(2))
    job = yard.client.job(silent, wait=30, until="start")
    begin, end = (datetime.fromisoformat(job[key] or "") for key in ("started_at", "expected_end_at"))
    assert (end - begin).total_seconds() == pytest.approx(3600, abs=0.01)
    assert yard.client.job(waiting)["expected_end_at"] is None
    assert yard.client.page().columns["expected_end"] == [pytest.approx(end.timestamp(), abs=0.01), None]
    assert re.search(r"about (1h 00m|59m \d\ds) left", yard("ps").out)
    assert "Expected end:" in yard("show", silent).out
    yard.client.cancel(silent, grace=0)
    assert yard.wait(silent)["expected_end_at"] is None
    yard.client.cancel(waiting, grace=0)
    limited = yard.submit("--time", "1h", "--", "sleep", "1000")
    job = yard.client.job(limited, wait=30, until="start")
    begin, end = (datetime.fromisoformat(job[key] or "") for key in ("started_at", "expected_end_at"))
    assert (end - begin).total_seconds() == pytest.approx(3600, abs=0.01)
    assert job["expected_by"] == "limit"
    assert re.search(r"(1h 00m|59m \d\ds) left at most", yard("ps").out)


def test_when_a_job_starts_is_told_by_progress_and_only_of_the_first_in_line(yard: Yard) -> None:
    """One source for `ps`, `show`, `explain` and their JSON: not the limit, where the job tells how far it is."""
    sh = ("--gpus", "4", "--", "sh", "-c")
    runs = yard.submit("--time", "10h", *sh, "printf ' 25%%|##5       | 1/4 [00:01<59:00,  1.00s/it]'; sleep 1000")
    until(lambda: yard.client.job(runs)["progress"])
    first, *others = (yard.submit("--gpus", "4", "--", "true") for _ in range(4))
    why, ps, job = yard.client.explain(first), yard.json("ps"), yard.client.job(runs)
    assert job["expected_by"] == "progress"
    [blocker] = why["must_end_first"]
    assert (why["place"], blocker["id"], blocker["expected_by"]) == (1, runs, "progress")
    ends = [datetime.fromisoformat(at or "").timestamp() for at in (why["expected_at"], blocker["expected_at"])]
    [told] = [datetime.fromisoformat(one["expected_end_at"]).timestamp() for one in ps if one["id"] == runs]
    assert ends == [pytest.approx(told, abs=2.0)] * 2  # hours before the limit
    assert ["; expected to fit at" in one["reason"] for one in ps[1:]] == [True, False, False, False]
    last = yard.client.explain(others[-1])
    assert (last["place"], last["needs"], last["ahead"]) == (4, "any 4 GPUs", [first, *others[:-1]])
    assert (last["must_end_first"], last["expected_at"]) == ([], None)  # the end of no one job would help it
    assert "It is number 4 in line" in yard("explain", others[-1]).out
    later = yard.client.explain(yard.submit("--begin", "now+1h", "--", "true"))
    assert (later["code"], later["place"], later["expected_at"]) == (
        "BeginTime",
        None,
        None,
    )  # others may be first then


def test_who_takes_longer_than_expected_ends_nobody_knows_when(yard: Yard) -> None:
    late = yard.submit("--gpus", "4", "--estimate", "0.01s", "--", "sleep", "1000")
    waits = yard.submit("--", "true")
    until(lambda: yard.client.job(late)["expected_by"] == "overdue")
    assert yard.client.job(late)["expected_end_at"] is None
    why = yard.client.explain(waits)
    assert (why["expected_at"], [one["expected_at"] for one in why["must_end_first"]]) == (None, [None])
    assert "expected" not in (why["reason"] or "")
    assert "takes longer than expected" in yard("explain", waits).out
    assert "longer than expected" in yard("ps").out


def test_a_new_attempt_begins_anew(own_yard: Yard) -> None:
    """What a job reported before the machine went down says nothing of its next attempt."""
    work = own_yard.data_dir / "work" / "1"
    work.mkdir(parents=True, mode=0o700)
    (work / "progress").write_text("3/4\n")
    os.utime(work / "progress", (1e9, 1e9))  # daemons of tests start so quickly that it could be of this attempt
    own_yard.serve()
    id = own_yard.submit("--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo progress 1/4; sleep 1000")
    assert id == "1"
    own_yard.client.job(id, wait=30, until="start")
    assert fraction(own_yard, id) is None
    (own_yard.cwd / "go").touch()
    until(lambda: fraction(own_yard, id) == 0.25, "a quarter")


def test_progress_outside_a_job_does_nothing(yard: Yard) -> None:
    assert yard("progress", "37/100") == (0, "", "")
    done = yard("progress", "much")
    assert (done.code, done.out) == (2, "")
    assert "write for example 37/100 or 37%" in done.err


def test_a_listing_comes_in_pages(yard: Yard) -> None:
    ids = [yard.client.submit(["true"], hold=True, name=f"Piece-{n}") for n in range(5)]
    running = yard.submit("--name", "runs", "--", "sleep", "1000")
    page = yard.client.page(state="queued,held", offset=1, limit=2)
    assert (page.columns["id"], page.total) == (ids[1:3], 5)
    assert yard.client.page(offset=99).columns["id"] == []
    assert yard.client.page(limit=1).columns["id"] == [running]
    assert yard.client.page(text="piece-3").columns["id"] == [ids[3]]
    assert yard.client.page(state="running,held", text="HELD").total == 5
    assert yard.client.page(user="nobody-of-this-name").total == 0
    more = yard.client.submit(["true"], hold=True)
    assert {event["job"] for event in yard.client.events(page.last)["events"]} >= {more}
