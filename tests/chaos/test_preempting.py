"""Jobs that are stopped for others, step by step: what is asked, what is written, and what a restart does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.core.events import Event, Preempted, Promised, Recalled, Unpromised
from gpuyard.core.model import Request
from gpuyard.core.plan import Plan
from gpuyard.daemon.store.log import Store
from gpuyard.engines.base import Ended, NeverBegan, Running
from gpuyard.server.responses import job_json
from tests.chaos.test_yard import Place

SOFT = Request(gpus=2, estimate=60.0)
FIRM = Request(gpus=2, estimate=60.0, preemptible=False)
HIGH = Request(gpus=1, estimate=60.0, preemptible=False, priority=5.0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path, "priority")
    yield found
    found.store.close()
    found.engine.close()


def began(place: Place, job: str, attempt: int = 1) -> None:
    place.tell(Running(job, attempt, time.time(), "17"))


def ended(place: Place, job: str, code: int | None = 0, *, attempt: int = 1, asked: bool = True) -> None:
    place.tell(Ended(job, attempt, time.time(), code, asked=asked))


@pytest.fixture
def stopping(place: Place) -> Place:
    """Job 1, on both GPUs, is being stopped for job 2, which wants one of them."""
    place.submit(SOFT, signal="USR1", notice=30.0, grace=2.0)
    began(place, "1")
    place.submit(HIGH)
    return place


def events(place: Place) -> list[Event]:
    store = Store(place.database)
    try:
        return [record.event for _, record in store.records()]
    finally:
        store.close()


def test_it_is_asked_waits_again_and_goes_on(stopping: Place) -> None:
    place = stopping
    assert place.engine.asked == [("1", 1, 30.0, "USR1")]
    assert job_json(place.job("1"))["reason"] == "stopping so that others can run, will wait again"
    assert place.engine.launched == [("1", 1)]
    assert (place.job("2").state, place.job("2").gpus) == ("queued", ())
    assert [type(e) for e in events(place)][-2:] == [Recalled, Promised]
    place.yard.turn(0)
    assert len(place.engine.asked) == 1
    ended(place, "1", 0)
    one, two = place.job("1"), place.job("2")
    assert (one.state, one.preemptions, one.message) == ("queued", 1, "stopped for job 2, waits again")
    assert (two.state, two.gpus, place.engine.launched) == ("running", (0,), [("1", 1), ("2", 1)])
    assert place.yard.state.table.progress[0] > 0
    began(place, "2")
    ended(place, "2", asked=False)
    assert place.job("2").state == "succeeded"
    assert place.engine.launched[-1] == ("1", 2)
    began(place, "1", 2)
    ended(place, "1", 3, attempt=2, asked=False)
    assert (place.job("1").state, place.job("1").exit_code) == ("failed", 3)
    place.end()


def test_what_may_not_be_stopped_is_not(place: Place) -> None:
    place.submit(FIRM)
    began(place, "1")
    place.submit(HIGH)
    place.yard.turn(0)
    assert place.engine.asked == []
    assert not [e for e in events(place) if isinstance(e, Recalled | Promised)]


@pytest.mark.parametrize(("code", "message"), [(137, "stopped for job 2 (killed after its grace), waits again")])
def test_it_waits_again_however_it_ended(stopping: Place, code: int, message: str) -> None:
    ended(stopping, "1", code)
    assert (stopping.job("1").state, stopping.job("1").message) == ("queued", message)
    stopping.end()


def test_what_had_ended_before_it_was_asked_is_over(stopping: Place) -> None:
    ended(stopping, "1", 0, asked=False)
    assert (stopping.job("1").state, stopping.job("2").state) == ("succeeded", "running")
    stopping.end()


def test_the_machine_may_go_down_while_it_is_stopped(stopping: Place) -> None:
    stopping.tell(Ended("1", 1, time.time(), None, interrupted=True))
    assert (stopping.job("1").state, stopping.job("2").state) == ("queued", "running")
    stopping.end()


def test_what_never_began_waits_again(stopping: Place) -> None:
    stopping.tell(NeverBegan("1", 1))
    stopping.yard.planning._quiet_until = 0.0
    stopping.yard.turn(0)
    assert (stopping.job("1").state, stopping.job("2").state) == ("queued", "running")
    stopping.end()


def test_a_cancel_comes_first(stopping: Place) -> None:
    stopping.ask(lambda: stopping.desk.cancel("1"))
    stopping.ask(lambda: stopping.desk.cancel("1", 0.0))
    assert stopping.engine.asked[1:] == [("1", 1, 2.0, "TERM"), ("1", 1, 0.0, "TERM")]
    assert [e.cause for e in events(stopping) if isinstance(e, Recalled)] == ["preempted", "cancelled"]
    ended(stopping, "1", 0)
    assert (stopping.job("1").state, stopping.job("2").state) == ("cancelled", "running")
    stopping.end()


def test_a_time_limit_comes_first(place: Place) -> None:
    place.submit(SOFT, time_limit=60.0)
    began(place, "1")
    place.submit(HIGH)
    place.yard._stops._limits.watch("1", 1, 0.0)
    place.yard.turn(0)
    ended(place, "1", 143)
    assert (place.job("1").state, place.job("2").state) == ("timeout", "running")
    place.end()


def test_who_is_cancelled_or_held_is_promised_nothing(stopping: Place) -> None:
    stopping.ask(lambda: stopping.desk.hold("2"))
    assert stopping.yard.state.promises == {}
    ended(stopping, "1", 0)
    assert stopping.engine.launched == [("1", 1), ("1", 2)]
    stopping.end()


def test_another_policy_promises_nothing(stopping: Place) -> None:
    stopping.ask(lambda: stopping.desk.set_policy("fcfs", "easy", None))
    assert [e.job for e in events(stopping) if isinstance(e, Unpromised)] == ["2"]
    ended(stopping, "1", 0)
    assert stopping.engine.launched == [("1", 1), ("1", 2)]  # it came first
    stopping.end()


@pytest.mark.parametrize("written", [False, True])
def test_a_restart_goes_on_with_it(stopping: Place, written: bool) -> None:
    place = stopping
    if written:
        place.yard.stop()
        place.yard.run()
    place.store.close()
    place.engine.adopted["1"] = Running("1", 1, time.time(), "17")
    place.begin()
    place.yard.turn(0)
    assert place.engine.asked == [("1", 1, 30.0, "USR1")] * 2
    assert place.engine.launched == [("1", 1)]
    ended(place, "1", 0)
    assert (place.job("1").state, place.job("2").state, place.job("2").gpus) == ("queued", "running", (0,))
    assert [type(e) for e in events(place) if isinstance(e, Promised | Preempted)] == [Promised, Preempted]
    place.end()


def test_it_ended_while_nobody_looked(stopping: Place) -> None:
    stopping.store.close()
    stopping.engine.adopted["1"] = Ended("1", 1, time.time(), 0, asked=True)
    stopping.begin()
    stopping.yard.turn(0)
    assert (stopping.job("1").state, stopping.job("2").state) == ("queued", "running")
    stopping.end()


def test_a_plan_may_stop_jobs_for_nobody(place: Place) -> None:
    place.submit(SOFT)
    began(place, "1")
    assert place.yard._stops.obey(Plan(stops=["1"]), place.yard.clock.now()) == []
    place.yard.turn(0)
    assert [job for job, *_ in place.engine.asked] == ["1"]
    place.ask(lambda: None)
    place.engine.launched.clear()
    ended(place, "1", 0)
    assert place.engine.launched == [("1", 2)]
    assert any(isinstance(e, Preempted) for e in events(place))


def test_a_time_limit_is_announced(place: Place) -> None:
    place.submit(FIRM, time_limit=60.0, signal="USR2", notice=30.0)
    before = time.monotonic()
    began(place, "1")
    assert before + 30.0 <= place.yard._stops.due() + 0.001
    assert place.yard._stops.due() <= time.monotonic() + 30.0
    for job in ("1", "77"):
        place.yard._stops._warnings.watch(job, 1, 0.0)
    place.yard.turn(0)
    assert place.engine.asked == [("1", 1, math.inf, "USR2")]
    assert place.job("1").recalled == ""
    ended(place, "1", 0)
    assert place.job("1").state == "succeeded"
    place.end()


def test_slices_are_over_although_nobody_looks_at_that_very_instant(tmp_path: Path) -> None:
    place = Place(tmp_path, "rr:quantum=0.05")
    one = Request(gpus=1, estimate=60.0)
    for _ in range(3):
        place.submit(one)
    place.tell(*(Running(job, 1, time.time(), "17") for job in ("1", "2")))
    time.sleep(0.07)
    while not place.engine.asked and place.yard._timeout() < 0.2:
        place.yard.turn(place.yard._timeout())
    assert [job for job, *_ in place.engine.asked] == ["1"]
    assert list(place.yard.state.promises) == [2]
    place.end()
    place.engine.close()


def test_a_user_gets_their_share_from_another(tmp_path: Path) -> None:
    place = Place(tmp_path, "fair")
    for n in (1, 2):
        place.submit(Request(estimate=60.0, user="ann"))
        began(place, str(n))
    for _ in range(2):
        place.submit(Request(estimate=60.0, user="bob"))
    assert [job for job, *_ in place.engine.asked] == ["2"]
    ended(place, "2")
    began(place, "3")
    assert place.job("2").message == "stopped for job 3, waits again"
    assert [place.job(job).state for job in "1234"] == ["running", "queued", "running", "queued"]
    place.yard.turn(0)
    assert len(place.engine.asked) == 1
    place.end()
    place.engine.close()
