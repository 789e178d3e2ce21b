"""The engine of this machine, where it can go wrong: real processes, real files, a daemon that dies."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.engine import Watch, alive

from gpuyard import faults
from gpuyard.engines import output, processes, wrapper
from gpuyard.engines.base import Ended, EngineError, LaunchRefused, NeverBegan, Placement, Running, Task
from gpuyard.engines.cgroups import find_cgroups
from gpuyard.engines.local import LocalEngine

SOURCES = Path(faults.__file__).parents[1]

Start = Callable[[], Watch]


@pytest.fixture(params=[True, False], ids=["cgroups", "census"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """A function that starts an engine, once for each way to find what a job has left behind."""
    if request.param:
        try:
            find_cgroups(tmp_path).close()
        except EngineError as error:
            pytest.skip(str(error))
    (tmp_path / "cwd").mkdir()
    made: list[Watch] = []

    def make() -> Watch:
        engine = LocalEngine(tmp_path / "jobs", ("gpu-a", "gpu-b"), "here", cgroups=request.param)
        made.append(Watch(engine, tmp_path / "cwd"))
        return made[-1]

    yield make
    last = make()
    for claim in (tmp_path / "jobs").glob("*/*/pid"):
        job, attempt = claim.parts[-3], int(claim.parts[-2])
        if isinstance(last.engine.adopt(job, attempt), Running):
            last.engine.stop(job, attempt, 0)
            last.until(Ended, job, attempt)
    for watch in made:
        watch.engine.close()
    if request.param:
        cgroups = find_cgroups(tmp_path / "jobs")
        cgroups.close()  # goes only if no attempt is left in it
        assert not Path(cgroups.base).exists()


@pytest.fixture
def watch(start: Start) -> Watch:
    """One engine."""
    return start()


def _folder(watch: Watch, job: str = "1") -> Path:
    return watch.directory.parent / "jobs" / job / "1"


def _zombies() -> list[int]:
    mine = [processes.look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [process.pid for process in mine if process and process.parent == os.getpid() and process.dead]


PLACE = Placement("here", ())


# What a job is given


def test_the_environment_is_the_submitters_and_ours(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")
    given = {
        "A": "1",
        "EMPTY": "",
        "LINES": "one\ntwo",
        "BYTES": "\udcff",
        "IFS": "x",
        "PPID": "12",
        "OPTIND": "3",
        "dir": "mine",
        "LD_LIBRARY_PATH": "/no/such",
        "BASH_FUNC_module%%": "() { eval `modulecmd bash $*`; }",
        "with.dot": "2",
        "gpuyard_line": "mine",
        "CUDA_VISIBLE_DEVICES": "all",
    }
    task = Task("1", ("/usr/bin/env", "-0"), str(watch.directory), given)
    watch.engine.launch(task, 1, Placement("here", (1,)))
    assert watch.until(Ended, "1").code == 0
    entries = [os.fsdecode(entry) for entry in watch.log("1").split(b"\0")[:-1]]
    ours = {
        "PWD": str(watch.directory),
        "CUDA_VISIBLE_DEVICES": "gpu-b",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUYARD_JOB_ID": "1",
        "GPUYARD_ATTEMPT": "1",
        "GPUYARD_RESTART_COUNT": "0",
        "GPUYARD_CHECKPOINT_DIR": str(watch.directory.parent / "work" / "1" / "checkpoint"),
        "GPUYARD_GPUS": "1",
        "GPUYARD_PROGRESS": str(watch.directory.parent / "work" / "1" / "progress"),
        "GPUYARD_RUN": str(_folder(watch)),
    }
    assert sorted(entries) == sorted(f"{key}={value}" for key, value in (given | ours).items())


def test_builtins_of_the_shell_are_not_commands(watch: Watch) -> None:
    watch.launch("1", "exit", "3")
    watch.launch("2", "eval", "echo hidden")
    assert watch.until(Ended, "1").code == 127
    assert watch.until(Ended, "2").code == 127


def test_a_command_with_an_equals_sign_beside_carried_variables(watch: Watch) -> None:
    program = watch.directory / "a=b"
    program.write_text("#!/bin/sh\necho $LD_X\n")
    program.chmod(0o755)
    watch.engine.launch(Task("1", ("./a=b",), str(watch.directory), {"LD_X": "carried"}), 1, PLACE)
    assert watch.until(Ended, "1").code == 0
    assert watch.log("1") == b"carried\n"


def test_a_missing_command_is_named_beside_carried_variables(watch: Watch) -> None:
    watch.engine.launch(Task("1", ("nothing here",), str(watch.directory), {"LD_X": "1"}), 1, PLACE)
    assert watch.until(Ended, "1").message == "command not found: nothing here"


def test_a_file_that_is_no_program(watch: Watch) -> None:
    (watch.directory / "notes.txt").write_text("hello")
    watch.launch("1", "./notes.txt")
    ended = watch.until(Ended, "1")
    assert (ended.code, ended.message) == (126, "cannot be executed: ./notes.txt")


def test_a_job_that_returns_127_itself_is_not_blamed_on_its_command(watch: Watch) -> None:
    watch.shell("1", "exit 127")
    assert watch.until(Ended, "1").message == ""


def test_no_file_descriptors_leak_into_jobs(watch: Watch) -> None:
    leaking = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaking, True)
    watch.launch("1", "/bin/ls", "/proc/self/fd")
    watch.until(Ended, "1")
    os.close(leaking)
    assert watch.log("1").split() == [b"0", b"1", b"2", b"3"]  # 3 is ls reading the directory


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Task("1", (), "/"), "empty"),
        (Task("1", ("",), "/"), "empty"),
        (Task("1", ("-x",), "/"), "an option, not a command"),
        (Task("1", ("true", "a\0b"), "/"), "NUL"),
        (Task("1", ("true",), "/", {"A": "\0"}), "NUL"),
        (Task("1", ("true",), "/", {"A=B": "1"}), "'A=B' cannot be the name"),
        (Task("1", ("true",), "/", {"": "1"}), "cannot be the name"),
        (Task("1", ("true", "\ud800"), "/"), "cannot be written"),
        (Task("1", ("true", "x" * 2_000_000), "/"), "longer than this system allows"),
        (Task("1", ("true",), "/", {f"V{n}": "x" * 100_000 for n in range(40)}), "longer than this system allows"),
        (Task("1", ("true",), "here"), "not an absolute path"),
        (Task("1", ("true",), "/etc/passwd"), "not a directory"),
    ],
)
def test_what_can_never_run_is_refused(watch: Watch, task: Task, reason: str) -> None:
    with pytest.raises(LaunchRefused, match=reason):
        watch.engine.launch(task, 1, PLACE)
    watch.idle(0.01)
    assert watch.reports == []


def test_what_the_machine_lacks_just_now_may_be_tried_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", fail)
        with pytest.raises(EngineError, match="temporarily unavailable"):
            watch.launch("1", "true")
    watch.launch("1", "true")
    assert watch.until(Ended, "1").code == 0


def test_gpus_and_nodes_that_are_not_there(watch: Watch) -> None:
    for place in (Placement("here", (2,)), Placement("there", ())):
        with pytest.raises(EngineError):
            watch.engine.launch(Task("1", ("true",), "/"), 1, place)


# How a job ends


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
    (_folder(watch) / "exit").mkdir(parents=True)
    watch.shell("1", "exit 7")
    ended = watch.until(Ended, "1")
    assert (ended.code, ended.message) == (7, "its exit code could not be written to the disk")


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
    deadline = time.monotonic() + 10
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
    assert watch.until(Ended, "1", seconds=15).code is not None
    folder = str(_folder(watch))
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
    before = len(os.listdir("/proc/self/fd"))
    for number in range(300):
        watch.launch(str(number), "true")
        if number % 30 == 0:
            watch.turn(0.0)
    for number in range(300):
        assert watch.until(Ended, str(number), seconds=20).code == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert _zombies() == []
    assert watch.engine.due() is None


# A daemon that dies

DAEMON = """
import sys
from pathlib import Path
from gpuyard.engines.base import Placement, Task
from gpuyard.engines.local import LocalEngine
jobs, work, cgroups, script = sys.argv[1:]
engine = LocalEngine(Path(jobs), (), "here", cgroups=cgroups == "True")
engine.launch(Task("1", ("/bin/sh", "-c", script), work), 1, Placement("here", ()))
"""


def _dying_daemon(watch: Watch, script: str, fault: str) -> None:
    """Let another process launch a job and die at that point."""
    assert isinstance(watch.engine, LocalEngine)
    with_cgroups = str(watch.engine._cgroups is not None)
    folders = str(_folder(watch).parents[1]), str(watch.directory)
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
    while not wrapper.read_exit(_folder(watch)):
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
    late = wrapper.command_line(task, _folder(watch), processes.life(), "")
    assert subprocess.run(late, cwd=task.directory, check=False, capture_output=True).returncode == 125
    assert not (watch.directory / "ran").exists()


def test_of_two_wrappers_one_runs_and_is_followed(watch: Watch) -> None:
    folder = _folder(watch)
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
    folder = _folder(watch)
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
    _folder(watch).mkdir(parents=True)
    (_folder(watch) / "pid").touch()
    assert watch.engine.adopt("1", 1) == NeverBegan("1", 1)


def test_a_claim_that_the_job_has_written_over(watch: Watch) -> None:
    watch.shell("1", 'printf "not\\na\\nclaim\\nat all\\n" >|"$GPUYARD_RUN/pid"; exit 4')
    assert watch.until(Ended, "1").code == 4
    assert wrapper.read_claim(_folder(watch)) == wrapper.INCOMPLETE


def test_a_claim_that_a_power_cut_has_emptied(watch: Watch) -> None:
    _folder(watch).mkdir(parents=True)
    (_folder(watch) / "pid").touch()
    os.utime(_folder(watch) / "pid", (1000, 1000))
    ended = watch.engine.adopt("1", 1)
    assert isinstance(ended, Ended)
    assert ended.interrupted


def test_a_claim_that_is_written_out_late(watch: Watch) -> None:
    folder = _folder(watch)
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
    for folder in (_folder(watch), _folder(watch).parent, _folder(watch).parents[1]):
        assert folder.stat().st_mode & 0o777 == 0o700


# Output


def test_a_hundred_megabytes_of_output(watch: Watch) -> None:
    watch.shell("1", "head -c 100000000 /dev/zero | tr '\\0' x", limit=10_000_000)
    watch.until(Ended, "1")
    assert watch.engine.log_size("1", 1) == 100_000_000
    log = _folder(watch) / "output.log"
    assert log.stat().st_blocks * 512 <= 10_000_000
    assert len(watch.log("1")) == pytest.approx(10_000_000, abs=10_000)


def test_output_is_limited_while_the_job_runs(watch: Watch) -> None:
    watch.shell("1", "head -c 3000000 /dev/zero; echo >up; sleep 60", limit=1_000_000)
    watch.wait_for("up")
    watch.idle(1.1)
    assert (_folder(watch) / "output.log").stat().st_blocks * 512 <= 1_000_000


def test_whoever_follows_the_output_keeps_their_place(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a" * 300_000)
    place, text = output.read(log, 0, 1000)
    assert (place, text) == (1000, b"a" * 1000)
    output.trim(log, 100_000)
    first, text = output.read(log, place, 2**20)
    assert text == b"a" * (8192 - 1000)
    last, text = output.read(log, first, 2**20)
    assert text == b"\n[gpuyard: %d bytes left out]\n" % (
        300_000 - 8192 - len(text.strip(b"\n").partition(b"\n")[2])
    ) + b"a" * (len(text.strip(b"\n").partition(b"\n")[2]))
    assert last == 300_000
    with log.open("ab") as file:
        file.write(b"more")
    assert output.read(log, last, 2**20) == (300_004, b"more")


def test_a_job_that_cuts_its_output_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"short")
    assert output.read(log, 900, 100) == (5, b"")


def test_where_no_holes_can_be_made_the_file_is_left_alone(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise output.HolesUnsupported(95, "Operation not supported")

    monkeypatch.setattr(output, "_punch", fail)
    for job in ("1", "2"):
        watch.shell(job, "head -c 30000 /dev/zero", limit=10_000)
        watch.until(Ended, job)
    assert (_folder(watch) / "output.log").stat().st_size == 30_000
    assert [record.message for record in caplog.records if "output is not limited" in record.message] != []
    assert len(caplog.records) == 1


# Who belongs to whom


def test_owners_by_environment_alone(watch: Watch) -> None:
    marked = subprocess.Popen(["sleep", "60"], env={"GPUYARD_RUN": str(_folder(watch, "17_3"))})
    foreign = subprocess.Popen(["sleep", "60"], env={"GPUYARD_RUN": "/somewhere/else/17/1"})
    try:
        deadline = time.monotonic() + 5
        while processes.mark_of(foreign.pid) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert watch.engine.owner(marked.pid) == ("17_3", 1)
        assert watch.engine.owner(foreign.pid) is None
    finally:
        for process in (marked, foreign):
            process.kill()
            process.wait()


def test_the_wrapper_has_an_owner(watch: Watch) -> None:
    watch.launch("1", "sleep", "60")
    assert watch.engine.owner(int(watch.until(Running, "1").handle)) == ("1", 1)


def test_it_says_once_that_there_are_no_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Path) -> None:
        raise EngineError("no cgroup2 file system is mounted")

    monkeypatch.setattr("gpuyard.engines.cgroups.find_cgroups", fail)
    with caplog.at_level(logging.WARNING):
        engine = LocalEngine(tmp_path, ())
    engine.close()
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no cgroup2 file system is mounted"]
    with pytest.raises(EngineError):
        LocalEngine(tmp_path, (), cgroups=True)


def test_a_name_with_parentheses_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    with contextlib.closing(process.stdin) if process.stdin else contextlib.nullcontext():
        found = processes.look(process.pid)
    process.kill()
    process.wait()
    assert found is not None
    assert found.parent == os.getpid()
