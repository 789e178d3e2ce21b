"""The model of GPUs that simulated experiments run on: rates, memory and what a GPU shows, by hand-made numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpuyard.experiments.design import Behaviour
from gpuyard.experiments.device_model import AT_ONCE, COOL, IDLE_POWER, LAG, RISE, Devices, alone, along, looks, warmth

GIB = 2.0**30


def run_out(devices: Devices) -> dict[str, float]:
    """When everybody who is there ends, if nobody else comes."""
    ends: dict[str, float] = {}
    while devices.here:
        for stay in devices.advance(devices.due()):
            devices.leave(stay)
            ends[stay.job] = devices.now
    return ends


def start(devices: Devices, job: str, behaviour: Behaviour, *gpus: int, memory: float = GIB) -> None:
    devices.begin(job, gpus or (0,), behaviour, memory, 0.0)


@pytest.mark.parametrize(
    ("at", "value"), [(0.5, 10.0), (1, 10.0), (2, 15.0), (3, 20.0), (4, 40.0), (6, 80.0)]
)  # beyond the last point the last line goes on
def test_a_line_through_points_goes_on_beyond_them(at: float, value: float) -> None:
    assert along({1: 10.0, 3: 20.0, 4: 40.0}, at) == value


def test_one_point_is_a_level() -> None:
    assert along({1: 7.0}, 5) == 7.0


def test_run_time_alone_follows_the_over_provisioning_where_that_was_measured() -> None:
    behaviour = Behaviour(100.0, seconds_by_percent={50: 120.0, 100: 130.0})
    assert [alone(behaviour, percent) for percent in (0, 25, 50, 75, 100, 250)] == [100, 110, 120, 125, 130, 130]


def test_a_job_alone_takes_its_time_and_its_overhead() -> None:
    devices = Devices([GIB])
    start(devices, "a", Behaviour(131.5, {4: 159.0}, overhead=4.4))
    assert run_out(devices)["a"] == pytest.approx(135.9)


def test_four_together_take_as_long_as_measured() -> None:
    devices = Devices([GIB])
    for job in "abcd":
        start(devices, job, Behaviour(131.5, {4: 159.0}, overhead=4.4))
    assert run_out(devices) == {job: pytest.approx(163.4) for job in "abcd"}


def test_who_comes_later_slows_the_first_down_from_then_on() -> None:
    devices = Devices([GIB])
    start(devices, "a", Behaviour(100.0, {2: 200.0}))
    devices.advance(50.0)
    start(devices, "b", Behaviour(100.0, {2: 200.0}))
    # Half of a is left, at half the speed: 100 s. By then b has done half, and does the rest alone in 50 s.
    assert run_out(devices) == {"a": pytest.approx(150.0), "b": pytest.approx(200.0)}


def test_without_measurements_a_gpu_that_is_wanted_too_much_is_shared_out() -> None:
    devices = Devices([GIB])
    for job in "ab":
        start(devices, job, Behaviour(100.0, utilization=80.0))
    assert run_out(devices)["a"] == pytest.approx(160.0)
    quiet = Devices([GIB])
    for job in "ab":
        start(quiet, job, Behaviour(100.0, utilization=40.0))
    assert run_out(quiet)["a"] == pytest.approx(100.0)


def test_a_job_on_two_gpus_goes_at_the_pace_of_the_slower_one() -> None:
    devices = Devices([GIB, GIB])
    start(devices, "wide", Behaviour(100.0, {2: 200.0}), 0, 1)
    start(devices, "other", Behaviour(1000.0, {2: 1000.0}), 1)
    assert run_out(devices)["wide"] == pytest.approx(200.0)


def test_memory_comes_with_the_first_work_and_rises() -> None:
    devices = Devices([16 * GIB])
    start(devices, "a", Behaviour(100.0, overhead=5.0, ramp=10.0), memory=8 * GIB)
    at = np.array([0.0, 4.9, 5.0, 10.0, 15.0, 50.0, 104.9, 105.0])
    run_out(devices)
    expected = np.array([0, 0, AT_ONCE, (1 + AT_ONCE) / 2, 1, 1, 1, 0]) * 8 * GIB
    assert devices.gpus[0].used(at) == pytest.approx(expected)


def test_an_overflow_is_foreseen_to_the_second_and_kills_who_grew_last() -> None:
    devices = Devices([10 * GIB])
    start(devices, "old", Behaviour(100.0, ramp=10.0), memory=6 * GIB)
    devices.advance(20.0)
    start(devices, "new", Behaviour(100.0, ramp=10.0), memory=6 * GIB)
    # It takes 0.6 GiB at once and 0.54 more each second: 4 GiB are reached after 3.4 / 0.54 seconds.
    assert devices.overflow() == pytest.approx(20.0 + 3.4 / 0.54)
    devices.advance(devices.overflow())
    assert devices.victim().job == "new"


def test_who_still_grows_dies_before_who_came_later_and_has_grown() -> None:
    devices = Devices([10 * GIB])
    start(devices, "slow", Behaviour(500.0, ramp=100.0), memory=8 * GIB)
    devices.advance(1.0)
    start(devices, "quick", Behaviour(500.0, ramp=0.0), memory=4 * GIB)
    devices.advance(devices.overflow())
    assert devices.victim().job == "slow"


def test_memory_that_is_just_enough_never_overflows() -> None:
    devices = Devices([10 * GIB])
    for job in "ab":
        start(devices, job, Behaviour(100.0), memory=5 * GIB)
    assert devices.overflow() == math.inf


def test_after_a_pause_a_job_begins_anew_and_bothers_nobody_until_then() -> None:
    devices = Devices([GIB])
    start(devices, "a", Behaviour(100.0, {2: 200.0}))
    devices.begin("b", (0,), Behaviour(100.0, {2: 200.0}), GIB / 2, 0.0, pause=100.0)
    assert run_out(devices) == {"a": pytest.approx(100.0), "b": pytest.approx(200.0)}


def test_utilization_and_power_follow_how_many_work() -> None:
    devices = Devices([GIB])
    behaviour = Behaviour(
        100.0, {2: 100.0}, overhead=1.0, utilization=10.0, utilization_together={2: 50.0}, power={0: 40.0, 100: 140.0}
    )
    start(devices, "a", behaviour)
    devices.advance(1.0)
    devices.advance(50.0)
    start(devices, "b", behaviour)
    run_out(devices)
    gpu = devices.gpus[0]
    assert gpu.at == [0.0, 1.0, 51.0, 101.0, 151.0]
    assert gpu.busy == [0.0, 10.0, 50.0, 10.0, 0.0]
    assert gpu.power == [IDLE_POWER, 50.0, 90.0, 50.0, IDLE_POWER]


def test_a_gpu_is_never_more_than_fully_busy() -> None:
    devices = Devices([GIB])
    for job in "ab":
        start(devices, job, Behaviour(100.0, utilization=80.0))
    assert devices.gpus[0].busy == [100.0]


def test_warmth_follows_power_with_a_lag() -> None:
    hot = warmth(np.full(1000, 125.0), 1.0)
    assert hot[0] < hot[44] < hot[-1]
    assert hot[-1] == pytest.approx(COOL + RISE * 100.0)
    assert hot[int(LAG) - 1] == pytest.approx(COOL + RISE * 100.0 * (1 - math.exp(-1)))


def test_looks_begin_with_the_start_and_end_with_the_end() -> None:
    assert looks(0.0, 2.5, 1.0).tolist() == [0.0, 1.0, 2.0, 2.5]
    assert looks(0.0, 2.0, 1.0).tolist() == [0.0, 1.0, 2.0]
