"""Drains, reservations, quotas and shares, as an admin sets them and as jobs feel them."""

from __future__ import annotations

import json
import signal
import time
from datetime import datetime

import pytest
from tests.yard import Yard, until

ENDLESS = ("sleep", "1000")


def on(yard: Yard, id: str) -> list[int]:
    return yard.client.job(id)["gpus"]


def running(yard: Yard, id: str) -> bool:
    return yard.client.job(id)["state"] == "running"


def at(text: str | None) -> float:
    assert text is not None
    return datetime.fromisoformat(text).timestamp()


@pytest.fixture
def served(own_yard: Yard) -> Yard:
    own_yard.serve()
    return own_yard


# -- drains --------------------------------------------------------------------------------------------


def test_nothing_starts_on_a_drained_gpu_and_a_restart_changes_nothing(served: Yard) -> None:
    first = served.submit("--from", "3", "--", *ENDLESS)
    until(lambda: running(served, first))
    done = served("drain", "gpu", "3", "--reason", "a fan is loud")
    assert (done.code, done.out) == (0, "")
    assert "nothing starts on GPU 3 until gpuyard resume" in done.err
    assert f"still running: job {first}" in done.err
    gpu = served("gpus").out.splitlines()[4]
    assert (gpu.split()[0], gpu.split()[-1]) == ("3", "drained")
    assert "16G/16G" in gpu
    assert f"{first} " in gpu
    served.client.cancel(first, 0)
    waits = served.submit("--from", "3", "--", *ENDLESS)
    until(lambda: served.json("gpus")[3]["state"] == "drained")
    assert "4 simulated GPUs: 3 free, 1 drained" in served("status").out
    assert "1 drained" in served.json("explain", waits)["reason"]
    served.end(signal.SIGKILL)
    served.serve()
    assert not running(served, waits)
    assert [gpu["drained"] for gpu in served.json("gpus")] == [False, False, False, True]
    assert served("resume", "gpu", "3").err == "no GPU is drained\n"
    until(lambda: on(served, waits) == [3])


def test_the_whole_machine_is_drained(served: Yard) -> None:
    assert served.json("drain")["drained"] == [0, 1, 2, 3]
    waits = served.submit("--", "true")
    assert "4 drained" in served.json("explain", waits)["reason"]
    assert served.json("resume", "gpu", "0-2")["drained"] == [3]
    assert served.wait(waits)["state"] == "succeeded"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["drain", "gpu"], "which GPU?"),
        (["drain", "gpu", "9"], "there is no GPU 9; this machine has GPUs 0 to 3"),
        (["drain", "gpu", "x"], "'x' is not a list of GPUs"),
        (["reserve", "0", "--begin", "now"], "say until when"),
        (["reserve", "0", "--end", "soon"], "'soon' is not a time"),
        (["reserve", "7", "--duration", "1h"], "there is no GPU 7"),
        (["reserve", "0", "--duration", "1h", "--user", "a", "--nobody"], "exclude each other"),
        (["unreserve", "nothing"], "there is no reservation nothing"),
        (["quota", "set", "ann"], "say what the quota is"),
        (["quota", "set", "an n", "--gpus", "1"], "neither a user nor a group"),
        (["share", "set", "ann", "0"], "weight"),
    ],
)
def test_what_is_refused(yard: Yard, arguments: list[str], told: str) -> None:
    done = yard(*arguments)
    assert done.code in (1, 2)
    assert told in done.err
    assert "Traceback" not in done.err


# -- reservations --------------------------------------------------------------------------------------


def test_a_reservation_is_honoured_and_the_time_before_it_used(served: Yard) -> None:
    others = served.submit("--from", "1,2,3", "--gpus", "3", "--", *ENDLESS)
    until(lambda: running(served, others))
    begin = time.time() + 6
    found = served.client.reserve([0], begin, begin + 3, name="demo", users=["somebody"])
    assert found["in_the_way"] == []
    quick = served.submit("--time", "2s", "--", "sleep", "0.2")
    assert served.wait(quick)["gpus"] == [0]
    endless = served.submit("--name", "endless", "--", *ENDLESS)
    why = served.json("explain", endless)
    assert why["code"] == "Reservation"
    assert "reserved (demo)" in why["reason"]
    assert "no time limit" in why["reason"]
    assert served.json("gpus")[0]["reservation"] == "demo"
    stubborn = served.submit("--time", "4s", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    assert served.client.job(stubborn, wait=10, until="start")["gpus"] == [0]
    ended = served.wait(stubborn)
    assert ended["state"] == "timeout"
    assert at(ended["ended_at"]) < begin + 1  # though its grace would have lasted longer
    until(lambda: served.client.job(endless)["started_at"], "the end of the reservation")
    assert 0 <= at(served.client.job(endless)["started_at"]) - (begin + 3) < 1
    assert served.json("reservations") == []


def test_reservations_are_made_listed_and_given_up(served: Yard) -> None:
    done = served("reserve", "0-1", "--begin", "now+1hour", "--duration", "2h", "--name", "demo")
    assert (done.code, done.out) == (0, "demo\n")
    assert "GPUs 0, 1 are reserved for" in done.err
    again = served("reserve", "1", "--begin", "now+2hours", "--duration", "1h")
    assert again.code == 2
    assert "GPU 1 is reserved then already (demo)" in again.err
    [other] = [served.json("reserve", "2", "--duration", "1h", "--nobody")]
    assert (other["name"], other["users"]) == ("r1", [])
    served.end(signal.SIGKILL)
    served.serve()
    table = served("reservations").out.splitlines()
    assert [line.split()[0] for line in table] == ["NAME", "r1", "demo"]
    assert [line.split()[-1] == "now" for line in table] == [False, True, False]
    assert "reserved: r1, until " in served("gpus").out
    assert served("unreserve", "demo").err == "reservation demo is given up\n"
    assert [found["name"] for found in served.json("reservations")] == ["r1"]


def test_whoever_reserved_may_use_it(served: Yard) -> None:
    mine = served.json("reserve", "0", "--duration", "1h")
    assert len(mine["users"]) == 1
    id = served.submit("--from", "0", "--", *ENDLESS)
    until(lambda: running(served, id))


# -- quotas and shares ---------------------------------------------------------------------------------


def test_a_quota_is_kept_and_told(served: Yard) -> None:
    me = served.client.job(served.submit("--", "true"))["user"]
    rules = served.json("quota", "set", me, "--gpus", "2")
    assert [(user["name"], user["quota_gpus"]) for user in rules["users"]] == [(me, 2)]
    jobs = [served.submit("--", *ENDLESS) for _ in range(3)]
    until(lambda: [running(served, id) for id in jobs] == [True, True, False])
    why = served.json("explain", jobs[2])
    assert why["code"] == "Quota"
    assert f"{me} may have 2 GPUs at once and has 2" in why["reason"]
    wide = served("submit", "--gpus", "3", "--", "true")
    assert wide.code == 2
    assert f"wants 3 GPUs, and {me} may have 2 at once" in wide.err
    served.end(signal.SIGKILL)
    served.serve()
    assert not running(served, jobs[2])
    served("quota", "clear", me)
    until(lambda: running(served, jobs[2]))


def test_shares_are_told(served: Yard) -> None:
    served.wait(served.submit("--", "sleep", "0.2"))
    found = json.loads(served("share", "set", "@lab", "3", "--json").out)
    assert found["half_life"] == 7 * 86400
    [me, lab] = found["users"]
    assert me["week_gpu_hours"] > 0
    assert (lab["name"], lab["weight"]) == ("@lab", 3.0)
    table = served("share").out.splitlines()
    assert table[0].split()[:3] == ["NAME", "GROUP", "SHARE"]
    assert len(table) == 3
    assert "0.0 h" in table[1]
    cleared = served("share", "clear", "@lab")
    assert cleared.err == "group lab has no share of its own any more\n"
    assert len(cleared.out.splitlines()) == 2
    odd = served("share", "set", "nobody-of-that-name", "2")
    assert "warning: this machine knows no user nobody-of-that-name" in odd.err
    assert "nobody-of-that-name has a share of 2 from now on" in odd.err


def test_explain_does_not_blame_jobs_for_a_drain(served: Yard) -> None:
    first = served.submit("--", *ENDLESS)
    until(lambda: running(served, first))
    served("drain")
    why = served.json("explain", served.submit("--", "true"))
    assert "4 drained" in why["reason"]
    assert why["must_end_first"] == []


def test_a_policy_alone_means_its_own_defaults(served: Yard) -> None:
    for policy, found in (("rr:quantum=5", "rr:quantum=5@skip@pack"), ("sjf", "sjf@easy@pack")):
        served("policy", "set", policy)
        assert served.client.policy()["policy"] == found
    served("policy", "set", "fcfs@strict")
    served("policy", "set", "sjf")
    assert served.client.policy()["policy"] == "sjf@easy@pack"


def test_a_limit_that_is_set_later_counts_in_plans(served: Yard) -> None:
    first = served.submit("--gpus", "4", "--", *ENDLESS)
    until(lambda: running(served, first))
    waits = served.submit("--", "true")
    assert served.json("explain", waits)["must_end_first"][0]["expected_at"] is None
    assert served("edit", first, "--time", "1h").code == 0
    [blocker] = served.json("explain", waits)["must_end_first"]
    assert 3500 < at(blocker["expected_at"]) - time.time() <= 3600
