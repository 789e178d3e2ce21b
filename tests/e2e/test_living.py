"""Living on a machine for long: old things go, backups are made and put back, and the doctor finds what is wrong."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.yard import Yard, finish, until

GO_ON = "echo on; while [ ! -e go ]; do sleep 0.02; done; echo off; exit 6"


@pytest.fixture
def own_yard(own_yard: Yard) -> Yard:
    """One whose daemon is a program, since some commands start it again by its command line."""
    own_yard.forks = False
    return own_yard


@pytest.fixture
def long_yard(own_yard: Yard) -> Iterator[Yard]:
    """A yard whose daemon may be started anew by a command; none is left of it."""
    yield own_yard
    if not own_yard.is_up():
        own_yard("down")


def findings(yard: Yard, **more: str) -> dict[str, tuple[str, str]]:
    """What the doctor says: state and words, by what was looked at."""
    done = yard("doctor", "--json", more=more)
    found = json.loads(done.out)
    assert done.code == any(one["state"] == "bad" for one in found)
    return {one["check"]: (one["state"], f"{one['found']} -> {one['mend']}") for one in found}


# -- retention -----------------------------------------------------------------------------------------


def test_old_output_and_old_jobs_are_removed_and_that_is_told(own_yard: Yard) -> None:
    own_yard.serve()
    old, new = own_yard.submit("--", "echo", "hello"), own_yard.submit("--", "echo", "hello")
    for id in (old, new):
        own_yard.wait(id)
    jobs = own_yard.data_dir / "jobs"
    own_yard.end()
    own_yard.environment["GPUYARD_KEEP_LOGS"] = "0.001s"
    own_yard.serve()
    until(lambda: os.listdir(jobs) == [new], "the end of the old output")
    gone = own_yard("logs", old)
    assert (gone.code, gone.out) == (1, "")
    assert f"the output of job {old} is gone: it is kept for 0.001s after a job's end (setting keep_logs)" in gone.err
    assert own_yard("logs", new).out == "hello\n"
    assert [job["id"] for job in own_yard.client.history()] == [new, old]
    own_yard.end()
    own_yard.environment["GPUYARD_KEEP_HISTORY"] = "0.001s"
    own_yard.serve()
    until(lambda: [job["id"] for job in own_yard.client.history()] == [new], "the end of the old job")
    assert "there is no job" in own_yard("logs", old).err
    assert own_yard.submit("--", "true") == "3"
    own_yard.end(signal.SIGKILL)
    own_yard.serve()
    assert own_yard.wait("3")["state"] == "succeeded"


# -- backup and restore --------------------------------------------------------------------------------


def test_back_to_a_backup_while_jobs_run(long_yard: Yard) -> None:
    yard = long_yard
    yard.serve("--policy", "sjf")
    done = yard.submit("--", "echo", "done")
    yard.wait(done)
    running = yard.submit("--name", "runs", "--", "sh", "-c", GO_ON)
    yard.await_output(running, b"on\n")
    waiting = yard.submit("--gpus", "4", "--name", "waits", "--", "true")
    file = yard.cwd / "backup.tar.gz"
    made = yard.json("backup", file)
    assert (made["jobs"], made["open_jobs"], made["logs"]) == (3, 2, False)
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert os.listdir(yard.cwd) == [file.name]

    late = yard.submit("--gpus", "4", "--", "echo", "late")
    refused = yard("restore", file)
    assert refused.code == 2
    assert f"it does not know of job {late} (running or waiting now)" in refused.err
    assert [job["id"] for job in yard.client.jobs()] == [running, waiting, late]
    assert yard.is_up()

    before = yard.json("status")["pid"]
    restored = yard.process("restore", file, "--force")
    assert restored.code == 0, restored
    assert f"given up: job {late}" in restored.err
    assert yard.json("status")["pid"] != before
    assert yard.json("policy")["name"] == "sjf"
    assert [(job["id"], job["state"]) for job in yard.client.jobs()] == [(running, "running"), (waiting, "queued")]
    assert [job["id"] for job in yard.client.history()] == [done]
    (former,) = yard.data_dir.glob("gpuyard.db.before-restore-*")
    assert sqlite3.connect(former).execute("SELECT count(*) FROM jobs").fetchone() == (4,)
    assert int(yard.submit("--hold", "--", "true")) > int(late), "an id was given twice"
    (yard.cwd / "go").touch()
    ended = yard.wait(running)
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("failed", 6, 1)
    assert yard.client.log(running).data == b"on\noff\n"
    assert yard.wait(waiting)["state"] == "succeeded"
    yard.clear()


def test_what_a_backup_does_not_know_keeps_its_gpus(long_yard: Yard) -> None:
    yard = long_yard
    yard.serve()
    waiting = yard.submit("--hold", "--", "sh", "-c", GO_ON)
    file = yard.cwd / "backup.tar"
    assert yard("backup", file).code == 0
    assert yard("release", waiting).code == 0
    late = yard.submit("--gpus", "2", "--", "sh", "-c", GO_ON)
    for job in (waiting, late):
        yard.await_output(job, b"on\n")
    before = {job["id"]: job["gpus"] for job in yard.client.jobs()}
    restored = yard.process("restore", file, "--force")
    assert f"given up: jobs {late}, {waiting}; what runs goes on and keeps its GPUs" in restored.err
    assert {job["id"]: job["gpus"] for job in yard.client.jobs(state="running")} == before
    over = yard.submit("--", "true")
    assert set(yard.wait(over)["gpus"]).isdisjoint(gpu for gpus in before.values() for gpu in gpus)
    (yard.cwd / "go").touch()
    assert [(yard.wait(job)["exit_code"], yard.wait(job)["attempt"]) for job in before] == [(6, 1), (6, 1)]
    assert [yard.client.log(job).data for job in before] == [b"on\noff\n", b"on\noff\n"]


def test_what_ended_since_the_backup_does_not_run_again(long_yard: Yard) -> None:
    yard = long_yard
    yard.serve()
    blocker = yard.submit("--gpus", "4", "--", "sh", "-c", GO_ON)
    yard.await_output(blocker, b"on\n")
    once = yard.submit("--", "sh", "-c", "echo x >>ran; exit 3")
    file = yard.cwd / "backup.tar"
    assert yard("backup", file).code == 0
    (yard.cwd / "go").touch()
    assert yard.wait(once)["exit_code"] == 3
    assert yard.wait(blocker)["exit_code"] == 6
    restored = yard.process("restore", file)
    assert restored.code == 0, restored
    assert f"not over in the backup: jobs {blocker}, {once}" in restored.err
    assert (yard.wait(blocker)["exit_code"], yard.wait(once)["exit_code"]) == (6, 3)
    assert (yard.cwd / "ran").read_text() == "x\n"


@pytest.mark.parametrize("instant", ["restore:prepared", "restore:aside"])
def test_a_restore_that_is_cut_short_leaves_a_queue(long_yard: Yard, instant: str) -> None:
    yard = long_yard
    yard.serve()
    first = yard.submit("--", "true")
    yard.wait(first)
    file = yard.cwd / "backup.tar"
    assert yard("backup", file).code == 0
    second = yard.submit("--", "true")
    yard.wait(second)
    dying = finish(yard.popen("restore", file, more={"GPUYARD_FAULT": instant}))
    assert dying.code == -signal.SIGKILL
    until(lambda: not yard.is_up(), "the end of the daemon")
    yard.serve()
    assert [job["id"] for job in yard.client.history()] == [second, first]
    assert yard.process("restore", file).code == 0
    assert [job["id"] for job in yard.client.history()] == [first]


def test_a_backup_is_taken_to_a_new_place(long_yard: Yard, tmp_path: Path) -> None:
    yard = long_yard
    yard.serve()
    done = yard.submit("--", "echo", "hello")
    yard.wait(done)
    running = yard.submit("--", "sh", "-c", GO_ON)
    yard.await_output(running, b"on\n")
    file = yard.cwd / "backup.tar"
    assert yard("backup", "--logs", file).code == 0
    with tarfile.open(file) as archive:
        assert {f"jobs/{done}/1/output.log", f"jobs/{running}/1/pid"} < set(archive.getnames())
    (yard.cwd / "go").touch()
    yard.wait(running)
    yard.end()
    elsewhere = Yard(tmp_path / "elsewhere", yard.cwd)
    restored = elsewhere("restore", file)
    assert restored.code == 0, restored
    assert "no daemon runs; gpuyard up starts one" in restored.err
    try:
        elsewhere.serve()
        assert elsewhere("logs", done).out == "hello\n"
        lost = elsewhere.wait(running)
        assert (lost["state"], lost["exit_code"], lost["attempt"]) == ("failed", None, 1), "it must not run again"
        assert elsewhere.client.log(running).data == b"on\n"
    finally:
        elsewhere.end()


def test_a_backup_while_jobs_come_and_go_is_whole(yard: Yard, tmp_path: Path) -> None:
    ids = []
    for number in range(4):
        ids += [yard.submit("--", "true") for _ in range(10)]
        made = yard.json("backup", tmp_path / f"{number}.tar")
        assert made["jobs"] >= len(ids)
    for id in ids:
        assert yard.wait(id)["state"] == "succeeded"


# -- the doctor ----------------------------------------------------------------------------------------


def test_the_doctor_of_a_queue_that_is_well(yard: Yard) -> None:
    job = yard.submit("--", "sleep", "1000")
    yard.client.job(job, wait=30, until="start")
    found = findings(yard)
    states = {check: state for check, (state, _) in found.items()}
    assert {states[check] for check in ("gpuyard", "policy", "GPUs", "daemon", "store", "leftovers", "clock")} == {"ok"}
    assert "simulated" in found["GPUs"][1]
    told = yard("doctor")
    assert told.out.count("\n") >= len(found)
    assert "Traceback" not in told.out + told.err


def test_the_doctor_finds_leftovers_and_a_clock_that_was_set_back(own_yard: Yard) -> None:
    own_yard.serve()
    job = own_yard.submit("--", "sh", "-c", GO_ON)
    own_yard.await_output(job, b"on\n")
    own_yard.end(signal.SIGKILL)
    database = sqlite3.connect(own_yard.data_dir / "gpuyard.db")
    database.execute("UPDATE jobs SET ended = 1, state = 'failed'")
    database.execute("UPDATE events SET at = ? WHERE seq = 1", (time.time() + 7200,))
    database.commit()
    found = findings(own_yard)
    assert found["daemon"][0] == found["clock"][0] == found["leftovers"][0] == "warn"
    assert "the last event is 2h 00m ahead of the time of day" in found["clock"][1]
    assert f"job {job}: " in found["leftovers"][1]
    pids = [int(word) for word in found["leftovers"][1].partition("-> kill ")[2].split()]
    assert pids
    database.execute("UPDATE jobs SET ended = NULL, state = 'running'")
    database.commit()
    database.close()
    (own_yard.cwd / "go").touch()


def test_the_doctor_says_why_a_daemon_is_silent(own_yard: Yard) -> None:
    own_yard.serve()
    assert own_yard.daemon is not None
    found = findings(own_yard, GPUYARD_SOCKET=str(own_yard.data_dir / "other.sock"))
    assert found["daemon"][0] == "bad"
    assert f"process {own_yard.daemon.pid} holds {own_yard.data_dir}, but does not answer" in found["daemon"][1]
