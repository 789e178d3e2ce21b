"""What GPUs and jobs did, recorded by a daemon, and told again; also after it was killed, or its disk was full."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tests.fake_nvml import FakeNvml
from tests.sse import get
from tests.yard import Yard, until

from gpuyard.client.transport import Refused

GIB = 2**30


def ran(yard: Yard, *arguments: str, use: str = "2G;util=60") -> Any:
    return yard.wait(yard.submit("--simulate-use", use, *arguments))


def known(values: Mapping[str, Any]) -> list[float]:
    return [value for value in values["mean"] if value is not None]


def test_a_job_is_recorded_by_itself(yard: Yard) -> None:
    job = ran(yard, "--gpu-memory", "4G", "--name", "train", "--from", "1", "--", "sleep", "1.5")
    found = yard.client.recording(job["id"])
    assert (found["level"], found["period"], found["simulated"], found["warnings"]) == ("samples", 1.0, True, [])
    [gpu] = found["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["memory_total"]) == (1, "SIMULATED-1", 16 * GIB)
    assert found["start"] <= gpu["at"][0] <= gpu["at"][-1] <= found["end"]
    metrics = gpu["metrics"]
    assert set(known(metrics["power"])) == {190.0}  # by the model, of a GPU that is 60 % busy
    assert set(known(metrics["memory_free"])) == {14.0 * GIB}
    assert set(known(metrics["utilization"])) == {60.0}
    assert all(metrics[name]["mean"] for name in ("memcopy", "temperature", "sm_clock", "memory_clock", "throttle"))
    [own] = found["jobs"]
    assert (own["id"], own["attempt"], own["gpu"]) == (job["id"], 1, 1)
    assert set(known(own["metrics"]["process_memory"])) == {2.0 * GIB}
    assert set(known(own["metrics"]["process_utilization"])) == {60.0}
    [mark] = found["marks"]
    assert (mark["gpu"], mark["job"]) == (1, job["id"])
    assert mark["at"] == pytest.approx(found["start"], abs=0.01)
    assert mark["until"] == pytest.approx(found["end"], abs=0.01)
    assert mark["label"] == f"job {job['id']} (train)"
    seconds = job["measured"]["seconds"]
    assert job["energy_wh"] == found["energy_wh"] == pytest.approx(190.0 * seconds / 3600, rel=0.01)
    assert job["gpu_hours"] == pytest.approx(seconds / 4 / 3600, abs=2e-6)  # a quarter of a GPU
    assert f" {job['energy_wh']:.3g} Wh\n" in yard("show", job["id"]).out
    users = {user["user"]: user for user in yard.client.stats()["users"]}
    assert users[job["user"]]["energy_wh"] >= job["energy_wh"] * 0.99


def test_a_short_job_on_a_whole_gpu_is_seen(yard: Yard) -> None:
    for _ in range(2):  # whatever the time since the last look
        job = yard.wait(yard.submit("--", "sleep", "0.6"))
        found = yard.client.recording(job["id"], metrics=["power"])
        assert found["start"] <= found["gpus"][0]["at"][0] <= found["end"]
        assert (job["energy_wh"] or 0.0) > 0


def test_what_a_gpu_does_changes_when_a_job_comes_and_when_it_goes(own_yard: Yard) -> None:
    own_yard.serve("--simulate-gpus", "1x16G")
    since = time.time()

    def seen(after: float) -> list[tuple[float, float | None]]:
        gpus = own_yard.client.recording(since=since, metrics=["power"])["gpus"]
        found = list(zip(gpus[0]["at"], gpus[0]["metrics"]["power"]["mean"], strict=True)) if gpus else []
        return found if found and found[-1][0] > after else []

    until(lambda: seen(since), "a first look")
    for number in (1, 2):  # whatever the time since the last look
        time.sleep(0.7)
        job = ran(own_yard, "--", "sleep", "1.7")  # a look at its start, and one a second later
        began, ended = (datetime.fromisoformat(job[name]).timestamp() for name in ("started_at", "ended_at"))
        values = until(partial(seen, ended), "a look after the end")
        busy = [(at, power) for at, power in values if began + 0.001 < at <= ended]  # texts leave out parts of a ms
        assert {power for _, power in busy} == {190.0}  # from its start to its end
        assert len(busy) >= 2
        changes = [power for power, _ in groupby(power for _, power in values)]
        assert changes == [25.0, *(190.0, 25.0) * number]


def test_energy_of_a_shared_gpu_is_split_by_who_keeps_it_busy(own_yard: Yard) -> None:
    own_yard.serve("--simulate-gpus", "1x16G")
    jobs = [own_yard.submit("--simulate-use", f"1G;util={busy}", "--gpu-memory", "2G", "--", "sleep", "60")
            for busy in (60, 20)]  # fmt: skip
    for job in jobs:
        own_yard.client.job(job, wait=30, until="start")

    def energies() -> list[float]:
        found = [own_yard.client.job(job)["measured"] for job in jobs]
        return [one["energy_wh"] or 0.0 for one in found if one]

    until(lambda: len(energies()) == 2 and min(energies()) > 0.03, "some energy")
    first, second = energies()
    assert first / second == pytest.approx(3.0, rel=0.25)  # they did not begin at the same instant
    own_yard.client.cancel(jobs[0], grace=0)
    own_yard.client.cancel(jobs[1], grace=0)
    total = sum(own_yard.wait(job)["energy_wh"] or 0.0 for job in jobs)
    found = own_yard.client.recording(since="5m", metrics=["power", "process_utilization"])
    assert {one["id"] for one in found["jobs"]} == {*jobs}
    assert found["gpu_hours"] > 0
    assert found["energy_wh"] is not None
    assert total <= found["energy_wh"] * 1.5 + 0.05


def test_a_span_of_all_gpus_or_some(yard: Yard) -> None:
    ran(yard, "--", "sleep", "0.5")
    found = yard.client.recording(since="10m", points=50)
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1, 2, 3]
    assert all(len(gpu["at"]) <= 50 for gpu in found["gpus"])
    assert "process_memory" not in found["gpus"][0]["metrics"]
    assert found["jobs"] == []
    some = yard.client.recording(since=time.time() - 600, gpus=[2], metrics=["power", "temperature"])
    [gpu] = some["gpus"]
    assert (gpu["index"], list(gpu["metrics"])) == (2, ["power", "temperature"])
    assert all(mark["gpu"] == 2 for mark in some["marks"])
    assert some["energy_wh"] is not None


def test_what_cannot_be_asked_for(yard: Yard) -> None:
    job = ran(yard, "--", "true")["id"]
    wishes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"metrics": ["utilisation"]}, "there is no metric 'utilisation'; did you mean 'utilization'"),
        ({"gpus": [9]}, "there is no GPU 9"),
        ({"since": 2e9, "until": 1e9}, "empty"),
    )
    for wish, complaint in wishes:
        with pytest.raises(Refused) as refused:
            yard.client.recording(**wish)
        assert complaint in str(refused.value)
    with pytest.raises(Refused, match="no attempt 7"):
        yard.client.recording(job, attempt=7)
    with pytest.raises(Refused, match="no job 99999"):
        yard.client.recording("99999")
    waits = yard.submit("--hold", "true")
    assert yard.client.recording(waits)["warnings"] == [f"job {waits} has not run yet"]


def test_attempts_are_told_apart_and_count_together(yard: Yard) -> None:
    done = ran(
        yard, "--retries", "1", "--retry-delay", "0", "--", "sh", "-c", "sleep 0.6; exit $((GPUYARD_ATTEMPT == 1))"
    )
    assert (done["state"], done["attempt"]) == ("succeeded", 2)
    both = yard.client.recording(done["id"])
    one, two = (yard.client.recording(done["id"], attempt=n) for n in (1, 2))
    assert [mark["label"].endswith("attempt 2") for mark in both["marks"]] == [False, True]
    assert one["end"] <= two["start"]
    energies = [part["energy_wh"] for part in (one, two)]
    assert both["energy_wh"] == done["energy_wh"] == pytest.approx(math.fsum(e or 0.0 for e in energies), abs=2e-6)
    assert both["gpu_hours"] == pytest.approx(done["gpu_hours"], abs=2e-6)
    assert {own["attempt"] for own in both["jobs"]} == {1, 2}


def test_a_kill_loses_seconds_and_makes_a_gap_only_if_it_lasts(own_yard: Yard) -> None:
    own_yard.serve()
    job = own_yard.submit("--simulate-use", "2G;util=60", "--", "sleep", "60")
    own_yard.client.job(job, wait=30, until="start")

    def seen() -> list[float]:
        found = own_yard.client.recording(job)["gpus"]
        return found[0]["at"] if found else []

    until(lambda: len(seen()) >= 2, "two samples")
    before = seen()
    own_yard.end(signal.SIGKILL)
    own_yard.serve()
    until(lambda: len(seen()) > len(before), "a sample of the new life")
    assert seen()[: len(before)] == before
    assert None not in own_yard.client.recording(job)["gpus"][0]["metrics"]["power"]["mean"]
    own_yard.client.cancel(job, grace=0)
    done = own_yard.wait(job)
    assert done["measured"] is not None
    assert done["energy_wh"] == pytest.approx(190.0 * done["measured"]["seconds"] / 3600, rel=0.02)


def test_what_cannot_be_written_is_told_once_and_jobs_go_on(own_yard: Yard) -> None:
    (own_yard.data_dir / "recordings.db").mkdir()  # no file can be there
    own_yard.serve()
    assert ran(own_yard, "--", "true")["state"] == "succeeded"
    [warning] = own_yard.client.recording(since="1m")["warnings"]
    assert warning.startswith("nothing is recorded now: ")
    own_yard.client.recording(since="1m")
    assert (own_yard.data_dir / "daemon.log").read_text().count("is not recorded") == 1


def test_a_damaged_file_is_set_aside_and_recording_goes_on(own_yard: Yard) -> None:
    path = own_yard.data_dir / "recordings.db"
    path.write_bytes(b"nonsense " * 1000)
    own_yard.serve()
    job = ran(own_yard, "--", "sleep", "0.5")
    assert own_yard.client.recording(job["id"])["gpus"]
    assert path.with_name("recordings.db.damaged").exists()
    assert "recording begins anew" in (own_yard.data_dir / "daemon.log").read_text()


def test_nothing_is_recorded_if_nobody_wants_it(own_yard: Yard) -> None:
    own_yard.environment["GPUYARD_RECORD"] = "off"
    own_yard.serve()
    job = ran(own_yard, "--", "true")
    found = own_yard.client.recording(job["id"])
    assert (found["gpus"], found["warnings"]) == ([], ["nothing is recorded (setting record)"])
    assert not (own_yard.data_dir / "recordings.db").exists()


def test_dcgm_exporter_is_told_which_jobs_are_on_which_gpu(own_yard: Yard, tmp_path: Path) -> None:
    folder = tmp_path / "mapping"
    folder.mkdir()
    (folder / "2").write_text("old\n")
    own_yard.environment["GPUYARD_DCGM_JOB_MAPPING"] = str(folder)

    def files() -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}

    nothing = {str(n): "" for n in range(4)}
    own_yard.serve()
    until(lambda: files() == nothing, "files without jobs")
    whole = own_yard.submit("--gpus", "2", "--from", "0,1", "sleep", "60")
    shares = [own_yard.submit("--gpu-memory", "2G", "--from", "3", "sleep", "60") for _ in range(2)]
    wanted = nothing | {"0": f"{whole}\n", "1": f"{whole}\n", "3": "".join(f"{job}\n" for job in shares)}
    until(lambda: files() == wanted, "files with jobs")
    assert (folder / "0").stat().st_mode & 0o777 == 0o644  # somebody else reads them
    own_yard.end(signal.SIGKILL)
    (folder / "0").unlink()
    own_yard.serve()
    until(lambda: files() == wanted, "files of the next life")
    own_yard.clear()
    until(lambda: files() == nothing, "files without jobs again")


def test_a_folder_for_dcgm_that_cannot_be_written_is_told_once(own_yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    own_yard.environment["GPUYARD_DCGM_JOB_MAPPING"] = str(tmp_path / "file")
    own_yard.serve()
    for _ in range(2):
        ran(own_yard, "--", "true")
    log = (own_yard.data_dir / "daemon.log").read_text()
    assert log.count("dcgm_job_mapping") == 1
    assert "cannot be written" in log


def test_real_gpus_are_recorded_with_all_that_their_driver_tells(own_yard: Yard, fake_nvml: FakeNvml) -> None:
    fake_nvml.add(uuid="GPU-a", mem_total=80 * GIB, mem_used=3 * GIB, util=70, mem_util=30, power_mw=250000, temp=61,
                  clock=1380, mem_clock=1512, throttle=4)  # fmt: skip
    fake_nvml.add(uuid="GPU-b", mem_total=80 * GIB, fail="nvmlDeviceGetPowerUsage:3")
    own_yard.use(fake_nvml)
    own_yard.serve()

    def gpus() -> list[Any]:
        return list(own_yard.client.recording(since="5m")["gpus"])

    until(lambda: len(gpus()) == 2 and len(gpus()[0]["at"]) >= 2, "two samples of two GPUs")
    first, second = gpus()
    latest = {name: values["mean"][-1] for name, values in first["metrics"].items()}
    assert latest == {
        "utilization": 70, "memory_used": 3 * GIB, "memory_free": 77 * GIB, "memcopy": 30, "power": 250,
        "temperature": 61, "sm_clock": 1380, "memory_clock": 1512, "throttle": 4, "xid": 0,
    }  # fmt: skip
    assert "power" not in second["metrics"]
    fake_nvml.set(0, xid=79)
    mark = until(
        lambda: [m for m in own_yard.client.recording(since="5m")["marks"] if m["label"] == "XID 79"], "a mark"
    )
    assert mark[0]["gpu"] == 0
    metrics = get(own_yard, "/metrics")[2].decode()
    for line in (
        'gpuyard_gpu_memory_copy_ratio{gpu="0",name="NVIDIA A100-SXM4-80GB",uuid="GPU-a"} 0.3',
        'gpuyard_gpu_sm_clock_hertz{gpu="0",name="NVIDIA A100-SXM4-80GB",uuid="GPU-a"} 1.38e+09',
        'gpuyard_gpu_memory_clock_hertz{gpu="0",name="NVIDIA A100-SXM4-80GB",uuid="GPU-a"} 1.512e+09',
        'gpuyard_gpu_throttle_reasons{gpu="0",name="NVIDIA A100-SXM4-80GB",uuid="GPU-a"} 4.0',
        'gpuyard_gpu_xid_errors_total{gpu="0",name="NVIDIA A100-SXM4-80GB",uuid="GPU-a",xid="79"} 1.0',
    ):
        assert line in metrics
