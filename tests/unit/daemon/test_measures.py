"""What is made of looks at GPUs: peaks, means and who was alone, by all processes of a job; and what is kept of it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.core.events import Placed, Started, Submitted
from gpuyard.core.model import Cluster, Request
from gpuyard.core.state import State
from gpuyard.core.transitions import apply
from gpuyard.daemon.devices.machine import Look, Occupant
from gpuyard.daemon.devices.measurements import Measure, Measures, Seen, seen_on
from gpuyard.daemon.devices.simulation import SimulatedJob, who_dies
from gpuyard.daemon.store.views import JobView
from gpuyard.gpus.base import Device, Reading
from gpuyard.gpus.ownership import Identity, Verdict
from gpuyard.gpus.simulated import SimulatedGpus, parse_use

G = 2**30


def always(job: str, attempt: int) -> bool:
    return True


def never(job: str, attempt: int) -> bool:
    return False


@pytest.fixture
def measures(tmp_path: Path) -> Measures:
    return Measures(tmp_path / "measures.json")


def look(measures: Measures, at: float, *seen: Seen) -> None:
    measures.note(at, seen, always)


def test_peak_is_the_largest_on_one_gpu_and_mean_is_of_those(measures: Measures) -> None:
    look(measures, 101.0, Seen("1", 1, 100.0, {0: 2 * G, 1: 3 * G}, 40.0))
    look(measures, 101.5, Seen("1", 1, 100.0, {0: 5 * G, 1: 3 * G}, 60.0))
    look(measures, 102.0, Seen("1", 1, 100.0, {0: 0, 1: G}))
    found = Measure(1, 5 * G, 3.0 * G, 3, 0.5, 2.0, 50.0, True, 0.5, {0: 0, 1: G})
    assert measures.of("1") == found
    assert measures.take("1", 1, 100.0, 103.25) == {**found.to_json(), "seconds": 3.25, "settled": 1.75}


def test_a_job_that_nobody_knows_the_memory_of_has_its_gpus_for_as_long(measures: Measures) -> None:
    look(measures, 101.0, Seen("1", 1, 100.0, None, 40.0, watts=200.0))
    look(measures, 106.0, Seen("1", 1, 100.0, None, 40.0, watts=200.0))
    found = measures.of("1")
    assert found
    assert (found.peak, found.samples, found.seconds) == (None, 0, 6.0)


def test_what_is_not_told_is_none_and_not_nothing(measures: Measures) -> None:
    look(measures, 101.0, Seen("1", 1, 100.0, None), Seen("2", 1, 100.0, {0: 0}))
    first, second = measures.of("1"), measures.of("2")
    assert first
    assert second
    assert (first.peak, first.mean, first.samples, first.utilization, first.seconds) == (None, None, 0, None, 0.0)
    assert (second.peak, second.mean, second.samples) == (0, 0.0, 1)
    assert measures.of("3") is None
    unseen = measures.take("3", 2, 100.0, 100.5)
    assert (unseen["peak"], unseen["samples"], unseen["seconds"]) == (None, 0, 0.5)


def test_alone_is_who_always_was(measures: Measures) -> None:
    for at, alone in ((1.0, True), (2.0, False), (3.0, True)):
        look(measures, at, Seen("1", 1, 0.0, {0: G}, alone=alone))
    assert measures.take("1", 1, 0.0, 4.0)["alone"] is False


def test_the_last_instant_counts_once(measures: Measures) -> None:
    look(measures, 1.0, Seen("1", 1, 0.0, {0: G}))
    last = Seen("1", 1, 0.0, {0: 3 * G})
    ends = [measures.take("1", 1, 0.0, 2.0, last) for _ in range(2)]  # what is written may have to be written again
    assert [(end["peak"], end["samples"]) for end in ends] == [(3 * G, 2), (3 * G, 2)]


def test_the_next_attempt_begins_anew(measures: Measures) -> None:
    look(measures, 1.0, Seen("1", 1, 0.0, {0: 3 * G}))
    look(measures, 9.0, Seen("1", 2, 8.0, {0: G}))
    found = measures.of("1")
    assert found
    assert (found.attempt, found.peak, found.samples) == (2, G, 1)
    assert measures.take("1", 1, 0.0, 2.0)["peak"] is None  # a late report on what is over


def test_a_clock_that_was_set_adds_nothing(measures: Measures) -> None:
    look(measures, 100.0, Seen("1", 1, 90.0, {0: 5}, watts=100.0))
    look(measures, 110.0, Seen("1", 1, 90.0, {0: 9}, watts=100.0))
    look(measures, 3720.0, Seen("1", 1, 3690.0, {0: 9}, watts=100.0))
    found = measures.of("1")
    assert found is not None
    assert (found.seconds, found.settled, found.period, found.energy_wh) == (30.0, 10.0, 10.0, round(3000 / 3600, 6))
    ended = measures.take("1", 1, 7290.0, 7325.0)  # once more, with no look since
    assert (ended["seconds"], ended["settled"], ended["energy_wh"]) == (35.0, 15.0, round(3500 / 3600, 6))


def test_what_is_over_is_forgotten(measures: Measures) -> None:
    look(measures, 1.0, Seen("1", 1, 0.0, {0: G}))
    measures.note(2.0, [], never)
    assert measures.of("1") is None


def test_the_next_daemon_goes_on(tmp_path: Path, measures: Measures) -> None:
    look(measures, 1.0, Seen("1", 1, 0.0, {1: 3 * G}, 50.0, alone=False))
    measures.close()
    again = Measures(tmp_path / "measures.json")
    assert again.of("1") == measures.of("1")
    look(again, 2.0, Seen("1", 1, 0.0, {1: G}, 100.0))
    found = again.take("1", 1, 0.0, 3.0)
    assert (found["peak"], found["mean"], found["utilization"], found["alone"]) == (3 * G, 2.0 * G, 75.0, False)


def test_a_new_peak_is_on_disk_at_once_and_all_else_later(tmp_path: Path, measures: Measures) -> None:
    file = tmp_path / "measures.json"
    look(measures, 1.0, Seen("1", 1, 0.0, {0: G}))
    assert json.loads(file.read_text())["1"]["peak"] == G
    look(measures, 2.0, Seen("1", 1, 0.0, {0: G}))
    assert json.loads(file.read_text())["1"]["samples"] == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"1": 3}', '{"1": {"attempt": 1}}', '{"1": {"colour": 1}}', "null"])
def test_a_file_that_cannot_be_read_costs_nothing_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "measures.json").write_text(text)
    found = Measures(tmp_path / "measures.json")
    look(found, 1.0, Seen("1", 1, 0.0, {0: G}))
    assert found.of("1")


def test_a_disk_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    found = Measures(tmp_path / "missing" / "measures.json")
    look(found, 1.0, Seen("1", 1, 0.0, {0: G}))
    assert found.of("1")


def test_listeners_hear_of_every_look(measures: Measures) -> None:
    heard: list[str] = []
    measures.listeners.append(lambda: heard.append(threading.current_thread().name))
    measures.note(1.0, [], always)
    assert len(heard) == 1


# -- looks at real GPUs ------------------------------------------------------------------------------


_DEVICE = Device(0, "GPU-0", "GPU", 16 * G)


def on_gpus(*spots: tuple[int, ...]) -> State:
    """A state in which jobs 1, 2, 3 ... share three GPUs."""
    state = State(Cluster((3,), 16.0 * G))
    for number, gpus in enumerate(spots, 1):
        apply(state, Submitted(0.0, str(number), Request(gpus=len(gpus), estimate=10.0, memory=1.0 * G, compute=0.0)))
        apply(state, Placed(1.0, str(number), 1, gpus))
        apply(state, Started(2.0, str(number), 1))
    return state


def seen(state: State, *gpus: tuple[int, ...] | None, used: int = 0, busy: int | None = None) -> list[Seen]:
    """What looks tell; of each GPU the processes as (job, memory, utilization), job 0 being nobody's."""
    looks = []
    for index, there in enumerate(gpus):
        reading = Reading(index, lost=there is None, memory_used=used, utilization=busy)
        occupants = tuple(_occupant(*one) for one in there or ())  # type: ignore[misc]
        looks.append(Look(replace(_DEVICE, index=index), reading, Verdict("ours", ""), occupants))
    return seen_on(looks, state)


def _occupant(job: int, memory: int, busy: int | None = None) -> Occupant:
    return Occupant(1, memory, None, str(job) if job else None, utilization=busy)


def test_all_processes_of_a_job_count_on_each_gpu() -> None:
    there: tuple[object, ...] = ((1, G, 20), (1, 2 * G, 30), (2, 5 * G, 10), (0, G, 40))
    first, second = seen(on_gpus((0, 1), (0,)), there, ((1, 4 * G, 70),), ())  # type: ignore[arg-type]
    assert (first.uses, first.utilization, first.alone) == ({0: 3 * G, 1: 4 * G}, 60.0, False)
    assert (second.uses, second.utilization, second.alone, second.began) == ({0: 5 * G}, 10.0, False, 2.0)


def test_a_job_that_is_not_on_its_gpu_uses_nothing() -> None:
    [one] = seen(on_gpus((0,)), (), (), (), used=10 * 2**20, busy=3)
    assert (one.uses, one.utilization, one.alone) == ({0: 0}, 3.0, True)


@pytest.mark.parametrize(
    "there",
    [((1, 0),), (), None],
    ids=["its memory is not told", "processes are hidden", "the GPU is lost"],
)
def test_what_a_driver_does_not_tell(there: tuple[int, ...] | None) -> None:
    [one] = seen(on_gpus((0, 1)), there, ((1, G),), (), used=5 * G)  # type: ignore[arg-type]
    assert one.uses is None


def test_the_gpus_own_utilization_is_that_of_a_job_alone() -> None:
    alone, crowded = on_gpus((0,)), on_gpus((0,), (0,))
    assert seen(alone, ((1, G),), (), (), busy=70)[0].utilization == 70.0  # type: ignore[arg-type]
    assert seen(alone, ((1, G), (0, G)), (), (), busy=70)[0].utilization is None  # type: ignore[arg-type]
    assert seen(crowded, ((1, G),), (), (), busy=70)[0].utilization is None  # type: ignore[arg-type]


def test_what_a_server_of_mps_does_is_its_clients_work() -> None:
    server = Occupant(9, 2**20, Identity("nvidia-cuda-mps", "root"), None, utilization=70)
    client = Occupant(1, G, None, "1", utilization=0)
    there = Look(_DEVICE, Reading(0, utilization=72), Verdict("ours", ""), (server, client))
    assert seen_on([there], on_gpus((0,)))[0].utilization == 72.0
    assert seen_on([there], on_gpus((0,), (0,)))[0].utilization is None


# -- simulated GPUs that run out -------------------------------------------------------------------------


def resident(job: str, use: str | None, promised: int | None, gpus: tuple[int, ...], at: float = 0.0) -> SimulatedJob:
    work = {"gpu_memory": promised, "simulate_use": use}
    view = JobView(int(job), job, "", "ann", "running", 0.0, 0.0, work, 1, gpus, started=0.0)
    parsed = parse_use(use) if use else None
    return SimulatedJob(view, parsed, parsed.at(at) if parsed else 0)


def test_who_dies_on_simulated_gpus() -> None:
    devices = SimulatedGpus.parse("2x8G").devices
    honest = resident("1", "4G", 4 * G, (0,))
    silent = resident("2", None, 2 * G, (0,))  # it takes what it asked for
    liar = resident("3", "3G", G, (0, 1))
    found = who_dies(devices, [honest, silent, liar])
    assert [(death.view.id, death.gpu, death.wanted) for death in found] == [("3", 0, 3 * G)]
    assert who_dies(devices, [honest, silent, liar._replace(dead=True)]) == []
    assert who_dies(devices, [honest, liar]) == []
    both = [resident("4", "9G", None, (0, 1))]
    assert [(death.view.id, death.gpu) for death in who_dies(devices, both)] == [("4", 0)]  # once, not once per GPU
