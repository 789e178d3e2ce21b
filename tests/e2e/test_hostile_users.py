"""A root daemon and a user who means harm: what an attacker might try, with one account."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.users import PATH, Desk
from tests.yard import PATIENCE, Yard, until

from gpuyard.config import Settings
from gpuyard.engines.local.processes import MARK, look, read_proc
from gpuyard.notify.sender import MessageSender

ENDLESS = ("sleep", "1000")
SECRET = "s3cret-that-nobody-else-may-see"


def test_files_are_for_whom_they_should_be(a: Desk, b: Desk) -> None:
    id = a.submit("sh", "-c", "echo on; sleep 1000")
    a.yard.await_output(id, b"on\n")
    data = a.yard.data_dir
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in data.iterdir()}
    assert stat.S_IMODE(data.stat().st_mode) == 0o711
    assert (modes.pop("gpuyard.sock"), modes.pop("work"), modes.pop("jobs")) == (0o666, 0o711, 0o700)
    assert modes.pop("daemon.log") & 0o022 == 0  # made by the test, not by gpuyard up
    assert set(modes.values()) == {0o600}, modes
    ours = (data, *data.iterdir(), *data.glob("jobs/*"), *data.glob("jobs/*/*"), *data.glob("jobs/*/*/*"))
    assert all(path.lstat().st_uid == 0 for path in ours)
    work = data / "work" / id
    for path in (work, work / "checkpoint"):
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (a.user.uid, a.user.gid, 0o700)
    tries = f"cat {data}/gpuyard.db {data}/jobs/{id}/1/*; ls {data}; ls {data}/jobs; ls {data}/work; ls {work}"
    assert a.run("sh", "-c", f"({tries}) 2>/dev/null") == "checkpoint\n"
    assert b.run("sh", "-c", f"({tries}) 2>/dev/null; true") == ""


def test_a_users_variables_never_steer_what_runs_as_root(a: Desk, place: Path) -> None:
    traces = place / "traces"
    traces.mkdir()
    traces.chmod(0o777)  # without the sticky bit the kernel does not protect files in it
    script = a.user.home / "rc"
    script.write_text(f"id -u >>{traces}/sourced\n")
    script.chmod(0o644)
    given = {
        **a.user.environment(), "LD_DEBUG": "statistics", "LD_DEBUG_OUTPUT": f"{traces}/ld", "ENV": str(script),
        "BASH_ENV": str(script), "LD_PRELOAD": f"{a.user.home}/none.so", "PS4": f"$(id -u >>{traces}/sourced)",
        "SHELLOPTS": "xtrace", "PATH": f"{a.user.home}:{PATH}", "HOME": "/nowhere",
    }  # fmt: skip
    (a.user.home / "printf").write_text(f"#!/bin/sh\nid -u >>{traces}/sourced\n")
    (a.user.home / "printf").chmod(0o755)
    id = a.submit("sh", "-c", "echo on; exec sleep 1000", environment=given)
    a.yard.await_output(id, b"on\n")
    job = _session(a.yard, id)
    wrapper = min(job)
    names = {entry.partition(b"=")[0] for entry in (read_proc(wrapper, "environ") or b"").split(b"\0") if entry}
    assert names
    assert all(re.fullmatch(rb"GPUYARD_RUN|gpuyard_[eo]\d+", name) for name in names), names
    assert os.readlink(f"/proc/{wrapper}/cwd") == "/"
    a.ask(lambda client: client.cancel(id, grace=0))
    a.yard.wait(id)
    left = list(traces.iterdir())
    assert {path.stat().st_uid for path in left} == {a.user.uid}
    assert any(path.name.startswith("ld.") for path in left), "the job itself did obey them"


def test_a_users_modules_are_not_loaded_by_what_sends_their_notifications(
    a: Desk, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins as root; a Python that is no virtual environment would look into ~/.local by itself."""
    trace = place / "loaded"
    modules = a.user.home / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

    def plant() -> None:
        modules.mkdir(parents=True)
        (modules / "trap.pth").write_text(f"import os; open('{trace}', 'w').close()\n")

    a.user.do(plant)
    monkeypatch.setattr(sys, "executable", os.path.realpath(sys.executable))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    courier = MessageSender(Settings(a.yard.data_dir, Path(a.yard.client.socket)), 0)
    assert courier.check(a.user.name, "json://localhost/") == ""
    assert not trace.exists()


def _session(yard: Yard, id: str) -> list[int]:
    """The processes of a running job, wrapper included."""
    pid = int((yard.data_dir / "jobs" / id / "1" / "pid").read_text().split()[0])
    found = [look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [process.pid for process in found if process and process.session == pid]


def test_a_job_cannot_end_its_wrapper(a: Desk) -> None:
    script = "kill -9 $PPID; for p in $(ps -o pid= -s $PPID 2>/dev/null); do [ $p = $$ ] || kill -9 $p; done; exit 3"
    job = a.yard.wait(a.submit("sh", "-c", script))
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 3, "exit code 3")


def test_a_borrowed_mark_gets_nobody_killed(a: Desk, b: Desk) -> None:
    """Bob's process says that it is of Ann's job, which is cancelled."""
    id = a.submit("sh", "-c", "echo on; exec sleep 1000")
    a.yard.await_output(id, b"on\n")
    mark = {MARK: f"{a.yard.data_dir.resolve()}/jobs/{id}/1"}
    borrower = subprocess.Popen(["sleep", "999"], env=mark, user=b.user.uid, group=b.user.gid)
    try:
        a.ask(lambda client: client.cancel(id, grace=0))
        assert a.yard.wait(id)["state"] == "cancelled"
        assert borrower.poll() is None
    finally:
        borrower.kill()
        borrower.wait()


def test_a_borrowed_mark_keeps_nobody_from_ending(a: Desk, b: Desk) -> None:
    """The same, where Bob's process is an orphan of a job of his that runs, and Ann's job ends by itself."""
    id = a.submit("sh", "-c", "echo on; while [ ! -e go ]; do sleep 0.02; done")
    a.yard.await_output(id, b"on\n")
    mark = f"{MARK}={a.yard.data_dir.resolve()}/jobs/{id}/1"
    his = b.submit("sh", "-c", BORROW.format(mark))
    a.yard.await_output(his, b"\n")
    borrower = int(a.yard.client.log(his).data)
    try:
        a.user.do(lambda: Path("go").touch())
        job = a.yard.wait(id)
        assert (job["state"], job["message"]) == ("succeeded", None)
        assert (found := look(borrower)) is not None
        assert not found.dead
    finally:
        (a.user.home / "go").unlink()
        b.ask(lambda client: client.cancel(his, grace=0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(borrower, signal.SIGKILL)


BORROW = "(env {} setsid sh -c 'echo $$; exec sleep 999' &); exec sleep 1000"


def test_who_is_gone_before_the_answer_gets_no_limits_of_ours(a: Desk) -> None:
    """The limits of a job are read from the process that connected; another may hold its connection."""
    body = json.dumps({"command": ["true"], "directory": "/"}).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    head = f"POST /api/v1/jobs HTTP/1.0\r\nHost: x\r\n{kind}\r\n".encode()
    with socket.socket(socket.AF_UNIX) as connection:
        # the fork connects, and ends; this process goes on with the connection
        a.user.do(lambda: connection.connect(a.yard.client.socket))
        connection.sendall(head + body)
        answer = connection.makefile("rb").read()
    assert b"422" in answer.splitlines()[0]
    assert b"must live until it is answered" in answer


def test_a_request_that_never_ends_is_hung_up_on(a: Desk) -> None:
    def send() -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(a.yard.client.socket)
            connection.settimeout(PATIENCE)
            connection.sendall(b"GET /api/v1/status HTTP/1.1\r\nX: ")
            for sent in range(10_000):
                try:
                    connection.sendall(b"x" * 1000)
                except (BrokenPipeError, ConnectionResetError):
                    return sent
        return -1

    assert 100 < a.user.do(send) < 5000


def test_nobody_can_take_all_connections(a: Desk, b: Desk) -> None:
    files = Path("/proc", str(a.yard.client.status()["pid"]), "fd")
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(400)]

        def take() -> None:
            for connection in mine:
                connection.connect(a.yard.client.socket)

        a.user.do(take)
        mine[0].settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            assert mine[0].recv(1) == b"", "hung up on, for a newer one"
        assert b.run("echo", "on") == "on\n"
        assert len(list(files.iterdir())) < 350
    until(lambda: len(list(files.iterdir())) < 100, "the end of the connections")
    assert a.run("echo", "on") == "on\n"
