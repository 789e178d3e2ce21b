"""Control daemons of MPS, as an engine starts and ends them; the program is a made-up one (`tests/fake_mps`)."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.engine import Watch
from tests.fake_mps import PROGRAM, FakeMps, end_all, living
from tests.users import PATH, User, made, reachable_folder, require_root
from tests.yard import until

from gpuyard.engines import mps_control
from gpuyard.engines.base import Client, Ended, NeverBegan, Placement, Running, Task
from gpuyard.engines.local.local_engine import LocalEngine
from gpuyard.engines.local.processes import MARK, user_of
from gpuyard.engines.mps_engine import NOBODYS, MpsEngine

DEVICES = ("GPU-a", "GPU-b")
WAIT = "while [ ! -e go ]; do sleep 0.02; done"
Start = Callable[..., Watch]
UID = os.geteuid()


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, as sockets need it."""
    with reachable_folder() as folder:
        yield folder
        end_all(folder)


@pytest.fixture
def fake(place: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMps:
    found = FakeMps(place / "bin")
    monkeypatch.setenv("PATH", found.path)
    monkeypatch.setattr(mps_control, "LINGER", 0.05)
    return found


@pytest.fixture
def start(place: Path, fake: FakeMps) -> Iterator[Start]:
    """Makes an engine; the former one may be dropped without a word, as a daemon that is killed drops it."""
    (place / "work").mkdir()

    def make(folder: str = "mps", *, shared: bool = False) -> Watch:
        local = LocalEngine(place / "jobs", DEVICES, "here", cgroups=False, shared=shared)
        return Watch(MpsEngine(local, place / folder, DEVICES, shared=shared), place / "work")

    yield make
    (place / "work" / "go").touch()
    last = make()
    for claim in (place / "jobs").glob("*/*/pid"):
        if isinstance(last.engine.adopt(claim.parts[-3], 1), Running):
            last.until(Ended, claim.parts[-3])
    last.engine.close()


def _launch(watch: Watch, job: str, script: str = WAIT, gpu: int = 0, client: Client | None = None) -> None:
    task = Task(job, ("/bin/sh", "-c", script), str(watch.directory), {"PATH": os.defpath}, mps=client or Client())
    watch.engine.launch(task, 1, Placement("here", (gpu,)))


def _turn_until(watch: Watch, condition: Callable[[], bool]) -> None:
    """Go on until it is so."""

    def turn() -> bool:
        watch.turn(0.02)
        return condition()

    until(turn)


def _until_gone(watch: Watch, place: Path) -> None:
    """Go on until nothing of MPS is left."""
    _turn_until(watch, lambda: not living(place / "mps") and not list((place / "mps").glob("*.json")))


def _let_go(watch: Watch, *jobs: str) -> None:
    (watch.directory / "go").touch()
    for job in jobs:
        assert watch.until(Ended, job).code == 0


def test_one_control_daemon_per_gpu_serves_many_and_ends_after_the_last(
    start: Start, fake: FakeMps, place: Path
) -> None:
    watch = start()
    for job in ("1", "2", "3"):
        _launch(watch, job, f"env | grep CUDA | sort; echo; {WAIT}", client=Client(30, 1000 * 2**20 + 1))
    _launch(watch, "4", gpu=1)
    for job in ("1", "2", "3", "4"):
        watch.until(Running, job)
    directories = [
        (str(place / "mps" / f"{gpu}-{UID}" / "pipe"), str(place / "mps" / f"{gpu}-{UID}" / "log")) for gpu in (0, 1)
    ]
    expected = [("start", UID, device, *directories[gpu], f"{UID} 700 " * 2) for gpu, device in enumerate(DEVICES)]
    assert sorted(fake.calls, key=lambda call: call.visible) == expected
    until(lambda: b"\n\n" in watch.log("3"))
    assert dict(line.split("=", 1) for line in watch.log("3").decode().split()) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_LOG_DIRECTORY": directories[0][1],
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1001M",
        "CUDA_MPS_PIPE_DIRECTORY": directories[0][0],
        "CUDA_VISIBLE_DEVICES": "GPU-a",
    }
    watch.engine.stop("1", 1, 0)
    watch.until(Ended, "1")
    watch.idle(0.2)
    assert "quit" not in fake.names
    _let_go(watch, "2", "3", "4")
    _until_gone(watch, place)
    assert sorted(fake.names) == ["quit", "quit", "start", "start"]


def test_without_a_wish_nothing_is_limited(start: Start) -> None:
    watch = start()
    _launch(watch, "1", "env | grep CUDA_MPS | cut -d= -f1 | sort")
    watch.until(Ended, "1")
    assert watch.log("1").split() == [b"CUDA_MPS_LOG_DIRECTORY", b"CUDA_MPS_PIPE_DIRECTORY"]


def test_other_jobs_have_nothing_to_do_with_it(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    watch.shell("1", "env | grep -c MPS")
    watch.until(Ended, "1")
    assert (watch.log("1"), fake.calls, (place / "mps").exists()) == (b"0\n", [], False)


def test_a_job_that_a_client_submits_inherits_nothing_of_it(start: Start, place: Path) -> None:
    watch = start()
    own = {"CUDA_MPS_PIPE_DIRECTORY": f"{place}/mps/0-1/pipe", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    others = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    for job, variables in (("1", own), ("2", others)):
        environment = {"PATH": os.defpath, **variables}
        task = Task(job, ("/bin/sh", "-c", "env | grep CUDA_MPS"), str(watch.directory), environment)
        watch.engine.launch(task, 1, Placement("here", (0,)))
        watch.until(Ended, job)
    assert (watch.log("1"), watch.log("2")) == (b"", b"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps\n")


def test_the_next_job_gets_one_again(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    for job in ("1", "2"):
        _launch(watch, job, "true")
        watch.until(Ended, job)
        _until_gone(watch, place)
    assert fake.names == ["start", "quit"] * 2


def test_a_job_that_comes_while_it_ends_waits_for_another(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1", "true")
    watch.until(Ended, "1")
    _turn_until(watch, lambda: "quit" in fake.names)
    _launch(watch, "2", "true")
    assert watch.until(Ended, "2").code == 0
    _until_gone(watch, place)
    assert fake.names == ["start", "quit"] * 2


def test_what_runs_keeps_it_over_a_sudden_end_of_ours(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1")
    _launch(watch, "2")
    for job in ("1", "2"):
        watch.until(Running, job)
    watch = start()  # the former life was killed
    for job in ("1", "2"):
        assert isinstance(watch.engine.adopt(job, 1), Running)
    watch.idle(0.3)
    assert fake.names == ["start"]
    _launch(watch, "3")
    watch.until(Running, "3")
    assert fake.names == ["start"]
    _let_go(watch, "1", "2", "3")
    _until_gone(watch, place)
    assert fake.names == ["start", "quit"]


def test_it_ends_if_its_jobs_ended_while_we_were_away(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1")
    watch.until(Running, "1")
    (watch.directory / "go").touch()
    until(lambda: (place / "jobs" / "1" / "1" / "exit").stat().st_size)
    watch = start()
    watch.engine.adopt("1", 1)
    assert (watch.engine.due() or math.inf) <= time.monotonic()  # though nobody asks for anything
    _until_gone(watch, place)
    assert fake.names == ["start", "quit"]


def test_one_that_was_begun_but_not_used_is_ended_by_the_next_life(start: Start, fake: FakeMps, place: Path) -> None:
    _launch(start(), "1")  # killed before it came to anything
    until(lambda: len(living(place / "mps")) >= 2)
    watch = start()
    assert isinstance(watch.engine.adopt("1", 1), NeverBegan)
    _until_gone(watch, place)


def test_a_record_without_a_process_is_forgotten(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1")
    watch.until(Running, "1")
    end_all(place / "mps")
    _let_go(watch, "1")
    _until_gone(watch, place)
    assert fake.names == ["start"]


def test_one_of_an_earlier_life_of_the_machine_is_forgotten(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1")
    watch.until(Running, "1")
    end_all(place / "mps")
    (record,) = (place / "mps").glob("*.json")
    record.write_text(record.read_text().replace('"life": "', '"life": "another-'))
    start()
    assert not record.exists()


def test_at_our_orderly_end_only_those_with_jobs_stay(
    start: Start, fake: FakeMps, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_control, "LINGER", 600.0)
    watch = start()
    _launch(watch, "1")
    _launch(watch, "2", "true", gpu=1)
    watch.until(Running, "1")
    watch.until(Ended, "2")
    watch.engine.close()
    assert [call.visible for call in fake.calls if call.what == "quit"] == ["GPU-b"]
    assert set(living(place / "mps").values()) == {str(place / "mps" / f"0-{UID}")}


def test_one_that_is_just_being_started_does_not_stay_either(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1", "touch ran")
    watch.engine.close()
    assert (fake.names, living(place / "mps")) == (["start", "quit"], {})
    assert isinstance(start().engine.adopt("1", 1), NeverBegan)
    assert not (watch.directory / "ran").exists()


def test_one_that_was_killed_is_started_anew_for_the_next_job(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1")
    watch.until(Running, "1")
    pid = int((place / "mps" / f"0-{UID}" / "pipe" / f"{PROGRAM}.pid").read_text())
    (server,) = living(place / "mps").keys() - {pid}
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in living(place / "mps"))
    os.unlink(place / "mps" / f"0-{UID}" / "pipe" / "control")
    _launch(watch, "2")
    watch.until(Running, "2")
    assert (fake.names, server in living(place / "mps")) == (["start"] * 2, True)
    os.kill(server, signal.SIGTERM)  # the other jobs may still be its clients, so nobody has done that
    _let_go(watch, "1", "2")
    _until_gone(watch, place)


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("fail", "nvidia-cuda-mps-control -d ended with code 1: the GPU is in a mode that MPS does not like"),
        ("hang", "nvidia-cuda-mps-control -d did not come to its end within 0 s"),
        ("dead", "nvidia-cuda-mps-control -d started nothing that stays; see {place}/mps/0-{uid}/log"),
    ],
)
def test_where_it_cannot_be_started_the_job_fails_and_says_so(
    start: Start, fake: FakeMps, place: Path, monkeypatch: pytest.MonkeyPatch, mode: str, told: str
) -> None:
    monkeypatch.setattr(mps_control, "PATIENCE", 0.4 if mode == "hang" else 30.0)
    fake.misbehave(mode)
    watch = start()
    _launch(watch, "1", "touch ran")
    ended = watch.until(Ended, "1")
    assert (ended.code, ended.message) == (
        None,
        f"MPS cannot be started on GPU 0: {told.format(place=place, uid=UID)}",
    )
    _until_gone(watch, place)
    assert not (watch.directory / "ran").exists()
    fake.misbehave("")
    _launch(watch, "2", "true")
    assert watch.until(Ended, "2").code == 0


def test_one_that_does_not_end_is_killed(
    start: Start, fake: FakeMps, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_control, "PATIENCE", 0.5)
    monkeypatch.setattr(mps_control, "_GRACE", 0.1)
    fake.misbehave("deaf")
    watch = start()
    _launch(watch, "1", "true")
    watch.until(Ended, "1")
    _until_gone(watch, place)
    assert fake.names == ["start", "quit"]


def test_a_job_can_be_stopped_while_it_waits_for_it(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start()
    _launch(watch, "1", "touch ran")
    watch.engine.stop("1", 1, 10)
    ended = watch.until(Ended, "1")
    assert (ended.code, ended.asked, ended.message) == (143, True, "stopped before it began")
    _until_gone(watch, place)
    assert not (watch.directory / "ran").exists()


def test_its_processes_are_ours_but_of_no_job(start: Start, place: Path) -> None:
    watch = start()
    _launch(watch, "1")
    watch.until(Running, "1")
    assert {watch.engine.owner(pid) for pid in living(place / "mps")} == {NOBODYS}
    assert watch.engine.owner(os.getpid()) is None


def test_where_the_path_is_too_long_for_sockets_they_go_elsewhere(start: Start, fake: FakeMps, place: Path) -> None:
    watch = start("m" * 90)
    _launch(watch, "1", "true")
    watch.until(Ended, "1")
    pipe = Path(fake.calls[0].pipe)
    assert len(str(pipe)) <= 80
    _turn_until(watch, lambda: not pipe.parent.exists())
    assert (fake.names, living(place)) == (["start", "quit"], {})


@pytest.mark.root
def test_each_user_has_one_of_their_own(start: Start, fake: FakeMps, place: Path) -> None:
    require_root()
    users: list[User] = []
    with made(place, f"gymps{UID}a") as ann, made(place, f"gymps{UID}b") as bob:
        place.chmod(0o711)
        (place / "work").chmod(0o755)
        watch = start(shared=True)
        users += [ann, bob]
        for number, user in enumerate(users, 1):
            task = Task(
                str(number), ("/bin/sh", "-c", WAIT), str(watch.directory), {"PATH": PATH}, user=user.name, mps=Client()
            )
            watch.engine.launch(task, 1, Placement("here", (0,)))
        for number in (1, 2):
            watch.until(Running, str(number))
        mine = {call.uid: call for call in fake.calls}
        assert {uid: call.directories for uid, call in mine.items()} == {u.uid: f"{u.uid} 700 " * 2 for u in users}
        assert len({call.pipe for call in mine.values()}) == 2
        assert bob.do(lambda: os.access(mine[ann.uid].pipe, os.X_OK)) is False
        watch = start(shared=True)
        for number in (1, 2):
            assert isinstance(watch.engine.adopt(str(number), 1), Running)
        _let_go(watch, "1", "2")
        _until_gone(watch, place)
        assert sorted((call.what, call.uid) for call in fake.calls) == sorted(
            (what, u.uid) for what in ("start", "quit") for u in users
        )
        watch.engine.close()


@pytest.mark.root
def test_a_mark_that_somebody_else_puts_on_means_nothing(start: Start, fake: FakeMps, place: Path) -> None:
    require_root()
    with made(place, f"gymps{UID}c") as eve:
        watch = start()
        _launch(watch, "1", "true")
        mark = {MARK: str(place / "mps" / f"0-{UID}")}
        words = ["setpriv", f"--reuid={eve.uid}", f"--regid={eve.gid}", "--clear-groups", "sleep", "60"]
        forged = subprocess.Popen(words, env={"PATH": PATH, **mark})
        try:
            until(lambda: user_of(forged.pid) == eve.uid)
            assert watch.engine.owner(forged.pid) is None
            watch.until(Ended, "1")
            _turn_until(watch, lambda: not list((place / "mps").glob("*.json")))
            assert forged.poll() is None
        finally:
            forged.kill()
            forged.wait()
