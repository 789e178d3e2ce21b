"""A disk that is full, or cannot be written at all: a small file system of our own, which only root can mount."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.transport import Refused, Request, UnixTransport, send
from tests.chaos.checks import check_projections, check_starts, check_times
from tests.chaos.harness import PATIENCE, Daemon, exit_code, job_command, read_stamps
from tests.contract.engine import alive

VARIABLES = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root can mount a file system to fill")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def daemon(disk: Path, tmp_path: Path) -> Iterator[Daemon]:
    """On that disk; what jobs stamp is elsewhere."""
    (tmp_path / "stamps").mkdir()
    found = Daemon(disk / "data", log=tmp_path / "log")
    yield found
    found.close()


def _fill(disk: Path) -> None:
    with (disk / "filler").open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def _submit_until_refused(daemon: Daemon, stamps: Path) -> tuple[list[str], Refused]:
    """Pages of the store's own may take some more jobs."""
    taken: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            taken.append(daemon.client.submit(job_command(stamps, 0), directory="/", environment=VARIABLES, gpus=4))
        except Refused as error:
            return taken, error
    raise AssertionError("a full disk takes everything")


def test_a_full_disk_refuses_and_then_all_goes_on(daemon: Daemon, disk: Path, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    daemon.start()
    end = tmp_path / "end"
    client = daemon.client
    ending = client.submit(job_command(stamps, end), directory="/", environment=VARIABLES)
    lasting = client.submit(job_command(stamps, tmp_path / "later"), directory="/", environment=VARIABLES)
    while len(list(stamps.iterdir())) < 2:
        time.sleep(0.01)
    _fill(disk)
    taken, refusal = _submit_until_refused(daemon, stamps)
    assert refusal.status == 503
    assert str(refusal).endswith("is full; free some space, nothing is lost")
    assert client.status()["store"]["state"] == "failing"
    probed = send(UnixTransport(client.socket), Request("GET", "/readyz"))
    assert probed.status == 503
    assert b"the store cannot be written" in probed.body
    assert str(disk).encode() not in probed.body  # it is for everybody
    assert send(UnixTransport(client.socket), Request("GET", "/healthz")).status == 200
    end.touch()  # this one ends while nothing can be written, not even its exit code
    pids = {stamp.job: stamp.pid for stamp in read_stamps(stamps)}
    while alive(pids[ending]):
        time.sleep(0.01)
    time.sleep(0.3)
    assert alive(pids[lasting])
    (disk / "filler").unlink()
    (tmp_path / "later").touch()
    for job in (ending, lasting, *taken):
        found = client.wait(job, timeout=PATIENCE)
        assert found["exit_code"] == exit_code(job), found
    after = client.submit(job_command(stamps, 0), directory="/", environment=VARIABLES)
    assert client.wait(after, timeout=PATIENCE)["exit_code"] == exit_code(after)
    daemon.stop()
    check_starts(read_stamps(stamps))
    check_times(daemon.data_dir / "gpuyard.db")
    check_projections(daemon.data_dir / "gpuyard.db")


@pytest.mark.parametrize("killed", [True, False])
def test_what_ended_on_a_full_disk_without_a_daemon_is_known(
    daemon: Daemon, disk: Path, tmp_path: Path, killed: bool
) -> None:
    """The next daemon starts on the full disk too: it shows and adopts jobs, and refuses new ones."""
    stamps, end = tmp_path / "stamps", tmp_path / "end"
    daemon.start()
    client = daemon.client
    jobs = [client.submit(job_command(stamps, end), directory="/", environment=VARIABLES) for _ in range(2)]
    jobs.append(client.submit(job_command(stamps, tmp_path / "later"), directory="/", environment=VARIABLES))
    while len(list(stamps.iterdir())) < 3:
        time.sleep(0.01)
    daemon.kill() if killed else daemon.stop()
    _fill(disk)
    end.touch()  # two of them end while the disk is full and no daemon runs
    pids = {stamp.job: stamp.pid for stamp in read_stamps(stamps)}
    while any(alive(pids[job]) for job in jobs[:2]):
        time.sleep(0.01)
    _fill(disk)
    daemon.start()
    store = client.status()["store"]
    assert store["state"] == "failing"
    assert store["problem"].endswith("is full; free some space, nothing is lost")
    assert [job["id"] for job in client.jobs()] == jobs
    assert client.job(jobs[2])["state"] == "running"
    _submit_until_refused(daemon, stamps)
    (disk / "filler").unlink()
    (tmp_path / "later").touch()
    for job in jobs:
        found = client.wait(job, timeout=PATIENCE)
        assert (found["exit_code"], found["message"]) == (exit_code(job), None), found
    after = client.submit(job_command(stamps, 0), directory="/", environment=VARIABLES)
    assert client.wait(after, timeout=PATIENCE)["exit_code"] == exit_code(after)
    daemon.stop()
    check_starts(read_stamps(stamps))
    check_projections(daemon.data_dir / "gpuyard.db")


def test_a_new_daemon_on_a_full_disk_says_so(daemon: Daemon, disk: Path) -> None:
    disk.joinpath("data").mkdir()
    _fill(disk)
    assert daemon.spawn().wait(PATIENCE) == 2
    assert "Traceback" not in daemon.words()
    assert "cannot be used" in daemon.words() or "is full" in daemon.words()


def test_a_disk_that_is_mounted_read_only(daemon: Daemon, disk: Path) -> None:
    daemon.start()
    daemon.stop()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert daemon.spawn().wait(PATIENCE) == 2
    assert "Traceback" not in daemon.words()
    assert "cannot be used (Read-only file system)" in daemon.words()
