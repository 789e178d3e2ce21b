"""Looking at GPUs now: what is kept, in bounded memory, and what becomes of GPUs that do not answer."""

from __future__ import annotations

import numpy as np
import pytest

from gpuyard.errors import UserError
from gpuyard.gpus.base import Device, Reading
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.monitor.live import Live
from gpuyard.monitor.tracks import Track
from gpuyard.recordings.series import OF_GPUS, energy

G = 2**30
T0 = 1_800_000_000.0


class Scripted:
    """GPUs that say what a test tells them to."""

    simulated = False

    def __init__(self, count: int = 1) -> None:
        self.devices = [Device(n, f"GPU-{n}", "NVIDIA A100", 40 * G) for n in range(count)]
        self.next: list[Reading] = []

    def read(self) -> list[Reading]:
        return self.next

    def close(self) -> None:
        pass


def look(live: Live, gpus: Scripted, at: float, **values: object) -> None:
    gpus.next = [Reading(0, **values)]  # type: ignore[arg-type]
    live.look(at)


def test_every_look_is_kept_with_the_first() -> None:
    gpus = Scripted(2)
    live = Live(gpus)
    for second in range(3):
        gpus.next = [
            Reading(0, memory_used=second * G, utilization=10 * second, power=100.5, memcopy=7, sm_clock=1410,
                    memory_clock=1215, throttle=4, temperature=40),
            Reading(1, memory_used=G),
        ]  # fmt: skip
        live.look(T0 + second)
    found = live.recording()
    assert (found.start, found.end, found.simulated, found.warnings) == (T0, T0 + 2, False, [])
    assert len(found.series) == 2 * len(OF_GPUS)
    first = {one.metric: one for one in found.series if one.subject.gpu == 0}
    assert first["utilization"].mean.tolist() == [0, 10, 20]
    assert first["utilization"].at.tolist() == [T0, T0 + 1, T0 + 2]
    assert (first["utilization"].low, first["utilization"].high) == (None, None)
    assert first["memory_used"].mean.tolist() == [0, G, 2 * G]
    assert first["memory_free"].mean.tolist() == [40 * G, 39 * G, 38 * G]
    assert first["throttle"].mean.tolist() == [4, 4, 4]
    assert energy(first["power"]) == pytest.approx(2 * 100.5 / 3600)
    second_gpu = {one.metric: one for one in found.series if one.subject.gpu == 1}
    assert second_gpu["utilization"].subject.uuid == "GPU-1"
    assert np.isnan(second_gpu["utilization"].mean).all()  # it did not say, which is not 0
    assert second_gpu["memory_used"].mean.tolist() == [G, G, G]


def test_a_gpu_that_does_not_answer_is_a_gap_and_a_warning() -> None:
    gpus = Scripted()
    live = Live(gpus, ["power", "memory_used"])
    look(live, gpus, T0, power=10.0)
    look(live, gpus, T0 + 1, lost=True, problem="GPU is lost")
    look(live, gpus, T0 + 2, lost=True, problem="GPU is lost")
    look(live, gpus, T0 + 3, power=30.0)
    found = live.recording()
    assert [one.metric for one in found.series] == ["memory_used", "power"]
    np.testing.assert_array_equal(found.of("power")[0].mean, [10.0, np.nan, np.nan, 30.0])
    np.testing.assert_array_equal(found.of("memory_used")[0].mean, [0.0, np.nan, np.nan, 0.0])
    [warning] = found.warnings
    assert warning.startswith("GPU 0 did not answer from ")
    assert warning.endswith(": GPU is lost")


def test_an_error_of_the_driver_is_marked() -> None:
    gpus = Scripted()
    live = Live(gpus, ["xid"])
    look(live, gpus, T0)
    look(live, gpus, T0 + 1, xid=79)
    look(live, gpus, T0 + 2)
    found = live.recording()
    assert found.of("xid")[0].mean.tolist() == [0, 79, 0]
    [mark] = found.marks
    assert (mark.at, mark.label) == (T0 + 1, "XID 79")


def test_a_pause_is_a_gap_and_a_clock_that_goes_back_is_told() -> None:
    gpus = Scripted()
    live = Live(gpus, ["power"])
    look(live, gpus, T0, power=100.0)
    look(live, gpus, T0 + 3600, power=100.0)  # the machine slept
    look(live, gpus, T0 + 1800, power=100.0)  # its clock was set
    look(live, gpus, T0 + 1801, power=100.0)
    found = live.recording()
    [series] = found.series
    assert series.at.tolist() == [T0, T0 + 1, T0 + 3600, T0 + 3601, T0 + 3602]
    assert energy(series) == pytest.approx(2 * 100 / 3600)
    assert found.warnings == ["the clock went back by 1800.0 s; what was seen after that is shown as if it had not"]


def test_weeks_take_no_more_room_than_hours() -> None:
    track = Track(2, 8, bits=[1])
    for second in range(100):
        track.add(T0 + second, np.array([second, 1 << second % 3], dtype=np.float64))
    assert (len(track), track.width) == (7, 16)
    at, mean, low, high = track.column(0)
    assert low is not None
    assert high is not None
    assert at.tolist() == [T0 + 16 * row for row in range(7)]
    assert low.tolist() == [0, 16, 32, 48, 64, 80, 96]
    assert high.tolist() == [15, 31, 47, 63, 79, 95, 99]
    assert mean.tolist() == [7.5, 23.5, 39.5, 55.5, 71.5, 87.5, 97.5]
    assert set(track.column(1).mean.tolist()) == {7}  # all flags that were seen


def test_a_gap_in_a_wide_span_counts_for_nothing() -> None:
    track = Track(1, 4)
    for value in (1.0, np.nan, np.nan, np.nan, 5.0, 6.0):
        track.add(0.0 if not len(track) else track.column(0).at[-1] + 1, np.array([value]))
    np.testing.assert_array_equal(track.column(0).mean, [1.0, np.nan, 5.5])


def test_simulated_gpus_say_so_and_a_metric_must_exist() -> None:
    live = Live(SimulatedGpus.parse("2x16G"), ["utilization"])
    assert live.recording().simulated
    live.look(T0)
    assert live.recording().simulated
    with pytest.raises(UserError, match="'utilisation' is no metric of GPUs; did you mean 'utilization'"):
        Live(SimulatedGpus.parse("1"), ["utilisation"])
