"""Admission by usage: jobs that use less than they ask for share a GPU, and nobody dies of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.yard import Yard, opened, until

GIB = 2**30
ENDLESS = ("--", "sleep", "1000")
PERIOD = {"GPUYARD_ADMISSION": "usage", "GPUYARD_RECORD_PERIOD": "0.05"}
"""Samples come quickly, so that twenty of them are a second."""


@pytest.fixture(scope="module")
def by_usage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A yard with one GPU of 16 GiB, on which usage counts."""
    with opened(tmp_path_factory.mktemp("usage")) as found:
        found.environment |= PERIOD
        found.serve("--simulate-gpus", "1x16G")
        yield found


@pytest.fixture
def yard(by_usage: Yard) -> Iterator[Yard]:
    """The same, without any job of an earlier test."""
    yield by_usage
    by_usage.clear()


def queue(
    yard: Yard, number: int, use: str = "2G", *more: str, ask: str = "6G", command: tuple[str, ...] = ENDLESS
) -> list[str]:
    return [yard.submit("--gpu-memory", ask, "--simulate-use", use, *more, *command) for _ in range(number)]


def running(yard: Yard, ids: list[str]) -> list[str]:
    return [id for id in ids if yard.client.job(id)["state"] == "running"]


def events(yard: Yard, kind: str, after: int = 0) -> list[dict[str, Any]]:
    return [event for event in yard.client.events(after, limit=10_000)["events"] if event["kind"] == kind]


def uses(yard: Yard, id: str) -> dict[str, Any]:
    return dict(yard.client.job(id)["measured"] or {})


def let_in(yard: Yard, ids: list[str]) -> list[str]:
    """By what each of the jobs was let in."""
    found = [yard.client.job(id)["admission"] for id in ids]
    return [one["by"] for one in found if one is not None]


def test_more_jobs_run_at_once_than_their_requests_let_and_none_dies(yard: Yard) -> None:
    begun = yard.client.events(limit=10_000)["last"]
    ids = queue(yard, 9)
    until(lambda: len(running(yard, ids)) == 7, "seven of 2.1 GiB in 15.5 GiB")
    assert [event["job"] for event in events(yard, "Placed", begun)] == ids[:7]
    jobs = [yard.client.job(id) for id in ids]
    assert let_in(yard, ids[:7]) == ["fit"] * 2 + ["history"] * 5
    assert "2.101G needed (job" in str(jobs[6]["admission"])
    assert {job["ooms"] for job in jobs} == {0}
    assert "needs 2.101G (of the 6G asked for) on 1 GPU" in (jobs[7]["reason"] or "")
    told = yard("show", ids[6])
    assert "by history" in told.out
    assert yard.json("status")["admission"] == yard.json("policy")["admission"] == "usage"


def test_who_is_not_known_is_let_in_by_a_window(yard: Yard) -> None:
    """Beside 7 GiB and their margin 8.15 GiB are left of 15.5; that the margin is not needed, the window tells."""
    begun = yard.client.events(limit=10_000)["last"]
    [first] = queue(yard, 1, "7G", ask="14G", command=("--", "sleep", "998"))
    [second] = queue(yard, 1, "1G", ask="8500M", command=("--", "sleep", "997"))
    until(lambda: running(yard, [second]), "the second beside the first")
    assert [event["job"] for event in events(yard, "Placed", begun)] == [first, second]
    told: dict[str, Any] = dict(yard.client.job(second)["admission"] or {})
    assert (told["by"], told["request"], told["bound"]) == ("cbp", 8500 * 2**20, 8.5 * GIB)
    assert told["samples"] >= 20
    [gpu] = yard.json("gpus")
    assert gpu["memory_promised"] > gpu["memory_total"] > gpu["memory_left"] >= 0


def test_who_grows_late_is_not_the_one_that_dies(yard: Yard) -> None:
    """The first comes to more than the others leave, step by step; whoever was let in last makes room for it."""
    begun = yard.client.events(limit=10_000)["last"]
    steps = ",".join(["2G"] * 60 + [f"{2048 + 64 * n}M" for n in range(1, 33)])
    [liar] = queue(yard, 1, f"ramp/0.1:{steps}")
    others = queue(yard, 6, command=("--", "sleep", "999"))
    until(lambda: len(running(yard, others)) == 6, "all of them on the GPU")
    [requeued] = until(lambda: events(yard, "Requeued", begun), "somebody making room")
    assert requeued["job"] == others[-1]
    assert "others on GPU 0 want what they asked for" in requeued["message"]
    until(lambda: uses(yard, liar).get("current") == 4 * GIB, "the use of as much as the first will ever use")
    jobs = {id: yard.client.job(id) for id in (liar, *others)}
    assert {job["ooms"] for job in jobs.values()} == {0}
    assert {jobs[id]["attempt"] for id in (liar, *others)} == {1}
    assert jobs[others[-1]]["state"] == "queued"
    assert "needs 6G on 1 GPU" in (jobs[others[-1]]["reason"] or "")
    assert not events(yard, "Exited", begun)


def test_a_restart_forgets_neither_charges_nor_who_was_let_in(own_yard: Yard) -> None:
    own_yard.environment |= PERIOD
    own_yard.serve("--simulate-gpus", "1x16G")
    ids = queue(own_yard, 4)
    until(lambda: all(uses(own_yard, id) for id in ids), "four of 2.1 GiB, begun")
    own_yard.end(signal.SIGKILL)
    own_yard.serve("--simulate-gpus", "1x16G")
    assert running(own_yard, ids) == ids
    assert let_in(own_yard, ids) == ["fit", "fit", "history", "history"]
    [another] = queue(own_yard, 1)
    until(lambda: running(own_yard, [another]), "a fifth")
    own_yard.end()
    own_yard.environment["GPUYARD_ADMISSION"] = "requests"
    own_yard.serve("--simulate-gpus", "1x16G")
    [last] = queue(own_yard, 1)
    assert "GPU 0 has 0 left of 16G" in (own_yard.client.job(last)["reason"] or "")
    assert len(running(own_yard, [*ids, another])) == 5
    own_yard.clear()


def test_requests_count_where_nobody_asked_for_usage(own_yard: Yard) -> None:
    own_yard.environment["GPUYARD_RECORD_PERIOD"] = "0.05"
    own_yard.serve("--simulate-gpus", "1x16G")
    ids = queue(own_yard, 3)
    until(lambda: uses(own_yard, ids[0]).get("samples", 0) >= 40, "forty looks")
    assert running(own_yard, ids) == ids[:2]
    assert not events(own_yard, "Charged")
    assert own_yard.client.job(ids[0])["admission"] is None
    own_yard.clear()
