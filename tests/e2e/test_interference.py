"""Jobs that slow each other down on one GPU: it is seen, told, remembered, and gone by."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.yard import Yard, until

TRAIN = """
import os, sys, time
me, other, slower = sys.argv[1], sys.argv[2], float(sys.argv[3])
done, told, here = 0.0, os.environ["GPUYARD_PROGRESS"], f"{me}.here"
last = time.monotonic()
open(here, "w").close()
try:
    while not os.path.exists(f"{me}.enough"):
        now = time.monotonic()
        done += (now - last) / (slower if os.path.exists(f"{other}.here") else 1)
        last = now
        with open(told + ".new", "w") as file:
            file.write(f"{done}/1e9")
        os.replace(told + ".new", told)
        time.sleep(0.01)
finally:
    os.remove(here)
"""
"""It says how far it is, and is slower while the other one runs."""


@pytest.fixture
def small(own_yard: Yard) -> Yard:
    """A yard of one GPU, which needs to see only a moment of two jobs."""
    (own_yard.cwd / "train.py").write_text(TRAIN)
    own_yard.environment["GPUYARD_INTERFERENCE_AFTER"] = "0.6"
    own_yard.serve("--simulate-gpus", "1x16G")
    return own_yard


def train(yard: Yard, me: str, other: str, slower: float) -> str:
    for name in (f"{me}.enough", f"{me}.here"):
        Path(yard.cwd, name).unlink(missing_ok=True)
    return yard.submit("--gpu-memory", "2G", "--name", me, "--", sys.executable, "train.py", me, other, str(slower))


def end(yard: Yard, id: str, me: str) -> None:
    Path(yard.cwd, f"{me}.enough").touch()
    assert yard.wait(id)["state"] == "succeeded"


def far(yard: Yard, id: str) -> float:
    found = yard.client.job(id)["progress"]
    return found["done"] if found else 0.0


def state(yard: Yard, id: str) -> str:
    return yard.client.job(id)["state"]


def test_who_suffers_is_found_out_and_kept_apart(small: Yard) -> None:
    assert "no two jobs have shared a GPU" in small("interference").err
    a = train(small, "a", "b", 5.0)
    until(lambda: far(small, a) > 0.7, "a look at it alone")
    b = train(small, "b", "a", 1.0)
    [pair] = until(lambda: small.json("interference")["pairs"], "a finding")
    assert [pair[who]["name"] for who in ("sufferer", "beside")] == ["a", "b"]
    assert [pair[who]["job"] for who in ("sufferer", "beside")] == [a, b]
    assert pair["sufferer"]["signature"] != pair["beside"]["signature"]
    assert 3 < pair["slowdown"] < 8
    assert (pair["evidence"], pair["verdict"]) == ("progress", "apart")
    assert pair["seconds"] >= 0.6
    shown = small("interference")
    assert f"{a} (a)" in shown.out
    assert "never together" in shown.out
    assert "--placement considerate" in shown.err  # so far nobody goes by it
    end(small, a, "a")
    end(small, b, "b")

    small.end(signal.SIGKILL)
    small.serve("--simulate-gpus", "1x16G")
    assert "considerate" in small.client.policies()["placements"]  # which is what the page offers, too
    assert small("policy", "set", "fcfs", "--placement", "considerate").code == 0
    known = until(lambda: small.json("interference"), "what was known")
    assert known["considered"]
    b = train(small, "b", "a", 1.0)
    small.client.job(b, wait=30, until="start")
    a = train(small, "a", "b", 5.0)
    why = small.client.explain(a)
    assert why["code"] == "Harm"
    assert why["details"]["beside"] == b
    assert f"would fit on GPU 0, but beside job {b} it would run at" in (why["reason"] or "")
    assert state(small, a) == "queued"
    other = small.submit("--gpu-memory", "2G", "--", "true")  # hurts nobody
    assert small.wait(other)["state"] == "succeeded"
    end(small, b, "b")
    until(lambda: state(small, a) == "running", "its turn")


def test_what_is_harmless_is_known_as_well(small: Yard) -> None:
    a = train(small, "a", "b", 1.0)
    until(lambda: far(small, a) > 0.7, "a look at it alone")
    train(small, "b", "a", 1.0)
    [pair] = until(lambda: small.json("interference")["pairs"], "a finding")
    assert pair["slowdown"] < 2
    assert pair["verdict"] != "apart"

    def kinds() -> list[str]:
        return [event["kind"] for event in small.client.events()["events"]]

    until(lambda: "HarmMeasured" in kinds(), "an event")


def test_how_busy_a_job_keeps_its_gpu_tells_where_it_says_nothing(small: Yard) -> None:
    wanted = ("--gpu-memory", "3G", "--simulate-use", "2G;util=80", "--", "sleep", "1000")
    first = small.submit(*wanted)

    def looks() -> int:
        measured = small.client.job(first)["measured"]
        return measured["samples"] if measured else 0

    until(lambda: looks() > 3, "some looks at it alone")
    second = small.submit(*wanted)
    [pair] = until(lambda: small.json("interference")["pairs"], "a finding")
    assert (pair["evidence"], pair["verdict"]) == ("utilization", "avoided")
    assert pair["slowdown"] == pytest.approx(1.6, abs=0.01)  # 50 % for each, of 80
    assert pair["sufferer"]["signature"] == pair["beside"]["signature"]
    assert {pair["sufferer"]["job"], pair["beside"]["job"]} == {first, second}
