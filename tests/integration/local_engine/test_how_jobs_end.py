"""How jobs of this machine end, with all that they started: real processes, some of them stubborn."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.contract.engine import PATIENCE, Watch, alive
from tests.localengine import folder_of

from gpuyard.engines.base import Ended, EngineError, Running
from gpuyard.engines.local import processes
from gpuyard.engines.local.attempt import verdict
from gpuyard.engines.local.cgroups import find_cgroups
from gpuyard.engines.local.local_engine import LocalEngine


def _zombies() -> set[int]:
    mine = [processes.look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return {process.pid for process in mine if process and process.parent == os.getpid() and process.dead}


def test_signals_to_the_whole_group_do_not_reach_the_wrapper(watch: Watch) -> None:
    watch.shell("1", "trap '' TERM INT USR1; kill -TERM 0; kill -INT 0; kill -USR1 0; kill -HUP 0; sleep 5")
    ended = watch.until(Ended, "1")
    assert (ended.code, ended.message) == (129, "")


def test_signals_have_their_usual_effect_on_a_job(watch: Watch) -> None:
    watch.launch("1", "/bin/cat", "/proc/self/status")
    watch.until(Ended, "1")
    job, own = _signals(watch.log("1").decode()), _signals(Path("/proc/self/status").read_text())
    ours = sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))  # Python ignores them for itself
    assert job["SigIgn"] == own["SigIgn"] & ~ours
    assert job["SigBlk"] == 0
    assert job["SigCgt"] == 0


def _signals(status: str) -> dict[str, int]:
    lines = (line.split(":\t") for line in status.splitlines() if line.startswith(("SigI", "SigB", "SigC")))
    return {name: int(mask, 16) for name, mask in lines}


def test_what_the_shell_says_of_a_killed_job_is_not_its_output(watch: Watch) -> None:
    watch.shell("1", "echo mine; kill -9 $$")
    assert watch.until(Ended, "1").code == 137
    assert watch.log("1") == b"mine\n"


def test_a_wrapper_that_is_killed(watch: Watch) -> None:
    watch.shell("1", "echo $$ >up; sleep 60")
    running = watch.until(Running, "1")
    (job,) = map(int, watch.wait_for("up"))
    os.kill(int(running.handle), signal.SIGKILL)
    ended = watch.until(Ended, "1")
    assert ended.code == 137
    assert ended.message == "its wrapper was killed by SIGKILL; ended 2 processes that it had left running"
    assert not alive(job)


def test_a_wrapper_that_is_halted(watch: Watch) -> None:
    watch.shell("1", "echo >up; sleep 60")
    running = watch.until(Running, "1")
    watch.wait_for("up")
    os.killpg(int(running.handle), signal.SIGSTOP)
    watch.engine.stop("1", 1, 20)
    assert watch.until(Ended, "1").code == 143


def test_an_end_that_cannot_be_written_down(watch: Watch) -> None:
    exit_file = folder_of(watch) / "exit"
    watch.shell("1", f"rm {exit_file} && mkdir {exit_file}; exit 7")
    ended = watch.until(Ended, "1")
    assert (ended.code, ended.message) == (7, "its exit code could not be written to the disk")


def test_a_wrapper_that_may_start_no_process_blames_more_than_the_disk(tmp_path: Path) -> None:
    (tmp_path / "exit").touch()
    assert "could start no process (ulimit -u)" in verdict("1", 1, tmp_path, 2).message


CROWD = r"""
import os, signal, sys, time
def child(number):
    if number % 3 == 1: os.setsid()
    if number % 3 == 2 and os.fork(): os._exit(0)
    if number % 4 == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if number % 50 == 0: os.kill(os.getpid(), signal.SIGSTOP)
    os.write(1, b"%d\n" % os.getpid())
    time.sleep(60)
    os._exit(0)
for number in range(int(sys.argv[1])):
    if not os.fork():
        child(number)
os.write(1, b"%d\n" % os.getpid())
if sys.argv[2] == "stay":
    time.sleep(60)
"""


def _crowd(watch: Watch, many: int, what: str) -> list[int]:
    """A job with many children: some in sessions of their own, some orphaned, some deaf to TERM, some halted."""
    (watch.directory / "crowd.py").write_text(CROWD)
    watch.launch("1", sys.executable, "-S", "-I", "crowd.py", str(many), what)
    written = many + 1 - many // 50
    deadline = time.monotonic() + PATIENCE
    while len(pids := watch.log("1").split()) < written and time.monotonic() < deadline:
        watch.turn(0.01)
    return list(map(int, pids))


@pytest.mark.parametrize("grace", [0.0, 0.3])
def test_stop_ends_two_hundred_children(watch: Watch, grace: float) -> None:
    pids = _crowd(watch, 200, "stay")
    assert len(pids) == 197
    watch.engine.stop("1", 1, grace)
    assert watch.until(Ended, "1").code == (137 if grace == 0 else 143)
    assert not [pid for pid in pids if alive(pid)]


def test_what_a_job_leaves_behind_is_ended(watch: Watch) -> None:
    _crowd(watch, 40, "leave")
    ended = watch.until(Ended, "1")
    assert ended.code == 0
    assert "processes that it had left running" in ended.message
    pids = list(map(int, watch.log("1").split()))
    assert not [pid for pid in pids if alive(pid)]


def test_a_job_that_keeps_forking_does_not_win(watch: Watch) -> None:
    # Each process starts one that does the same, and ends: always new ones, but never more than a dozen.
    watch.shell("1", "trap '' TERM; echo >up; f() { sleep 0.01; f & }; for i in 1 2 3 4 5 6; do f & done; sleep 60")
    watch.wait_for("up")
    watch.idle(0.06)
    watch.engine.stop("1", 1, 0)
    assert watch.until(Ended, "1").code is not None
    folder = str(folder_of(watch))
    assert not [pid for pid in processes.everyone() if processes.mark_of(pid) == folder]


def test_cgroups_of_the_jobs_own_are_removed_with_it(tmp_path: Path) -> None:
    try:
        watch = Watch(LocalEngine(tmp_path / "jobs", (), "here", cgroups=True), tmp_path)
    except EngineError as error:
        pytest.skip(str(error))
    base = find_cgroups(tmp_path / "jobs").base
    watch.shell(
        "1", f"mkdir -p {base}/1.1/a/b; (echo 0 >{base}/1.1/a/b/cgroup.procs; exec sleep 60) & echo $! >pid; exit 0"
    )
    assert watch.until(Ended, "1").message == "ended 1 process that it had left running"
    assert not alive(int((tmp_path / "pid").read_text()))
    watch.engine.close()
    assert not Path(base).exists()


def test_three_hundred_jobs_leave_no_zombie_and_no_descriptor(watch: Watch) -> None:
    before, others = len(os.listdir("/proc/self/fd")), _zombies()
    for number in range(300):
        watch.launch(str(number), "true")
        if number % 30 == 0:
            watch.turn(0.0)
    for number in range(300):
        assert watch.until(Ended, str(number)).code == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert _zombies() <= others
    assert watch.engine.due() is None
