"""Clients of MPS in a real queue; the program that NVIDIA has for it is a made-up one (`tests/fake_mps`)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_mps import PROGRAM, FakeMps, end_all, living
from tests.fake_nvml import FakeNvml
from tests.users import Desk, User, made, reachable_folder, require_root
from tests.yard import PATIENCE, Yard, finish, opened, until

WAIT = ("sh", "-c", "while [ ! -e go ]; do sleep 0.02; done")
VARIABLES = ("sh", "-c", "env | grep '^CUDA_MPS' | sort")


@pytest.fixture
def place() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield folder
        end_all(folder)


@pytest.fixture
def own_yard(place: Path) -> Iterator[Yard]:
    """A yard of a test's own, at a short path as sockets need it."""
    with opened(place) as found:
        yield found
        (found.cwd / "go").touch()


@pytest.fixture
def fake(place: Path, own_yard: Yard) -> FakeMps:
    found = FakeMps(place / "bin")
    own_yard.environment["PATH"] = found.path
    return found


def _running(yard: Yard, *ids: str) -> None:
    until(lambda: all(yard.client.job(id)["started_at"] for id in ids), "the start of jobs")


def _until_none_is_left(yard: Yard) -> None:
    place = yard.data_dir / "mps"
    until(lambda: not living(place) and not list(place.glob("*.json")), "the end of control daemons")


def test_jobs_share_one_control_daemon_per_gpu(own_yard: Yard, fake: FakeMps) -> None:
    own_yard.serve("--simulate-gpus", "2x16G")
    wishes = ("--mps", "--thread-percentage", "30", "--gpu-memory", "5G")
    ids = [own_yard.submit(*wishes, "--from", str(gpu), "--", *WAIT) for gpu in (0, 0, 1)]
    _running(own_yard, *ids)
    said = own_yard.submit(*wishes, "--from", "1", "--", *VARIABLES)
    assert own_yard.wait(said)["state"] == "succeeded"
    folder = own_yard.data_dir / "mps" / f"1-{os.geteuid()}"
    assert own_yard.client.log(said).data.decode().split() == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
        f"CUDA_MPS_LOG_DIRECTORY={folder}/log",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=5120M",
        f"CUDA_MPS_PIPE_DIRECTORY={folder}/pipe",
    ]
    waits = own_yard.submit("--mps", "--hold", "--", "true")
    done = own_yard("edit", waits, "--gpus", "2")
    assert (done.code, "a client of MPS has one" in done.err) == (2, True)
    (own_yard.cwd / "go").touch()
    assert [own_yard.wait(id)["state"] for id in ids] == ["succeeded"] * 3
    _until_none_is_left(own_yard)
    assert sorted((call.what, call.visible) for call in fake.calls) == [
        ("quit", "0"), ("quit", "1"), ("start", "0"), ("start", "1"),
    ]  # fmt: skip


def test_without_the_wish_it_is_never_called(own_yard: Yard, fake: FakeMps) -> None:
    own_yard.serve()
    id = own_yard.submit("--gpu-memory", "2G", "--", *VARIABLES)
    assert (own_yard.wait(id)["state"], own_yard.client.log(id).data) == ("succeeded", b"")
    own_yard.end()
    assert (fake.calls, (own_yard.data_dir / "mps").exists()) == ([], False)


@pytest.mark.parametrize("meanwhile", [False, True], ids=["jobs-run-on", "jobs-end-meanwhile"])
def test_after_a_sudden_end_of_the_daemon_none_is_left(own_yard: Yard, fake: FakeMps, meanwhile: bool) -> None:
    own_yard.serve()
    ids = [own_yard.submit("--mps", "--from", str(gpu), "--", *WAIT) for gpu in (0, 1)]
    _running(own_yard, *ids)
    own_yard.end(signal.SIGKILL)
    assert fake.names == ["start"] * 2
    if meanwhile:
        (own_yard.cwd / "go").touch()
        until(lambda: all((own_yard.data_dir / "jobs" / id / "1" / "exit").stat().st_size for id in ids))
    own_yard.serve()
    (own_yard.cwd / "go").touch()
    assert [own_yard.wait(id)["state"] for id in ids] == ["succeeded"] * 2
    _until_none_is_left(own_yard)
    assert sorted(fake.names) == ["quit"] * 2 + ["start"] * 2


@pytest.mark.parametrize("point", ["mps:started", "mps:quit"])
def test_a_sudden_end_at_the_worst_moment_leaves_none(own_yard: Yard, fake: FakeMps, point: str) -> None:
    own_yard.environment["GPUYARD_FAULT"] = point
    own_yard.serve()
    submit = own_yard.popen("submit", "--mps", "--", "true")
    assert own_yard.daemon is not None
    own_yard.daemon.wait(PATIENCE)
    del own_yard.environment["GPUYARD_FAULT"]
    own_yard.serve()
    assert own_yard.wait("1")["state"] == "succeeded"  # whether its submitter was told or not
    finish(submit)
    _until_none_is_left(own_yard)


def test_when_the_daemon_is_interrupted_only_what_jobs_need_stays(own_yard: Yard, fake: FakeMps) -> None:
    own_yard.serve()
    stays, ends = (
        own_yard.submit("--mps", "--from", "0", "--", *WAIT),
        own_yard.submit("--mps", "--from", "1", "--", "true"),
    )
    _running(own_yard, stays)
    own_yard.wait(ends)
    own_yard.end(signal.SIGINT)
    assert [(call.what, call.visible) for call in fake.calls if call.what == "quit"] == [("quit", "1")]
    assert set(living(own_yard.data_dir / "mps").values()) == {str(own_yard.data_dir / "mps" / f"0-{os.geteuid()}")}
    (own_yard.cwd / "go").touch()
    own_yard.serve()
    assert own_yard.wait(stays)["state"] == "succeeded"
    _until_none_is_left(own_yard)
    assert fake.names.count("quit") == 2


def test_a_job_whose_control_daemon_cannot_start_fails_and_others_go_on(own_yard: Yard, fake: FakeMps) -> None:
    fake.misbehave("fail")
    own_yard.serve()
    job = own_yard.wait(own_yard.submit("--mps", "--", "true"))
    assert (job["state"], job["exit_code"]) == ("failed", None)
    assert job["message"] == (
        f"MPS cannot be started on GPU 0: {PROGRAM} -d ended with code 1: the GPU is in a mode that MPS does not like"
    )
    assert own_yard.wait(own_yard.submit("--", "true"))["state"] == "succeeded"


def test_a_program_that_hangs_does_not_hold_up_the_queue(own_yard: Yard, fake: FakeMps) -> None:
    fake.misbehave("hang")
    own_yard.serve()
    stuck = own_yard.submit("--mps", "--", "true")
    until(lambda: fake.names == ["start"])
    assert own_yard.wait(own_yard.submit("--", "true"))["state"] == "succeeded"
    assert own_yard.client.job(stuck)["state"] == "running"
    assert own_yard("cancel", stuck).code == 0
    assert own_yard.wait(stuck)["state"] == "cancelled"
    own_yard.end()
    assert living(own_yard.data_dir / "mps") == {}


@pytest.mark.skipif(shutil.which(PROGRAM) is not None, reason=f"there is a real {PROGRAM} here; try it without")
def test_what_cannot_be_a_client_is_refused_at_once(yard: Yard) -> None:
    none = yard("submit", "--mps", "--", "true")
    assert (none.code, none.out) == (2, "")
    assert f"--mps needs {PROGRAM}, which is not on the daemon's PATH; install it" in none.err
    many = yard("submit", "--mps", "--gpus", "2", "--", "true")
    assert (many.code, "asks for MPS on 2 GPUs, and a client of MPS has one" in many.err) == (2, True)
    share = yard("submit", "--thread-percentage", "30", "--", "true")
    assert (share.code, "give --mps as well" in share.err) == (2, True)
    assert yard.client.jobs() == []


@pytest.fixture
def ann(place: Path) -> Iterator[User]:
    require_root()
    with made(place, f"gymps{os.getpid()}") as user:
        yield user


def test_a_users_jobs_have_a_control_daemon_of_that_user(own_yard: Yard, fake: FakeMps, ann: User) -> None:
    own_yard.serve()
    desk = Desk(own_yard, ann)
    own_yard.submit("--mps", "--gpu-memory", "1G", "--from", "0", "--", "true")
    printed = desk.run("sh", "-c", 'ls "$CUDA_MPS_PIPE_DIRECTORY"', mps=True, gpu_memory=2**30, among=[0])
    assert printed.split() == ["control", f"{PROGRAM}.pid"]
    _until_none_is_left(own_yard)
    assert {(call.what, call.uid) for call in fake.calls} == {
        (what, uid) for what in ("start", "quit") for uid in (0, ann.uid)
    }


def test_a_server_of_ours_is_not_taken_for_somebody_elses(own_yard: Yard, fake: FakeMps, fake_nvml: FakeNvml) -> None:
    gpus = [fake_nvml.add(uuid=f"GPU-{n}", mem_total=16 * 2**30, cc_major=major) for n, major in enumerate((8, 3))]
    own_yard.use(fake_nvml)
    own_yard.serve()
    old = own_yard("submit", "--mps", "--", "true")
    assert (old.code, "may get GPU 1" in old.err, "say --from 0" in old.err) == (2, True, True)
    id = own_yard.submit("--mps", "--from", "0", "--", *WAIT)
    _running(own_yard, id)
    assert fake.calls[0].visible == "GPU-0"
    (server,) = (pid for pid, mark in living(own_yard.data_dir / "mps").items() if pid != _control(own_yard))
    for gpu in gpus:
        fake_nvml.set(gpu, mem_used=2**28, procs={os.getpid() if gpu else server: 2**28})
    until(lambda: own_yard.json("gpus")[1]["state"] == "foreign")
    assert own_yard.json("gpus")[0]["state"] == "ours"


def _control(yard: Yard) -> int:
    return int((yard.data_dir / "mps" / f"0-{os.geteuid()}" / "pipe" / f"{PROGRAM}.pid").read_text())
