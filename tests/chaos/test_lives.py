"""One daemon after the other on the same data: after a reboot, beside another, on a damaged store, told to end."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.client import Client
from gpuyard.client.transport import NoDaemon, Refused, Request, UnixTransport, send
from tests.chaos.checks import check_projections, check_times, jobs_of
from tests.chaos.harness import PATIENCE, Daemon, exit_code, job_command, read_stamps

VARIABLES = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Started, and with all its jobs ended when the test is."""
    (tmp_path / "stamps").mkdir()
    found = Daemon(tmp_path / "data")
    found.start()
    yield found
    found.close()


def _begin(daemon: Daemon, *, requeue: bool = False) -> str:
    """A job that runs until there is a file `end`."""
    place = daemon.data_dir.parent
    command = job_command(place / "stamps", place / "end")
    job = daemon.client.submit(command, directory="/", environment=VARIABLES, requeue=requeue)
    deadline = time.monotonic() + PATIENCE
    while not (place / "stamps" / job).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return job


def test_a_reboot_interrupts_and_requeues_who_asked_for_it(daemon: Daemon) -> None:
    lost, again = _begin(daemon), _begin(daemon, requeue=True)
    daemon.kill()
    for pid in daemon.leftovers():
        os.kill(pid, signal.SIGKILL)
    for claim in (daemon.data_dir / "jobs").glob("*/1/pid"):
        stat, _, *rest = claim.read_text().split("\n")
        claim.write_text("\n".join([stat, "another-life:1", *rest]))
    (daemon.data_dir.parent / "end").touch()
    daemon.start()
    interrupted = daemon.client.wait(lost, timeout=PATIENCE)
    assert (interrupted["state"], interrupted["exit_code"]) == ("interrupted", None)
    assert interrupted["message"] == "it ended with the machine"
    finished = daemon.client.wait(again, timeout=PATIENCE)
    assert (finished["attempt"], finished["exit_code"]) == (2, exit_code(again))
    starts = [(stamp.job, stamp.attempt) for stamp in read_stamps(daemon.data_dir.parent / "stamps")]
    assert sorted(set(starts)) == sorted([(lost, 1), (again, 1), (again, 2)])
    daemon.stop()
    check_times(daemon.data_dir / "gpuyard.db")
    check_projections(daemon.data_dir / "gpuyard.db")


def test_the_second_daemon_on_the_same_data_refuses(daemon: Daemon) -> None:
    job = _begin(daemon)
    assert daemon.spawn().wait(PATIENCE) == 2
    assert f"a daemon runs on {daemon.data_dir} already" in daemon.words()
    assert "Traceback" not in daemon.words()
    (daemon.data_dir.parent / "end").touch()
    assert daemon.client.wait(job, timeout=PATIENCE)["exit_code"] == exit_code(job)


def test_a_damaged_store_is_refused_with_a_sentence(daemon: Daemon) -> None:
    daemon.stop()
    connection = sqlite3.connect(daemon.data_dir / "gpuyard.db")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else its first page is read from there
    connection.close()
    with (daemon.data_dir / "gpuyard.db").open("r+b") as file:
        file.write(b"no database at all" * 10)
    assert daemon.spawn().wait(PATIENCE) == 2
    assert (
        "gpuyard.db is damaged (file is not a database); gpuyard restore FILE puts a backup in its place"
        in daemon.words()
    )
    assert "Traceback" not in daemon.words()


def test_a_store_that_begins_anew_beside_old_jobs(daemon: Daemon) -> None:
    stamps = daemon.data_dir.parent / "stamps"
    before = daemon.client.submit(job_command(stamps, 0), directory="/", environment=VARIABLES)
    assert daemon.client.wait(before, timeout=PATIENCE)["exit_code"] == exit_code(before)
    daemon.stop()
    for path in [*daemon.data_dir.glob("gpuyard.db*"), daemon.data_dir / "gpuyard.mark"]:
        path.unlink()
    assert daemon.spawn().wait(PATIENCE) == 2
    assert "has lost writes that were acknowledged: 1 job that began, by the folders of jobs" in daemon.words()
    daemon.start("--accept-loss")
    assert daemon.client.job(before)["exit_code"] == exit_code(before)
    waiting = daemon.client.submit(job_command(stamps, 0), directory="/", environment=VARIABLES, hold=True)
    daemon.kill()
    daemon.start()
    after = daemon.client.submit(job_command(stamps, 0), directory="/", environment=VARIABLES)
    assert daemon.client.wait(after, timeout=PATIENCE)["exit_code"] == exit_code(after)
    assert {stamp.job for stamp in read_stamps(stamps)} == {before, after}  # it ran, and under a name of its own
    assert len({before, waiting, after}) == 3
    daemon.client.cancel(waiting)


def test_what_is_acknowledged_while_the_daemon_ends_is_there(daemon: Daemon) -> None:
    acknowledged: list[str] = []
    client = Client(daemon.client.socket, no_wait=True)

    def submit() -> None:
        for _ in range(2000):
            try:
                acknowledged.append(client.submit(["true"], directory="/", environment=VARIABLES))
            except (NoDaemon, Refused):
                return

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 20:
        time.sleep(0.01)
    daemon.stop()
    for thread in threads:
        thread.join()
    jobs = jobs_of(daemon.data_dir / "gpuyard.db")
    assert set(acknowledged) <= set(jobs)
    check_projections(daemon.data_dir / "gpuyard.db")
    check_times(daemon.data_dir / "gpuyard.db")
    daemon.start()
    daemon.wait_until_empty()
    assert {view.exit_code for view in jobs_of(daemon.data_dir / "gpuyard.db").values()} == {0}
    daemon.stop()


def test_who_waits_for_a_job_does_not_keep_the_daemon_from_ending(daemon: Daemon) -> None:
    job = _begin(daemon)
    outcome: list[object] = []

    def wait() -> None:
        outcome.append(daemon.client.job(job, wait=10 * PATIENCE)["state"])

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    daemon.stop()  # which takes less than PATIENCE
    thread.join(PATIENCE)
    assert outcome == ["running"]
    assert "Traceback" not in daemon.words()
    daemon.start()
    (daemon.data_dir.parent / "end").touch()
    assert daemon.client.wait(job, timeout=PATIENCE)["exit_code"] == exit_code(job)


WISHES = [
    '"name": "\\udcff"', '"tags": ["\\ud800"]', '"environment": {"": "", "=": "\\udcff", "A B": "x"}', '"gpus": 1e400',
    f'"gpus": {10**30}', f'"from": [{10**30}]', '"from": [0, 0]', '"from": [-1]', '"gpu_memory": 1e308',
    '"gpu_memory": 1e-300', '"priority": 1e308', '"time_limit": 1e308, "estimate": 1e-300', '"grace": 1e308',
]  # fmt: skip


def test_no_request_ends_the_daemon(daemon: Daemon) -> None:
    bodies = ['{"command": ["\\udcff"], "directory": "/"}', '{"command": ["-x"], "directory": "/\\udcff"}']
    bodies += [f'{{"command": ["true"], "directory": "/", {wish}}}' for wish in WISHES]
    for body in bodies:
        answer = send(UnixTransport(daemon.client.socket), Request("POST", "/api/v1/jobs", body.encode()), PATIENCE)
        assert answer.status in (201, 422), (body, answer)
    daemon.wait_until_empty()
    daemon.stop()
    assert "Traceback" not in daemon.words()
    check_projections(daemon.data_dir / "gpuyard.db")
