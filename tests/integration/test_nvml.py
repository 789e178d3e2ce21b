"""NVIDIA GPUs through NVML, with a made-up driver whose state changes under the reader."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml

from gpuyard.gpus.driver import text

G = 2**30
SIMULATE = "or try gpuyard without GPUs: --simulate-gpus 4x16G"


def a100(fake: FakeNvml, number: int, **keys: Any) -> int:
    return fake.add(name="NVIDIA A100-SXM4-80GB", uuid=f"GPU-{number}", mem_total=80 * G, **keys)


REAL = {"simulated": False, "capability": [8, 0]}


def lost(readings: list[dict[str, Any]]) -> list[bool]:
    return [reading["lost"] for reading in readings]


def test_gpus_are_found_and_read(fake_nvml: FakeNvml) -> None:
    extras = {"mem_util": 41, "clock": 1275, "mem_clock": 1512, "throttle": 4}
    a100(fake_nvml, 0, mem_used=30 * G, util=97, temp=71, power_mw=385500, procs={6512: 29 * G}, **extras)
    a100(fake_nvml, 1)
    with fake_nvml.watch() as watch:
        busy, idle = watch.read()
    assert watch.devices == [
        {"index": i, "uuid": f"GPU-{i}", "name": "NVIDIA A100-SXM4-80GB", "memory": 80 * G, **REAL} for i in range(2)
    ]
    assert busy == {
        "index": 0,
        "lost": False,
        "problem": "",
        "memory_used": 30 * G,
        "utilization": 97,
        "temperature": 71,
        "power": 385.5,
        "memcopy": 41,
        "sm_clock": 1275,
        "memory_clock": 1512,
        "throttle": 4,
        "xid": 0,
        "processes": [{"pid": 6512, "memory": 29 * G, "graphics": False, "utilization": 97}],
    }
    assert (idle["index"], idle["memory_used"], idle["utilization"], idle["processes"]) == (1, 0, 0, [])


def test_readings_follow_the_state(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0)
    with fake_nvml.watch() as watch:
        assert watch.read()[0]["processes"] == []
        fake_nvml.set(0, procs={1: G, 2: None}, mem_used=2 * G)
        assert [process["pid"] for process in watch.read()[0]["processes"]] == [1, 2]
        fake_nvml.unset(0, "procs", "mem_used")
        assert (watch.read()[0]["processes"], watch.read()[0]["memory_used"]) == ([], 0)


def test_computing_drawing_and_mps_processes_are_told_apart_and_merged(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, procs={1: G, 2: None}, graphics={1: 2 * G, 3: G}, mps={4: G, 2: 5})
    with fake_nvml.watch() as watch:
        processes = watch.read()[0]["processes"]
    assert processes == [
        {"pid": 1, "memory": 2 * G, "graphics": False, "utilization": 0},
        {"pid": 2, "memory": 5, "graphics": False, "utilization": 0},
        {"pid": 3, "memory": G, "graphics": True, "utilization": 0},
        {"pid": 4, "memory": G, "graphics": False, "utilization": 0},
    ]


def test_how_busy_each_process_keeps_a_gpu(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, procs={1: G, 2: G}, util=60)
    with fake_nvml.watch() as watch:

        def busy() -> list[int | None]:
            return [process["utilization"] for process in watch.read()[0]["processes"]]

        assert busy() == [30, 30]
        fake_nvml.set(0, fail="nvmlDeviceGetProcessUtilization:6")  # nothing found: nobody was busy
        assert busy() == [0, 0]
        fake_nvml.set(0, fail="nvmlDeviceGetProcessUtilization:3")
        assert busy() == [None, None]
        fake_nvml.set(0, fail="nvmlDeviceGetProcessUtilization:999")  # it decides nothing, so the GPU stays
        assert (busy(), lost(watch.read())) == ([None, None], [False])


def test_gpus_stand_in_the_order_of_the_bus(fake_nvml: FakeNvml) -> None:
    for number, bus in enumerate((0x81, 0x21, 0xC1, 0x41)):
        a100(fake_nvml, number, bus=bus)
    fake_nvml.set(2, lost=1)
    with fake_nvml.watch() as watch:
        watch.read()
    assert [device["uuid"] for device in watch.devices] == ["GPU-1", "GPU-3", "", "GPU-0"]


def test_what_the_driver_keeps_for_itself_is_not_in_use(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, mem_used=0, mem_reserved=G)
    with fake_nvml.watch() as watch:
        assert watch.read()[0]["memory_used"] == 0
        fake_nvml.set(0, fail="nvmlDeviceGetMemoryInfo_v2:999")  # as in WSL: then the old function must do
        assert watch.read()[0]["memory_used"] == G


def test_a_lost_gpu_comes_back_under_its_index(fake_nvml: FakeNvml) -> None:
    for number in range(3):
        a100(fake_nvml, number)
    with fake_nvml.watch() as watch:
        fake_nvml.set(1, lost=1)
        readings = watch.read()
        assert lost(readings) == [False, True, False]
        assert readings[1]["problem"] == "GPU is lost"
        watch.read()
        fake_nvml.unset(1, "lost")
        watch.read()
        assert lost(watch.read()) == [False, False, False]
        assert [device["uuid"] for device in watch.devices] == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_gpu_lost_from_the_beginning_has_no_name_until_it_answers(fake_nvml: FakeNvml) -> None:
    for number in range(3):
        a100(fake_nvml, number)
    fake_nvml.set(1, lost=1)
    with fake_nvml.watch() as watch:
        assert lost(watch.read()) == [False, True, False]
        assert (watch.devices[1]["uuid"], watch.devices[1]["memory"]) == ("", 0)
        fake_nvml.unset(1, "lost")
        assert lost(watch.read()) == [False, False, False]
        assert (watch.devices[1]["uuid"], watch.devices[1]["memory"]) == ("GPU-1", 80 * G)


def test_a_gpu_that_comes_back_in_parts_is_not_taken_for_a_whole(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, lost=1)
    a100(fake_nvml, 1)
    with fake_nvml.watch() as watch:
        for _ in range(2):
            readings = watch.read()
            assert (lost(readings), readings[0]["problem"]) == ([True, False], "GPU is lost")
        fake_nvml.set(0, lost=0, mig=1)
        fake_nvml.add(mig_of=0, uuid="MIG-a")
        readings = watch.read()
        assert (lost(readings), readings[0]["problem"]) == ([True, False], "the driver does not find it any more")
        assert watch.devices[0]["uuid"] == ""


def test_the_driver_goes_and_comes_back(fake_nvml: FakeNvml) -> None:
    for number in range(3):
        a100(fake_nvml, number, mem_used=number * G)
    with fake_nvml.watch() as watch:
        fake_nvml.driver(loaded=0)
        for _ in range(2):
            readings = watch.read()
            assert lost(readings) == [True] * 3
            assert "the NVIDIA driver does not answer" in readings[2]["problem"]
        fake_nvml.remove(0)  # one GPU stays away, the others are counted anew
        fake_nvml.driver(loaded=1)
        readings = watch.read()
        assert lost(readings) == [True, False, False]
        assert [reading["memory_used"] for reading in readings] == [0, G, 2 * G]
        assert readings[0]["problem"] == "the driver does not find it any more"
        assert [device["uuid"] for device in watch.devices] == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_driver_that_is_gone_is_not_asked_all_the_time(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0)
    with fake_nvml.watch(retry_driver=3600) as watch:
        fake_nvml.driver(loaded=0)
        assert lost(watch.read()) == [True]
        fake_nvml.driver(loaded=1)
        assert lost(watch.read()) == [True]


def test_a_driver_that_was_updated_under_the_reader_loses_all(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0)
    a100(fake_nvml, 1, fail="nvmlDeviceGetUtilizationRates:18")
    with fake_nvml.watch(retry_driver=3600) as watch:
        assert lost(watch.read()) == [True, True]


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses"],
)
def test_a_gpu_that_fails_where_it_matters_is_lost(fake_nvml: FakeNvml, function: str) -> None:
    a100(fake_nvml, 0)
    a100(fake_nvml, 1)
    with fake_nvml.watch() as watch:
        fake_nvml.set(1, fail=f"{function}:999")
        readings = watch.read()
    assert lost(readings) == [False, True]
    assert readings[1]["problem"] == "Unknown Error"


def test_a_broken_sensor_does_not_make_a_gpu_unusable(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, fail="nvmlDeviceGetPowerUsage:999,nvmlDeviceGetTemperature:999")
    with fake_nvml.watch() as watch:
        (reading,) = watch.read()
    assert (reading["lost"], reading["power"], reading["temperature"]) == (False, None, None)


def test_an_older_driver_calls_throttling_otherwise(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, throttle=0x40, fail="nvmlDeviceGetCurrentClocksEventReasons:13")
    with fake_nvml.watch() as watch:
        assert watch.read()[0]["throttle"] == 0x40


def test_an_error_is_told_once_by_the_gpu_that_had_it(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0)
    a100(fake_nvml, 1, xid=13)  # from before
    with fake_nvml.watch(retry_gpu=0) as watch:
        assert [reading["xid"] for reading in watch.read()] == [0, 0]
        fake_nvml.set(1, xid=31)
        assert [reading["xid"] for reading in watch.read()] == [0, 31]
        assert [reading["xid"] for reading in watch.read()] == [0, 0]
        fake_nvml.set(0, xid=79, lost=1)
        first, second = watch.read()
        assert (first["lost"], first["xid"], second["lost"], second["xid"]) == (True, 79, False, 0)
        fake_nvml.unset(0, "xid", "lost")
        watch.read()
        fake_nvml.set(0, xid=48)  # it is listened to again
        assert watch.read()[0]["xid"] == 48


def test_a_driver_without_events_tells_of_no_errors(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, fail="nvmlDeviceRegisterEvents:3")
    with fake_nvml.watch() as watch:
        fake_nvml.set(0, xid=31)
        assert watch.read()[0]["xid"] == 0


@pytest.mark.parametrize("code", [3, 4, 13], ids=["not supported", "not permitted", "not there"])
def test_what_a_driver_does_not_support_is_not_told(fake_nvml: FakeNvml, code: int) -> None:
    names = "MemoryInfo UtilizationRates Temperature PowerUsage MigMode Name ComputeRunningProcesses"
    names += " GraphicsRunningProcesses MPSComputeRunningProcesses CudaComputeCapability ClockInfo"
    names += " CurrentClocksEventReasons CurrentClocksThrottleReasons"
    failures = ",".join(f"nvmlDeviceGet{name}:{code}" for name in names.split())
    a100(fake_nvml, 0, mem_used=G, procs={1: G}, fail=failures)
    with fake_nvml.watch() as watch:
        (reading,) = watch.read()
    told = {"lost": False, "problem": "", "memory_used": 0, "processes": []}
    unknown = dict.fromkeys(
        ("utilization", "temperature", "power", "memcopy", "sm_clock", "memory_clock", "throttle"), None
    )
    assert reading == {"index": 0, **unknown, "xid": 0, **told}
    nothing = {"name": "NVIDIA GPU", "memory": 0, "simulated": False, "capability": None}
    assert watch.devices[0] == {"index": 0, "uuid": "GPU-0", **nothing}


@pytest.mark.parametrize("driver", ["535.54.03", "535.104.05", "470.57.02"])
def test_processes_are_read_right_whatever_the_driver(fake_nvml: FakeNvml, driver: str) -> None:
    missing = "nvmlDeviceGetComputeRunningProcesses_v3:13" if driver.startswith("470") else ""
    a100(fake_nvml, 0, procs={11: G, 12: 2 * G, 13: 3 * G}, fail=missing)
    fake_nvml.driver(driver=driver)
    with fake_nvml.watch() as watch:
        processes = watch.read()[0]["processes"]
    assert [(process["pid"], process["memory"]) for process in processes] == [(11, G), (12, 2 * G), (13, 3 * G)]


def test_mig_devices_stand_in_place_of_their_gpu(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0)
    a100(fake_nvml, 1, mig=1, temp=66, fail="nvmlDeviceGetComputeRunningProcesses:4")
    a100(fake_nvml, 2, mig=1)
    small = {"mem_total": int(9.5 * G)}
    fake_nvml.add(mig_of=1, uuid="MIG-a", name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", gi=7, procs={41: G}, **small)
    fake_nvml.add(mig_of=1, uuid="MIG-b", gi=8, slot=4, mem_used=G, **small)
    fake_nvml.add(mig_of=1, uuid="MIG-c", gi=9, slot=5, gpu_slices=3, compute_slices=1, mem_total=40 * G)
    with fake_nvml.watch() as watch:
        whole, first, second, third = watch.read()
    assert [device["uuid"] for device in watch.devices] == ["GPU-0", "MIG-a", "MIG-b", "MIG-c"]
    names = [device["name"].removeprefix("NVIDIA A100-SXM4-80GB") for device in watch.devices]
    assert names == ["", " MIG 1g.10gb", " MIG 1g.10gb", " MIG 1c.3g.40gb"]
    assert [device["memory"] for device in watch.devices] == [80 * G, int(9.5 * G), int(9.5 * G), 40 * G]
    assert [process["pid"] for process in first["processes"]] == [41]
    assert (second["processes"], second["memory_used"]) == ([], G)
    assert (whole["utilization"], second["utilization"], second["power"], third["temperature"]) == (0, None, None, 66)
    assert (whole["memcopy"], second["memcopy"], second["sm_clock"], second["throttle"]) == (0, None, 1410, 0)


def test_a_mig_device_that_is_taken_apart_is_lost_and_no_other_takes_its_place(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, mig=1)
    for name in "ab":
        fake_nvml.add(mig_of=0, uuid=f"MIG-{name}")
    with fake_nvml.watch(retry_gpu=3600) as watch:
        fake_nvml.set(1, uuid="MIG-new")  # the handle is given to another device, as NVML may do
        readings = watch.read()
        assert lost(readings) == [True, False]
        assert "taken apart" in readings[0]["problem"]
    fake_nvml.set(1, uuid="MIG-a")
    with fake_nvml.watch() as watch:
        fake_nvml.set(0, lost=1)
        assert lost(watch.read()) == [True, True]
        fake_nvml.unset(0, "lost")
        assert lost(watch.read()) == [False, False]


def test_a_gpu_that_is_cut_into_mig_devices_later_is_not_used_whole(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0)
    with fake_nvml.watch(retry_gpu=3600) as watch:
        fake_nvml.set(0, mig=1)
        assert "restart gpuyard" in watch.read()[0]["problem"]
        fake_nvml.set(0, mig=0)
        assert lost(watch.read()) == [False]


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ({"loaded": 0}, "the NVIDIA driver is not loaded; see what nvidia-smi says"),
        ({"fail": "nvmlInit:18"}, "the NVIDIA driver was updated but the old one still runs; reboot"),
        ({"fail": "nvmlInit:4"}, "the NVIDIA driver refuses access; see who may use /dev/nvidia*"),
        ({"fail": "nvmlInit:999"}, "NVML fails (Unknown Error); see what nvidia-smi says"),
        ({"fail": "nvmlDeviceGetCount:999"}, "NVML fails (Unknown Error); see what nvidia-smi says"),
        ({}, "the NVIDIA driver finds no GPU"),
    ],
)
def test_without_gpus_it_says_what_to_do(fake_nvml: FakeNvml, driver: dict[str, Any], said: str) -> None:
    fake_nvml.driver(**driver)
    with fake_nvml.watch() as watch:
        assert watch.problem is not None
        assert watch.problem.startswith(said)
        assert watch.problem.endswith(SIMULATE)


def test_gpus_in_mig_mode_without_devices_are_no_gpus(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, mig=1)
    with fake_nvml.watch() as watch:
        assert watch.problem is not None
        assert "nvidia-smi -L" in watch.problem


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has an NVIDIA driver")
def test_without_a_driver_it_says_what_to_do() -> None:
    code = "from gpuyard.gpus import open_gpus; open_gpus()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "no NVIDIA driver is installed (libnvidia-ml.so.1 is missing); install it" in done.stderr
    assert done.stderr.strip().endswith(SIMULATE)


def test_text_may_come_as_bytes() -> None:
    assert (text(b"GPU-0"), text("GPU-0")) == ("GPU-0", "GPU-0")


def run_tool(module: str, *arguments: str, env: dict[str, str]) -> str:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; pip install {module}")
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gpustat_sees_the_same_gpus(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, mem_used=30 * G, util=97, procs={os.getpid(): 29 * G})
    a100(fake_nvml, 1)
    busy, idle = json.loads(run_tool("gpustat", "--json", env=fake_nvml.env))["gpus"]
    assert (busy["uuid"], busy["memory.used"], busy["utilization.gpu"]) == ("GPU-0", 30 * 1024, 97)
    assert [process["pid"] for process in busy["processes"]] == [os.getpid()]
    assert (idle["uuid"], idle["processes"]) == ("GPU-1", [])


def test_nvitop_sees_the_same_gpus(fake_nvml: FakeNvml) -> None:
    a100(fake_nvml, 0, mem_used=30 * G, util=97, procs={os.getpid(): 29 * G})
    shown = run_tool("nvitop", "--once", "--no-unicode", env=fake_nvml.env)
    assert "A100-SXM4-80GB" in shown
    assert "30.00GiB / 80.00GiB" in shown
    assert str(os.getpid()) in shown
