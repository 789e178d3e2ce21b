"""Whose a GPU is: one reading, one verdict."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gpuyard.gpus.base import Device, Process, Reading
from gpuyard.gpus.ownership import FreeRule, Sampler, Verdict, describe_process, judge
from gpuyard.gpus.simulated import SimulatedGpus

G, M = 2**30, 2**20
A100 = Device(0, "GPU-0", "NVIDIA A100-SXM4-80GB", 80 * G)
OURS = {100: ("7", 1)}


def verdict(
    *processes: Process,
    used: int = 0,
    busy: int | None = 0,
    placed: bool = False,
    since_left: float | None = None,
    rule: FreeRule | None = None,
    device: Device = A100,
) -> Verdict:
    reading = Reading(0, memory_used=used, utilization=busy, processes=processes)
    return judge(device, reading, OURS.get, placed=placed, since_left=since_left, rule=rule)


def test_an_idle_gpu_is_free() -> None:
    assert verdict().state == "free"
    assert verdict(busy=10, used=80 * M).state == "free"


@pytest.mark.parametrize("placed", [False, True])
def test_nothing_is_known_of_a_lost_gpu(placed: bool) -> None:
    lost = Reading(0, lost=True, problem="GPU is lost")
    assert judge(A100, lost, OURS.get, placed=placed) == Verdict("unknown", "GPU is lost")
    silent = Reading(0, lost=True, problem="Unknown Error")
    assert judge(A100, silent, OURS.get, placed=placed) == Verdict("unknown", "GPU is lost: Unknown Error")


def test_a_gpu_without_a_uuid_is_never_used() -> None:
    assert verdict(device=Device(0, "", "?", 0)).state == "unknown"


def test_a_process_of_others_makes_a_gpu_foreign() -> None:
    found = verdict(Process(6512, 30 * G), used=30 * G)
    assert found == Verdict("foreign", "process 6512 uses 30G")
    assert verdict(Process(6512, 0)) == Verdict("foreign", "process 6512 is on it")


def test_the_largest_of_several_is_named() -> None:
    found = verdict(Process(1, G), Process(2, 3 * G), Process(3, 0))
    assert found == Verdict("foreign", "process 2 uses 3G; 2 more")


@pytest.mark.parametrize("since_left", [None, 1.0])
@pytest.mark.parametrize("placed", [False, True])
def test_an_intruder_beside_our_job_makes_it_foreign(placed: bool, since_left: float | None) -> None:
    assert verdict(Process(100, G), Process(6512, G), placed=placed, since_left=since_left).state == "foreign"


def test_our_processes_make_it_ours() -> None:
    assert verdict(Process(100, 30 * G), used=31 * G, busy=99, placed=True).state == "ours"


def test_a_job_that_has_not_touched_its_gpu_yet_owns_it() -> None:
    assert verdict(placed=True).state == "ours"
    assert verdict(placed=True, used=G, busy=50).state == "ours"


def test_a_process_that_outlives_its_attempt_is_ours_and_not_free() -> None:
    found = verdict(Process(100, G), used=G, since_left=60)
    assert found.state == "ours"
    assert "process 100" in found.why


def test_use_by_nobody_to_be_seen_is_foreign() -> None:
    assert verdict(used=30 * G, busy=97) == Verdict(
        "foreign", "in use: 97 % busy, 30G taken, by a process that cannot be seen"
    )
    assert verdict(busy=11).state == "foreign"
    assert verdict(used=82 * M).state == "foreign"


def test_small_gpus_may_have_50_mib_taken() -> None:
    small = Device(0, "GPU-0", "NVIDIA T400", 4 * G)
    assert verdict(used=49 * M, device=small).state == "free"
    assert verdict(used=50 * M, device=small).state == "foreign"


def test_memory_decides_where_utilization_is_not_told() -> None:
    assert verdict(busy=None).state == "free"
    assert verdict(busy=None, used=G).state == "foreign"


def test_what_our_job_leaves_behind_fades_within_seconds() -> None:
    assert verdict(used=30 * G, busy=97, since_left=4.9).state == "free"
    assert verdict(used=30 * G, busy=97, since_left=5.0).state == "foreign"
    assert verdict(used=30 * G, busy=97, since_left=9.0, rule=FreeRule(settle=10)).state == "free"


def test_a_desktop_does_not_take_a_gpu_away() -> None:
    desktop = (Process(900, 35 * M, graphics=True), Process(901, 90 * M, graphics=True))
    assert verdict(*desktop, used=300 * M, busy=4).state == "free"
    assert verdict(*desktop, used=300 * M, busy=60).state == "foreign"
    assert verdict(*desktop, used=10 * G, busy=4).state == "foreign"
    assert verdict(*desktop, used=300 * M, busy=4, rule=FreeRule(graphics_share=0)).state == "foreign"


def test_many_small_desktops_are_no_small_desktop() -> None:
    sessions = [Process(pid, G, graphics=True) for pid in range(900, 904)]
    assert verdict(*sessions[:3], used=3 * G).state == "free"
    assert verdict(*sessions, used=4 * G).state == "foreign"


def test_the_rule_can_be_changed() -> None:
    strict = FreeRule(utilization=0, memory_share=0, memory=1)
    assert verdict(rule=strict).state == "free"
    assert verdict(busy=1, rule=strict).state == "foreign"
    assert verdict(used=1, rule=strict).state == "foreign"


def test_a_process_is_described_by_name_and_user() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    described = describe_process(child.pid)
    child.communicate(b"\n")
    assert re.fullmatch(rf"process {child.pid} \(.+, user .+\)", described)
    assert describe_process(child.pid) == f"process {child.pid}"


def test_the_sampler_reads_again_when_its_readings_are_old() -> None:
    now = [10.0]
    gpus = SimulatedGpus([G])
    sampler = Sampler(gpus, clock=lambda: now[0])
    first = sampler.fresh(2)
    now[0] = 11.9
    assert sampler.fresh(2) is first
    now[0] = 12.0
    second = sampler.fresh(2)
    assert second is not first
    assert sampler.at == 12.0
    assert sampler.fresh() is not second
    assert sampler.verdict(0, OURS.get, placed=False).state == "free"


def test_the_sampler_knows_how_long_reading_took() -> None:
    now = [0.0]

    class Slow(SimulatedGpus):
        def read(self) -> list[Reading]:
            now[0] += 0.5
            return super().read()

    sampler = Sampler(Slow([G]), clock=lambda: now[0])
    sampler.fresh()
    assert (sampler.at, sampler.read_seconds) == (0.0, 0.5)
