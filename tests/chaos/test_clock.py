"""The daemon's clock, while somebody turns the hands of the machine's."""

from __future__ import annotations

import pytest

from gpuyard.core.events import Exited, Placed
from gpuyard.daemon.context import Clock, Times


class Hands:
    """A clock on the wall that can be set, and the ticks that cannot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float = 1000.0) -> None:
        self.now, self.ticks = now, 50.0
        monkeypatch.setattr("gpuyard.daemon.context.time.time", lambda: self.now)
        monkeypatch.setattr("gpuyard.daemon.context.time.monotonic", lambda: self.ticks)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.ticks += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


def test_it_follows_the_time_of_day(hands: Hands) -> None:
    clock = Clock()
    hands.wait(5.0)
    assert clock.now() == 1005.0
    hands.now += 100.0  # set ahead
    assert clock.now() == 1105.0


def test_it_goes_on_when_the_time_of_day_is_set_back(hands: Hands) -> None:
    clock = Clock()
    hands.wait(5.0)
    hands.now -= 3600.0
    assert clock.now() == 1005.0
    hands.wait(2.0)
    assert clock.now() == 1007.0
    hands.now += 3600.0
    assert clock.now() == 1007.0


def test_it_goes_on_where_a_former_life_stopped(hands: Hands) -> None:
    clock = Clock(not_before=1500.25)
    assert clock.now() == 1500.25
    hands.wait(1.0)
    assert clock.now() == 1501.25
    assert Clock(not_before=900.0).now() == 1001.0


def test_it_never_stands_still_or_goes_back_in_any_weather(hands: Hands) -> None:
    clock = Clock()
    latest = clock.now()
    for step in (1.0, -50.0, 0.0, 3.0, -0.5, 1e6, -1e6):
        hands.now += step
        hands.wait(0.1)
        assert latest < clock.now()
        latest = clock.now()


def test_what_others_date_stays_in_order() -> None:
    times = Times(lambda job: {"old": 20.0}[job])
    times.note(Placed(10.0, "new", 1, (0,)))
    assert times.began("new", 9.996, 11.0) == 10.0  # files' times are coarse
    assert times.began("new", 99.0, 11.0) == 11.0
    assert times.ended("new", 10.5, 11.0) == 10.5
    assert times.ended("new", 9.996, 11.0) == 10.0
    assert times.ended("new", 9.0, 11.0) == 11.0  # the clock was set back: nobody knows
    assert times.ended("new", 99.0, 11.0) == 11.0
    assert times.ended("old", 25.0, 30.0) == 25.0
    assert times.ended("old", 15.0, 30.0) == 30.0


def test_who_is_over_is_not_remembered() -> None:
    times = Times(lambda job: 5.0)
    times.note(Placed(10.0, "1", 1, (0,)))
    times.note(Exited(12.0, "1", 1))
    assert times._latest == {}
    times.note(Placed(20.0, "2", 1, (0,)))
    times.forget()
    assert times.began("2", 1.0, 30.0) == 5.0
