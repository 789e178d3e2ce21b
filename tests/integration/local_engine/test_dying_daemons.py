"""Jobs of this machine whose daemon dies, or finds claims in odd states: each runs once, and its end is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.contract.engine import Watch, alive
from tests.localengine import folder_of

from gpuyard import files
from gpuyard.engines.base import Ended, NeverBegan, Running, Task
from gpuyard.engines.local import processes, wrapper
from gpuyard.engines.local.local_engine import LocalEngine

SOURCES = Path(files.__file__).parents[1]
DAEMON = """
import sys
from pathlib import Path
from gpuyard.engines.base import Placement, Task
from gpuyard.engines.local.local_engine import LocalEngine
jobs, work, cgroups, script = sys.argv[1:]
engine = LocalEngine(Path(jobs), (), "here", cgroups=cgroups == "True")
engine.launch(Task("1", ("/bin/sh", "-c", script), work), 1, Placement("here", ()))
"""


def _dying_daemon(watch: Watch, script: str, fault: str) -> None:
    """Let another process launch a job and die at that point."""
    assert isinstance(watch.engine, LocalEngine)
    with_cgroups = str(watch.engine._cgroups is not None)
    folders = str(folder_of(watch).parents[1]), str(watch.directory)
    arguments = [sys.executable, "-c", DAEMON, *folders, with_cgroups, script]
    environment = {"PYTHONPATH": str(SOURCES), "GPUYARD_FAULT": fault}
    assert subprocess.run(arguments, env=environment, check=False).returncode == -signal.SIGKILL


def test_a_daemon_that_dies_after_the_launch(watch: Watch) -> None:
    _dying_daemon(watch, "echo >up; sleep 0.2; exit 8", "launch:spawned")
    watch.wait_for("up")
    assert isinstance(watch.engine.adopt("1", 1), Running)
    assert watch.until(Ended, "1").code == 8


def test_a_job_that_ends_while_there_is_no_daemon(watch: Watch) -> None:
    _dying_daemon(watch, "sleep 60 & echo $! >up; exit 8", "launch:spawned")
    (left,) = map(int, watch.wait_for("up"))
    while not wrapper.read_exit(folder_of(watch)):
        time.sleep(0.005)
    report = watch.engine.adopt("1", 1)
    ended = watch.until(Ended, "1")
    assert isinstance(report, Running)
    assert ended.code == 8
    assert not alive(left)


def test_an_orphaned_wrapper_that_is_killed(watch: Watch) -> None:
    _dying_daemon(watch, "echo >up; sleep 60", "launch:spawned")
    watch.wait_for("up")
    report = watch.engine.adopt("1", 1)
    assert isinstance(report, Running)
    os.kill(int(report.handle), signal.SIGKILL)
    ended = watch.until(Ended, "1")
    assert ended.code is None
    assert ended.message.startswith("how it ended is not known: its wrapper was killed")


@pytest.mark.parametrize("point", ["launch:before-cgroup", "launch:before-spawn"])
def test_a_daemon_that_dies_before_the_launch(watch: Watch, point: str) -> None:
    _dying_daemon(watch, "echo >ran", point)
    assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)


def test_a_wrapper_that_comes_too_late_runs_nothing(watch: Watch) -> None:
    task = Task("1", ("/bin/sh", "-c", "echo >ran"), str(watch.directory))
    assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)
    late = wrapper.command_line(task, folder_of(watch), processes.life(), "")
    assert subprocess.run(late, cwd=task.directory, check=False, capture_output=True).returncode == 125
    assert not (watch.directory / "ran").exists()


def test_of_two_wrappers_one_runs_and_is_followed(watch: Watch) -> None:
    folder = folder_of(watch)
    folder.mkdir(parents=True)
    task = Task("1", ("/bin/sh", "-c", "echo >>ran; sleep 0.3; exit 2"), str(watch.directory))
    (folder / "output.log").touch()
    first = subprocess.Popen(wrapper.command_line(task, folder, processes.life(), ""), cwd=task.directory)
    watch.wait_for("ran")
    second = wrapper.command_line(task, folder, processes.life(), "")
    assert subprocess.run(second, cwd=task.directory, check=False).returncode == 125
    watch.launch("1", "echo", "never")
    assert watch.until(Running, "1").handle == str(first.pid)
    assert watch.until(Ended, "1").code == 2
    first.returncode = 0  # the engine has reaped it
    assert (watch.directory / "ran").read_text() == "\n"


def _write_claim(watch: Watch, pid: int, started: int, life: str) -> Path:
    folder = folder_of(watch)
    folder.mkdir(parents=True)
    zeros = "0 " * 13
    (folder / "pid").write_text(f"{pid} (sh) S 1 {pid} {pid} 0 -1 4194304 {zeros[:-2]}{started} 0\n{life}\n\n1000\n")
    claim = wrapper.read_claim(folder)
    assert isinstance(claim, wrapper.Claim)
    assert (claim.wrapper.pid, claim.wrapper.started) == (pid, started)
    return folder


def test_a_process_id_that_somebody_else_has_by_now(watch: Watch) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    _write_claim(watch, other.pid, 12345, processes.life())
    report = watch.engine.adopt("1", 1)
    if isinstance(report, Running):
        watch.engine.stop("1", 1, 0)
    ended = watch.until(Ended, "1")
    assert ended.code is None
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_job_from_before_the_machine_was_started(watch: Watch) -> None:
    me = processes.look(os.getpid())
    assert me is not None
    folder = _write_claim(watch, me.pid, me.started, "another-life")
    os.utime(folder / "pid", (1000, 1000))
    ended = watch.engine.adopt("1", 1)
    assert ended == Ended("1", 1, 1000.0, None, interrupted=True, message="it ended with the machine")
    (folder / "exit").write_text("3\n")
    assert watch.engine.adopt("1", 1) == Ended("1", 1, (folder / "exit").stat().st_mtime, 3)


def test_an_end_without_its_newline_is_none(watch: Watch) -> None:
    folder = _write_claim(watch, 2**22 + 5, 7, processes.life())
    (folder / "exit").write_text("0")
    report = watch.engine.adopt("1", 1)
    ended = watch.until(Ended, "1") if isinstance(report, Running) else report
    assert isinstance(ended, Ended)
    assert ended.code is None


def test_a_claim_that_nobody_will_write_out(watch: Watch) -> None:
    folder_of(watch).mkdir(parents=True)
    (folder_of(watch) / "pid").touch()
    assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)


def test_a_claim_that_the_job_has_written_over(watch: Watch) -> None:
    watch.shell("1", 'printf "not\\na\\nclaim\\nat all\\n" >|"$GPUYARD_RUN/pid"; exit 4')
    assert watch.until(Ended, "1").code == 4
    assert wrapper.read_claim(folder_of(watch)) == wrapper.INCOMPLETE


@pytest.mark.parametrize("other", ["mkfifo", "truncate -s 3G", "ln -s loop"])
@pytest.mark.parametrize("name", ["pid", "exit"])
def test_something_else_in_the_place_of_a_file(watch: Watch, name: str, other: str) -> None:
    """A pipe, say, at which whoever opens it would wait."""
    place = f'"$GPUYARD_RUN/{name}"'
    watch.shell("1", f"rm {place}; {other} {place}; exit 4")
    assert watch.until(Ended, "1").code == 4
    if name == "pid":
        assert not isinstance(wrapper.read_claim(folder_of(watch)), wrapper.Claim)


def test_a_claim_that_a_power_cut_has_emptied(watch: Watch) -> None:
    folder_of(watch).mkdir(parents=True)
    (folder_of(watch) / "pid").touch()
    os.utime(folder_of(watch) / "pid", (1000, 1000))
    ended = watch.engine.adopt("1", 1)
    assert isinstance(ended, Ended)
    assert ended.interrupted


def test_a_claim_that_is_written_out_late(watch: Watch) -> None:
    folder = folder_of(watch)
    folder.mkdir(parents=True)
    (folder / "pid").touch()
    script = wrapper.SCRIPT.replace("set -C\n", "sleep 0.5; exec 9>&1\n").replace("{ printf", "sleep 0; { printf")
    slow = subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            script,
            "gpuyard",
            folder,
            f"{processes.life()}\n\n1000",
            "",
            "sh",
            "",
            "",
            "/bin/sh",
            "-c",
            "exit 6",
        ],
        env={"GPUYARD_RUN": str(folder), "PATH": os.defpath},
    )
    report = watch.engine.adopt("1", 1)
    assert isinstance(report, Running)
    assert report.handle == str(slow.pid)
    assert watch.until(Ended, "1").code == 6
    slow.returncode = 0


def test_a_disk_too_full_to_claim(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapper, "SCRIPT", "exit 125")
    watch.launch("1", "true")
    assert watch.until(NeverBegan, "1").message.startswith("it did not begin: its wrapper ended with code 125")
    assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)


def test_a_directory_for_each_attempt_that_only_we_can_enter(watch: Watch) -> None:
    watch.launch("1", "true")
    watch.until(Ended, "1")
    for folder in (folder_of(watch), folder_of(watch).parent, folder_of(watch).parents[1]):
        assert folder.stat().st_mode & 0o777 == 0o700
