"""What the daemon writes down of looks, how often, and what it does where it cannot; and whose the energy is."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.config import Settings
from gpuyard.daemon.background.recorder import Recorder
from gpuyard.daemon.devices.measurements import Measures, Seen
from gpuyard.daemon.store.views import energy_spent, energy_totals, gpu_part, split_power
from gpuyard.gpus.base import Reading
from gpuyard.gpus.simulated import SimulatedGpus
from gpuyard.recordings.queries import Told, Wanted
from gpuyard.recordings.series import OF_GPUS, OF_JOBS

T = 1_764_000_000.0
IDLE = Reading(0, utilization=0, power=25.0, throttle=0)
BUSY = Reading(0, utilization=90, power=250.0, memory_used=2**30, throttle=0)
JOB = Seen("17", 1, T, {0: 2**30}, 80.0, gpus=(0,))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    yard = SimpleNamespace(machine=SimpleNamespace(gpus=SimulatedGpus.parse("1x16G")), watchers=[])
    return Recorder(cast(Any, yard), Settings(tmp_path, tmp_path / "socket"))


def told(recorder: Recorder, seconds: float = 600.0) -> Told:
    found = recorder.read(Wanted(T - 5, T + seconds, (*OF_GPUS, *OF_JOBS), 5000, None, [("17", 1)]))
    assert found is not None
    return found


def times(recorder: Recorder) -> list[float]:
    [track] = told(recorder).gpus
    return [round(at - T, 3) for at in track.at.tolist()]


def test_idle_gpus_are_written_down_seldom_and_busy_ones_every_period(recorder: Recorder) -> None:
    for n in range(31):
        recorder.look(T + n, [IDLE], [])
    for n in range(31, 35):
        for half in (0.0, 0.5):  # somebody looks more often
            recorder.look(T + n + half, [BUSY], [])
    assert times(recorder) == [0, 8, 16, 24, 30, 31, 32, 33, 34]  # it was idle up to 30


def test_the_first_look_at_a_job_counts_however_soon_it_comes(recorder: Recorder) -> None:
    recorder.look(T, [IDLE], [])
    recorder.look(T + 0.2, [BUSY], [JOB])
    recorder.look(T + 0.4, [BUSY], [JOB])
    recorder.look(T + 0.6, [IDLE], [])
    assert times(recorder) == [0, 0.2, 0.4, 0.6]
    [own] = told(recorder).jobs
    assert own.metrics["process_memory"].mean.tolist() == [2.0**30] * 2
    assert own.metrics["process_utilization"].mean.tolist() == [80.0] * 2


def test_the_last_look_before_a_job_comes_or_goes_counts_as_well(recorder: Recorder) -> None:
    for n in range(6):
        recorder.look(T + n, [IDLE], [])
    for tenth in (0, 2, 4, 6):  # one is enough, unless the job goes
        recorder.look(T + 5.1 + tenth / 10, [BUSY], [JOB])
    recorder.look(T + 5.8, [IDLE], [])
    recorder.look(T + 15.8, [IDLE], [])
    assert times(recorder) == [0, 5, 5.1, 5.7, 5.8, 15.8]
    [track] = told(recorder).gpus
    assert track.watt_hours == pytest.approx((25 * 15.2 + 250 * 0.6) / 3600, rel=0.06)


def test_an_error_between_two_samples_is_not_lost(recorder: Recorder) -> None:
    recorder.look(T, [BUSY], [])
    recorder.look(T + 0.3, [replace(BUSY, xid=31, throttle=8)], [])
    recorder.look(T + 1, [BUSY], [])
    recorder.look(T + 2, [BUSY], [])
    [track] = told(recorder).gpus
    assert track.metrics["xid"].mean.tolist() == [0, 31, 0]
    assert track.metrics["throttle"].mean.tolist() == [0, 8, 0]
    assert track.errors == [(T + 1, 31)]


def test_of_a_gpu_that_is_lost_nothing_is_known(recorder: Recorder) -> None:
    for n, reading in enumerate((BUSY, Reading(0, lost=True, problem="gone"), BUSY)):
        recorder.look(T + n, [reading], [])
    [track] = told(recorder).gpus
    assert [value == value for value in track.metrics["power"].mean.tolist()] == [True, False, True]
    assert track.watt_hours == 0.0  # there are no two looks in a row that tell


def test_a_file_that_breaks_while_it_is_written_is_begun_anew(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.look(T, [BUSY], [])
    recorder.flush()
    size = recorder.path.stat().st_size
    recorder.path.with_name("recordings.db-wal").write_bytes(b"")
    with recorder.path.open("r+b") as file:
        file.write(b"\xff" * size)
    with caplog.at_level(logging.WARNING, "gpuyard"):
        assert recorder.read(Wanted(T, T + 10, ("power",))) is None
        for n in range(1, 4):
            recorder.look(T + n, [BUSY], [])
            recorder.flush()
    assert times(recorder) == [1, 2, 3]
    assert recorder.failing == ""
    assert caplog.text.count("is damaged") == 1
    assert recorder.path.with_name("recordings.db.damaged").exists()


def test_what_is_too_old_is_removed(tmp_path: Path, recorder: Recorder) -> None:
    for n in range(0, 7200, 10):
        recorder.look(T + n, [BUSY], [])
    assert len(told(recorder, 600).gpus[0].at) == 61
    assert recorder.sweep(T + 8 * 86400) > 0
    found = told(recorder, 600)
    assert (found.level.name, len(found.gpus[0].at)) == ("minutes", 11)
    assert recorder.sweep(T + 8 * 86400) == 0


def test_power_is_split_by_who_keeps_a_gpu_busy() -> None:
    power = {0: 200.0, 1: 100.0, 2: None}
    assert split_power(power, {0: {"a": 60.0, "b": 20.0}, 1: {"a": 50.0}}) == {"a": 250.0, "b": 50.0}
    assert split_power(power, {0: {"a": 60.0, "b": None}}) == {"a": 100.0, "b": 100.0}
    assert split_power(power, {0: {"a": 0.0, "b": 0.0}, 1: {}}) == {"a": 100.0, "b": 100.0}
    assert split_power(power, {0: {"a": 1.0}, 2: {"a": 1.0}}) == {"a": None}


def test_energy_is_counted_from_the_beginning_to_the_end(tmp_path: Path) -> None:
    measures = Measures(tmp_path / "measures.json")

    def look(at: float, watts: float | None) -> None:
        measures.note(at, [Seen("1", 1, 100.0, {0: 1}, watts=watts)], lambda job, attempt: True)

    look(101.0, 100.0)
    look(103.0, 300.0)
    look(104.0, None)
    look(105.0, 300.0)
    measure = measures.of("1")
    assert measure
    assert measure.energy_wh == pytest.approx((100 + 400 + 600) / 3600, abs=1e-6)
    measures.close()
    measures = Measures(tmp_path / "measures.json")  # the next life
    look(115.0, 300.0)
    look(200.0, 300.0)  # nobody knows what was in between
    for _ in range(2):  # what is written may have to be written again
        ended = measures.take("1", 1, 100.0, 201.0)
        assert ended["energy_wh"] == pytest.approx((1100 + 3000 + 300) / 3600, abs=1e-6)
    assert measures.take("1", 1, 100.0, 199.0)["energy_wh"] == pytest.approx((1100 + 3000 - 300) / 3600, abs=1e-6)
    assert measures.take("2", 1, 100.0, 101.0)["energy_wh"] is None


def test_attempts_are_added_up() -> None:
    first = energy_totals({}, {"energy_wh": 2.0, "gpu_seconds": 3600.0}, 9.0, 9)
    second = energy_totals(first, {"energy_wh": None}, 1800.0, 2)
    assert second == {"total_wh": 2.0, "total_gpu_seconds": 7200.0}
    assert energy_spent(second, {"energy_wh": 0.5, "gpu_seconds": 1800.0}) == (2.5, 2.5)
    assert energy_spent({}, {}) == (None, 0.0)
    assert (gpu_part({"gpu_memory": 4.0}, 16.0), gpu_part({"gpu_memory": 4.0, "alone": True}, 16.0)) == (0.25, 1.0)
    assert gpu_part({"gpu_memory": None}, 16.0) == 1.0
