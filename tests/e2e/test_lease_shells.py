"""Leases of shells: who holds what `gpuyard acquire` prints, in scripts and where somebody types."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.yard import PATIENCE, Yard, finish, until


@pytest.fixture
def program(yard: Yard, tmp_path: Path) -> Yard:
    """The shared yard, and `gpuyard` as a program that shells find."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gpuyard").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuyard "$@"\n')
    (folder / "gpuyard").chmod(0o755)
    found = Yard(yard.data_dir, tmp_path)
    found.environment["PATH"] = f"{folder}:{found.environment['PATH']}"
    return found


def shell(yard: Yard, *command: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=yard.cwd, env=yard.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, **more,
    )  # fmt: skip


@contextlib.contextmanager
def killed_in_the_end(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """A process that nobody waits for where a test fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()


WAYS = """
a=$(gpuyard acquire --gpu-memory 1G --name plain)
b=$(gpuyard acquire --gpu-memory 1G --name pipe | head -1)
export c=$(gpuyard acquire --gpu-memory 1G --name export)
inner() { d=$(gpuyard acquire --gpu-memory 1G --name function); }
inner
e=$( (gpuyard acquire --gpu-memory 1G --name parentheses) )
f=$(timeout 60 gpuyard acquire --gpu-memory 1G --name timeout)
g=$(true; gpuyard acquire --gpu-memory 1G --name several; true)
h=$(gpuyard acquire --gpu-memory 1G --name prefix) true
gpuyard acquire --gpu-memory 1G --name bare >bare
echo --name xargs | xargs gpuyard acquire --gpu-memory 1G >xargs
echo $a $b $c $d $e $f $g $(cat bare) $(cat xargs)
read line
"""


OWN = """
gpuyard acquire --gpus 3 --json
gpuyard acquire --gpus 3 && exit 9
{python} -c 'import gpuyard; gpuyard.acquire(gpus=3)' && exit 9
exit 0
"""


def test_who_would_wait_for_its_own_lease_is_refused_with_the_holder_named(program: Yard) -> None:
    process = shell(program, "bash", "-c", OWN.format(python=sys.executable))
    out, err = process.communicate(timeout=PATIENCE)
    id = json.loads(out)["id"]
    told = f"holds lease {id} on GPU 0, 1, 2 already; gpuyard release {id} gives it back; CUDA_VISIBLE_DEVICES=0,1,2"
    assert f"would wait for itself, so it was given up: this shell (pid {process.pid}, bash) {told}" in err
    assert f"would wait for itself, so it was given up: a process above (pid {process.pid}, bash) {told}" in err


@pytest.mark.parametrize("name", ["bash", "dash", pytest.param("zsh", marks=pytest.mark.program)])
def test_the_shell_that_asks_holds_the_lease(program: Yard, name: str) -> None:
    if shutil.which(name) is None:  # bash and dash: only where they are no part of the system, as they are of Debian
        pytest.skip(f"no {name}; apt-get install {name}")
    (program.cwd / "script").write_text(WAYS)
    with killed_in_the_end(shell(program, name, "script")) as script:
        assert script.stdout is not None
        assert script.stdout.readline().split() == 9 * ["0"]
        held = program.client.jobs(state="running")
        names = ["plain", "pipe", "export", "function", "parentheses", "timeout", "several", "prefix", "bare", "xargs"]
        assert {job["name"]: job.get("pid") for job in held} == dict.fromkeys(names, script.pid)
    until(lambda: not program.client.jobs(), "the end of all leases")


SUBSHELLS = """
for task in 1 2; do
    (gpu=$(gpuyard acquire --gpus 3); echo $gpu $BASHPID $(gpuyard ps --json | tr -d '[]{} ' | tr , '\n' | grep pid)) &
done
wait
echo $(gpu=$(gpuyard acquire --gpus 3); echo $gpu)
bash -c 'gpu=$(gpuyard acquire --gpus 3); echo $gpu'
"""


def test_a_subshell_that_asks_for_itself_holds_it_and_leaves_it_to_the_next(program: Yard) -> None:
    with killed_in_the_end(shell(program, "bash", "-c", SUBSHELLS)) as script:
        out, err = script.communicate(timeout=PATIENCE)
    *tasks, third, fourth = out.splitlines()
    assert len(tasks) == 2, err
    for line in tasks:
        gpus, own, *pids = line.split()
        assert (gpus, f'"pid":{own}' in pids) == ("0,1,2", True)
    assert (third, fourth) == ("0,1,2", "0,1,2")
    until(lambda: not program.client.jobs(), "the end of all leases")


def test_a_waiting_command_gives_up_when_it_is_ended_and_tells_why_it_waits(program: Yard) -> None:
    with killed_in_the_end(subprocess.Popen(["sleep", "1000"])) as other:
        assert program("acquire", "--gpus", "4", "--pid", str(other.pid)).out == "0,1,2,3\n"
        late = program("acquire", "--timeout", "0.1")
        assert (late.code, late.out) == (1, "")
        assert "no GPUs within 0.1s (needs 1 GPU, 0 idle); the request was given up" in late.err
        for end, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9), (None, 1)):
            waiter = program.popen("acquire")
            [waiting] = until(lambda: program.client.jobs(state="queued"))
            if end is None:
                program("cancel", waiting["id"])
            else:
                time.sleep(1.2 if end == signal.SIGINT else 0)
                waiter.send_signal(end)
            done = finish(waiter)
            assert (done.code, done.out) == (code, "")
            assert "Traceback" not in done.err
            assert program.wait(waiting["id"])["state"] == "cancelled"
            if end == signal.SIGINT:
                assert f"lease {waiting['id']} waits: needs 1 GPU, 0 idle" in done.err
            if end is None:
                assert f"lease {waiting['id']} was cancelled: cancelled while it waited" in done.err
    until(lambda: not program.client.jobs(), "the end of the lease")


def test_what_acquire_prints(program: Yard) -> None:
    options = "--gpus 2 --from 0,1,3 --gpu-memory 6G --name n --priority 2 --tag a --estimate 1h --time 90m"
    told = program.json("acquire", *options.split(), "--pid", str(os.getpid()))
    assert told == {"id": told["id"], "gpus": [0, 1], "uuids": ["SIMULATED-0", "SIMULATED-1"], "pid": os.getpid()}
    job = program.client.job(told["id"])
    assert (job["name"], job["priority"], job["tags"], job["time_limit"]) == ("n", 2, ["a"], 5400)
    own = ("--pid", str(os.getpid()))
    assert program("acquire", "--from", "2,3", *own).out == "2,3\n"  # all of them
    assert program("acquire", "--gpu-memory", "1G", "--uuids", *own).out == "SIMULATED-0\n"
    assert "'x' is not" in program("acquire", "--gpu-memory", "x").err
    never = program("acquire", "--gpus", "9")
    assert (never.code, "this lease can never begin here" in never.err) == (2, True)
    nobody = program("acquire", "--pid", "99999999")
    assert (nobody.code, "there is no process 99999999" in nobody.err) == (2, True)


def test_a_shell_that_somebody_types_in_loses_its_lease_when_it_is_not_used(own_yard: Yard, tmp_path: Path) -> None:
    own_yard.environment["GPUYARD_LEASE_IDLE"] = "1"
    own_yard.serve()
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "gpuyard", "acquire"]
    bash = subprocess.Popen(
        ["bash", "--norc", "-i"], env=own_yard.environment, cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )  # fmt: skip
    with killed_in_the_end(bash) as typed_in:
        threading.Thread(target=_read_all, args=(master,), daemon=True).start()
        os.write(master, f"unused=$({' '.join(command)})\n".encode())
        unused = until(lambda: own_yard.client.jobs(state="running"))[0]
        assert unused["pid"] == typed_in.pid
        time.sleep(2)  # twice as long as a shell may be idle
        assert own_yard.client.job(unused["id"])["state"] == "running"  # but it was never used
        os.write(master, b"sleep 3\n")
        ended = own_yard.wait(unused["id"])
        assert "its shell had nothing to do for 1s" in (ended["reason"] or "")
        assert typed_in.poll() is None
        os.write(master, f"again=$({' '.join(command)})\n".encode())
        until(lambda: own_yard.client.jobs(state="running"))
        os.write(master, b"exit\n")
        until(lambda: not own_yard.client.jobs(), "the end of the lease with its shell")
    os.close(slave)
    os.close(master)


def _read_all(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass
