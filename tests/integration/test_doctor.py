"""The doctor without a daemon: what is wrong with a machine, told without a traceback, with what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from tests.fake_mps import FakeMps
from tests.fake_nvml import FakeNvml
from tests.yard import Yard, finish

from gpuyard.admin import checks, doctor
from gpuyard.admin.checks import Finding, Installation
from gpuyard.admin.service import Place, make_unit
from gpuyard.config import Settings
from gpuyard.daemon.store.log import Store
from gpuyard.engines.local import output


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    (tmp_path / "data").mkdir(mode=0o700)
    found = Yard(tmp_path / "data", tmp_path)
    found.environment |= {"GPUYARD_SIMULATE_GPUS": "2", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return found


def findings(yard: Yard, **more: str) -> dict[str, tuple[str, str]]:
    done = yard("doctor", "--json", more=more)
    assert "Traceback" not in done.err
    found = [Finding(**one) for one in json.loads(done.out)]
    assert done.code == any(one.state == "bad" for one in found), done
    assert all(one.mend for one in found if one.state != "ok"), "a complaint without advice"
    return {one.check: (one.state, f"{one.found} -> {one.mend}") for one in found}


def test_a_machine_without_a_daemon(yard: Yard) -> None:
    told = yard("doctor")
    assert told.code == 0
    assert re.search(r"^warn  daemon +none runs here\n +-> gpuyard up starts one", told.out, re.MULTILINE)
    assert re.search(r"^ok    GPUs +simulated", told.out, re.MULTILINE)
    assert re.search("[123] warnings?", told.err)
    yard.data_dir.rmdir()
    found = findings(yard)
    assert "is not there yet; the first daemon makes it" in found["data directory"][1]
    assert not yard.data_dir.exists()


def test_a_program_in_a_closed_place() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own are closed themselves
        Path(folder).chmod(0o755)
        program = Path(folder).resolve() / "home" / "bin" / "python"
        program.parent.mkdir(parents=True, mode=0o755)
        program.touch(0o755)
        (program.parents[1]).chmod(0o755)
        assert checks.closed_to_others(program) is None
        (program.parents[1]).chmod(0o700)
        assert checks.closed_to_others(program) == program.parents[1]


def test_settings_that_make_no_sense(yard: Yard, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('polcy = "sjf"')
    found = findings(yard, GPUYARD_CONFIG=str(file))
    assert found["settings"][0] == "bad"
    assert "there is no setting 'polcy'; did you mean 'policy'?" in found["settings"][1]
    assert str(yard.data_dir) in found["data directory"][1]
    assert findings(yard, GPUYARD_GRACE="soon")["settings"][0] == "bad"
    unknown = findings(yard, GPUYARD_POLCY="sjf")["settings"]
    assert unknown[0] == "warn"
    assert "GPUYARD_POLCY: there is no setting 'polcy'" in unknown[1]
    assert findings(yard, GPUYARD_POLICY="sfj")["policy"][0] == "bad"
    assert findings(yard, CUDA_VISIBLE_DEVICES="0")["environment"][0] == "warn"


def test_a_damaged_store(yard: Yard) -> None:
    database = yard.data_dir / "gpuyard.db"
    Store(database).close()
    assert findings(yard)["store"][0] == "ok"
    database.write_bytes(b"\xff" * 9000)
    found = findings(yard)
    assert found["store"][0] == "bad"
    assert "gpuyard restore FILE puts a backup in its place" in found["store"][1]
    assert "clock" not in found


def test_a_data_directory_that_others_may_write_to(yard: Yard) -> None:
    yard.data_dir.chmod(0o777)
    found = findings(yard)["data directory"]
    assert found[0] == "bad"
    assert f"chmod 700 {yard.data_dir}" in found[1]
    yard.data_dir.chmod(0o700)
    assert findings(yard)["data directory"][0] == "ok"
    yard.data_dir.rmdir()
    yard.data_dir.write_text("")
    assert findings(yard)["data directory"][0] == "bad"


def test_sockets(yard: Yard, tmp_path: Path) -> None:
    left = yard.data_dir / "gpuyard.sock"
    with socket.socket(socket.AF_UNIX) as former:
        former.bind(str(left))
    assert "left over from a daemon that is gone" in findings(yard)["socket"][1]
    left.unlink()
    left.write_text("")
    assert "is not a socket" in findings(yard)["socket"][1]
    long = tmp_path / ("x" * 90) / ("y" * 90)
    assert "is too long" in findings(yard, GPUYARD_SOCKET=str(long))["socket"][1]
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "anybody can replace" in findings(yard, GPUYARD_SOCKET=str(tmp_path / "open" / "s"))["socket"][1]


def test_units_that_end_jobs_with_the_daemon_or_cannot_start(yard: Yard, tmp_path: Path) -> None:
    if Place(system=True).unit.exists():
        pytest.skip("gpuyard is a service of this machine; gpuyard service uninstall --system would change that")
    unit = tmp_path / "config/systemd/user/gpuyard.service"
    unit.parent.mkdir(parents=True)
    text = make_unit(False, {})
    unit.write_text(text)
    assert findings(yard)["service"][0] in ("ok", "warn")  # it depends on whether this user lingers
    unit.write_text(text.replace("KillMode=process\n", ""))
    found = findings(yard)["service"]
    assert found[0] == "bad"
    assert "KillMode=control-group: jobs die with the daemon" in found[1]
    unit.write_text(text.replace(sys.executable, "/gone/python"))
    assert "starts /gone/python, which is not there" in findings(yard)["service"][1]


def test_real_gpus(yard: Yard, fake_nvml: FakeNvml) -> None:
    fake_nvml.add(name="NVIDIA A100", uuid="GPU-0", mem_total=80 * 2**30)
    fake_nvml.add(name="NVIDIA A100", uuid="GPU-1", mem_total=80 * 2**30, lost=1)
    more = {**fake_nvml.env, "GPUYARD_SIMULATE_GPUS": ""}
    done = finish(yard.popen("doctor", more=more))
    assert re.search(r"^ok    GPUs +driver 550.54.15; 0: NVIDIA A100 80G", done.out, re.MULTILINE), done
    assert re.search(r"^warn  GPUs +GPU 1 does not answer: .*\n +-> nothing is started on it", done.out, re.MULTILINE)
    fake_nvml.driver(loaded=0)
    done = finish(yard.popen("doctor", more=more))
    assert done.code == 1
    assert re.search(
        r"^bad   GPUs +the NVIDIA driver is not loaded\n +-> see what nvidia-smi says", done.out, re.MULTILINE
    )


def test_cgroups(yard: Yard) -> None:
    assert findings(yard, GPUYARD_CGROUPS="false")["cgroups"][0] == "ok"
    state, told = findings(yard, GPUYARD_CGROUPS="true")["cgroups"]
    assert (state, "each job gets one of its own" in told) in (("ok", True), ("bad", False))
    assert findings(yard, GPUYARD_CGROUPS="auto")["cgroups"][0] == "ok"


def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = Installation(Settings(tmp_path, tmp_path / "s"))
    assert checks.file_system_of(Path("/proc/self")) == "proc"
    for kind, state in (("nfs4", "bad"), ("fuse.sshfs", "bad"), ("tmpfs", "warn"), ("xfs", "ok")):
        monkeypatch.setattr(checks, "file_system_of", lambda path, kind=kind: kind)
        found = checks.file_system(patient)
        assert found is not None
        assert found.state == state or not output.supports_holes(tmp_path)
    monkeypatch.setattr(output, "supports_holes", lambda path: False)
    found = checks.file_system(patient)
    assert found is not None
    assert (found.state, "output_limit does not hold" in found.found) == ("warn", True)

    def full(path: Path) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output, "supports_holes", full)
    found = checks.file_system(patient)
    assert found is not None
    assert (found.state, "No space left" in found.found) == ("warn", True)


@pytest.mark.parametrize(
    ("free", "inodes", "states"), [(0, 5, "bad bad"), (2**16, 500, "warn warn"), (2**20, 2**20, "ok ok")]
)
def test_disks_that_fill_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, inodes: int, states: str
) -> None:
    full = os.statvfs_result((4096, 4096, 2**21, free, free, 2**20, inodes, inodes, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert [one.state for one in checks.disk(Installation(Settings(tmp_path, tmp_path / "s")))] == states.split()


def test_a_look_that_fails_does_not_keep_others_from_looking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken_look(patient: Installation) -> Finding:
        raise RuntimeError("nobody thought of that")

    monkeypatch.setattr(doctor, "CHECKS", (broken_look, checks.directory))
    first, second = doctor.examine({"data_dir": str(tmp_path)})
    assert (first.check, first.state, second.check) == ("broken look", "bad", "data directory")
    assert "RuntimeError: nobody thought of that" in first.found


def test_mps_is_told_of_where_it_is_there(yard: Yard, tmp_path: Path) -> None:
    assert "MPS" not in findings(yard, PATH="/usr/bin:/bin") or Path("/usr/bin/nvidia-cuda-mps-control").exists()
    fake = FakeMps(tmp_path / "bin")
    state, told = findings(yard, PATH=fake.path)["MPS"]
    assert (state, str(fake.folder) in told, fake.calls) == ("ok", True, [])
