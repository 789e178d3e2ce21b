"""What the engine of this machine gives a job: environment, command, descriptors; and what can never run."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.contract.engine import Watch
from tests.localengine import PLACE, folder_of

from gpuyard.engines.base import Ended, EngineError, LaunchRefused, Placement, Task


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
        "GPUYARD_RUN": str(folder_of(watch)),
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
