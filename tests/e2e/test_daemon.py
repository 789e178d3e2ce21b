"""Daemons come and go; jobs, settings and what is known of them stay."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.yard import Done, Yard, finish, until

GO_ON = "echo on; while [ ! -e go ]; do sleep 0.02; done; exit 6"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_outlives_its_daemon(own_yard: Yard, number: int) -> None:
    own_yard.serve()
    id = own_yard.submit("--", "sh", "-c", GO_ON)
    waiting = own_yard.submit("--gpus", "4", "--", "true")
    own_yard.await_output(id, b"on\n")
    own_yard.end(number)
    assert own_yard("ps").code == 1
    own_yard.serve()
    assert [(job["id"], job["state"]) for job in own_yard.client.jobs()] == [(id, "running"), (waiting, "queued")]
    (own_yard.cwd / "go").touch()
    job = own_yard.wait(id)
    assert (job["state"], job["exit_code"], job["attempt"]) == ("failed", 6, 1)
    assert own_yard.client.log(id).data == b"on\n"
    assert own_yard.wait(waiting)["state"] == "succeeded"


def test_what_ends_without_a_daemon_is_known_afterwards(own_yard: Yard) -> None:
    own_yard.serve()
    id = own_yard.submit("--", "sh", "-c", f"{GO_ON}")
    own_yard.await_output(id, b"on\n")
    own_yard.end(signal.SIGKILL)
    (own_yard.cwd / "go").touch()
    exit_file = own_yard.data_dir / "jobs" / id / "1" / "exit"
    until(lambda: exit_file.stat().st_size, "the end of the job")
    own_yard.serve()
    job = own_yard.wait(id)
    assert (job["state"], job["exit_code"]) == ("failed", 6)


def test_run_stays_with_its_job_when_the_daemon_restarts(own_yard: Yard) -> None:
    own_yard.serve()
    running = own_yard.popen("run", "--", "sh", "-c", GO_ON)
    assert running.stdout is not None
    assert running.stdout.readline() == "on\n"
    own_yard.end(signal.SIGKILL)
    (own_yard.cwd / "go").touch()  # the job ends by itself: how, only a daemon can tell
    assert running.stderr is not None
    assert "the daemon went away" in running.stderr.readline()
    own_yard.serve()
    assert finish(running).code == 6


def test_a_second_daemon_on_the_same_data_refuses(yard: Yard) -> None:
    done = yard.process("serve", "--simulate-gpus", "2")
    assert (done.code, done.out) == (2, "")
    assert f"a daemon runs on {yard.data_dir} already" in done.err
    assert yard.json("status")["gpus"] == {"free": 4}


def test_a_policy_that_was_set_survives_unless_its_file_is_gone(own_yard: Yard) -> None:
    own_yard.serve()
    (own_yard.cwd / "mine.py").write_text("def mine(submit): return -submit\n")
    assert own_yard("policy", "set", "./mine.py:mine", "--placement", "spread").code == 0
    own_yard.end()
    own_yard.serve()
    assert own_yard.client.policy()["policy"] == f"{own_yard.cwd}/mine.py:mine@easy@spread"
    own_yard.end()
    (own_yard.cwd / "mine.py").unlink()
    own_yard.serve()
    assert own_yard.client.policy()["policy"] == "multifactor@easy@pack"


def test_up_and_down(own_yard: Yard) -> None:
    done = own_yard.process("up", "--simulate-gpus", "4x16G")
    assert done.code == 0, done.err
    assert done.out.startswith("gpuyard is up: 4 simulated GPUs, policy multifactor@easy@pack, ")
    try:
        pid = own_yard.json("status")["pid"]
        assert os.getsid(pid) != os.getsid(0)
        again = own_yard.process("up", "--policy", "sjf")
        assert (again.code, again.out.split(":")[0]) == (0, "gpuyard was up already")
        assert "the flags change nothing" in again.err
        id = own_yard.submit("--", "sh", "-c", GO_ON)
        own_yard.await_output(id, b"on\n")
        assert Path(own_yard.client.socket).exists()
        assert own_yard("down") == (0, "gpuyard is down; 1 job goes on running\n", "")
        assert not Path(own_yard.client.socket).exists()  # so that nobody waits for the next one
        nothing = own_yard("down", "--json")
        assert (nothing.code, nothing.out) == (0, "")
        assert "there is nothing to end" in nothing.err
        assert json.loads(own_yard.process("up", "--simulate-gpus", "4x16G", "--json").out)["jobs"] == {"running": 1}
        (own_yard.cwd / "go").touch()
        assert own_yard.wait(id)["exit_code"] == 6
    finally:
        own_yard("down")


def test_down_names_a_daemon_that_does_not_answer(own_yard: Yard) -> None:
    with open(own_yard.data_dir / "daemon.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        done = own_yard("down")
    assert done.code == 2
    assert "a daemon (process 4711) is on" in done.err
    assert "does not answer; end it first (kill 4711)" in done.err


def test_up_shows_why_a_daemon_cannot_begin(own_yard: Yard) -> None:
    done = own_yard.process("up", "--policy", "sfj", "--simulate-gpus", "1")
    assert (done.code, done.out) == (1, "")
    assert "did you mean 'sjf'?" in done.err
    assert "the daemon ended as it started" in done.err


def test_other_gpus_are_refused_while_a_job_is_on_the_former(own_yard: Yard) -> None:
    own_yard.serve()
    id = own_yard.submit("--", "sleep", "1000")
    own_yard.client.job(id, wait=30, until="start")
    own_yard.end()
    done = own_yard.process("serve", "--simulate-gpus", "2")
    assert done.code == 2
    assert f"job {id} still runs on GPUs that the daemon would not have now" in done.err


USUALLY = """
import sys
from gpuyard import config
config.PORT = int(sys.argv.pop(1))
from gpuyard.cli import main
main()
"""
"""A command of a gpuyard whose usual port is another: the real one may be in use by another test."""


def test_a_port_that_is_taken_is_told_loudly(own_yard: Yard) -> None:
    own_yard.environment["GPUYARD_PORT"] = ""

    def begin(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", USUALLY, str(port), *words], cwd=own_yard.cwd, env=own_yard.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def told() -> Done:
        done = finish(begin("doctor"))
        assert f"port {port} is taken, so there is no API on TCP\n" in done.out, done
        return done

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "-> is another daemon, or watchmen's server, running? choose another by --port" in told().out
        with begin("serve", "--simulate-gpus", "1") as daemon:
            try:
                until(lambda: own_yard("status").code == 0, "an answer")
                [sentence] = own_yard.client.status()["warnings"]
                assert sentence.startswith(f"port {port} is taken, so there is no API on TCP; is another daemon")
                assert sentence in own_yard("status").out
                assert f"gpuyard: warning: {sentence}\n" in own_yard("up").err
                told()
            finally:
                daemon.terminate()
                _, log = daemon.communicate()
        assert sentence in log
    own_yard.serve("--port", "none")
    assert own_yard.client.status()["warnings"] == []
